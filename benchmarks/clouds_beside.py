"""Clouds in this version of the service and in another checkout, query by query, by CPU time.

Each version has a separate process with the same cloud, without HTTP. The versions answer each query in turn,
so that a disturbance of the machine affects both versions. The program compares the bodies of the answers.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final, Self

import orjson

from benchmarks.mixed import MixedCloud
from benchmarks.mixed_queries import query_paths
from placement.microversion import Microversion

_HERE: Final = Path(__file__).parents[1]
_WARM: Final = 2
# the packages of the service come from the other checkout, the benchmark from this one
_CHILD: Final = """
import sys
sys.path.insert(0, sys.argv[1])
import placement
sys.path[0] = sys.argv[2]
from benchmarks.clouds import answer_lines
answer_lines(*sys.argv[3:])
"""


class _VersionProcess:
    """A process of one version of the service, which answers queries to a cloud."""

    def __init__(self, checkout: Path, cloud: MixedCloud, hosts: int) -> None:
        folders = str(checkout), str(_HERE)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *folders, cloud.name, str(cloud.seed), str(hosts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask_question(self, path: str, version: Microversion) -> tuple[float, int, str]:
        """Return the CPU time of the answer in ms, its number of candidates, and a digest of its body."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orjson.dumps([path, version]) + b"\n")
        self._process.stdin.flush()
        cpu, candidates, digest = orjson.loads(self._process.stdout.readline())
        return cpu, candidates, digest


def compare_versions(
    other: Path,
    cloud: MixedCloud,
    hosts: int,
    limit: int,
    version: Microversion,
    queries: Sequence[str],
    count: int,
) -> Iterator[str]:
    """Yield the lines of a table: each kind of query in the other checkout and in this one."""
    yield "| query | candidates | CPU ms, other | CPU ms, this | µs a candidate | ratio | answers |"
    yield "| --- |" + " ---: |" * 5 + " --- |"
    ratios = []
    with ExitStack() as stack:
        sides = [stack.enter_context(_VersionProcess(each, cloud, hosts)) for each in (other, _HERE)]
        for query in queries:
            questions = islice(query_paths(query, cloud, limit, cloud.seed), _WARM + count)
            asked = [[side.ask_question(path, version) for side in sides] for path in questions][_WARM:]
            theirs, ours = (statistics.median([each[side][0] for each in asked]) for side in (0, 1))
            found = statistics.median([each[1][1] for each in asked])
            # the median of the ratios is steadier than the ratio of the medians, because questions differ
            ratios.append(statistics.median([each[0][0] / each[1][0] for each in asked]))
            differing = sum([each[0][2] != each[1][2] for each in asked])
            yield (
                f"| {query} | {found:.0f} | {theirs:.2f} | {ours:.2f} | {1000 * ours / max(found, 1):.1f} "
                f"| {ratios[-1]:.2f} | {f'{differing} DIFFER' if differing else 'equal'} |"
            )
    yield f"\nMedian ratio {statistics.median(ratios):.2f}, lowest {min(ratios):.2f}."
