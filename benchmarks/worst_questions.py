"""Looks for the question that others wait for longest: ``python -m benchmarks.worst_questions``.

Questions at random of at most 8 kB, and changes of the worst so far: worlds of devices, of pools that share
with hundreds of hosts, and of groups that are all the same. What is counted is CPU of the thread while nobody
else gets the model: from the beginning to the first moment at which the search gives way, and between two.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from benchmarks.models import snapshot_of
from benchmarks.worlds import Provider, Tree, inventory, uuid_of
from placement.candidates.budget import Budget
from placement.candidates.order import topology_first
from placement.candidates.render import Summaries, render
from placement.candidates.search import search
from placement.exceptions import InvalidRequest
from placement.microversion import MAX
from placement.model.snapshot import Snapshot
from placement.schemas.query_candidates import parse_candidates

MAX_BYTES: Final = 8192
"""Longer request lines are refused by the web server."""
_MIB: Final = 1 << 20
_CLASSES: Final = ("VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_A", "CUSTOM_B")
_TRAITS: Final = ("CUSTOM_T0", "CUSTOM_T1", "CUSTOM_T2")
_AGGREGATES: Final = tuple(uuid_of(f"worst-{number}") for number in range(6))


def _devices() -> Iterator[Tree]:
    """Hosts with two nodes and 16 devices of two classes, no two of one size, below each of them."""
    for host in range(20):
        root = Provider(f"worst-{host}", None, {"DISK_GB": inventory(1000)}, aggregates=(_AGGREGATES[0],))
        tree = [root]
        for node in range(2):
            sizes = {"VCPU": inventory(16), "MEMORY_MB": inventory(64)}
            numa = Provider(f"worst-{host}-{node}", root.uuid, sizes, (_TRAITS[node],))
            tree.append(numa)
            for device in range(16):
                has = {"CUSTOM_A": inventory(5 + device % 4), "CUSTOM_B": inventory(5 + host % 3)}
                traits = (_TRAITS[device % 3],)
                tree.append(Provider(f"worst-{host}-{node}-{device}", numa.uuid, has, traits))
        yield tree


def _pools() -> Iterator[Tree]:
    """Hosts that share in some of 40 pools, which have about everything."""
    rng = random.Random(5)
    for number in range(40):
        has = {name: inventory(50) for name in rng.sample(_CLASSES, 3)}
        traits = ("MISC_SHARES_VIA_AGGREGATE", _TRAITS[number % 3])
        yield [Provider(f"worst-pool-{number}", None, has, traits, tuple(rng.sample(_AGGREGATES, 2)))]
    for number in range(500):
        where = tuple(rng.sample(_AGGREGATES, 2))
        yield [Provider(f"worst-{number}", None, {"VCPU": inventory(8), "CUSTOM_A": inventory(4)}, (), where)]


def _alike() -> Iterator[Tree]:
    """Hosts with 40 devices of one unit."""
    for host in range(50):
        root = Provider(f"worst-{host}", None, {"VCPU": inventory(8), "DISK_GB": inventory(99)})
        devices = (
            Provider(f"worst-{host}-{number}", root.uuid, {"CUSTOM_A": inventory(1)}) for number in range(40)
        )
        yield [root, *devices]


WORLDS: Final[Mapping[str, Callable[[], Iterator[Tree]]]] = {
    "devices": _devices,
    "pools": _pools,
    "alike": _alike,
}


def world(name: str) -> Snapshot:
    """The read model of a world, of which nothing is used."""
    return snapshot_of(WORLDS[name](), lambda provider, inventories: {})


@dataclass(frozen=True, slots=True)
class Group:
    """The parameters of one group, and with which others it is to be in one subtree."""

    resources: tuple[tuple[str, int], ...]
    filters: tuple[str, ...]
    subtree: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question as data, which can be changed a little."""

    groups: tuple[Group, ...]
    policy: str
    limit: int | None

    def query(self) -> str:
        """As a query string."""
        parts = [f"group_policy={self.policy}"]
        subtrees: dict[int, list[str]] = {}
        for number, group in enumerate(self.groups):
            suffix = f"_{number}" if number else ""
            amounts = ",".join(f"{name}:{amount}" for name, amount in group.resources)
            parts.append(f"resources{suffix}={amounts}")
            parts += [f.replace("=", f"{suffix}=", 1) for f in group.filters]
            if suffix and group.subtree:
                subtrees.setdefault(group.subtree, []).append(suffix)
        parts += [f"same_subtree={','.join(suffixes)}" for suffixes in subtrees.values()]
        if self.limit is not None:
            parts.append(f"limit={self.limit}")
        return "&".join(parts)


