"""Tests that claims that combine all features are placed as by a brute-force search, in random small clouds.

One call has several claims, with group policies, topologies, orders, named hosts and a reservation. Some
consumers have allocations already.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from placement.read_model.provider import SHARES, Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.search.budget import SearchBudget
from placement.search.claims.claim import (
    ClaimScenario,
    HostChoice,
    Order,
    WantedClaim,
    without_allocations,
)
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.search.claims.reserved_amounts import within_reservation
from placement.search.claims.topology import REMOTE, Distances, TopologyPolicy
from placement.search.request import CandidatesRequest, RequestGroup
from placement.store.allocations import Allocation
from placement.store.groups import ConsumerGroup, GroupMember, GroupPolicy, Members
from tests.examples import examples
from tests.placement.search import brute
from tests.placement.search.claims.strategies import OWNER
from tests.placement.search.snapshots import Spec, build, build_scenario, inventory

pytestmark = pytest.mark.usefixtures("wide_from_the_start")
SPLIT = ("PCPU", "MEMORY_MB")
Taken = Mapping[tuple[int, str], int]
"""The taken amounts, by provider and class."""
Rank = tuple[int, int]
"""How many zones, or as many as there can be less, and how far apart: less is better."""


@dataclass(frozen=True)
class Cloud:
    """The state before the call: allocations, members of groups, and the reservation from which claims
    take.
    """

    snapshot: ModelSnapshot
    held: Mapping[str, Taken]
    members: Mapping[str, Mapping[str, frozenset[int]]]
    distances: Distances
    reserved: Taken | None = None

    def __str__(self) -> str:
        providers = [
            f"{each.id} {each.name} below {each.parent_id} {sorted(each.traits)}: "
            + ", ".join(
                f"{name} {each.used.get(name, 0)} of {offered.total} by {offered.step_size},"
                f" {offered.min_unit} to {offered.max_unit}"
                for name, offered in each.inventories.items()
            )
            for each in self.snapshot
        ]
        rest = [f"held {self.held}", f"members {self.members}", f"distances {self.distances}"]
        return "\n".join([*providers, *rest, f"reserved {self.reserved}"])

    def used_by_others(self, moving: Iterable[str]) -> ModelSnapshot:
        """The snapshot as if these consumers held nothing."""
        used = {each.id: Counter(each.used) for each in self.snapshot}
        for consumer in moving:
            for (provider_id, name), amount in self.held.get(consumer, {}).items():
                used[provider_id][name] -= amount
        return ModelSnapshot(replace(each, used=dict(used[each.id])) for each in self.snapshot)

    def members_beside(self, moving: Iterable[str]) -> dict[str, Counter[int]]:
        """The number of members of each group at each host, without these consumers."""
        moving = set(moving)
        return {
            group: Counter(host for name, at in found.items() if name not in moving for host in at)
            for group, found in self.members.items()
        }


@dataclass(frozen=True)
class Way:
    """One way to place a claim: the root where it is anchored, its amounts, and the providers of each
    group.
    """

    root: int
    taken: frozenset[tuple[int, str, int]]
    served: frozenset[tuple[str, int]]


# the cloud


@st.composite
def clouds(draw: st.DrawFn) -> Cloud:
    specs: list[Spec] = []
    steps = st.sampled_from((1, 2)) if draw(st.booleans()) else st.just(draw(st.sampled_from((1, 2))))
    pooled = draw(st.sampled_from((False, False, True)))
    if pooled:
        specs.append(Spec("pool", None, {"DISK_GB": draw(st.integers(2, 5))}, [SHARES], ["a"]))
    for number in range(draw(st.integers(2, 3))):
        name = f"h{number}"
        disk = {"DISK_GB": draw(st.integers(1, 3))} if draw(st.booleans()) else {}
        flat = draw(st.integers(0, 4)) == 4
        shares = [SHARES] if draw(st.integers(0, 4)) == 4 else []  # resources of the host itself
        specs.append(Spec(name, None, disk, shares, aggregates=["a"]))
        for zone in range(draw(st.integers(1, 2))):
            traits = [] if flat else [ZONE]
            offered = draw(rooms(steps))
            specs.append(Spec(f"{name}_{zone}", name, offered, [*traits, *draw(marks)]))
            if draw(st.integers(0, 2)) == 2:
                specs.append(Spec(f"{name}_{zone}c", f"{name}_{zone}", draw(rooms(steps)), draw(marks)))
    empty = build(*specs)
    held: dict[str, dict[tuple[int, str], int]] = {}
    used = {each.id: Counter[str]() for each in empty}
    for consumer in ("c0", "c1", "other"):
        if draw(st.booleans()):
            held[consumer] = draw(holdings(empty, used))
    snapshot = ModelSnapshot(replace(each, used=dict(used[each.id])) for each in empty)
    members = {
        group: {
            consumer: hosts_of(snapshot, taken)
            for consumer, taken in held.items()
            if taken and draw(st.booleans())
        }
        for group in ("one", "two")
    }
    zones = sorted(each.id for each in snapshot if ZONE in each.traits)
    known = draw(st.booleans())
    distances = {pair: draw(st.integers(11, 13)) for pair in combinations(zones, 2) if known}
    return Cloud(snapshot, held, members, distances)


marks = st.sampled_from(([], [], ["T1"]))


@st.composite
def rooms(draw: st.DrawFn, steps: st.SearchStrategy[int]) -> dict[str, Inventory]:
    found = {}
    for name in (*SPLIT, "VCPU"):
        if draw(st.integers(0, 3)) < 3:
            step = draw(steps)
            found[name] = inventory(
                draw(st.integers(2, 6)),
                step_size=step,
                min_unit=draw(st.sampled_from((1, 1, 2))),
                max_unit=draw(st.sampled_from((9, 9, 2))),
            )
    return found


@st.composite
def holdings(
    draw: st.DrawFn, snapshot: ModelSnapshot, used: Mapping[int, Counter[str]]
) -> dict[tuple[int, str], int]:
    """A strategy for the allocations of one consumer, from amounts that are still free."""
    taken = {}
    for provider in snapshot:
        for name, offered in provider.inventories.items():
            free = offered.capacity - used[provider.id][name]
            if free > 0 and draw(st.integers(0, 4)) == 4:
                taken[provider.id, name] = draw(st.integers(1, free))
                used[provider.id][name] += taken[provider.id, name]
    return taken


@st.composite
def requests(draw: st.DrawFn) -> CandidatesRequest:
    few = st.sampled_from((1, 2, 2, 3, 4))
    amounts = {"PCPU": draw(few)} if draw(st.integers(0, 3)) < 3 else {}
    amounts |= {"MEMORY_MB": draw(few)} if draw(st.integers(0, 2)) == 2 else {}
    if draw(st.integers(0, 9)) == 9:
        amounts = {"DISK_GB": 1}
    amounts |= {"DISK_GB": draw(st.integers(1, 2))} if draw(st.integers(0, 3)) == 3 else {}
    amounts |= {"VCPU": draw(st.integers(1, 2))} if not amounts or draw(st.integers(0, 3)) == 3 else {}
    wants = st.sampled_from(((), (), (), (), (), (frozenset({"T1"}),)))
    forbids = st.sampled_from((*[frozenset[str]()] * 5, frozenset({"T1"})))
    groups = [RequestGroup("", amounts, required=draw(wants), forbidden=draw(forbids))]
    if draw(st.integers(0, 2)) == 2:
        name = draw(st.sampled_from(("PCPU", "VCPU")))
        groups.append(RequestGroup("_1", {name: 1}, required=draw(wants)))
    return CandidatesRequest(tuple(groups), group_policy="none")


GROUPS = tuple(
    ConsumerGroup(name, policy, limit)
    for name, policy, limit in (
        ("one", GroupPolicy.AFFINITY, 1),
        ("one", GroupPolicy.ANTI_AFFINITY, 1),
        ("one", GroupPolicy.ANTI_AFFINITY, 2),
        ("two", GroupPolicy.ANTI_AFFINITY, 1),
        ("two", GroupPolicy.SOFT_AFFINITY, 1),
        ("one", GroupPolicy.SOFT_ANTI_AFFINITY, 1),
    )
)
orders = st.sampled_from(("pack", "spread", "best_fit", "numa_nodes", "numa_distance"))


@st.composite
def calls(draw: st.DrawFn) -> tuple[Cloud, list[WantedClaim]]:
    """A strategy for a cloud and the claims of one call."""
    cloud = draw(clouds())
    topologies = [None, None, *TopologyPolicy]
    if len(_steps(cloud.snapshot)) > 1:  # only equal steps have one definition of evenness
        topologies.remove(TopologyPolicy.SPREAD)
    uuids = [each.uuid for each in cloud.snapshot if each.parent_id is None]
    some = st.frozensets(st.sampled_from(uuids), min_size=1)
    wanted = []
    for number in range(draw(st.integers(1, 3))):
        group = draw(st.none() | st.sampled_from(GROUPS))
        request = draw(requests())
        splittable = not request.groups[0].resources.keys().isdisjoint(SPLIT)
        order = draw(st.sampled_from((0, 1, 2)))
        weights = {draw(orders): draw(st.sampled_from((1.0, 2.0))) for _ in range(order)}
        if group is not None and group.policy.is_soft:
            weights.setdefault("group", 1.0)
        wanted.append(
            WantedClaim(
                consumer=f"c{number}",
                generation=1 if f"c{number}" in cloud.held else None,
                owner=OWNER,
                request=request,
                version=(1, 39),
                only=draw(st.sampled_from((None, None, None, None, draw(some)))),
                avoid=draw(st.sampled_from((*[frozenset[str]()] * 4, draw(some)))),
                alternates=draw(st.integers(0, 3)),
                order=tuple(weights.items()),
                group=group,
                topology=draw(st.sampled_from(topologies)) if splittable else None,
            )
        )
    if draw(st.integers(0, 3)) == 0 and cloud.held.get("other"):
        # the reservation takes all that is free, so that only claims from it find a place
        cloud = replace(cloud, reserved=cloud.held["other"])
    return cloud, wanted


def _steps(snapshot: ModelSnapshot) -> set[int]:
    """All step sizes of the classes that are split."""
    return {
        offered.step_size for each in snapshot for name, offered in each.inventories.items() if name in SPLIT
    }


# the judge


def tree(snapshot: ModelSnapshot, root: int) -> list[Provider]:
    return [each for each in snapshot if each.root_id == root]


def hosts_of(snapshot: ModelSnapshot, taken: Iterable[tuple[int, str]]) -> frozenset[int]:
    """The roots of a choice that groups count as its hosts. Sharing providers are no hosts, unless the choice
    has nothing else.
    """
    providers = [snapshot.providers[provider_id] for provider_id, _ in taken]
    alone = [each for each in providers if SHARES not in each.traits]
    return frozenset(each.root_id for each in alone or providers)


def taken_of(way: Way) -> dict[tuple[int, str], int]:
    return {(provider_id, name): amount for provider_id, name, amount in way.taken}


class Judge:
    """Finds by brute force all ways to place each claim, given the places of the claims before it.

    For given zones, a strict judge finds only the ways with the most equal parts of zones, from the fewest
    providers. Among these ways, it finds those with the most equal parts of providers.
    """

    def __init__(self, cloud: Cloud, wanted: list[WantedClaim], *, is_strict: bool = False) -> None:
        self.is_strict = is_strict
        moving = [each.consumer for each in wanted if each.generation is not None]
        self.snapshot = cloud.used_by_others(moving)
        self.members = cloud.members_beside(each.consumer for each in wanted)
        self.distances = cloud.distances
        self.reserved: Counter[tuple[int, str]] | None = None
        if cloud.reserved is not None:
            self.reserved = Counter(cloud.reserved)
        self.reserving = {
            self.snapshot.providers[provider_id].root_id for provider_id, _ in cloud.reserved or ()
        }

    def after(self, wanted: WantedClaim, way: Way) -> "Judge":
        """The judge for the claims after this one."""
        judge = object.__new__(Judge)
        judge.is_strict, judge.distances, judge.reserving = self.is_strict, self.distances, self.reserving
        taken = taken_of(way)
        if self.reserved is None:
            judge.reserved = None
            used = {each.id: Counter(each.used) for each in self.snapshot}
            for (provider_id, name), amount in taken.items():
                used[provider_id][name] += amount
            judge.snapshot = ModelSnapshot(replace(each, used=dict(used[each.id])) for each in self.snapshot)
        else:
            judge.snapshot, judge.reserved = self.snapshot, self.reserved - Counter(taken)
        judge.members = self.members
        if wanted.group is not None:
            count = Counter(self.members.get(wanted.group.name, Counter()))
            count.update(hosts_of(self.snapshot, taken))
            judge.members = {**self.members, wanted.group.name: count}
        return judge

    def free(self, provider: Provider, name: str) -> int:
        if self.reserved is not None:
            return self.reserved[provider.id, name]
        return provider.free(name)

    def fits(self, taken: Taken) -> bool:
        for (provider_id, name), amount in taken.items():
            provider = self.snapshot.providers[provider_id]
            if name not in provider.inventories or not provider.inventories[name].is_portion(amount):
                return False
            if amount > self.free(provider, name):
                return False
        return True

    def ways(self, wanted: WantedClaim) -> dict[int, list[Way]]:
        """All ways to place the claim, by the root where they are anchored."""
        found = {}
        for root in self.snapshot:
            if root.parent_id is not None or root.uuid in wanted.avoid:
                continue
            if wanted.only is not None and root.uuid not in wanted.only:
                continue
            if self.reserved is not None and root.id not in self.reserving:
                continue
            ways = [each for each in self._at(wanted, root) if self._is_allowed(wanted, each)]
            if ways:
                found[root.id] = ways
        return found

    def _is_allowed(self, wanted: WantedClaim, way: Way) -> bool:
        roots = {self.snapshot.providers[provider_id].root_id for provider_id, _, _ in way.taken}
        if any(self.snapshot.providers[root].uuid in wanted.avoid for root in roots):
            return False
        if wanted.group is None:
            return True
        hosts = hosts_of(self.snapshot, taken_of(way))
        members = self.members.get(wanted.group.name, Counter())
        if wanted.group.policy is GroupPolicy.AFFINITY:
            return not any(members.values()) or any(members[host] for host in hosts)
        if wanted.group.policy is GroupPolicy.ANTI_AFFINITY:
            return all(members[host] < wanted.group.max_per_host for host in hosts)
        return True

    def _at(self, wanted: WantedClaim, root: Provider) -> Iterator[Way]:
        members = tree(self.snapshot, root.id)
        zones = [each.id for each in members if ZONE in each.traits]
        split: dict[str, int] = {}
        if wanted.topology is not None:
            asked = wanted.request.groups[0].resources
            home = self._homes(root, zones)
            split = {
                name: amount
                for name, amount in asked.items()
                if name in SPLIT and any(name in each.inventories and each.id in home for each in members)
            }
        if not split:
            yield from self._whole(wanted, root)
        else:
            yield from self._split(wanted, root, split)

    def _whole(self, wanted: WantedClaim, root: Provider) -> Iterator[Way]:
        for assignment in brute.assignments(_free_of_use(self), root, wanted.request):
            if all(rule(_free_of_use(self), wanted.request, assignment) for rule in brute.RULES):
                way = Way(root.id, *brute.comparable(assignment))
                if self.fits(taken_of(way)):
                    yield way

    def _homes(self, root: Provider, zones: list[int]) -> dict[int, int]:
        """The zone of each provider. A host without zones counts as one zone."""
        if not zones:
            return {each.id: root.id for each in tree(self.snapshot, root.id)}
        homes = {}
        for each in tree(self.snapshot, root.id):
            above = [one for one in brute.ancestry(self.snapshot, each.id) if one in zones]
            if above:
                homes[each.id] = above[0]
        return homes

    def _split(self, wanted: WantedClaim, root: Provider, split: Mapping[str, int]) -> Iterator[Way]:
        members = tree(self.snapshot, root.id)
        zones = [each.id for each in members if ZONE in each.traits]
        home = self._homes(root, zones)
        group, *others = wanted.request.groups
        left = {name: amount for name, amount in group.resources.items() if name not in split}
        groups = [*([replace(group, resources=left, required=())] if left else []), *others]
        beside: list[tuple[dict[tuple[int, str], int], set[tuple[str, int]]]] = [({}, set())]
        if groups:
            request = replace(wanted.request, groups=tuple(groups))
            beside = [
                (dict(brute.totals_of(each)), {(suffix, provider.id) for suffix, _, _, provider in each})
                for each in brute.assignments(_free_of_use(self), root, request)
                if all(rule(_free_of_use(self), request, each) for rule in brute.RULES)
            ]
        rooms = [each for each in members if each.id in home and group.forbidden.isdisjoint(each.traits)]
        divided = [list(_divisions(rooms, name, amount)) for name, amount in split.items()]
        found: list[tuple[Rank, tuple[object, ...], tuple[int, int, int], Way]] = []
        by_capacity: list[int] = []
        for parts in product(*divided):
            mine = {
                (at, name): amount for name, part in zip(split, parts, strict=True) for at, amount in part
            }
            used = sorted({home[at] for at, _ in mine})
            for taken, served in beside:
                serving = {at for suffix, at in served if suffix == ""} | {at for at, _ in mine}
                had = frozenset[str]().union(*(self.snapshot.providers[at].traits for at in serving))
                if any(had.isdisjoint(some) for some in group.required):
                    continue
                if _portions(self.snapshot, mine):
                    by_capacity.append(len(used))
                together = Counter(taken)
                together.update(mine)
                if not self.fits(together):
                    continue
                far = sum(self.distances.get((one, other), REMOTE) for one, other in combinations(used, 2))
                if wanted.topology is TopologyPolicy.SPREAD:
                    if not _is_even(self.snapshot, mine, home, used, split):
                        continue
                    rank = (-len(used), far)
                else:
                    rank = (len(used), far)
                way = Way(
                    root.id,
                    frozenset((at, name, amount) for (at, name), amount in together.items()),
                    frozenset({*served, *(("", at) for at, _ in mine)}),
                )
                parts_of_zones = Counter[tuple[int, str]]()
                for (at, name), amount in mine.items():
                    parts_of_zones[home[at], name] += amount
                cost = (
                    sum(amount * amount for amount in parts_of_zones.values()),
                    len(mine),
                    sum(amount * amount for amount in mine.values()),
                )
                found.append((rank, (*used, frozenset(taken.items()), frozenset(served)), cost, way))
        if wanted.topology is TopologyPolicy.SINGLE_NUMA:
            found = [each for each in found if each[0][0] == 1]
        if wanted.topology is TopologyPolicy.RESTRICTED:
            found = [each for each in found if each[0][0] == min(by_capacity)]
        best = min((rank for rank, *_ in found), default=None)
        found = [each for each in found if each[0] == best]
        if self.is_strict:
            least: dict[tuple[object, ...], tuple[int, int, int]] = {}
            for _, key, cost, _ in found:
                least[key] = min(cost, least.get(key, cost))
            found = [each for each in found if each[2] == least[each[1]]]
        yield from {way for *_, way in found}


def _free_of_use(judge: Judge) -> ModelSnapshot:
    """The snapshot as if all capacity were free. :meth:`Judge.fits` checks the free amounts."""
    return ModelSnapshot(replace(each, used={}) for each in judge.snapshot)


def _divisions(rooms: list[Provider], name: str, amount: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every way to take this amount of a class from these providers."""
    if not rooms:
        if not amount:
            yield ()
        return
    first, *others = rooms
    for mine in range(amount + 1):
        if mine and name not in first.inventories:
            return
        for rest in _divisions(others, name, amount - mine):
            yield ((first.id, mine), *rest) if mine else rest


