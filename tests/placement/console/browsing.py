"""Chromium, as Debian has it, and what every page has to pass in it."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from werkzeug.serving import make_server

PROGRAM = shutil.which("chromium")
SCREENSHOTS = Path(__file__).parents[3] / "build" / "console"
"""Where pictures of all pages are left, to be looked at."""

needs_browser = pytest.mark.skipif(
    PROGRAM is None or not find_spec("playwright") or not find_spec("axe_playwright_python"),
    reason="needs Chromium (Debian's package chromium), playwright and axe-playwright-python",
)


class Look(NamedTuple):
    """How somebody looks at a page: width and height in CSS pixels, and colours; whether axe looks, too."""

    name: str
    width: int
    height: int
    scheme: str = "light"
    is_judged: bool = True


LOOKS = (
    Look("light", 1440, 900),
    Look("dark", 1440, 900, "dark"),
    Look("narrow", 320, 640),
    Look("zoomed", 640, 400, "dark", False),  # a window of 1280 pixels at 200 %
    Look("4k", 3840, 2160, "light", False),
)
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Where the console of a service is, for a browser."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/console"
    server.shutdown()
    server.server_close()


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # root has no sandbox, and what is looked at here is our own
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def looking(browser: Any, **options: Any) -> Iterator[Any]:
    """A new window; whatever the browser complains about, such as a content security policy, is a failure."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce", **options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert not complaints, complaints


def check_everywhere(page: Any, name: str) -> None:
    """A page as everybody may look at it: nothing is cut off, axe finds nothing; and pictures of it."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for look in LOOKS:
        page.set_viewport_size({"width": look.width, "height": look.height})
        page.emulate_media(color_scheme=look.scheme)
        page.screenshot(path=SCREENSHOTS / f"{name}-{look.name}.png", full_page=True)
        assert cut_off(page) == [], look
        if look.is_judged:
            assert violations(page) == [], look


def cut_off(page: Any) -> list[str]:
    """What stands farther to the right than the window ends, as text."""
    found: list[str] = page.evaluate("""() => [...document.body.querySelectorAll('*')].filter(each => {
        const box = each.getBoundingClientRect();
        return box.width > 1 && box.right > document.documentElement.clientWidth + 1;
    }).map(each => each.tagName + ' ' + each.textContent.trim().slice(0, 60))""")
    return found


def violations(page: Any) -> list[str]:
    """What axe finds, a line each."""
    from axe_playwright_python.sync_playwright import Axe

    results = Axe().run(page, options=AXE).response
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in results["violations"]
        for node in each["nodes"]
    ]


def focus(page: Any) -> str:
    """What has the focus, and whether that can be seen."""
    found: str = page.evaluate("""() => {
        const each = document.activeElement, style = getComputedStyle(each);
        const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
        const name = each.name || each.textContent.trim().slice(0, 60);
        return name + (seen || each.tagName === 'BODY' ? '' : ' (unseen)');
    }""")
    return found
