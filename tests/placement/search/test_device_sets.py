"""Tests of fixed sets of devices, such as partitions of an NVSwitch, with a marked provider above the
members.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.search.request import CandidatesRequest, RequestGroup
from tests.examples import examples
from tests.placement.search.asking import find
from tests.placement.search.device_hosts import GPU
from tests.placement.search.snapshots import Spec, build

Set = frozenset[str]
"""The names of the members."""


def trait(size: int) -> str:
    return f"CUSTOM_GPU_SET_{size}"


@st.composite
def nested_sets(draw: st.DrawFn) -> list[Set]:
    """A strategy for up to eight devices that are divided into nested sets, down to some depth. The largest
    set comes first.
    """
    devices = [f"d{number}" for number in range(draw(st.integers(2, 8)))]
    found: list[Set] = []

    def split(members: Sequence[str]) -> None:
        if len(members) < 2:
            return
        if draw(st.integers(0, 3)):
            found.append(frozenset(members))
        middle = draw(st.sampled_from((len(members) // 2, draw(st.integers(1, len(members) - 1)))))
        split(members[:middle])
        split(members[middle:])

    split(devices)
    return found


def host(sets: Sequence[Set], taken: Set) -> ModelSnapshot:
    """A host with providers that nest like its sets of devices."""
    specs = [Spec("host", None, {"VCPU": 1})]
    above: dict[str, str] = {}
    for number, members in enumerate(sets):
        (parent,) = {above.get(each, "host") for each in members}
        specs.append(Spec(f"set{number}", parent, {}, [trait(len(members))]))
        above |= dict.fromkeys(members, f"set{number}")
    devices = sorted({f"d{number}" for number in range(8)})
    specs += [Spec(each, above.get(each, "host"), {GPU: 1}, used={GPU: each in taken}) for each in devices]
    return build(*specs)


def set_of(size: int) -> CandidatesRequest:
    """A request for a set of devices: a group for each member, below one provider with the trait of
    the size.
    """
    members = tuple(RequestGroup(f"_{number}", {GPU: 1}) for number in range(size))
    top = RequestGroup("_set", required=(frozenset((trait(size),)),))
    return CandidatesRequest(
        (*members, top),
        group_policy="none",
        same_subtrees=(frozenset(each.suffix for each in (*members, top)),),
    )


def offered(snapshot: ModelSnapshot, size: int) -> set[Set]:
    return {
        frozenset(snapshot.providers[each].name for each in candidate.resources)
        for candidate in find(snapshot, replace(set_of(size), limit=500))
    }


@settings(max_examples=examples(200), deadline=None)
@given(nested_sets(), st.frozensets(st.sampled_from([f"d{number}" for number in range(8)]), max_size=4))
def test_a_set_is_offered_while_all_its_members_are_free(sets: list[Set], taken: Set) -> None:
    snapshot = host(sets, taken)
    for size in {len(each) for each in sets}:
        assert offered(snapshot, size) == {each for each in sets if len(each) == size and not each & taken}


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from((1, 2, 4, 8)), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_sets_of_a_switch_are_taken_until_none_is_left(sizes: list[int], rng: object) -> None:
    """The sets are one of 8, two of 4, and four of 2 devices. A taken set leaves only the sets that share no
    device with it.
    """
    names = [f"d{number}" for number in range(8)]
    sets = [frozenset(names[at : at + size]) for size in (8, 4, 2) for at in range(0, 8, size)]
    taken: Set = frozenset()
    for size in sizes:
        snapshot = host(sets, taken)
        if size == 1:
            free = [each for each in names if each not in taken]
            taken |= {rng.choice(free)} if free else set()  # type: ignore[attr-defined]  # a Random
            continue
        found = offered(snapshot, size)
        assert found == {each for each in sets if len(each) == size and not each & taken}
        if found:
            taken |= rng.choice(sorted(found, key=sorted))  # type: ignore[attr-defined]  # likewise
