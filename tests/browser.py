"""Chromium from Debian's package."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

PROGRAM = shutil.which("chromium")

needs_browser = pytest.mark.skipif(
    PROGRAM is None or not find_spec("playwright") or not find_spec("axe_playwright_python"),
    reason="needs Chromium (Debian's package chromium), playwright and axe-playwright-python",
)


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # root has no sandbox, and the tests open only our own pages
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def looking(browser: Any, *, but_of: Sequence[str] = (), **options: Any) -> Iterator[Any]:
    """Open a window. An error in the browser's log, such as a violated content security policy, is a failure.

    :param but_of: text of expected errors
    """
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce", **options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert [each for each in complaints if not any(part in each for part in but_of)] == []
