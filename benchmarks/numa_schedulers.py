"""Guests with dedicated CPUs on hosts with several zones, placed by other schedulers and by claims: a table.

``python -m benchmarks.numa_schedulers`` starts and ends the same guests on the same hosts, for each
scheduler. It prints the number of refused guests, and how many zones the others cross. Only the guests are
random, and they follow from the seed. ``benchmarks/numa_schedulers.md`` describes the other schedulers. This
module has their formulas, not their code.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

from prettytable import PrettyTable, TableStyle

from benchmarks.worlds import uuid_of
from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas import candidates
from placement.search.budget import SearchBudget
from placement.search.claims.claim import (
    ClaimScenario,
    HostChoice,
    KnownSearches,
    WantedClaim,
    with_choice_held,
)
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.search.claims.topology import TopologyPolicy
from placement.store.consumers import ConsumerOwnership

CPUS: Final = 16
MEMORY: Final = 65_536
NEAR: Final = 12
FAR: Final = 22
MAX_ZONES: Final = 8
"""The divisor of LeastNUMANodes' scores."""
SIZES: Final = (1, 2, 2, 4, 4, 6, 8, 8, 12, 20, 24)
"""CPUs of guests, each with the same probability."""
MEMORY_PER_CPU: Final = (1_024, 2_048, 4_096, 8_192)
STAY: Final = 0.45
"""The share of steps in which a guest ends."""

Amount = tuple[int, int]
"""CPUs and MiB of memory."""
Taken = dict[int, Amount]
"""The amounts of a guest, by zone."""


@dataclass(frozen=True)
class GuestStep:
    """A guest that starts with an amount, or ends, if it was placed."""

    guest: int
    wants: Amount | None


def guest_steps(seed: int, count: int) -> Iterator[GuestStep]:
    """Yield the starts and ends of guests."""
    rng = random.Random(seed)
    present: list[int] = []
    for number in range(count):
        if present and number > count // 4 and rng.random() < STAY:
            yield GuestStep(present.pop(rng.randrange(len(present))), None)
        else:
            cpus = rng.choice(SIZES)
            present.append(number)
            yield GuestStep(number, (cpus, cpus * rng.choice(MEMORY_PER_CPU)))


@dataclass
class ZonedHost:
    """The free amounts of the zones of a host. The first two zones are neighbours, and so are the others."""

    free: list[Amount]

    @classmethod
    def from_number(cls, number: int) -> "ZonedHost":
        """Return a host: every third one has four zones, the others two."""
        return cls([(CPUS, MEMORY)] * (2 if number % 3 else 4))

    def free_sums(self, zones: Sequence[int]) -> Amount:
        return sum(self.free[each][0] for each in zones), sum(self.free[each][1] for each in zones)


def mean_distance(zones: Sequence[int]) -> float:
    """Return the mean distance of all pairs of zones, including each zone with itself (10)."""
    pairs = [
        10 if one == other else NEAR if one // 2 == other // 2 else FAR for one in zones for other in zones
    ]
    return sum(pairs) / len(pairs)


Chosen = tuple[int, Sequence[int]] | None
"""A host and zones of it, in the order in which they are filled; None refuses."""


def _smallest_sets(host: ZonedHost, wants: Amount) -> list[tuple[int, ...]]:
    """Return the smallest sets of zones with enough free amounts."""
    for size in range(1, len(host.free) + 1):
        found = [
            zones
            for zones in combinations(range(len(host.free)), size)
            if all(have >= want for have, want in zip(host.free_sums(zones), wants, strict=True))
        ]
        if found:
            return found
    return []


def choose_least_numa(hosts: Sequence[ZonedHost], wants: Amount) -> Chosen:
    """Choose by LeastNUMANodes with kubelet's policy best-effort, which takes the scored combination."""
    step = 100 // MAX_ZONES

    def scored_hosts() -> Iterator[tuple[float, int, Sequence[int]]]:
        for number, host in enumerate(hosts):
            fitting = _smallest_sets(host, wants)
            if not fitting:
                continue
            best = min(fitting, key=mean_distance)
            least = min(map(mean_distance, combinations(range(len(host.free)), len(best))))
            yield 100 - len(best) * step + (step / 2 if mean_distance(best) == least else 0), -number, best

    best = max(scored_hosts(), default=None, key=lambda each: each[:2])
    return None if best is None else (-best[1], best[2])


def choose_single_numa(hosts: Sequence[ZonedHost], wants: Amount) -> Chosen:
    """Choose by LeastNUMANodes with the policy single-numa-node, which filters: all scores are equal."""
    for number, host in enumerate(hosts):
        fitting = _smallest_sets(host, wants)
        if fitting and len(fitting[0]) == 1:
            return number, fitting[0]
    return None


