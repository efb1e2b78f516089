"""The check of pages for accessibility: it reports what is wrong, in spite of a strict policy, and nothing else."""

from tests.browser import axe_violations

POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
PAGE = "<!doctype html><html lang=en><title>a page</title><main><h1>a title</h1><p style='color:#999'>grey</p></main>"


def test_low_contrast_is_reported(browser):
    page = browser.new_page()
    page.route("http://page.test/", lambda route: route.fulfill(body=PAGE, content_type="text/html", headers=POLICY))
    page.goto("http://page.test/")
    (violation,) = axe_violations(page)
    assert violation.startswith("color-contrast: p: ")
    page.evaluate("document.querySelector('p').style.color = '#000'")
    assert axe_violations(page) == []
    page.close()
