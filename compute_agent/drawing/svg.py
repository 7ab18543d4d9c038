"""What all pictures are made of."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

from compute_agent.model.messages import on_one_line

INK, GRID = "#22272b", "#e3e6e8"
"""Of charts: what is written, and lines behind curves."""


def document(
    title: str,
    description: str,
    width: float,
    height: float,
    parts: Iterable[str],
    left: float = 0,
    top: float = 0,
    ink: str = INK,
) -> str:
    """The document of these parts on white; ``left`` and ``top`` are the coordinates of its corner.

    Title and description are for those who cannot see it, and are what it is called.
    """
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{left} {top} {width:.0f} {height:.0f}"'
            f' font-family="sans-serif" font-size="12" fill="{ink}" role="img">',
            f"<title>{escaped(title)}</title>",
            f"<desc>{escaped(description)}</desc>",
            f'<rect x="{left}" y="{top}" width="100%" height="100%" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    """Words that begin at a point, or have it as their middle or end, as ``anchor`` says."""
    where = f'x="{x:.1f}" y="{y:.1f}"'
    if anchor != "start":
        where += f' text-anchor="{anchor}"'
    if weight != "normal":
        where += f' font-weight="{weight}"'
    return f"<text {where}>{escaped(words)}</text>"


def escaped(words: str) -> str:
    """Words for XML, which has no way to hold control characters."""
    return escape(on_one_line(words))
