"""Our policies and Nova on the same streams of guests: accepted guests, splits, and times of decisions.

    python -m benchmarks.policies                      # all machines: some ten minutes
    python -m benchmarks.policies --quick --no-nova    # a short run, to test the program
    python -m benchmarks.policies --machines 32intel64-2p8co2t+8ve --json report.json

The machines are the larger ones of the captured machines (archives of hwloc's tests), and a made-up one,
because no captured machine has many L3 domains in a NUMA node. All CPUs are dedicated.
"""

import argparse
import json
import logging
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from prettytable import PrettyTable, TableStyle

from benchmarks.policy_judge import PlacementJudge
from benchmarks.policy_sides import NovaPolicy, OurPolicy, PolicySide
from benchmarks.policy_streams import GuestArrival, GuestDeparture, StreamGuest, claimed_cpus, make_stream
from benchmarks.reference import ReferenceMissing, install_environment
from benchmarks.topologies import SHARED, extract_machine
from compute_agent.host.reader import read_topology
from compute_agent.host.topology import HostTopology
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy import POLICIES
from tests.compute_agent.inventory.machines import machine

NOVA: Final = "nova-34.0.0"
NOVA_REQUIREMENTS: Final = Path(__file__).with_name("nova-requirements.txt")
MADE_UP: Final = "made up: 2 nodes of 8 L3s"
MACHINES: Final = (
    "32intel64-2p8co2t+8ve",
    "40intel64-4n10c+pci-conflicts",
    "64amd64-4s2n4ca2co",
    "128ia64-17n4s2c",
    "256ia64-64n2s2c",
    "fakecpuid1f-64intel64-2p4d2n2c2t",
    "memorysidecaches",
    "nvidiagpunumanodes",
    MADE_UP,
)

NOVA_SIDE: Final = "nova"
SIDES: Final = (NOVA_SIDE, "topology-aware", "static")
FULLEST, EMPTIEST, HOST = ZONES = ("fullest node first", "emptiest node first", "host")
"""The place of an allocation: a NUMA node, with the fullest or emptiest tried first, or the host."""


@dataclass(frozen=True, slots=True)
class PolicyScore:
    """The result of a side on a machine. Times are microseconds of CPU time for one decision."""

    machine: str
    zones: str
    side: str
    asked: int
    accepted: int
    split_nodes: int
    split_l3s: int
    whole_cores: float
    load: float
    median: float
    p99: float

    @property
    def needless_splits(self) -> int:
        """Return the guests with needless NUMA nodes, plus the guests with needless L3 domains."""
        return self.split_nodes + self.split_l3s


@dataclass(slots=True)
class PolicyRecord:
    """The events of a side. Cores and loads are those after each step since the first departure.

    ``times`` are the nanoseconds of the decisions.
    """

    accepted: int = 0
    split_nodes: int = 0
    split_l3s: int = 0
    whole_cores: list[int] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def make_score(self, machine: str, zones: str, side: str) -> PolicyScore:
        """Return the sums, means, median and percentile."""
        return PolicyScore(
            machine,
            zones,
            side,
            len(self.times),
            self.accepted,
            self.split_nodes,
            self.split_l3s,
            _mean_or_nan(self.whole_cores),
            _mean_or_nan(self.loads),
            statistics.median(self.times) / 1000,
            statistics.quantiles(self.times, n=100)[98] / 1000,
        )


def _mean_or_nan(values: Sequence[float]) -> float:
    """Return the mean, or NaN without a departure: short streams do not fill large hosts."""
    return statistics.fmean(values) if values else math.nan


class WrongPlacement(Exception):
    """A side gave a guest CPUs that were not free, or the wrong number of CPUs."""


def read_machines(folder: Path, wanted: Sequence[str]) -> Iterator[tuple[str, HostTopology]]:
    """Yield names and topologies.

    :raises FileNotFoundError: an archive is missing.
    """
    for name in wanted:
        if name == MADE_UP:
            yield name, machine(packages=2, l3=8, cores=8, threads=2)
            continue
        with extract_machine(folder / f"{name}.tar.bz2") as root:
            yield name, read_topology(root)


