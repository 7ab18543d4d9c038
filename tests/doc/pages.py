"""Parser of the site's pages: blocks of code with their marks.

A block is fenced. Tests run the language `bash` and load `ini`. They write an ini block into the file
that a comment in its first line names. `output` is the expected output of the block before it. A comment
before a block, `<!-- block: WORD ... -->`, marks an exception:

- `fails`: the exit status is not 0;
- `needs WHAT`: the block runs only on machines that have this, see `world.HAS`;
- `elsewhere REASON`: the block is parsed, not run, because it is for another machine or person.
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
    """One fenced block: position, language, text and mark."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    reason: str = ""

    @property
    def file(self) -> str | None:
        """Name of the file in the first line of an ini block."""
        named = _FILE.match(self.text.partition("\n")[0])
        return named[2] if named else None

    @property
    def is_addition(self) -> bool:
        """Whether the block extends a file instead of replacing it."""
        named = _FILE.match(self.text.partition("\n")[0])
        return bool(named and named[1])

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages(*folders: str) -> list[Path]:
    """Return the pages in these folders of the site; without folders, all."""
    places = [SITE / folder for folder in folders] or [SITE]
    return sorted(
        page
        for place in places
        for page in place.rglob("*.md")
        if "_build" not in page.relative_to(SITE).parts
    )


def blocks(page: Path) -> Iterator[Block]:
    """Return the fenced blocks of a page, from top to bottom."""
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
    """Return the command lines of a shell block without comments, with continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield stripped


def agrees(expected: str, printed: str) -> bool:
    """Whether the output contains the lines of an `output` block, in this order.

    `...` stands for any text within a line, and on a line of its own for any lines. The output may have
    further lines. Any number of blanks counts as one. Pages write `...` for values that differ each time:
    numbers, uuids, times.
    """
    wanted = [line for line in expected.splitlines() if line.strip() not in ("", "...")]
    lines = iter(printed.splitlines())
    return all(any(_line_agrees(want, line) for line in lines) for want in wanted)


def _line_agrees(expected: str, printed: str) -> bool:
    parts = [r"\s+".join(map(re.escape, part.split())) for part in expected.split("...")]
    return re.search(r"\s*.*?\s*".join(parts), printed.strip()) is not None
