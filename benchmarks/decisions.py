"""The time of decisions of the service at 10,000 hosts: ``python -m benchmarks.decisions``.

Explanations, counts of guests, places for the guests of drained hosts, migrations that make room, and places
of claims. The program uses the read model alone, in this process, like ``benchmarks.explaining`` and
``benchmarks.capacity``. ``python -m benchmarks.compare_reference --parts claims schedulings`` measures claims
with a database and several clients.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from benchmarks import capacity, explaining
from benchmarks.explaining import used_at_random
from benchmarks.measure import time_calls
from benchmarks.models import snapshot_of
from benchmarks.queries import parse_query
from benchmarks.worlds import WORLDS, uuid_of
from placement.microversion import MAX
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.placement import place_claims
from placement.search.claims.topology import TopologyPolicy
from placement.search.diagnosis.explanation import explain_request
from placement.search.request import CandidatesRequest
from placement.store.consumers import ConsumerOwnership
from placement.store.holders import HeldAmount
from placement_extras.planner.capacity import CloudHosts, count_flavor
from placement_extras.planner.cluster_simulation import ClusterSimulation, guests_of
from placement_extras.planner.drain_plan import displace_guests
from placement_extras.planner.migration_plan import make_room, nearest_hosts

DecisionCall = Callable[[], object]
SECONDS: Final = 5.0
DRAINED: Final = (1, 10)
TOPOLOGIES: Final = (None, TopologyPolicy.BEST_EFFORT)
CLASSES: Final = ("VCPU", "MEMORY_MB", "DISK_GB")
SIZES: Final = ((1, 2_048, 20), (4, 8_192, 80), (16, 65_536, 100), (64, 262_144, 1_000))
"""CPUs, memory and disk of guests on flat hosts."""
SPARE: Final = 40_000
"""Upper bound of the free memory of each host."""


def explanation_calls(trees: int) -> Iterator[tuple[str, DecisionCall]]:
    """Yield an explanation of each query, in each world."""
    for world, asked in explaining.ASKED.items():
        snapshot = used_at_random(WORLDS[world], trees, random.Random(1))
        for title, query in asked:
            request = parse_query(query)
            yield (
                f"explanation, {world}: {title}",
                lambda snapshot=snapshot, request=request: explain_request(
                    snapshot, replace(request), SearchBudget(seconds=SECONDS)
                ),
            )


def capacity_calls(trees: int) -> Iterator[tuple[str, DecisionCall]]:
    """Yield a count of each flavor, in each world."""
    for world, asked in capacity.ASKED.items():
        snapshot = used_at_random(WORLDS[world], trees, random.Random(1))
        for title, query in asked.items():
            request = parse_query(query)
            yield (
                f"capacity, {world}: {title}",
                lambda snapshot=snapshot, request=request: count_flavor(
                    CloudHosts(snapshot, SearchBudget(seconds=SECONDS)), replace(request)
                ),
            )


def placement_calls(trees: int) -> Iterator[tuple[str, DecisionCall]]:
    """Yield placements of claims with random sizes."""
    snapshot, rng = used_at_random(WORLDS["nested"], trees, random.Random(1)), random.Random(2)
    for topology in TOPOLOGIES:
        for order in ((), (("pack", 1.0),)):

            def make_decision(
                topology: TopologyPolicy | None = topology, order: tuple[tuple[str, float], ...] = order
            ) -> object:
                amount = rng.randint(1, 16)
                query = f"resources=DISK_GB:10,VCPU:{amount},MEMORY_MB:{amount * 2048}"
                wanted = WantedClaim(
                    "one",
                    None,
                    ConsumerOwnership("p", "u", "INSTANCE"),
                    parse_query(query),
                    MAX,
                    topology=topology,
                    order=order,
                )
                return place_claims(
                    ClaimScenario.from_members(snapshot, {}, [wanted]),
                    [wanted],
                    SearchBudget(seconds=SECONDS),
                    rng,
                )

            yield (
                f"place of a claim, nested: {topology or 'no topology'}, {'by order' if order else 'any'}",
                make_decision,
            )


def move_calls(trees: int) -> Iterator[tuple[str, DecisionCall]]:
    """Yield migrations on full flat hosts: of the guests of drained hosts, and to make room for a guest."""
    snapshot, held = full_hosts(trees)
    for drained in DRAINED:
        roots = set(range(1, drained + 1))
        there = [each for each in held if each.provider_id in roots]

        def make_decision(roots: set[int] = roots, there: Sequence[HeldAmount] = there) -> object:
            guests = guests_of(snapshot, there, SearchBudget())
            return displace_guests(ClusterSimulation(snapshot, SearchBudget(seconds=SECONDS), roots), guests)

        yield (
            f"displaced of {drained} flat hosts ({len({each.consumer for each in there})} guests)",
            make_decision,
        )
    for query in ("resources=VCPU:4,MEMORY_MB:45000", "resources=VCPU:4,MEMORY_MB:60000"):
        request = parse_query(query)

        def make_moves(request: CandidatesRequest = request) -> object:
            board = ClusterSimulation(snapshot, SearchBudget(seconds=SECONDS))
            hosts = nearest_hosts(board, request)
            roots = {tree.root.id for tree, _ in hosts}
            guests = guests_of(snapshot, [each for each in held if each.provider_id in roots], board.budget)
            return make_room(board, request, hosts, guests, all_known=True)

        yield f"moves, flat: {query.partition('=')[2]}", make_moves


def host_guests(rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Yield guests until a flat host is nearly full, each as its amounts of :data:`CLASSES`."""
    left = [1024, 392_448, 10_000]
    while left[1] >= SPARE:
        guest = rng.choice(SIZES)
        if all(have >= want for have, want in zip(left, guest, strict=True)):
            left = [have - want for have, want in zip(left, guest, strict=True)]
            yield guest


