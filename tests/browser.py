"""A real browser for the tests of pages: Debian's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",  # Chromium refuses to run as root with it
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str:
    """Why there is no browser; empty where there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "no playwright: pip install 'labelsieve[test]'"
    return "" if shutil.which("chromium") else "no chromium: apt-get install chromium"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Playwright Browser; without one the test is skipped, or fails where LABELSIEVE_NEEDS_BROWSER is 1.

    While it is open its event loop runs in this thread, so that asyncio.run belongs into another thread or process.
    """
    reason = missing()
    if reason and os.environ.get("LABELSIEVE_NEEDS_BROWSER") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        yield started
        started.close()