def run_stream(
    topology: HostTopology,
    steps: Iterable[GuestArrival | GuestDeparture],
    side: PolicySide,
    record: PolicyRecord,
) -> None:
    """Run a stream of guests on a side.

    :raises WrongPlacement: the side assigned CPUs that are not free.
    """
    judge = PlacementJudge(topology)
    held: dict[str, frozenset[int]] = {}
    free = topology.online
    is_full = False
    for step in steps:
        match step:
            case GuestDeparture(name):
                is_full = True
                if name in held:
                    side.remove_guest(name)
                    free |= held.pop(name)
            case GuestArrival(guest):
                decision = side.place_guest(guest)
                record.times.append(decision.nanoseconds)
                if decision.cpus is not None:
                    taken = _taken_cpus(topology, guest, decision.cpus)
                    if not taken <= free or len(decision.cpus) != guest.vcpus:
                        raise WrongPlacement(f"{guest} on {sorted(decision.cpus)} of {sorted(free)}")
                    split = judge.judge_split(free, guest, decision.cpus)
                    record.accepted += 1
                    record.split_nodes += split.nodes > 0
                    record.split_l3s += split.l3s > 0
                    held[guest.name] = taken
                    free -= taken
        if is_full:
            record.whole_cores.append(judge.whole_cores(free))
            record.loads.append(1 - len(free) / len(topology.online))


def _taken_cpus(topology: HostTopology, guest: StreamGuest, cpus: frozenset[int]) -> frozenset[int]:
    if guest.thread_policy is not ThreadPolicy.ISOLATE:
        return cpus
    return cpus.union(*(topology.threads_of(cpu) for cpu in cpus))


def without_thread_policies(
    topology: HostTopology, steps: Iterable[GuestArrival | GuestDeparture]
) -> Iterator[GuestArrival | GuestDeparture]:
    """Yield the same amounts of CPUs for a policy without thread policies."""
    for step in steps:
        if isinstance(step, GuestArrival):
            guest = step.guest
            step = GuestArrival(
                replace(guest, vcpus=claimed_cpus(topology, guest), thread_policy=ThreadPolicy.PREFER)
            )
        yield step


def compare_sides(
    name: str, topology: HostTopology, arrivals: int, seeds: int, nova: NovaPolicy | None
) -> Iterator[PolicyScore]:
    """Yield the scores of all sides on a machine, measured in turns on each stream.

    Nova lacks guests on a host as a whole.
    """
    nodes = [node.cpus for node in topology.numa_nodes if node.cpus]
    for zones in ZONES:
        is_host, pack = zones == HOST, zones != EMPTIEST
        records = {side: PolicyRecord() for side in SIDES if side != NOVA_SIDE or (nova and not is_host)}
        for seed in range(seeds):
            for side, record in records.items():
                steps = make_stream(topology, arrivals, seed)
                if side == NOVA_SIDE:
                    assert nova is not None
                    nova.begin_host(topology, pack)
                    run_stream(topology, steps, nova, record)
                    continue
                if side == "static":
                    steps = without_thread_policies(topology, steps)
                cpus = [topology.online] if is_host else nodes
                run_stream(topology, steps, OurPolicy(topology, POLICIES[side], cpus, pack), record)
        yield from (record.make_score(name, zones, side) for side, record in records.items())