def _portions(snapshot: ModelSnapshot, taken: Taken) -> bool:
    """Whether the providers could give these amounts if nothing were used."""
    return all(
        snapshot.providers[at].inventories[name].accepts_amount(amount, 0)
        for (at, name), amount in taken.items()
    )


def _is_even(
    snapshot: ModelSnapshot,
    mine: Taken,
    home: Mapping[int, int],
    used: list[int],
    split: Mapping[str, int],
) -> bool:
    """Whether the shares of each class in all zones differ by at most one step size."""
    for name in split:
        shares = Counter[int]()
        for (at, what), amount in mine.items():
            if what == name:
                shares[home[at]] += amount
        parts = [shares[zone] for zone in used]
        if 0 in parts or max(parts) - min(parts) > max(_steps(snapshot)):
            return False
    return True


# the result


def scenario(cloud: Cloud, wanted: list[WantedClaim]) -> tuple[ClaimScenario, list[WantedClaim]]:
    """The scenario that the service makes: without the claimants' own allocations, or with only reserved
    amounts free.
    """
    known = [each.consumer for each in wanted if each.generation is not None]
    snapshot = cloud.snapshot
    held = [each for consumer in known for each in allocations(cloud, cloud.held[consumer])]
    if held:
        snapshot = without_allocations(snapshot, held)
    if cloud.reserved is not None:
        snapshot, roots = within_reservation(snapshot, list(allocations(cloud, cloud.reserved)))
        wanted = [replace(each, only=roots if each.only is None else roots & each.only) for each in wanted]
    members: Members = {
        group: frozenset(GroupMember(name, 1, at) for name, at in found.items())
        for group, found in cloud.members.items()
    }
    world = ClaimScenario.from_members(snapshot, members, wanted)
    return replace(world, distances=cloud.distances if world_has_distances(wanted) else {}), wanted


