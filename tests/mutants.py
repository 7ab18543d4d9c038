"""Mutants: do the quick tests detect a change in deciding code?

``make mutants`` changes one token of a module that decides, in a copy of the checkout, and runs the quick
tests of the module. A mutant is detected if a test fails or does not end; the others are printed. For each of
those, write a test of the behaviour or, if the behaviour is the same, say why in ``mutants_explained.yaml``.

Cosmic Ray finds places and changes. Annotations and decorators are not changed, because they decide nothing.
"""

import argparse
import ast
import difflib
import importlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import hypothesis
import pytest
import yaml
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider
from parso.tree import NodeOrLeaf

from tests.examples import examples

ROOT: Final = Path(__file__).parents[1]
DECIDING: Final = {
    **{f"compute_agent/{name}": [] for name in ("policy", "throttling", "resctrl", "report", "inventory")},
    **{f"compute_agent/{name}": [] for name in ("isolation", "promises", "schedules")},
    **{f"placement/{name}": [] for name in ("search", "read_model")},
    "placement/store": ["tests/placement/api"],
}
"""Folders of code that decides, each with further folders of tests to run."""

_CPU_SECONDS, _SECONDS = 40, 400  # of one test
_OURS: Final = ("tests", "placement", "compute_agent")
_ALL: Final = OperatorProvider()
_OPERATORS: Final = {
    name: _ALL[name]()
    for name in _ALL
    # Operators on variables need names. Small numbers and members of enumerations do not tell `==` from `is`.
    if not re.match("Variable|RemoveDecorator|ReplaceComparison.*_Is", name)
    or re.search("Is_IsNot|IsNot_Is$", name)
}

Place = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One changed file."""

    file: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        diff = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=2)
        return "\n".join((f"{self.file}:{self.line}", *list(diff)[3:]))

    def change(self) -> dict[str, str]:
        """Key in the file of explanations, without line numbers, which change too often."""
        lines = [*difflib.ndiff(self.before.splitlines(), self.after.splitlines())]
        was, now = (" ".join(line[2:].strip() for line in lines if line[0] == sign) for sign in "-+")
        return {"file": self.file, "was": was, "now": now}

    def tests(self) -> list[str]:
        """Return the test modules of a module: its own, those of its folder, those that import it."""
        path = Path(self.file)
        tests = Path("tests", path.parts[0])
        folders = [tests.joinpath(*path.parts[1:2]), *map(Path, DECIDING["/".join(path.parts[:2])])]
        users = [user for user in Path(path.parts[0]).rglob("*.py") if _mentions(user, path)]
        ranks = {test: 3 for user in users for test in _tests_that_mention(user, tests)}
        ranks |= {test: 2 for folder in folders for test in folder.rglob("test_*.py")}
        ranks |= dict.fromkeys(_tests_that_mention(path, tests), 1)
        own = [test for test in ranks if test.name == f"test_{path.name}"]
        return [str(test) for test in sorted(ranks, key=lambda test: (test not in own, ranks[test], test))]


def _mentions(file: Path, module: Path) -> bool:
    name = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
    return re.search(rf"\b{name}\b", file.read_text()) is not None


def _tests_that_mention(module: Path, folder: Path) -> list[Path]:
    return [test for test in folder.rglob("test_*.py") if _mentions(test, module)]


def sample(count: int, seed: int, folders: Collection[str] = ()) -> list[Mutant]:
    """Draw random mutants: first a place, then an operator, because some places have many operators.

    :param folders: those of ``DECIDING`` to draw from; empty: all.
    """
    chance, places = random.Random(seed), []
    for file in sorted(file for folder in folders or DECIDING for file in Path(folder).rglob("*.py")):
        source = file.read_text()
        places += [(str(file), source, changes) for _, changes in sorted(changes_of(source).items())]
    drawn = []
    for file, source, changes in chance.sample(places, min(count, len(places))):
        name, occurrence, line = chance.choice(changes)
        with suppress(AttributeError):  # Cosmic Ray cannot replace one of several errors by module and name
            drawn.append(Mutant(file, line, source, mutate_code(source, _OPERATORS[name], occurrence)))
    return drawn


def changes_of(source: str) -> dict[Place, list[tuple[str, int, int]]]:
    """Return by place: the operator, the number of the place for this operator, and the line."""
    left_alone = list(_declarations(source))
    nodes = [node for node in ast_nodes(get_ast(source)) if not _is_never_changed(node)]
    found = defaultdict(list)
    for name, operator in _OPERATORS.items():
        starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(starts):
            if not any(first <= start < last for first, last in left_alone):
                found[start].append((name, occurrence, start[0]))
    return found


def _is_never_changed(node: NodeOrLeaf) -> bool:
    """Whether no operator applies, which a quick check tells for most."""
    return node.type in ("name", "string", "newline") or getattr(node, "value", "") in tuple("()[]{},.:=")


def _declarations(source: str) -> Iterator[tuple[Place, Place]]:
    """Whether the place is a type, a decorator, or the `strict` of :func:`zip` (lengths are equal)."""
    for node in ast.walk(ast.parse(source)):
        hints = (getattr(node, "annotation", None), getattr(node, "returns", None))
        strict = [node.value] if isinstance(node, ast.keyword) and node.arg == "strict" else []
        for part in filter(None, (*hints, *strict, *getattr(node, "decorator_list", ()))):
            yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


class Limits:
    """Ends the process if a test does not end. Runs property tests last, because they take longest."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: hasattr(getattr(item, "obj", None), "hypothesis"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)


