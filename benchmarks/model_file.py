"""The cost of a start from a file of the read model: ``python -m benchmarks.model_file``.

The program writes the model of a `numa` world as the service does. A separate process reads it and then
answers queries. Times are CPU seconds of that process, and elapsed seconds. With `--before FOLDER`, the
source code of another version in this folder does the same in turns, so that both versions share the load of
the machine.
"""

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from benchmarks.models import Inventories, snapshot_of
from benchmarks.queries import QUERIES, parse_query
from benchmarks.worlds import WORLDS, WorldProvider
from placement.read_model.columns import WritableModel, decode_model, encode_model
from placement.read_model.follower import without_collection
from placement.read_model.model_file import ModelFile
from placement.read_model.rows import NameTable
from placement.search.candidate_search import find_candidates

_QUESTIONS: Final = 30
_PER_HOST: Final = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_file", description=__doc__)
    parser.add_argument(
        "--providers",
        type=int,
        nargs="+",
        default=[5_000, 1_000_000],
        help="number of providers; default: 5000 1000000",
    )
    parser.add_argument("--repeats", type=int, default=3, help="number of repeats; default: %(default)s")
    parser.add_argument("--used", type=float, default=0.0, help="share of inventories in use; default: none")
    parser.add_argument("--before", type=Path, help="folder with the source code of another version")
    options = parser.parse_args(arguments)
    versions = {"this": Path(__file__).parents[1]}
    if options.before is not None:
        versions = {"before": options.before.resolve(), **versions}
    print(
        "| version | providers | file, MB | read: CPU s | by the clock, s | at most, MB | question: CPU ms |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="placement-model-") as folder:
        for providers in options.providers:
            paths = {name: Path(folder) / name for name in versions}
            for name, version in versions.items():
                _run_statement(version, f"write(Path({str(paths[name])!r}), {providers}, {options.used})")
            rows: dict[str, list[list[float]]] = {name: [] for name in versions}
            for _ in range(options.repeats):
                for name, version in versions.items():
                    output = _run_statement(version, f"print(*read(Path({str(paths[name])!r})))")
                    rows[name].append([float(each) for each in output.split()])
            for name, measured in rows.items():
                cells = [_format_column(column) for column in zip(*measured, strict=True)]
                size = f"{paths[name].stat().st_size / 1e6:.1f}"
                print(f"| {name} | {providers:,} | {size} | " + " | ".join(cells) + " |")
            _print_ratios(rows)
    return 0


def _run_statement(version: Path, statement: str) -> str:
    """Run a statement with the functions of a version, in a new process."""
    code = f"from pathlib import Path; from benchmarks.model_file import read, write; {statement}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=version,
        env={**os.environ, "PYTHONPATH": str(version)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _print_ratios(rows: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Print the ratios of the times of this version and the other one, as medians over pairs of turns."""
    if "before" not in rows:
        return
    for column, name in enumerate(("CPU", "clock")):
        pairs = zip(rows["this"], rows["before"], strict=True)
        ratios = [this[column] / before[column] for this, before in pairs]
        print(f"this / before, {name}: {_format_column(ratios)}")


def _format_column(column: Sequence[float]) -> str:
    return f"{statistics.median(column):.3g} ({min(column):.3g} to {max(column):.3g})"


def write(path: Path, providers: int, share: float) -> None:
    """Write the model of a world with a number of providers, of which a share is in use."""
    rng = random.Random(18)

    def random_use(provider: WorldProvider, inventories: Inventories) -> Mapping[str, int]:
        return {
            name: rng.randrange(1, max(2, each.capacity))
            for name, each in inventories.items()
            if rng.random() < share
        }

    snapshot = snapshot_of(map(WORLDS["numa"].tree, range(providers // _PER_HOST)), random_use)
    members = list(snapshot)
    stamps = {each.id: each.described_seq for each in members}
    model = WritableModel("benchmark", NameTable((), ()), {}, {}, float("inf"), members, stamps)
    ModelFile(str(path)).write(encode_model(model, lambda: None))


def read(path: Path) -> tuple[float, float, float, float]:
    """Return CPU seconds, elapsed seconds, megabytes, and milliseconds for a limited query."""
    clock, busy = time.perf_counter(), time.process_time()
    with without_collection():
        _, state = decode_model(ModelFile(str(path)).read())
    clock, busy = time.perf_counter() - clock, time.process_time() - busy
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    query = next(each for each in QUERIES["numa"] if each.is_limited)
    taken = []
    for question in islice(query.member_paths(), _QUESTIONS):
        began = time.thread_time()
        find_candidates(state.snapshot, parse_query(question))
        taken.append(1000 * (time.thread_time() - began))
    return busy, clock, most, statistics.median(taken)


if __name__ == "__main__":
    raise SystemExit(main())