def _by_free(host: ZonedHost, cpus: int) -> list[int]:
    """Return the zones with the most free CPUs, until their sum suffices."""
    zones: list[int] = []
    for zone in sorted(range(len(host.free)), key=lambda each: (-host.free[each][0], each)):
        if sum(host.free[each][0] for each in zones) < cpus:
            zones.append(zone)
    return zones


def choose_crane(hosts: Sequence[ZonedHost], wants: Amount) -> Chosen:
    """Choose by Crane's scorer of unaware guests: CPUs decide, memory counts for the whole host."""
    fitting = [
        (100 / len(zones), -number, zones)
        for number, host in enumerate(hosts)
        if all(have >= want for have, want in zip(host.free_sums(range(len(host.free))), wants, strict=True))
        for zones in [_by_free(host, wants[0])]
    ]
    best = max(fitting, default=None, key=lambda each: each[:2])
    return None if best is None else (-best[1], best[2])


def choose_crane_aware(hosts: Sequence[ZonedHost], wants: Amount) -> Chosen:
    """Choose by Crane's scorer of aware guests: one zone has all CPUs, or the guest is refused."""
    found = [
        (number, zones)
        for number, host in enumerate(hosts)
        if host.free_sums(range(len(host.free)))[1] >= wants[1]
        for zones in [_by_free(host, wants[0])]
        if len(zones) == 1 and host.free[zones[0]][0] >= wants[0]
    ]
    return found[0] if found else None


def fill_zones(host: ZonedHost, zones: Sequence[int], wants: Amount) -> Taken:
    """Take CPUs from the zones in turn, and memory from them, then from zones with most free memory."""
    cpus, memory = wants
    taken: Taken = {}
    rest = sorted(set(range(len(host.free))) - set(zones), key=lambda each: -host.free[each][1])
    for zone in (*zones, *rest):
        have = host.free[zone]
        here = (min(cpus, have[0]) if zone in zones else 0, min(memory, have[1]))
        if any(here):
            taken[zone] = here
            cpus, memory = cpus - here[0], memory - here[1]
    for zone, (some, more) in taken.items():
        host.free[zone] = host.free[zone][0] - some, host.free[zone][1] - more
    return taken


@dataclass
class ScheduleOutcome:
    """The result for all guests: the refused ones, and the zones of the others."""

    refused: int = 0
    refused_cpus: int = 0
    zones: list[Sequence[int]] = field(default_factory=list)

    def note_guest(self, zones: Sequence[int] | None, wants: Amount) -> None:
        """Note the result for one guest."""
        if zones is None:
            self.refused += 1
            self.refused_cpus += wants[0]
        else:
            self.zones.append(zones)


def scheduler_run(
    scheduler: Callable[[Sequence[ZonedHost], Amount], Chosen],
) -> Callable[[int, int, int], ScheduleOutcome]:
    """Return a function that runs the guests with a scheduler."""

    def run_guests(seed: int, hosts: int, count: int) -> ScheduleOutcome:
        world = [ZonedHost.from_number(number) for number in range(hosts)]
        there: dict[int, tuple[int, Taken]] = {}
        outcome = ScheduleOutcome()
        for step in guest_steps(seed, count):
            if step.wants is None:
                if step.guest in there:
                    number, taken = there.pop(step.guest)
                    free = world[number].free
                    for zone, (cpus, memory) in taken.items():
                        free[zone] = free[zone][0] + cpus, free[zone][1] + memory
                continue
            chosen = scheduler(world, step.wants)
            if chosen is not None:
                there[step.guest] = chosen[0], fill_zones(world[chosen[0]], chosen[1], step.wants)
            outcome.note_guest(None if chosen is None else sorted(there[step.guest][1]), step.wants)
        return outcome

    return run_guests


def claims_run(
    topology: TopologyPolicy, order: Mapping[str, float]
) -> Callable[[int, int, int], ScheduleOutcome]:
    """Return a function that runs the guests as claims with this topology and order."""

    def run_guests(seed: int, hosts: int, count: int) -> ScheduleOutcome:
        snapshot, distances = _zoned_snapshot(hosts)
        there: dict[int, HostChoice] = {}
        outcome, rng = ScheduleOutcome(), random.Random(seed)
        for step in guest_steps(seed, count):
            if step.wants is None:
                if step.guest in there:
                    snapshot = with_choice_held(snapshot, _negate_choice(there.pop(step.guest)))
                continue
            cpus, memory = step.wants
            body = {
                "query": f"resources=PCPU:{cpus},MEMORY_MB:{memory}",
                "flavor": None,
                "microversion": "1.39",
            }
            asked = candidates.parse_body(body, {})
            wanted = WantedClaim(
                str(step.guest),
                None,
                ConsumerOwnership("project", "user", "INSTANCE"),
                asked.request,
                asked.version,
                order=tuple(order.items()),
                topology=topology,
            )
            world = ClaimScenario(snapshot, KnownSearches(snapshot), distances=distances)
            found = place_claims(world, [wanted], SearchBudget(), rng)
            if isinstance(found, UnplacedClaim):
                outcome.note_guest(None, step.wants)
                continue
            choice = there[step.guest] = found[0].choice
            outcome.note_guest(
                sorted({int(each.name.rpartition("-")[2]) for each, _ in choice.resources}), step.wants
            )
            snapshot = with_choice_held(snapshot, choice)
        return outcome

    return run_guests