def full_hosts(trees: int) -> tuple[ModelSnapshot, list[HeldAmount]]:
    """Return flat hosts that are nearly full of guests, and the amounts that these guests hold."""
    rng = random.Random(3)
    taken: dict[str, list[tuple[int, int, int]]] = {}
    for number in range(trees):
        taken[uuid_of(f"flat-{number}")] = list(host_guests(rng))
    names = CLASSES
    snapshot = snapshot_of(
        map(WORLDS["flat"].tree, range(trees)),
        lambda provider, _: {
            name: sum(each[at] for each in taken[provider.uuid]) for at, name in enumerate(names)
        },
    )
    held = [
        HeldAmount(uuid_of(f"guest-{uuid}-{number}"), "INSTANCE", snapshot.by_uuid[uuid], name, guest[at])
        for uuid, guests in taken.items()
        for number, guest in enumerate(guests)
        for at, name in enumerate(names)
    ]
    return snapshot, held


PARTS: Final = {
    "explanations": explanation_calls,
    "capacities": capacity_calls,
    "placings": placement_calls,
    "moves": move_calls,
}


def main() -> None:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__)
    top.add_argument(
        "--parts",
        nargs="+",
        choices=tuple(PARTS),
        default=tuple(PARTS),
        help="parts to measure; default: all",
    )
    top.add_argument(
        "--trees", type=int, default=10_000, help="number of trees of providers; default: %(default)s"
    )
    top.add_argument(
        "--count", type=int, default=100, help="number of decisions of each kind; default: %(default)s"
    )
    options = top.parse_args()
    for part in options.parts:
        for title, deed in PARTS[part](options.trees):
            work, clock, _ = time_calls(deed, options.count)
            print(
                f"{title:60} {format_percentiles(work)} ms of work, {format_percentiles(clock)} by the clock",
                flush=True,
            )


def format_percentiles(times: Sequence[float]) -> str:
    """Return the median and the 95th and 99th percentiles."""
    ordered = sorted(times)
    median, *most = (ordered[int(len(times) * share)] for share in (0.5, 0.95, 0.99))
    return f"{median:7.1f} (p95 {most[0]:7.1f}, p99 {most[1]:7.1f})"


if __name__ == "__main__":
    main()