def run_tests(arguments: Sequence[str]) -> int:
    """Run tests up to the first failure, without shrinking of failing examples."""
    phases = set(hypothesis.Phase) - {hypothesis.Phase.shrink, hypothesis.Phase.explain}
    usual = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.register_profile(
        "mutants", usual, max_examples=examples(100), phases=phases, database=None
    )
    options = [
        "-x",
        "-p",
        "no:cacheprovider",
        # instead of that of conftest.py
        "--hypothesis-profile",
        "mutants",
    ]
    return int(pytest.main([*options, *arguments], [Limits()]))


def in_child(do: Callable[[], int]) -> int:
    """Call the function in a new process that imports our packages from the current folder."""
    child = os.fork()
    if not child:
        os.setsid()
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
            del sys.modules[name]
        sys.path[0] = os.getcwd()
        Limits().pytest_runtest_setup()
        status = 1
        try:
            status = do()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes that a test left behind
    return os.waitstatus_to_exitcode(status)


def import_libraries(quick: Sequence[str], folder: Path) -> None:
    """Import the libraries of the tests once, and write the bytecode of our modules."""
    names = folder / "names"

    def collect() -> int:
        status = run_tests(["--collect-only", *quick])
        names.write_text(json.dumps(sorted(sys.modules)))
        return status

    if in_child(collect):
        raise SystemExit(f"The quick tests cannot be collected: pytest --collect-only {shlex.join(quick)}")
    for name in json.loads(names.read_text()):
        if name.partition(".")[0] not in (*_OURS, "_pytest"):
            with suppress(Exception):
                importlib.import_module(name)


def is_noticed(mutant: Mutant, options: Sequence[str]) -> bool:
    """Whether a test fails or does not end."""
    path = Path(mutant.file)
    times = path.stat()
    ignored = tuple(each.removeprefix("--ignore=") for each in options if each.startswith("--ignore="))
    tests = [test for test in mutant.tests() if not test.startswith(ignored)]
    path.write_text(mutant.after)
    os.utime(path, (times.st_atime, times.st_mtime + 10))  # otherwise old bytecode might be used
    sys.dont_write_bytecode = True
    try:
        status = in_child(lambda: run_tests([*options, *tests]))
    finally:
        path.write_text(mutant.before)
        os.utime(path, (times.st_atime, times.st_mtime))
    return status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def copy_checkout(to: Path) -> None:
    """Copy the files that git tracks, and untracked ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in [name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the mutants that the quick tests notice.")
    parser.add_argument("--count", type=int, default=200, help="how many mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="the same ones again")
    parser.add_argument(
        "--folder",
        action="append",
        choices=sorted(DECIDING),
        help="draw from this one alone; may be repeated",
    )
    parser.add_argument("quick", nargs="*", help="after --: what pytest takes for the quick tests")
    given = parser.parse_args()
    options = [each for each in given.quick if not Path(each).is_dir()]  # and not its folders
    explained = yaml.safe_load((ROOT / "tests" / "mutants_explained.yaml").read_text())
    fates: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        copy_checkout(copy)
        os.chdir(copy)
        print(f"Seed {given.seed}", flush=True)
        import_libraries(given.quick, Path(folder))
        for number, mutant in enumerate(sample(given.count, given.seed, given.folder or ()), 1):
            reasons = [each["why"] for each in explained if each.items() >= mutant.change().items()]
            noticed = is_noticed(mutant, options)
            fate = "noticed" if noticed else "explained" if reasons else "survived"
            fates[mutant.file.partition("/")[0], fate] += 1
            print(
                f"{number}: {fate}",
                f"{mutant.file}:{mutant.line}" if noticed else mutant,
                *reasons,
                flush=True,
            )
        os.chdir(ROOT)
    print(f"\n{'':15}{'noticed':>10}{'explained':>11}{'survived':>10}")
    for package in ("compute_agent", "placement"):
        counts = [fates[package, fate] for fate in ("noticed", "explained", "survived")]
        print(f"{package:15}{counts[0]:10}{counts[1]:11}{counts[2]:10}")
    noticed = sum(count for (_, fate), count in fates.items() if fate == "noticed")
    print(f"Noticed: {noticed} of {fates.total()}, {noticed / max(1, fates.total()):.1%}. Seed {given.seed}")


if __name__ == "__main__":
    main()
