"""Lines of Markdown pages: find those that are too long, and wrap their paragraphs.

``python -m tests.paragraphs PAGE...`` wraps pages in place. Tables, headings, code, quotations and comments
keep their lines. Inline code and links are never broken.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

MAX_LINE: Final = 100
"""The longest line of a paragraph, in characters."""

_FENCE: Final = re.compile(r"\s*(```+|~~~+)")
_APART: Final = re.compile(r"\s*(\||#|<|>|:::|\([\w-]+\)=|---+$|\+\+\+)")
"""Lines that belong to no paragraph: tables, headings, HTML, quotations, directives, targets, rules."""
_ITEM: Final = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_TOKEN: Final = re.compile(r"(?:`[^`]*`|!?\[[^\]]*\]\([^)]*\)|\S)+")
_MARKER: Final = re.compile(r"([-*+]|\d+[.)]|#+|[=>|:].*)$")
"""A token that would begin a list, a heading, a quotation or a table at the beginning of a line."""


class Paragraph(NamedTuple):
    """Lines of running text: a paragraph, or the text of one item of a list."""

    start: int
    """Number of the first line, from 0."""
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(line.strip() for line in self.lines)

    def wrap(self) -> list[str]:
        """Break the text into lines of at most :data:`MAX_LINE` characters, where tokens permit it."""
        first = re.match(r"\s*", self.lines[0])
        item = _ITEM.match(self.lines[0])
        indent = " " * len((item or first or [""])[0])
        head = item[0] if item else indent
        tokens = _TOKEN.findall(self.text[len(head.lstrip()) if item else 0 :])
        wrapped, line = [], head + tokens[0]
        for position, token in enumerate(tokens[1:], start=1):
            later = tokens[position + 1] if position + 1 < len(tokens) else ""
            # a marker stays at the end of a line, together with its predecessor
            needed = len(token) + 1 + (len(later) + 1 if _MARKER.match(later) else 0)
            if len(line) + needed > MAX_LINE and not _MARKER.match(token):
                wrapped.append(line)
                line = indent + token
            else:
                line += f" {token}"
        return [*wrapped, line]


def find_paragraphs(page: str) -> Iterator[Paragraph]:
    """Find the paragraphs of a page, and the items of its lists."""
    lines, start, fence = page.split("\n"), -1, ""
    code = False
    for number, line in enumerate([*lines, ""]):
        opening = _FENCE.match(line)
        blank = not line.strip()
        if fence or opening or blank or _APART.match(line) or _ITEM.match(line):
            if start >= 0:
                yield Paragraph(start, tuple(lines[start:number]))
            start = -1
        if fence:
            fence = "" if opening and opening[1].startswith(fence) and line.strip() == opening[1] else fence
        elif opening:
            fence = opening[1]
        elif not blank and not _APART.match(line):
            # four blanks after an empty line begin a block of code, unless they belong to a list
            code = start < 0 and line.startswith("    ") and not _ITEM.match(line)
            start = -1 if code else number if start < 0 else start


def find_long_paragraphs(page: str) -> Iterator[Paragraph]:
    """Find the paragraphs with a line that is too long and can be broken."""
    for paragraph in find_paragraphs(page):
        hard_break = any(line.endswith(("  ", "\\")) for line in paragraph.lines)
        if max(map(len, paragraph.lines)) > MAX_LINE and not hard_break:
            wrapped = paragraph.wrap()
            if max(map(len, wrapped)) < max(map(len, paragraph.lines)) or wrapped != list(paragraph.lines):
                yield paragraph


def wrap_page(page: str) -> str:
    """Wrap the paragraphs of a page that have too long lines; leave the others as they are."""
    lines = page.split("\n")
    for paragraph in reversed([*find_long_paragraphs(page)]):
        lines[paragraph.start : paragraph.start + len(paragraph.lines)] = paragraph.wrap()
    return "\n".join(lines)


def main(pages: list[str]) -> None:
    """Wrap pages in place."""
    for name in pages:
        page = Path(name)
        before = page.read_text()
        if (after := wrap_page(before)) != before:
            page.write_text(after)


if __name__ == "__main__":
    main(sys.argv[1:])
