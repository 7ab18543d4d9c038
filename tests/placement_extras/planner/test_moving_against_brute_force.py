"""Tests that displaced guests have a place if brute force finds one, and that room is made by the fewest
moves.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from unittest.mock import patch

from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from placement.read_model.provider import DISABLED, SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.request import CandidatesRequest, RequestGroup
from placement.store.holders import HeldAmount
from placement_extras.planner import drain_plan, migration_plan
from placement_extras.planner.cluster_simulation import ClusterSimulation, HostedConsumer, guests_of
from placement_extras.planner.drain_plan import displace_guests
from placement_extras.planner.migration_plan import MigrationPlan, MigrationStep, make_room, nearest_hosts
from placement_extras.planner.packing import FitBounds
from tests.examples import examples
from tests.placement.search.device_hosts import GPU, device_sizes
from tests.placement.search.snapshots import Spec, build
from tests.placement_extras.planner import brute

exhaustive = settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
_MAX_STATES = 2_000
Amounts = frozenset[tuple[int, str, int]]


@dataclass(frozen=True)
class RandomCloud:
    """A snapshot of hosts, and the allocations of consumers."""

    snapshot: ModelSnapshot
    held: tuple[HeldAmount, ...]
    request: CandidatesRequest

    @property
    def guests(self) -> list[HostedConsumer]:
        return guests_of(self.snapshot, self.held, SearchBudget())


@st.composite
def clouds(draw: st.DrawFn) -> RandomCloud:
    """A strategy for two to four hosts, with or without NUMA nodes and a shared disk, and for up to six
    guests on them.
    """
    pooled = draw(st.integers(0, 3)) == 0
    specs = [Spec("pool", None, {"DISK_GB": draw(st.integers(1, 6))}, [SHARES], ["rack"])] if pooled else []
    for number in range(draw(st.integers(2, 4))):
        stock = {"VCPU": draw(st.integers(1, 4)), "MEMORY_MB": draw(st.integers(1, 4))}
        traits = draw(st.sampled_from(((), ("T1",), (DISABLED,))))
        if draw(st.booleans()):
            specs.append(Spec(f"cn{number}", None, stock, traits, ["rack"] * pooled))
        else:
            specs.append(Spec(f"cn{number}", None, {}, traits, ["rack"] * pooled))
            specs += [Spec(f"cn{number}_{node}", f"cn{number}", stock) for node in range(2)]
    snapshot = build(*specs)
    held: list[HeldAmount] = []
    for number in range(draw(st.integers(1, 6))):
        wants = {"VCPU": draw(st.integers(1, 3)), "MEMORY_MB": draw(st.sampled_from((0, 1, 2)))}
        wants |= {"DISK_GB": draw(st.integers(0, 2))} if pooled else {}
        wants = {name: amount for name, amount in wants.items() if amount}
        groups = [RequestGroup("", wants)]
        if draw(st.integers(0, 4)) == 0:
            groups = [RequestGroup(f"_{each}", {"VCPU": 1}) for each in range(2)]
        policy = "none" if len(groups) == 1 else "isolate"
        found = sorted(brute.choices(snapshot, CandidatesRequest(tuple(groups), policy)), key=sorted)
        if not found:
            continue
        taken = draw(st.sampled_from(found))
        consumer = f"{number:08}-0000-4000-8000-000000000000"
        held += [HeldAmount(consumer, "INSTANCE", *amounts) for amounts in sorted(taken)]
        snapshot = using(snapshot, [taken])
    asks = {"VCPU": draw(st.integers(1, 4)), "MEMORY_MB": draw(st.integers(1, 4))}
    required = draw(st.sampled_from(((), (), (frozenset({"T1"}),))))
    return RandomCloud(snapshot, tuple(held), CandidatesRequest((RequestGroup("", asks, required=required),)))


@st.composite
def device_clouds(draw: st.DrawFn) -> RandomCloud:
    """A strategy for two or three hosts with a few equal and unequal devices, and for up to four guests with
    some of the devices.
    """
    specs = []
    for number in range(draw(st.integers(2, 3))):
        name = f"cn{number}"
        specs.append(Spec(name, None, {"VCPU": draw(st.integers(2, 4))}))
        for device in range(draw(st.integers(1, 3))):
            traits = draw(st.sampled_from(((), (), ("T1",))))
            specs.append(Spec(f"{name}d{device}", name, {GPU: draw(device_sizes())}, traits))
    snapshot = build(*specs)
    held: list[HeldAmount] = []
    for number in range(draw(st.integers(1, 4))):
        found = sorted(brute.choices(snapshot, draw(asking_devices())), key=sorted)
        if not found:
            continue
        taken = draw(st.sampled_from(found))
        consumer = f"{number:08}-0000-4000-8000-000000000000"
        held += [HeldAmount(consumer, "INSTANCE", *amounts) for amounts in sorted(taken)]
        snapshot = using(snapshot, [taken])
    required = draw(st.sampled_from(((), (frozenset({"T1"}),))))
    return RandomCloud(snapshot, tuple(held), draw(asking_devices(required)))


@st.composite
def asking_devices(draw: st.DrawFn, required: tuple[frozenset[str], ...] = ()) -> CandidatesRequest:
    """A strategy for requests of perhaps a CPU, and of one to three units of devices, in one group or in
    several.
    """
    amounts = draw(st.sampled_from(((1,), (1, 1), (1, 1, 1), (2,), (2, 1))))
    groups = [RequestGroup(f"_d{at}", {GPU: amount}, required=required) for at, amount in enumerate(amounts)]
    if draw(st.booleans()):
        groups.append(RequestGroup("", {"VCPU": 1}))
    return CandidatesRequest(tuple(groups), draw(st.sampled_from(("none", "none", "isolate"))))


def using(snapshot: ModelSnapshot, taken: Collection[Amounts], times: int = 1) -> ModelSnapshot:
    """The snapshot with additional usage."""
    used = {each.id: dict(each.used) for each in snapshot}
    for amounts in taken:
        for provider_id, name, amount in amounts:
            used[provider_id][name] = used[provider_id].get(name, 0) + times * amount
    return ModelSnapshot(replace(each, used=used[each.id]) for each in snapshot)


def amounts_of(held: Mapping[tuple[int, str], int]) -> Amounts:
    return frozenset((*slot, amount) for slot, amount in held.items())


def moved_amounts(cloud: RandomCloud, move: MigrationStep) -> Amounts:
    """Return the amounts that a guest takes at its new host."""
    found = move.allocations.items()
    return amounts_of(
        {
            (cloud.snapshot.by_uuid[uuid], name): amount
            for uuid, some in found
            for name, amount in some.items()
        }
    )


def test_a_bound_by_volume_counts_no_room_of_hosts_that_take_no_guest() -> None:
    specs = [
        Spec("cn1", None, {"VCPU": 4}),
        Spec("cn2", None, {"VCPU": 64}, [DISABLED]),
        Spec("cn3", None, {"VCPU": 3}),
    ]
    snapshot = build(*specs)
    ids = {each.name: each.id for each in snapshot}
    held = [
        HeldAmount(f"{number:08}-0000-4000-8000-000000000000", "INSTANCE", ids["cn1"], "VCPU", 2)
        for number in range(2)
    ]
    guests = guests_of(using(snapshot, [frozenset({(ids["cn1"], "VCPU", 4)})]), held, SearchBudget())
    with patch.object(drain_plan, "_MAX_TRIES", 0):
        found = displace_guests(ClusterSimulation(snapshot, SearchBudget(), {ids["cn1"]}), guests)
    assert found.fit == FitBounds(1, 1)


def most_placed(cloud: RandomCloud, guests: Collection[HostedConsumer], drained: int) -> int:
    """The largest number of guests that have a place on other hosts, over all ways to place them."""
    left = using(cloud.snapshot, [amounts_of(each.held) for each in guests], -1)
    rest = brute.without(left, [drained])
    wanted = [brute.choices(brute.when_nothing_is_used(rest), each.request) for each in guests]
    states: dict[brute.State, int] = {frozenset(): 0}
    for choices in wanted:
        for state, placed in list(states.items()):
            for amounts in choices:
                after = brute.claim(rest, state, amounts)
                if after is not None:
                    states[after] = max(placed + 1, states.get(after, 0))
        if len(states) > _MAX_STATES:
            reject()
    return max(states.values())


def has_place(
    cloud: RandomCloud, guests: Collection[HostedConsumer], drained: int, guest: HostedConsumer
) -> bool:
    """Return whether one of the guests has a place on another host if no other guest is placed."""
    left = using(cloud.snapshot, [amounts_of(each.held) for each in guests], -1)
    return bool(brute.choices(brute.without(left, [drained]), guest.request))


def fewest_moves(cloud: RandomCloud) -> int | None:
    """Return the fewest moves that make room, over all orders of all moves; None if no moves make room."""
    snapshot = cloud.snapshot
    empty = brute.when_nothing_is_used(snapshot)
    guests = cloud.guests
    flavor = brute.choices(empty, cloud.request)
    choices = [brute.choices(empty, each.request) for each in guests]
    bare = using(snapshot, [amounts_of(each.held) for each in guests], -1)
    known = {tuple(amounts_of(each.held) for each in guests)}
    states, moves = known, 0
    while states:
        if any(fits(bare, (*state, extra)) for state in states for extra in flavor):
            return moves
        after = {
            (*state[:at], amounts, *state[at + 1 :])
            for state in states
            for at, options in enumerate(choices)
            for amounts in options
            if hosts(snapshot, amounts).isdisjoint(hosts(snapshot, state[at]))
            and fits(bare, (*state[:at], amounts, *state[at + 1 :]))
        }
        states = after - known
        known |= states
        moves += 1
        if len(known) > _MAX_STATES:
            reject()
    return None


def hosts(snapshot: ModelSnapshot, amounts: Amounts) -> set[int]:
    found = {
        snapshot.providers[each].root_id
        for each, _, _ in amounts
        if SHARES not in snapshot.providers[each].traits
    }
    return found or {snapshot.providers[each].root_id for each, _, _ in amounts}


def fits(bare: ModelSnapshot, taken: Collection[Amounts]) -> bool:
    found = using(bare, taken)
    return all(each.free(name) >= 0 for each in found for name in each.inventories)


def room(cloud: RandomCloud) -> MigrationPlan:
    board = ClusterSimulation(cloud.snapshot, SearchBudget())
    return make_room(board, cloud.request, nearest_hosts(board, cloud.request), cloud.guests, all_known=True)


@exhaustive
@given(st.one_of(clouds(), device_clouds()))
def test_the_largest_number_of_displaced_guests_has_a_place_elsewhere(cloud: RandomCloud) -> None:
    for root in brute.roots(cloud.snapshot):
        members = {each.id for each in cloud.snapshot if each.root_id == root.id}
        guests = [each for each in cloud.guests if any(slot[0] in members for slot in each.held)]
        expected = most_placed(cloud, guests, root.id)
        found = displace_guests(ClusterSimulation(cloud.snapshot, SearchBudget(), {root.id}), guests)
        assert found.guests == len(guests)
        assert found.fit == FitBounds(expected, expected)
        assert len(found.unplaced) == len(guests) - expected
        for each in found.unplaced:
            assert each.alone == has_place(cloud, guests, root.id, each.guest)
        moved = {each.guest for each in found.steps}
        assert moved == {*guests} - {each.guest for each in found.unplaced}
        # the guests without a place stay
        left = using(cloud.snapshot, [amounts_of(each.held) for each in moved], -1)
        assert fits(left, [moved_amounts(cloud, each) for each in found.steps])
        assert all(each.source.id == root.id != each.target.id for each in found.steps)
        with patch.object(drain_plan, "_MAX_TRIES", 0):  # it is given up at once
            found = displace_guests(ClusterSimulation(cloud.snapshot, SearchBudget(), {root.id}), guests)
            assert found.fit.lower_bound <= expected <= found.fit.upper_bound


@exhaustive
@given(st.one_of(clouds(), device_clouds()))
def test_room_is_made_by_the_fewest_moves_there_are(cloud: RandomCloud) -> None:
    expected = fewest_moves(cloud)
    found = room(cloud)
    if expected is None:
        assert found.moves is None
    else:
        assert found.moves is not None
        assert (len(found.moves), found.lower_bound) == (expected, expected)
        assert_possible(cloud, found)
    with patch.object(migration_plan, "_MAX_TRIES", 0):  # it is given up at once
        hasty = room(cloud)
        if hasty.moves is not None:
            assert expected is not None
            assert hasty.lower_bound is not None
            assert hasty.lower_bound <= expected <= len(hasty.moves)
            assert_possible(cloud, hasty)
        elif hasty.lower_bound is None:
            assert expected is None


def assert_possible(cloud: RandomCloud, found: MigrationPlan) -> None:
    """Check that each move has room at its time, and that the flavor has room on the named host after the
    moves.
    """
    assert found.moves is not None
    assert found.host is not None
    held = {each.consumer: amounts_of(each.held) for each in cloud.guests}
    bare = using(cloud.snapshot, list(held.values()), -1)
    empty = brute.when_nothing_is_used(cloud.snapshot)
    for move in found.moves:
        before = held[move.guest.consumer]
        after = moved_amounts(cloud, move)
        assert hosts(cloud.snapshot, before) == {move.source.id}
        assert move.target.id != move.source.id
        assert DISABLED not in move.target.traits
        assert after in brute.choices(empty, move.guest.request)
        held[move.guest.consumer] = after
        assert fits(bare, list(held.values()))
    extras = brute.choices(empty, cloud.request, on=[found.host.id])
    assert any(fits(bare, [*held.values(), extra]) for extra in extras)
