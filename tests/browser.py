"""Browser fixture for the tests of pages: the installed Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
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


def missing_reason() -> str:
    """Return the reason why no browser is available; empty if there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "no playwright: pip install 'labelsieve[test]'"
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
            executable_path=shutil.which("chromium"), args=list(FLAGS), timeout=120_000
        )
        yield started
        started.close()
