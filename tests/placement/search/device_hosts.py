"""Random hosts with devices below NUMA nodes and switches, and requests for several equal devices."""

from collections import Counter
from collections.abc import Hashable

from hypothesis import strategies as st

from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.request import CandidatesRequest, RequestGroup
from tests.placement.search import snapshots
from tests.placement.search.brute import Found, ancestry, has_room
from tests.placement.search.snapshots import Spec, build

GPU = "CUSTOM_GPU"


def device_sizes() -> st.SearchStrategy[int | Inventory]:
    """The inventory of a device: mostly one unit, or several like a network card with functions. Perhaps one
    guest may not take all of them.
    """
    several = st.builds(snapshots.inventory, st.integers(2, 4), max_unit=st.integers(1, 4))
    return st.one_of(st.just(1), st.just(1), st.sampled_from((1, 2, 4)), several)


@st.composite
def unlike_hosts(draw: st.DrawFn, most_devices: int = 5) -> ModelSnapshot:
    """One to three hosts with up to two NUMA nodes with CPUs, switches below some of them, and devices
    anywhere.
    """
    specs: list[Spec] = []
    for host in range(draw(st.integers(1, 3))):
        root = f"h{host}"
        specs.append(Spec(root, None, {"MEMORY_MB": 4}))
        places = [root]
        for node in range(draw(st.integers(0, 2))):
            name = f"{root}n{node}"
            cpus = draw(st.integers(1, 3))
            specs.append(
                Spec(name, root, {"PCPU": cpus}, ["HW_NUMA_ROOT"], used={"PCPU": draw(st.integers(0, 1))})
            )
            places.append(name)
            if draw(st.booleans()):
                specs.append(Spec(f"{name}sw", name, traits=["CUSTOM_SWITCH"]))
                places.append(f"{name}sw")
        for device in range(draw(st.integers(1, most_devices))):
            specs.append(
                Spec(
                    f"{root}d{device}",
                    draw(st.sampled_from(places)),
                    {GPU: draw(device_sizes())},
                    draw(st.sampled_from(((), (), ("T1",)))),
                    used={GPU: draw(st.sampled_from((0, 0, 0, 1)))},
                )
            )
    return build(*specs)


@st.composite
def device_requests(draw: st.DrawFn) -> CandidatesRequest:
    """A request for one to four devices, mostly equal, and for CPUs. The devices may have to be below one
    node or one switch.
    """
    required = draw(st.sampled_from(((), (), (frozenset({"T1"}),))))
    suffixes = [f"_d{number}" for number in range(draw(st.integers(1, 4)))]
    groups = [RequestGroup(suffix, {GPU: 1}, required=required) for suffix in suffixes]
    if draw(st.integers(0, 3)) == 0:
        groups[0] = RequestGroup(suffixes[0], {GPU: 2})
    subtrees = []
    kind = draw(st.sampled_from(("none", "cpus", "node", "switch", "one device")))
    if kind == "cpus":
        groups.append(RequestGroup("_cpu", {"PCPU": draw(st.integers(1, 2))}))
        subtrees.append(frozenset({"_cpu", *suffixes}))
    elif kind in ("node", "switch"):
        trait = "HW_NUMA_ROOT" if kind == "node" else "CUSTOM_SWITCH"
        groups.append(RequestGroup("_top", required=(frozenset({trait}),)))
        subtrees.append(frozenset({"_top", *suffixes[: draw(st.integers(1, len(suffixes)))]}))
    elif kind == "one device":
        subtrees.append(frozenset(suffixes[: draw(st.integers(1, len(suffixes)))]))
    if draw(st.booleans()):
        groups.append(RequestGroup("", {"MEMORY_MB": 1}))
    return CandidatesRequest(
        tuple(groups),
        group_policy=draw(st.sampled_from(("none", "none", "isolate"))),
        same_subtrees=tuple(subtrees),
    )


@st.composite
def card_hosts(draw: st.DrawFn) -> ModelSnapshot:
    """One or two hosts with network cards below up to two nodes and below the root.

    A card has one to four functions. Some functions may be in use, and perhaps one guest may not take all of
    them.
    """
    specs: list[Spec] = []
    for host in range(draw(st.integers(1, 2))):
        root = f"h{host}"
        specs.append(Spec(root, None, {"MEMORY_MB": 4}))
        places = [root]
        for node in range(draw(st.integers(0, 2))):
            places.append(f"{root}n{node}")
            specs.append(Spec(places[-1], root, {"PCPU": draw(st.integers(1, 3))}, ["HW_NUMA_ROOT"]))
        for card in range(draw(st.integers(1, 5))):
            total = draw(st.integers(1, 4))
            sizes = snapshots.inventory(total, max_unit=draw(st.sampled_from((total, total, 1, 2))))
            used = {GPU: draw(st.integers(0, total))}
            traits = draw(st.sampled_from(((), (), ("T1",))))
            specs.append(
                Spec(f"{root}c{card}", draw(st.sampled_from(places)), {GPU: sizes}, traits, used=used)
            )
    return build(*specs)


