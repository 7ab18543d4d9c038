"""The pages of the site as tests see them: blocks of code with what is marked about them.

A block is a fenced one. Its language says what becomes of it: `bash` is run, `ini` is loaded (and written, if
its first line is a comment that names a file), `output` is what the block before it prints. A comment before
a block, `<!-- block: WORD ... -->`, says what is different about it:

- `fails`: the commands end with another status than 0;
- `needs WHAT`: it is run where there is that, see `world.HAS`;
- `elsewhere REASON`: it is not run but parsed, as it is for another machine or person.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).parents[2]
SITE: Final = ROOT / "doc"

_MARK: Final = re.compile(r"<!-- block: (\w+) ?(.*?) *-->")
_FILE: Final = re.compile(r"# (add to )?([~/]?[\w./-]+\.(?:conf|ini|service|cfg))$")


@dataclass(frozen=True)
class Block:
    """One fenced block: where it begins, its language and text, and what is marked about it."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    reason: str = ""

    @property
    def file(self) -> str | None:
        """The file that the first line of an ini block names."""
        named = _FILE.match(self.text.partition("\n")[0])
        return named[2] if named else None

    @property
    def is_addition(self) -> bool:
        """Whether the file has more than this block."""
        named = _FILE.match(self.text.partition("\n")[0])
        return bool(named and named[1])

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages(*folders: str) -> list[Path]:
    """The pages in some folders of the site; without folders, all of them."""
    places = [SITE / folder for folder in folders] or [SITE]
    return sorted(
        page
        for place in places
        for page in place.rglob("*.md")
        if "_build" not in page.relative_to(SITE).parts
    )


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, from top to bottom."""
    mark, reason = "", ""
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            found = _MARK.search(token.content)
            mark, reason = (found[1], found[2]) if found else ("", "")
        elif token.type == "fence" and not token.info.startswith("{"):
            assert token.map is not None
            name = str(page.relative_to(SITE)) if page.is_relative_to(SITE) else page.name
            yield Block(name, token.map[0] + 1, token.info.strip(), token.content, mark, reason)
            mark, reason = "", ""


def commands(text: str) -> Iterator[str]:
    """The command lines of a shell block, those that go over several lines as one, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield stripped


def agrees(expected: str, printed: str) -> bool:
    """Whether the lines of an `output` block stand in what was printed, in this order.

    `...` stands for anything within a line, and on a line of its own for any lines; lines may have others
    between them. Blanks count as one, and what differs each time is to be written as `...`: numbers, uuids,
    times.
    """
    wanted = [line for line in expected.splitlines() if line.strip() not in ("", "...")]
    lines = iter(printed.splitlines())
    return all(any(_line_agrees(want, line) for line in lines) for want in wanted)


def _line_agrees(expected: str, printed: str) -> bool:
    parts = [r"\s+".join(map(re.escape, part.split())) for part in expected.split("...")]
    return re.search(r"\s*.*?\s*".join(parts), printed.strip()) is not None
