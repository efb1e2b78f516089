"""Browser fixture for the tests of pages: the installed Chromium, driven by Playwright."""

import json
import os
import shutil
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",  # Chromium does not run as root with a sandbox
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


AXE_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def missing_reason() -> str:
    """Return the reason why no browser is available; empty if there is one."""
    try:
        import axe_playwright_python  # noqa: F401
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "no playwright or axe-playwright-python: pip install 'labelsieve[test]'"
    return "" if shutil.which("chromium") else "no chromium: apt-get install chromium"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return a Playwright Browser; skip the test without one, or fail it if LABELSIEVE_NEEDS_BROWSER is 1.

    Its event loop runs in this thread while it is open, so call asyncio.run in another thread or process.
    """
    reason = missing_reason()
    if reason and os.environ.get("LABELSIEVE_NEEDS_BROWSER") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS), timeout=600_000
        )
        yield started
        started.close()


def axe_violations(page: Any, rules: tuple[str, ...] = AXE_RULES) -> list[str]:
    """Return what axe-core finds wrong on a page as it is displayed now, one line per element: rule, element, reason.

    The rules are those of WCAG 2.2 AA (contrast among them) and axe's best practices. The script is evaluated by the
    browser's debugger, so that the page's Content-Security-Policy may forbid scripts.
    """
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    options = {"runOnly": list(rules), "resultTypes": ["violations"]}
    found = page.evaluate(f"axe.run(document, {json.dumps(options)})")["violations"]
    lines = [(each["id"], node) for each in found for node in each["nodes"]]
    return [f"{rule}: {' '.join(map(str, node['target']))}: {node['failureSummary']}" for rule, node in lines]
