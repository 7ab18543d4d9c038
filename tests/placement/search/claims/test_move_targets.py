"""New hosts for windows that move, compared with a judge that looks at all hosts."""

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from placement.read_model.provider import STATUS_TRAITS
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.search.claims.availability import skylines_in
from placement.search.claims.host_rooms import TimedSearch
from placement.search.claims.window_room import MoveTargets, Taken
from placement.store.time_profile import TimedAmount, TimeWindow, largest_sum
from placement.store.time_skyline import make_skylines
from tests.placement.search.claims.timed_worlds import windows
from tests.placement.search.snapshots import Spec, build

CAPACITY = 4
HOST_TRAITS: list[Sequence[str]] = [(), (), (), ("CUSTOM_FAST",), ("COMPUTE_STATUS_DISABLED",)]


def two_nodes(name: str, traits: Sequence[str]) -> list[Spec]:
    nodes = [Spec(f"{name}{number}", name, {"PCPU": CAPACITY}) for number in range(2)]
    return [Spec(name, traits=traits), *nodes]


def is_like(one: HostTree, other: HostTree) -> bool:
    """Whether hosts of two nodes differ at most in the traits of disabled hosts."""
    return one.root.traits - STATUS_TRAITS == other.root.traits - STATUS_TRAITS


# each amount is for one node of one host
SPAN = TimeWindow(0, 1)
amounts = st.lists(st.tuples(st.integers(0, 9), st.integers(1, CAPACITY), windows), max_size=14)


# the window of the first host has no new host, but leaves room for a window of the second host
@example([(), ()], [(0, 2, SPAN), (2, 2, SPAN), (2, 2, SPAN)], 0, False)
@given(
    st.lists(st.sampled_from(HOST_TRAITS), min_size=2, max_size=5), amounts, st.integers(0, 99), st.booleans()
)
def test_a_window_gets_a_new_host_exactly_if_an_equivalent_host_has_room(
    traits: list[Sequence[str]], asked: list[tuple[int, int, TimeWindow]], seed: int, are_joint: bool
) -> None:
    snapshot = build(
        *(spec for name, each in zip("abcde", traits, strict=False) for spec in two_nodes(name, each))
    )
    nodes = [each for each in snapshot if each.parent_id is not None]
    timed = [
        TimedAmount(str(number), nodes[node % len(nodes)].uuid, "PCPU", used, window, False)
        for number, (node, used, window) in enumerate(asked)
    ]
    skylines = skylines_in(snapshot, make_skylines(timed, ()))
    targets = MoveTargets(TimedSearch(snapshot, skylines, SearchBudget(), random.Random(seed)))
    for number, each in enumerate(timed):
        provider = snapshot.providers[snapshot.by_uuid[each.provider]]
        # every other window also has an amount at another provider
        beside = nodes[number % len(nodes)] if are_joint and number % 2 else provider
        kept = {} if beside.root_id == provider.root_id else {beside.uuid: {"PCPU": 1}}
        tree = snapshot.whole_trees()[provider.root_id]
        at = tree.members.index(provider)
        possible = {
            other.members[at].uuid
            for other in snapshot.whole_trees().values()
            if other is not tree and other.root.id != beside.root_id
            if not STATUS_TRAITS & other.root.traits and is_like(tree, other)
            if has_room(timed, other.members[at].uuid, each)
        }
        held = {each.provider: {"PCPU": each.used}} | kept
        move = targets.find_move(tree, [each], Taken(), held)
        assert (move is not None) == bool(possible)
        if move is not None:
            (chosen,) = move.after.keys() - kept.keys()
            assert chosen in possible
            assert (move.after, move.before) == ({chosen: {"PCPU": each.used}} | kept, held)
            assert len(move.described) == 3


def has_room(timed: Sequence[TimedAmount], provider: str, wanted: TimedAmount) -> bool:
    there = [each for each in timed if each.provider == provider]
    return largest_sum(there, wanted.window) + wanted.used <= CAPACITY


def roots_like_each(snapshot: ModelSnapshot) -> dict[str, set[str]]:
    index, trees = snapshot.equivalent_hosts(), snapshot.whole_trees()
    return {
        each.root.name: {trees[root].root.name for root in index.roots_like(each)} for each in trees.values()
    }


def test_the_index_of_equivalent_hosts_follows_changes() -> None:
    snapshot = build(*two_nodes("a", ()), *two_nodes("b", ()), Spec("c", inventories={"PCPU": 8}))
    assert roots_like_each(snapshot) == {"a": {"a", "b"}, "b": {"a", "b"}, "c": {"c"}}
    index, copy = snapshot.equivalent_hosts(), snapshot.copy()
    root, node, _ = copy.whole_trees()[copy.by_name["b"]].members
    copy.put(replace(node, used={"PCPU": 1}, attributes={"agent.reported_at": 1.0}))
    assert copy.equivalent_hosts() is index
    copy.put(replace(root, traits=frozenset({"COMPUTE_STATUS_DISABLED"})))
    assert roots_like_each(copy) == {"a": {"a"}, "b": {"a"}, "c": {"c"}}
    copy.put(replace(root, traits=frozenset({"CUSTOM_FAST"})))
    assert roots_like_each(copy) == {"a": {"a"}, "b": {"b"}, "c": {"c"}}
    copy.put(replace(root, aggregates=frozenset({"rack"})))
    assert roots_like_each(copy) == {"a": {"a"}, "b": {"b"}, "c": {"c"}}
    for each in copy.trees[root.id][::-1]:
        copy.remove(each)
    assert roots_like_each(copy) == {"a": {"a"}, "c": {"c"}}
    assert roots_like_each(snapshot) == {"a": {"a", "b"}, "b": {"a", "b"}, "c": {"c"}}
