"""Checks in the browser Chromium that each page of the console has to pass."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from werkzeug.serving import make_server

SCREENSHOTS = Path(__file__).parents[3] / "build" / "console"
"""The folder for pictures of all pages, for a person to look at."""


class Look(NamedTuple):
    """A way to show a page: width and height in CSS pixels, light or dark colours, and whether axe checks it,
    too.
    """

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
    """The address of a service's console, for a browser."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/console"
    server.shutdown()
    server.server_close()


def check_everywhere(page: Any, name: str) -> None:
    """Check a page in all ways to show it: nothing is cut off, and axe finds no fault. Pictures are taken."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for look in LOOKS:
        page.set_viewport_size({"width": look.width, "height": look.height})
        page.emulate_media(color_scheme=look.scheme)
        page.screenshot(path=SCREENSHOTS / f"{name}-{look.name}.png", full_page=True)
        assert cut_off(page) == [], look
        if look.is_judged:
            assert violations(page) == [], look


def cut_off(page: Any) -> list[str]:
    """The elements with a right edge outside of the window, as text."""
    found: list[str] = page.evaluate("""() => [...document.body.querySelectorAll('*')].filter(each => {
        const box = each.getBoundingClientRect();
        return box.width > 1 && box.right > document.documentElement.clientWidth + 1;
    }).map(each => each.tagName + ' ' + each.textContent.trim().slice(0, 60))""")
    return found


def violations(page: Any) -> list[str]:
    """The faults that axe finds, one in each line."""
    from axe_playwright_python.sync_playwright import Axe

    results = Axe().run(page, options=AXE).response
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in results["violations"]
        for node in each["nodes"]
    ]


def focus(page: Any) -> str:
    """The element with the focus, and whether the focus is visible."""
    found: str = page.evaluate("""() => {
        const each = document.activeElement, style = getComputedStyle(each);
        const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
        const name = each.name || each.textContent.trim().slice(0, 60);
        return name + (seen || each.tagName === 'BODY' ? '' : ' (unseen)');
    }""")
    return found
