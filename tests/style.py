"""Check what a pattern can find of the page of style: ``python -m tests.style``, a part of ``make lint``.

``doc/developer/style.md`` has the rules with examples. They apply to docstrings, comments, help of options
and commands, and the names of tests. They also apply to the comments of text files such as units and the
Makefile. Pages of Markdown are checked for banned words and long lines, which
``python -m tests.paragraphs PAGE`` wraps.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.paragraphs import MAX_LINE, find_long_paragraphs, find_paragraphs

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("placement", "placement_extras", "compute_agent", "benchmarks", "tests", "migrations")

OPENING: Final = re.compile(
    r"(What|Who|Whom|Whose|Those|That|Of|By|So|As|More|Less|Than|With|To|At|It|None|Nothing)\b"
)
"""A docstring or a help text opens with a noun phrase or a verb."""

PERSON: Final = re.compile(r"\b(who|whom|whose|whoever|nobody|somebody|everybody|anybody)\b", re.IGNORECASE)
"""Words for people. Code is not a person: "the worker", "the caller"."""

BANNED: Final = re.compile(
    r"\b(anew|so many|whoever|thereof|told of|taken up|takes up|as it is now|as they are now)\b",
    re.IGNORECASE,
)

PRONOUN: Final = re.compile(
    r"(?:It|There|Those|Others|(?:These|Both|Such) (?:is|are|was|were|has|have|do|may|can|must|need))\b"
)
"""A pronoun at the beginning of a comment. The reader does not know yet to which noun it refers."""

_PARTICIPLE: Final = r"(?:(?!need)\w+ed|read|held|made|written|kept|left|taken|sent|set|done|put|found|built)"
FRAGMENT: Final = re.compile(
    rf"(?:not |also |only )?{_PARTICIPLE}"
    r"(?:, (?:because|so)| (?:because|so that|only|once|again|before|after|here)\b)"
    r"|(?:sorted|True|False|None|Empty|Enough|Nothing|Unbuffered)"
    r"(?:,|:| (?:because|so|if|for|stands|means|leaves|by|while|until|before|after)\b)"
    r"|(?:not|also|only) (?:after|at|before|because|during|for|if|in|while)\b",
    re.IGNORECASE,
)
"""A comment without a subject: "Cached, because ..." instead of "The text is cached, because ..."."""

BOTH: Final = re.compile(
    r"\bboth(?=[.,;:)]|\s*$|\s+(?:are|is|have|has|do|may|can|must|were|was|in|on|at|by|for|with|as|if|because)\b)",
    re.IGNORECASE,
)
"""The word "both" without its noun."""

EMPTY_FIELD: Final = re.compile(r"^\s*:(?:raises|param|ivar) [^:\n]*:\s*$(?!\n\s+[^\s:])", re.MULTILINE)
"""A field of a docstring without a text."""

HEADING: Final = re.compile(
    r"^(Nouns|Imports|Modules|Invariants|A worked example|(?:The )?[Oo]rder of calls) [A-Z*`:]", re.MULTILINE
)
"""A heading of a package's document that a rewrapping program has joined with its paragraph."""

PAGES: Final = ("README.md", "CONTRIBUTING.md", "benchmarks/*.md", "doc/**/*.md")
TEXTS: Final = (".ci/*", "Makefile", "bin/*", "etc/**/*", "pyproject.toml", "setup.cfg", "tox.ini")
"""Text files with comments. Samples are generated from the help of options."""

_GENERATED: Final = "doc/_build"
_QUOTING: Final = "doc/developer/style.md"
"""The page of style quotes the banned words."""

MAX_WORDS: Final = 30
"""The longest sentence of a docstring or a help text."""

_SENTENCE_END: Final = re.compile(r"(?<=[.:;?!])\s+(?=[A-Z`:])|\n\s*\n|\n\s*(?=[-*:]|\.\. )")
_QUOTED: Final = re.compile(r"`[^`]*`|\"[^\"]*\"")
_COMMENT: Final = re.compile(r"(?P<code>|\s+|.*\s\s)#(?P<indent> +)(?P<text>.*)")
"""A comment in a text file. Two spaces separate it from code in the same line."""

_LABEL: Final = re.compile(r"\s*\"?(?:summary|description)\"?\s*[:=]\s*\"?(?P<text>.+)", re.IGNORECASE)
"""A text that a unit, an alert or a dashboard shows."""

