"""The tables of CONTRIBUTING.md name classes, functions and files that exist."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FILE = re.compile(r"[\w*-][\w*./-]*(?:/[\w*./-]*|\.(?:py|md|yaml|cfg|toml|txt))")
_CLASS = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]*)*(?:\.[a-z_]+)?")
_FUNCTION = re.compile(r"_?[a-z]+(?:_[a-z]+)+")
_CONSTANT = re.compile(r"_?[A-Z]+(?:_[A-Z]+)*")

# Words of other programs, and of Placement's data, that look like names of the code.
_FOREIGN = {"pyproject.toml", "INFO", "ERROR", "VCPU", "PCPU", "NAME", "GET", "POST"}


def _spans() -> Iterator[tuple[int, str]]:
    for number, line in enumerate((ROOT / "CONTRIBUTING.md").read_text().splitlines(), 1):
        if line.startswith("|"):
            for span in re.findall(r"`([^`]+)`", line):
                yield number, span


def _files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_every_path_of_the_tables_exists() -> None:
    files = _files()
    paths = [Path("/") / path for path in {*files, *(parent for file in files for parent in file.parents)}]
    wrong = [
        f"line {number}: {span}"
        for number, span in _spans()
        if _FILE.fullmatch(span) and not any(path.match(span.rstrip("/")) for path in paths)
    ]
    assert not wrong


def test_every_class_function_and_constant_of_the_tables_exists() -> None:
    sources = "\n".join((ROOT / file).read_text() for file in _files() if file.suffix == ".py")
    classes = set(re.findall(r"^ *class (\w+)", sources, re.MULTILINE))
    functions = set(re.findall(r"^ *(?:async )?def (\w+)", sources, re.MULTILINE))
    names = set(re.findall(r"^ *(\w+)(?:: [^=\n]+)? = ", sources, re.MULTILINE))
    strings = set(re.findall(r"\"(\w+)\"", sources))
    folders = {part for file in _files() for part in file.parts}
    wrong = []
    for number, span in _spans():
        owner, _, member = span.partition(".")
        if span in _FOREIGN or span in folders:
            continue
        if _CLASS.fullmatch(span):
            exists = owner in classes | names and (not member or member in functions)
        elif _CONSTANT.fullmatch(span):
            exists = span in names | strings
        elif _FUNCTION.fullmatch(span):
            exists = span in functions | names | strings
        else:
            continue
        if not exists:
            wrong.append(f"line {number}: {span}")
    assert not wrong
