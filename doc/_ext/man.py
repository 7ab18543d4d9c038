"""Makes pages for man(1) from the parsers of the programs, and from the beginnings of their reference pages.

`python doc/_ext/man.py FOLDER` writes the pages into the folder. It does not use Sphinx, because packages are
built on machines without Sphinx.
"""

import os
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from commands import PROGRAMS, help_of, names_of, only_leads_on, own_options, parsers, usage

SECTION: Final = 8
_REFERENCE: Final = Path(__file__).parents[1] / "reference"
_SERVICE: Final = ("/etc/placement/placement.conf", "/etc/placement/policy.yaml")
_FILES: Final = {
    **dict.fromkeys(PROGRAMS, _SERVICE),
    "compute-agent": ("/etc/compute-agent/compute-agent.conf", "/var/lib/compute-agent"),
}


def page(program: str, made: time.struct_time) -> str:
    """Return the page of a program, in the format of roff; ``made`` is the date on the page."""
    return "\n".join(_lines(program, made)) + "\n"


def _lines(program: str, made: time.struct_time) -> Iterator[str]:
    summary, paragraphs = _introduction(program)
    day = time.strftime("%Y-%m-%d", made)
    yield f'.TH {program.upper()} {SECTION} {day} "placement-compute {version("placement-compute")}"'
    yield f".SH NAME\n{_text(program)} \\- {_text(summary)}"
    top, *_ = parsers(program).values()
    commands = {
        words: parser
        for words, parser in parsers(program).items()
        if words and not only_leads_on(words, parser)
    }
    yield ".SH SYNOPSIS"
    yield from _literal(usage(program, "", top) + (" COMMAND ..." if commands else ""))
    yield ".SH DESCRIPTION"
    yield "\n.PP\n".join(map(_text, paragraphs))
    yield ".SH OPTIONS"
    for action in own_options(top):
        yield from _option(names_of(action), help_of(action))
    if commands:
        yield ".SH COMMANDS"
    for words, parser in commands.items():
        yield f".SS {_text(words)}"
        yield from _literal(usage(program, words, parser))
        yield from (
            f".PP\n{_text(part)}" for part in (parser.description or "").split("\n\n") if part.strip()
        )
        for action in own_options(parser):
            yield from _option(names_of(action), help_of(action))
    if program != "compute-agent":
        yield ".SH ENVIRONMENT"
        yield from _option(
            ["OS_PLACEMENT_CONFIG_DIR"], "The folder of placement.conf, where no --config-file is given."
        )
    yield ".SH FILES"
    for name in _FILES[program]:
        yield f".TP\n.I {_text(name)}\n"
    yield ".SH SEE ALSO"
    others = [other for other in PROGRAMS if other != program]
    yield ",\n".join(f".BR {_text(other)} ({SECTION})" for other in others).replace(",\n.BR", " ,\n.BR")


def _introduction(program: str) -> tuple[str, list[str]]:
    """Return a summary of a program in one line, and the first paragraphs of its page in the reference."""
    source = (_REFERENCE / f"{program}.md").read_text()
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", source.partition("\n")[2].partition("<!--")[0])
    paragraphs = [" ".join(part.split()).replace("`", "") for part in text.split("\n\n") if part.strip()]
    first = paragraphs[0].partition(". ")[0].rstrip(".")
    return first[0].lower() + first[1:], paragraphs


def _option(names: list[str], text: str) -> Iterator[str]:
    yield ".TP"
    yield f".B {', '.join(map(_text, names))}"
    yield _text(" ".join(text.split())) or "\\&"


def _literal(text: str) -> Iterator[str]:
    yield ".EX"
    yield from map(_text, text.splitlines())
    yield ".EE"


def _text(text: str) -> str:
    """Return a text for roff: no line of it is a command of roff, and readers can copy its hyphens."""
    plain = re.sub(r"``?(.+?)``?", r"\1", " ".join(text.split("\n")))
    safe = plain.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe


def main(folder: Path) -> None:
    """Write the pages of all programs into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    for program in PROGRAMS:
        (folder / f"{program}.{SECTION}").write_text(page(program, made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