def world_has_distances(wanted: list[WantedClaim]) -> bool:
    return any(each.topology is not None or "numa_distance" in dict(each.order) for each in wanted)


def allocations(cloud: Cloud, taken: Taken) -> Iterator[Allocation]:
    for (provider_id, name), amount in taken.items():
        yield Allocation("", 1, cloud.snapshot.providers[provider_id].uuid, 0, name, amount, 0.0)


def way_of(choice: HostChoice) -> Way:
    return Way(
        choice.root.id,
        frozenset(
            (provider.id, name, amount)
            for provider, amounts in choice.resources
            for name, amount in amounts.items()
        ),
        frozenset((suffix, each.id) for suffix, some in choice.mappings.items() for each in some),
    )


def fits_all(judge: Judge, wanted: list[WantedClaim]) -> bool:
    """Whether there is a way to place all claims together."""
    if not wanted:
        return True
    first, *others = wanted
    found = judge.ways(first)
    if not others:
        return bool(found)
    seen = set()
    for ways in found.values():
        for way in ways:
            key = (way.taken, way.root)
            if key not in seen:
                seen.add(key)
                if fits_all(judge.after(first, way), others):
                    return True
    return False


def check(judge: Judge, placed: list[PlacedClaim]) -> None:
    """Check that each choice, and its alternates on other hosts, fit beside all earlier choices."""
    for each in placed:
        possible = judge.ways(each.wanted)
        way = way_of(each.choice)
        assert any(
            way.taken == one.taken and way.served == one.served for ways in possible.values() for one in ways
        )
        roots = [other.root.id for other in each.alternates]
        for other in each.alternates:
            assert way_of(other) in possible[other.root.id]
        assert len({way.root, *roots}) == 1 + len(roots) <= 1 + each.wanted.alternates
        own = {
            root
            for root, ways in possible.items()
            if root != way.root
            and any(root in {judge.snapshot.providers[at].root_id for at, _, _ in one.taken} for one in ways)
        }
        assert len(roots) >= min(each.wanted.alternates, len(own))
        judge = judge.after(each.wanted, way)