@st.composite
def function_requests(draw: st.DrawFn) -> CandidatesRequest:
    """A request for two to four functions of cards, perhaps of cards with a trait, and perhaps near CPUs."""
    suffixes = [f"_f{number}" for number in range(draw(st.integers(2, 4)))]
    marked = draw(st.integers(0, 2))
    groups = [
        RequestGroup(suffix, {GPU: 1}, required=(frozenset({"T1"}),) if number < marked else ())
        for number, suffix in enumerate(suffixes)
    ]
    subtrees = []
    if draw(st.booleans()):
        groups.append(RequestGroup("_cpu", {"PCPU": 1}))
        subtrees.append(frozenset({"_cpu", *suffixes[: draw(st.integers(1, len(suffixes)))]}))
    policy = draw(st.sampled_from(("none", "none", "isolate")))
    return CandidatesRequest(
        tuple(draw(st.permutations(groups))), group_policy=policy, same_subtrees=tuple(subtrees)
    )


def distribution_of(snapshot: ModelSnapshot, request: CandidatesRequest, found: Found) -> Hashable:
    """A key of a candidate. Candidates have the same key if they take the same number of functions of the
    cards below each provider.

    Cards count separately if they may serve different groups. Groups count separately if different cards may
    serve them, or if only some of them have to be near CPUs.
    """
    _, provider_id = next(iter(found[1]))
    root = snapshot.providers[provider_id].root_id
    cards = [each for each in snapshot if GPU in each.inventories and each.root_id == root]
    serving = {
        group.suffix: frozenset(each.id for each in cards if _may_serve(request, group, each))
        for group in request.groups
    }
    return frozenset(
        Counter(
            (
                serving[suffix],
                any(suffix in rule for rule in request.same_subtrees),
                (provider.parent_id, *(suffix for suffix, those in serving.items() if provider.id in those))
                if GPU in provider.inventories
                else provider.id,
            )
            for suffix, provider_id in found[1]
            for provider in (snapshot.providers[provider_id],)
        ).items()
    )


def _may_serve(request: CandidatesRequest, group: RequestGroup, card: Provider) -> bool:
    near = any(group.suffix in rule for rule in request.same_subtrees)
    return (
        GPU in group.resources
        and min(card.free(GPU), card.inventories[GPU].max_unit) > 0
        and all(not card.traits.isdisjoint(traits) for traits in group.required)
        and not (near and card.parent_id == card.root_id)
    )


def class_of(snapshot: ModelSnapshot, request: CandidatesRequest, found: Found) -> Hashable:
    """A key of a candidate. Candidates have the same key if they differ only in equal groups and equal
    devices.

    Devices are equal if they are leaves below one provider, have the same requested traits, and may serve the
    same groups. If one device may serve several groups, equal devices also have the same free amount for all
    groups together.
    """
    suffixes_at: dict[int, list[str]] = {}
    for suffix, provider_id in found[1]:
        suffixes_at.setdefault(provider_id, []).append(suffix)
    options = _options_in_reach(snapshot, request, snapshot.providers[min(suffixes_at)].root_id)
    return frozenset(
        Counter(
            (
                _provider_class(snapshot, request, snapshot.providers[provider_id], options),
                tuple(sorted(map(repr, (_group_class(request, suffix) for suffix in suffixes)))),
            )
            for provider_id, suffixes in suffixes_at.items()
        ).items()
    )


def _options_in_reach(snapshot: ModelSnapshot, request: CandidatesRequest, root: int) -> dict[str, set[int]]:
    """The ids of the providers that may serve each group, by its suffix, as far as same_subtree decides."""
    found = {
        group.suffix: {
            each.id
            for each in snapshot
            if each.root_id == root
            and all(has_room(name, amount, each) for name, amount in group.resources.items())
            and all(not each.traits.isdisjoint(traits) for traits in group.required)
        }
        for group in request.groups
    }
    for rule in request.same_subtrees:
        above = [{up for each in found[suffix] for up in ancestry(snapshot, each)} for suffix in rule]
        tops = {each for suffix in rule for each in found[suffix]}.intersection(*above)
        for suffix in rule:
            found[suffix] = {each for each in found[suffix] if tops & {*ancestry(snapshot, each)}}
    return found


def _group_class(request: CandidatesRequest, suffix: str) -> Hashable:
    (group,) = (each for each in request.groups if each.suffix == suffix)
    rules = tuple(suffix in rule for rule in request.same_subtrees)
    return suffix == "", tuple(sorted(group.resources.items())), group.required, rules


def _provider_class(
    snapshot: ModelSnapshot, request: CandidatesRequest, provider: Provider, options: dict[str, set[int]]
) -> Hashable:
    if provider.parent_id is None or any(each.parent_id == provider.id for each in snapshot):
        return provider.id
    named = {trait for group in request.groups for traits in group.required for trait in traits}
    free = []
    for name, inventory in sorted(provider.inventories.items()):
        asked = [group.resources[name] for group in request.groups if name in group.resources]
        if len(asked) > 1 and request.group_policy != "isolate":
            free.append(min(provider.free(name), inventory.max_unit, sum(asked)))
    serves = tuple(provider.id in options[group.suffix] for group in request.groups)
    return provider.parent_id, serves, tuple(free), frozenset(provider.traits & named)
