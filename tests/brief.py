"""Tests that ``make check`` leaves out, because they take long: one of eight tests.

``python -m tests.brief WORDS OF PYTEST`` runs tests, and writes those that take longer than
:data:`MAX_SECONDS` with all their parameters into ``tests/left_out_of_check.txt``. Tests that did not run
keep their lines, unless their file is gone. Run the command on a quiet machine, without parallel
processes.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
LIST: Final = Path(__file__).with_name("left_out_of_check.txt")
MAX_SECONDS: Final = 0.15


def read_left_out() -> frozenset[str]:
    """Read the names of the tests that are left out: the file, and the function with its classes."""
    return frozenset(LIST.read_text().split())


def function_of(nodeid: str) -> str:
    """Return the name of a test without its parameters."""
    return nodeid.split("[", 1)[0]


def choose_left_out(before: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """Choose the tests that are left out.

    :param before: the tests that were left out before
    :param seconds: the time of each test that ran now
    """
    kept = {name for name in before if name not in seconds and (ROOT / name.split("::")[0]).exists()}
    return sorted(kept | {name for name, took in seconds.items() if took > MAX_SECONDS})


class _Stopwatch:
    """A plugin of pytest that adds up the seconds of each test function."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[function_of(report.nodeid)] += report.duration


def main(words: list[str]) -> int:
    """Run tests and write the list; a failure leaves the list as it was."""
    stopwatch = _Stopwatch()
    if status := pytest.main(["-q", *words], plugins=[stopwatch]):
        return int(status)
    LIST.write_text("".join(f"{name}\n" for name in choose_left_out(read_left_out(), stopwatch.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