def _group(rng: random.Random) -> Group:
    names = rng.sample(_CLASSES, rng.choice((1, 1, 2)))
    filters = []
    if rng.random() < 0.3:
        filters.append(f"required=in:{','.join(rng.sample(_TRAITS, 2))}")
    if rng.random() < 0.2:
        filters.append(f"member_of=in:{','.join(rng.sample(_AGGREGATES, 3))}")
    resources = tuple((name, rng.choice((1, 1, 2, 3, 5))) for name in names)
    return Group(resources, tuple(filters), rng.choice((0, 0, 0, 1, 2)))


def question(rng: random.Random) -> Question:
    """Any question of at most 8 kB."""
    count = rng.choice((2, 4, 8, 16, 40, 100))
    groups = tuple(_group(rng) for _ in range(rng.choice((1, 1, 2, count))))
    repeated = (groups * count)[:count]
    return _short(Question(repeated, rng.choice(("none", "isolate")), rng.choice((None, None, 1, 100, 1000))))


def changed(rng: random.Random, of: Question) -> Question:
    """One like it."""
    groups = [*of.groups]
    what = rng.randrange(4)
    if what == 0:
        groups[rng.randrange(len(groups))] = _group(rng)
    elif what == 1:
        groups += rng.choices(groups, k=rng.randrange(1, 20))
    elif what == 2 and len(groups) > 1:
        groups = groups[: rng.randrange(1, len(groups))]
    else:
        return Question(of.groups, rng.choice(("none", "isolate")), rng.choice((None, 1, 100, 1000)))
    return _short(Question(tuple(groups), of.policy, of.limit))


def _short(of: Question) -> Question:
    while len(of.query()) > MAX_BYTES:
        of = Question(of.groups[: len(of.groups) * 9 // 10], of.policy, of.limit)
    return of


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a question: milliseconds of CPU, and how it ended.

    ``waited`` is the longest that others waited for the model; ``alone`` is what came after the search, order
    and rendering: once the search has given way nobody waits for that, but for the interpreter.
    """

    waited: float
    alone: float
    total: float
    size: int
    outcome: str


def ask(snapshot: Snapshot, query: str, seconds: float, max_size: int = 128 * _MIB) -> Answered:
    """Answer a question as the service does."""
    began = last = time.thread_time()
    longest, ways = 0.0, 0

    def give_way() -> None:
        nonlocal last, longest, ways
        now = time.thread_time()
        longest, last, ways = max(longest, now - last), now, ways + 1

    size, outcome, searched = 0, "", began
    try:
        request = parse_candidates(parse_qsl(query, keep_blank_values=True), MAX)
        budget = Budget(seconds, max_size, give_way)
        found = search(snapshot, request, budget=budget)
        give_way()
        searched = last
        ways -= 1
        size = len(render(snapshot, topology_first(found), MAX, Summaries()))
        outcome = f"{sum(len(batch) for _, batch in found)} candidates" + (
            f", ended by {budget.ended}" if budget.ended else ""
        )
    except InvalidRequest as error:
        give_way()
        searched = last
        outcome = f"{error.code}: {error.detail}"
    ended = time.thread_time()
    alone = ended - searched
    return Answered(
        1000 * (longest if ways > 0 else longest + alone),
        1000 * alone,
        1000 * (ended - began),
        size,
        outcome,
    )


def worst(
    snapshot: Snapshot, count: int, seed: int, seconds: float, max_size: int = 128 * _MIB
) -> tuple[Question, Answered]:
    """The question of so many that others waited for longest."""
    rng = random.Random(seed)
    found: tuple[Question, Answered] | None = None
    for number in range(count):
        asked = question(rng) if found is None or number % 3 == 0 else changed(rng, found[0])
        answered = ask(snapshot, asked.query(), seconds, max_size)
        if found is None or answered.waited > found[1].waited:
            found = asked, answered
    assert found is not None
    return found


def main() -> None:
    """Look and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.worst_questions", description=__doc__)
    top.add_argument("--world", choices=tuple(WORLDS), help="default: all")
    top.add_argument("--count", type=int, default=200, help="questions of each world; default: %(default)s")
    top.add_argument("--seed", type=int, default=18, help="default: %(default)s")
    top.add_argument(
        "--seconds", type=float, default=1.0, help="[api] candidates_deadline; default: %(default)s"
    )
    top.add_argument("--size", type=int, default=128, help="[api] candidates_size, MiB; default: %(default)s")
    options = top.parse_args()
    for name in [options.world] if options.world else WORLDS:
        asked, answered = worst(
            world(name), options.count, options.seed, options.seconds, options.size * _MIB
        )
        print(
            f"{name}: others wait {answered.waited:.0f} ms of work; {answered.total:.0f} ms in all, "
            f"{answered.alone:.0f} after the search, {answered.size / 1e6:.1f} MB, {answered.outcome[:300]}\n"
            f"    {len(asked.groups)} groups, {asked.query()[:300]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