@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(calls(), st.integers(0, 99))
def test_claims_are_placed_exactly_if_a_way_exists_for_all_of_them(
    call: tuple[Cloud, list[WantedClaim]], seed: int
) -> None:
    cloud, wanted = call
    note(str(cloud))
    world, asked = scenario(cloud, wanted)
    found = place_claims(world, asked, SearchBudget(), random.Random(seed))
    if isinstance(found, UnplacedClaim):
        event("refused")
        assert not fits_all(Judge(cloud, wanted, is_strict=True), wanted)
    else:
        event("placed")
        check(Judge(cloud, wanted), found)


@pytest.mark.parametrize("order", [(), (("pack", 1.0),), (("spread", 1.0),)])
@pytest.mark.parametrize("seed", range(8))
def test_a_host_that_shares_with_others_can_serve_claims_alone(order: Order, seed: int) -> None:
    snapshot = build(
        Spec("alone", None, {"VCPU": 8}),
        Spec("sharing", None, {"VCPU": 8, "DISK_GB": 4}, [SHARES], ["a"]),
        Spec("served", None, {"VCPU": 8}, aggregates=["a"]),
        Spec("pool", None, {"DISK_GB": 4}, [SHARES], ["a"]),
    )
    for resources, hosts in (
        ({"VCPU": 1}, {"alone", "sharing", "served"}),
        ({"DISK_GB": 1}, {"sharing", "pool"}),
    ):
        wanted = WantedClaim(
            "c",
            None,
            OWNER,
            CandidatesRequest((RequestGroup("", resources),)),
            (1, 39),
            alternates=9,
            order=order,
        )
        found = place_claims(build_scenario(snapshot), [wanted], SearchBudget(), random.Random(seed))
        assert isinstance(found, list)
        choices = [found[0].choice, *found[0].alternates]
        assert sorted(each.root.name for each in choices) == sorted(hosts)
        assert all(each.hosts == {each.root.id} for each in choices)
    # a pool may be used although the host that shares it is avoided
    only = frozenset({snapshot.providers[3].uuid})
    wanted = replace(wanted, only=only, alternates=0)
    found = place_claims(build_scenario(snapshot), [wanted], SearchBudget(), random.Random(seed))
    assert isinstance(found, list)
    assert found[0].choice.root.name == "served"