def _negate_choice(choice: HostChoice) -> HostChoice:
    resources = tuple(
        (each, {name: -amount for name, amount in amounts.items()}) for each, amounts in choice.resources
    )
    return replace(choice, resources=resources)


def _zoned_snapshot(hosts: int) -> tuple[ModelSnapshot, dict[tuple[int, int], int]]:
    snapshot, distances = ModelSnapshot(), {}
    for number in range(hosts):
        root = len(snapshot) + 1
        snapshot.put(_make_provider(root, f"h{number}", None, root, {}, ()))
        zones = range(root + 1, root + 1 + len(ZonedHost.from_number(number).free))
        for zone in zones:
            stock = {"PCPU": _make_inventory(CPUS), "MEMORY_MB": _make_inventory(MEMORY)}
            snapshot.put(_make_provider(zone, f"h{number}-{zone - zones[0]}", root, root, stock, (ZONE,)))
        for one, other in combinations(zones, 2):
            distances[one, other] = NEAR if (one - zones[0]) // 2 == (other - zones[0]) // 2 else FAR
    return snapshot, distances


def _make_inventory(total: int) -> Inventory:
    return Inventory(total, 0, 1, total, 1, 1.0)


def _make_provider(
    number: int,
    name: str,
    parent: int | None,
    root: int,
    inventories: Mapping[str, Inventory],
    traits: Sequence[str],
) -> Provider:
    return Provider(
        number, uuid_of(name), name, 0, parent, root, 0.0, inventories, {}, frozenset(traits), frozenset()
    )


ORDER: Final = {"numa_nodes": 4.0, "numa_distance": 2.0, "pack": 1.0}
SCHEDULERS: Final[Mapping[str, Callable[[int, int, int], ScheduleOutcome]]] = {
    "LeastNUMANodes, best-effort": scheduler_run(choose_least_numa),
    "LeastNUMANodes, single-numa-node": scheduler_run(choose_single_numa),
    "crane": scheduler_run(choose_crane),
    "crane, aware": scheduler_run(choose_crane_aware),
    "claims, best-effort": claims_run(TopologyPolicy.BEST_EFFORT, ORDER),
    "claims, restricted": claims_run(TopologyPolicy.RESTRICTED, ORDER),
    "claims, single-numa-node": claims_run(TopologyPolicy.SINGLE_NUMA, ORDER),
}


def table_row(name: str, seeds: Sequence[int], hosts: int, count: int) -> list[object]:
    """Return a line of the table: sums over the seeds."""
    outcomes = [SCHEDULERS[name](seed, hosts, count) for seed in seeds]
    zones = [each for outcome in outcomes for each in outcome.zones]
    split = [each for each in zones if len(each) > 1]
    return [
        name,
        len(zones),
        sum(each.refused for each in outcomes),
        sum(each.refused_cpus for each in outcomes),
        len(split),
        sum(len(each) - 1 for each in split),
        f"{sum(map(mean_distance, split)) / len(split):.1f}" if split else "",
    ]


COLUMNS: Final = ("scheduler", "placed", "refused", "CPUs refused", "split", "zones crossed", "mean distance")


def main() -> None:
    """Print the table."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.numa_schedulers", description=__doc__)
    top.add_argument("--hosts", type=int, default=12, help="number of hosts; default: %(default)s")
    top.add_argument(
        "--steps", type=int, default=400, help="number of starts and ends of guests; default: %(default)s"
    )
    top.add_argument("--seeds", type=int, default=5, help="number of worlds; default: %(default)s")
    options = top.parse_args()
    table = PrettyTable(COLUMNS, align="r")
    table.align["scheduler"] = "l"
    table.set_style(TableStyle.MARKDOWN)
    for name in SCHEDULERS:
        table.add_row(table_row(name, range(1, options.seeds + 1), options.hosts, options.steps))
    print(table)


if __name__ == "__main__":
    main()