def format_table(scores: Iterable[PolicyScore]) -> str:
    """Return a Markdown table: a line for each machine and order of zones, with the sides in each cell."""
    lines: dict[tuple[str, str], list[PolicyScore]] = {}
    for score in scores:
        lines.setdefault((score.machine, score.zones), []).append(score)
    found = PrettyTable(_HEAD, align="r")
    found.align["machine"] = found.align["zones"] = "l"
    found.set_style(TableStyle.MARKDOWN)
    for (name, zones), sides in lines.items():
        cells = [
            " : ".join(shown(side) for side in sides)
            for shown in (
                lambda side: f"{side.accepted:,}",
                lambda side: f"{side.split_nodes}+{side.split_l3s}",
                lambda side: f"{side.whole_cores:.1f}",
                lambda side: f"{100 * side.load:.0f}",
                lambda side: f"{side.median:.0f}",
                lambda side: f"{side.p99:.0f}",
            )
        ]
        faster = f"{sides[0].median / sides[1].median:.1f}x" if sides[0].side == NOVA_SIDE else ""
        found.add_row([name, zones, *cells, faster])
    return str(found)


_HEAD = [
    "machine",
    "zones",
    "accepted",
    "split needlessly: nodes+L3s",
    "whole cores free",
    "load %",
    "µs median",
    "µs p99",
    "faster",
]


@dataclass(frozen=True, slots=True)
class PolicyGoals:
    """The number of lines of the table in which topology-aware reaches each goal compared with Nova."""

    lines: int
    never_fewer_accepted: int
    half_the_needless_splits: int
    twenty_times_faster: int


def count_goals(scores: Iterable[PolicyScore]) -> PolicyGoals:
    """Count the lines that reach each goal."""
    by_line = {(score.machine, score.zones, score.side): score for score in scores}
    pairs = [
        (nova, by_line[nova.machine, nova.zones, "topology-aware"])
        for nova in by_line.values()
        if nova.side == NOVA_SIDE
    ]
    return PolicyGoals(
        len(pairs),
        sum(ours.accepted >= nova.accepted for nova, ours in pairs),
        sum(2 * ours.needless_splits <= nova.needless_splits for nova, ours in pairs),
        sum(20 * ours.median <= nova.median for nova, ours in pairs),
    )


def main() -> None:
    """Measure and print."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.policies", description=__doc__.partition("\n")[0]
    )
    top.add_argument("--machines", nargs="+", default=MACHINES, metavar="NAME")
    top.add_argument("--arrivals", type=int, default=500, help="number of guests in a stream (500)")
    top.add_argument(
        "--streams",
        type=int,
        default=5,
        help="number of streams for each machine, each with its own seed (5)",
    )
    top.add_argument("--no-nova", action="store_true", help="measure only our policies")
    top.add_argument("--quick", action="store_true", help="one short stream, to test the program")
    top.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    top.add_argument("--topologies", type=Path, default=SHARED / "topologies", metavar="FOLDER")
    arguments = top.parse_args()
    arrivals, streams = (60, 1) if arguments.quick else (arguments.arrivals, arguments.streams)
    scores: list[PolicyScore] = []
    with ExitStack() as stack:
        nova = None
        if not arguments.no_nova:
            try:
                programs = install_environment(NOVA, NOVA_REQUIREMENTS)
            except ReferenceMissing as missing:
                top.error(f"{missing}\nWithout Nova: --no-nova")
            nova = stack.enter_context(NovaPolicy(programs / "python"))
        try:
            for name, topology in read_machines(arguments.topologies, arguments.machines):
                print(name, file=sys.stderr, flush=True)
                scores += compare_sides(name, topology, arrivals, streams, nova)
        except FileNotFoundError as missing:
            top.error(str(missing))
    sides = [side for side in SIDES if any(score.side == side for score in scores)]
    print(f"In each cell: {' : '.join(sides)}. Asked: {scores[0].asked:,} guests.\n\n{format_table(scores)}")
    reached = count_goals(scores)
    if reached.lines:
        print(
            f"\nOf {reached.lines} lines: {reached.never_fewer_accepted} with no fewer accepted than by Nova,"
            f" {reached.half_the_needless_splits} with at most half the needless splits,"
            f" {reached.twenty_times_faster} at least 20 times faster."
        )
    if arguments.json:
        found = {"scores": [*map(asdict, scores)], "goals": asdict(reached)}
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    logging.disable()  # captured machines with old kernels lack many files
    main()