_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`|:\w+:`[^`]*`")


class StyleProblem(NamedTuple):
    """One place where a text breaks a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def problems_of_text(text: str, *, opens: bool) -> Iterator[tuple[str, str]]:
    """Find the rules that a docstring or help text breaks, each with the words that break it.

    :param opens: whether the text begins a docstring or a help, so that its first word counts.
    """
    if (found := HEADING.search(text)) is not None:
        yield "heading without a line of its own", found.group()
    if opens and (found := OPENING.match(text.lstrip())):
        yield "opening word", found[0]
    if found := PRONOUN.match(text.lstrip()):
        yield "pronoun without a noun", found[0]
    if found := EMPTY_FIELD.search(text):
        yield "field without text", found[0].strip()
    plain = _CODE.sub("Code", text)  # capital: a sentence may start with code
    for rule, pattern in (("person for code", PERSON), ("banned word", BANNED)):
        for found in pattern.finditer(plain):
            yield rule, found[0]
    for found in BOTH.finditer(plain):
        yield "both without a noun", " ".join(plain[: found.end()].split()[-5:])
    for sentence in _SENTENCE_END.split(plain) if opens else ():
        if len(sentence.split()) > MAX_WORDS:
            yield f"sentence of {len(sentence.split())} words", " ".join(sentence.split()[:8]) + " ..."


def problems_of_comment(text: str, *, opens: bool = False) -> Iterator[tuple[str, str]]:
    """Find the rules that a comment of one or more lines breaks, each with the words that break it.

    :param opens: whether the rules for the first word and for long sentences apply, too.
    """
    if found := FRAGMENT.match(text):
        yield "comment without a subject", found[0]
    yield from problems_of_text(text, opens=opens)


def problems_of_file(path: Path) -> Iterator[StyleProblem]:
    """Find all problems of one Python file."""
    source = (ROOT / path).read_text()
    nodes = [*ast.walk(ast.parse(source))]
    for line, text, opens in _docstrings_and_helps(nodes):
        for rule, words in problems_of_text(text, opens=opens):
            yield StyleProblem(path, line, rule, words)
    for line, text in _comments(source):
        for rule, words in problems_of_comment(text):
            yield StyleProblem(path, line, rule, words)
    for line, name in _test_names(nodes):
        words = name.replace("_", " ").removeprefix("test ")
        opening = OPENING.match(words.capitalize())
        person = PERSON.search(words) or BANNED.search(words)
        if opening or person:
            yield StyleProblem(path, line, "name of a test", name)


def _docstrings_and_helps(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, bool]]:
    docstrings = set()
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node)
            if documented:
                docstrings.add(node.body[0])
                yield node.body[0].lineno, documented, True
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in ("help", "description", "deprecated_reason") and (
                    text := _literal(keyword.value)
                ):
                    yield keyword.value.lineno, text, keyword.arg == "help"
        # a string below a constant explains it
        if isinstance(node, ast.Expr) and node not in docstrings and (text := _literal(node.value)):
            yield node.lineno, text, False


def _literal(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Find the comments, each with its first line. Adjacent lines with one indentation are one comment."""
    if "#" not in source:
        return
    start, end, column, lines = 0, 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, at = token.start
        stands_alone = not token.line[:at].strip()
        if lines and not (stands_alone and line == end + 1 and at == column):
            yield start, " ".join(lines)
            lines = []
        if not lines:
            start, column = line, at if stands_alone else -1
        lines.append(token.string.lstrip("#: "))
        end = line
    if lines:
        yield start, " ".join(lines)


def problems_of_text_file(path: Path) -> Iterator[StyleProblem]:
    """Find the problems of the comments and labels in a file that is neither Python nor a page."""
    for line, text in comments_of_text((ROOT / path).read_text(encoding="utf-8")):
        for rule, words in problems_of_comment(text, opens=True):
            yield StyleProblem(path, line, rule, words)


def comments_of_text(source: str) -> Iterator[tuple[int, str]]:
    """Find the comments and labels of a text file, each with its first line.

    Adjacent lines of prose are one comment. An indented line, or a line with columns, is a separate comment.
    """
    start, prose = 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], start=1):
        found = _COMMENT.fullmatch(line)
        if found and found["indent"] == " " and not (found["code"].strip() or "  " in found["text"]):
            start = start if prose else number
            prose.append(found["text"])
            continue
        if prose:
            yield start, " ".join(prose)
            prose = []
        if found := found or _LABEL.fullmatch(line):
            yield number, found["text"]


def _test_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name


def problems_of_page(path: Path) -> Iterator[StyleProblem]:
    """Find banned words and long lines in the paragraphs of one page; people are allowed there."""
    page = (ROOT / path).read_text(encoding="utf-8")
    for paragraph in find_paragraphs(page) if path != Path(_QUOTING) else ():
        for number, line in enumerate(paragraph.lines, start=paragraph.start + 1):
            for found in BANNED.finditer(_QUOTED.sub("Code", line)):
                yield StyleProblem(path, number, "banned word", found[0])
    for paragraph in find_long_paragraphs(page):
        number = (
            paragraph.start + 1 + next(i for i, line in enumerate(paragraph.lines) if len(line) > MAX_LINE)
        )
        yield StyleProblem(
            path, number, f"line above {MAX_LINE} characters", "python -m tests.paragraphs wraps it"
        )


def find_pages() -> Iterator[Path]:
    """Find the pages of the checkout that are written by hand."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            if not (page := path.relative_to(ROOT)).is_relative_to(_GENERATED):
                yield page


def find_texts() -> Iterator[Path]:
    """Find the text files of the checkout, without generated files."""
    for pattern in TEXTS:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and path.suffix != ".sample":
                yield path.relative_to(ROOT)


def problems_below(folders: tuple[str, ...]) -> Iterator[StyleProblem]:
    """Find all problems of the Python files below some folders of the checkout."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from problems_of_file(path.relative_to(ROOT))


def main(arguments: list[str] | None = None) -> int:
    """Print the problems of the named files and folders, or of the whole checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", help="folders and files instead of the whole checkout")
    named = tuple(parser.parse_args(arguments).folders)
    pages = [Path(name) for name in named if name.endswith(".md")] if named else [*find_pages()]
    folders = tuple(name for name in named if not name.endswith(".md")) if named else FOLDERS
    texts = [text for text in find_texts() if not named or any(text.is_relative_to(name) for name in named)]
    problems = [*problems_below(folders)]
    problems += [problem for text in texts for problem in problems_of_text_file(text)]
    problems += [problem for page in pages for problem in problems_of_page(page)]
    for problem in problems:
        print(problem)
    print(f"Style: {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
