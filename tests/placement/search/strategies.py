"""Strategies for random snapshots and requests, which use few names, so that these often match."""

from typing import TypeVar

from hypothesis import strategies as st

from placement.read_model.provider import SHARES, Inventory
from placement.read_model.snapshot import ModelSnapshot
from placement.search.request import CandidatesRequest, RequestGroup
from tests.placement.search.snapshots import Spec, build, inventory, name_to_uuid

T = TypeVar("T")

CLASSES = ("VCPU", "DISK_GB", "CUSTOM_A")
TRAITS = ("T1", "T2", "T3")
AGGREGATES = ("a", "b", "c")
SUFFIXES = ("_1", "_2", "_3")

amounts = st.sampled_from((1, 1, 1, 1, 2, 3))


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    total = draw(st.integers(1, 6))
    if draw(st.integers(0, 3)):
        return inventory(total)
    return inventory(
        total,
        reserved=draw(st.integers(0, 1)),
        min_unit=draw(st.integers(1, 2)),
        max_unit=draw(st.integers(1, 6)),
        step_size=draw(st.integers(1, 2)),
        allocation_ratio=draw(st.sampled_from((1.0, 1.5, 2.0))),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> ModelSnapshot:
    """Up to seven providers in trees. Some of them share with other trees, and some have usage."""
    specs: list[Spec] = []
    for number in range(draw(st.integers(2, 7))):
        parents = [*(spec.name for spec in specs[-3:]), None]
        share = draw(st.sampled_from((False, False, False, True)))
        having = [name for name in CLASSES if draw(st.booleans())]
        specs.append(
            Spec(
                name=f"p{number}",
                parent=draw(st.sampled_from(parents)),
                inventories={name: draw(inventories()) for name in having},
                traits=[name for name in TRAITS if draw(st.booleans())] + [SHARES] * share,
                aggregates=[name for name in AGGREGATES if draw(st.booleans())],
                used={name: 1 for name in having if draw(st.integers(0, 4)) == 0},
            )
        )
    return build(*specs)


@st.composite
def groups(draw: st.DrawFn, suffix: str, snapshot: ModelSnapshot, resourceless: bool) -> RequestGroup:
    having = set() if resourceless else draw(st.sets(st.sampled_from(CLASSES), min_size=1, max_size=2))
    sometimes = st.sampled_from((False, False, True))
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    if draw(sometimes):
        required = draw(st.lists(st.frozensets(st.sampled_from(TRAITS), min_size=1, max_size=2), max_size=2))
        forbidden = draw(st.sets(st.sampled_from(TRAITS), max_size=draw(st.integers(0, 1))))
    member_of: list[frozenset[str]] = []
    not_member_of: set[str] = set()
    if draw(sometimes):
        uuids = st.sampled_from([name_to_uuid(name) for name in AGGREGATES])
        member_of = draw(st.lists(st.frozensets(uuids, min_size=1, max_size=2), max_size=2))
        not_member_of = draw(st.sets(uuids, max_size=draw(st.integers(0, 1))))
    in_tree = None
    if draw(st.integers(0, 7)) == 0:
        in_tree = draw(st.sampled_from([*(provider.uuid for provider in snapshot), name_to_uuid("nobody")]))
    return RequestGroup(
        suffix=suffix,
        resources={name: draw(amounts) for name in sorted(having)},
        required=tuple(required),
        forbidden=frozenset(forbidden),
        member_of=tuple(member_of),
        forbidden_aggregates=frozenset(not_member_of),
        in_tree=in_tree,
        outside=draw(st.frozensets(st.sampled_from(TRAITS), max_size=draw(st.sampled_from((0, 0, 0, 0, 1))))),
        inside=draw(st.frozensets(st.sampled_from(TRAITS), max_size=draw(st.sampled_from((0, 0, 0, 0, 1))))),
    )


@st.composite
def requests(draw: st.DrawFn, snapshot: ModelSnapshot) -> CandidatesRequest:
    """Any valid request. It may have a group policy even if none is required."""
    suffixes = SUFFIXES[: draw(st.integers(0, 3))]
    unsuffixed = draw(st.booleans()) or not suffixes
    nested = draw(st.sampled_from((True, True, True, False)))
    found: list[RequestGroup] = []
    if unsuffixed:
        found.append(draw(groups("", snapshot, resourceless=False)))
    for suffix in suffixes:
        bare = nested and bool(found) and draw(st.integers(0, 3)) == 0
        found.append(draw(groups(suffix, snapshot, resourceless=bare)))
    same_subtrees = []
    if suffixes and nested and draw(st.integers(0, 2)) == 0:
        same_subtrees = draw(
            st.lists(st.frozensets(st.sampled_from(suffixes), min_size=1), min_size=1, max_size=2)
        )
    root_required: set[str] = set()
    root_forbidden: set[str] = set()
    if draw(st.integers(0, 4)) == 0:
        root_required = draw(st.sets(st.sampled_from((*TRAITS, SHARES)), max_size=1))
        root_forbidden = draw(st.sets(st.sampled_from((*TRAITS, SHARES)), max_size=1))
    return CandidatesRequest(
        groups=tuple(found),
        group_policy=draw(st.sampled_from(("none", "isolate"))),
        root_required=frozenset(root_required),
        root_forbidden=frozenset(root_forbidden),
        same_subtrees=tuple(same_subtrees),
        nested=nested,
    )


@st.composite
def situations(draw: st.DrawFn, requests_each: int = 10) -> tuple[ModelSnapshot, list[CandidatesRequest]]:
    snapshot = draw(snapshots())
    return snapshot, [draw(requests(snapshot)) for _ in range(requests_each)]


@st.composite
def fleets(draw: st.DrawFn) -> tuple[ModelSnapshot, CandidatesRequest]:
    """Hosts of one structure with different sizes and usage, and a request with groups for the same
    resources.
    """
    parents = [draw(st.sampled_from((None, *range(number)))) for number in range(draw(st.integers(1, 3)))]
    traits = [draw(st.sampled_from(((), ("T1",)))) for _ in parents]
    portions = {"step_size": draw(st.sampled_from((1, 1, 2))), "max_unit": draw(st.sampled_from((3, 9)))}
    specs = [Spec("shared", None, {"VCPU": 3}, [SHARES], ["a"])] if draw(st.integers(0, 4)) == 0 else []
    for host in range(draw(st.integers(2, 4))):
        specs += [
            Spec(
                f"p{host}_{number}",
                None if number == 0 else f"p{host}_{parents[number] or 0}",
                {"VCPU": inventory(draw(st.integers(3, 5)), **portions)},
                traits[number],
                draw(st.sampled_from(((), ("a",)))),
                {"VCPU": draw(st.integers(0, 3))},
            )
            for number in range(len(parents))
        ]
    suffixes = SUFFIXES[: draw(st.integers(1, 3))]
    required = st.sampled_from(((), (), (), (frozenset({"T1"}),)))
    member_of = st.sampled_from(((), (), (), (frozenset({name_to_uuid("a")}),)))
    groups = [
        RequestGroup(
            suffix, {"VCPU": draw(st.integers(1, 3))}, required=draw(required), member_of=draw(member_of)
        )
        for suffix in (*suffixes, *draw(st.sampled_from(((), ("",)))))
    ]
    subtrees = st.lists(st.frozensets(st.sampled_from(suffixes), min_size=2), max_size=1)
    return build(*specs), CandidatesRequest(
        tuple(groups),
        group_policy=draw(st.sampled_from(("none", "none", "isolate"))),
        same_subtrees=tuple(draw(subtrees)) if len(suffixes) > 1 else (),
        nested=draw(st.sampled_from((True, True, True, False))),
    )


@st.composite
def sizes(draw: st.DrawFn) -> tuple[ModelSnapshot, CandidatesRequest]:
    """Hosts of one structure, used or unused. Some hosts are too small for amounts that the others can
    give.
    """
    specs = []
    for host in range(draw(st.integers(2, 4))):
        specs.append(Spec(f"cn{host}", None, {"DISK_GB": draw(st.integers(1, 3))}))
        for node in range(2):
            total = draw(st.integers(1, 5))
            used = {"VCPU": draw(st.integers(0, total))}
            specs.append(Spec(f"cn{host}_{node}", f"cn{host}", {"VCPU": total}, used=used))
    groups = [RequestGroup("", {"DISK_GB": draw(st.integers(1, 3))})] * draw(st.integers(0, 1))
    groups += [
        RequestGroup(suffix, {"VCPU": draw(st.integers(1, 5))})
        for suffix in SUFFIXES[: draw(st.integers(1, 2))]
    ]
    return build(*specs), CandidatesRequest(
        tuple(groups), group_policy=draw(st.sampled_from(("none", "isolate")))
    )


@st.composite
def crowded_hosts(draw: st.DrawFn) -> tuple[ModelSnapshot, CandidatesRequest]:
    """A host with equivalent devices on two NUMA nodes, and about as many groups as fit."""
    specs = [Spec("cn", None, {"CUSTOM_DEV": 1}, aggregates=["a"])]
    specs += [Spec(f"numa{node}", "cn", {}, ["T1"] * node) for node in range(2)]
    for number in range(draw(st.integers(1, 4))):
        specs.append(
            Spec(
                f"dev{number}",
                draw(st.sampled_from(("numa0", "numa1", None))),
                {"CUSTOM_DEV": draw(st.sampled_from((2, 2, 3)))},
                draw(st.sampled_from(((SHARES,), (SHARES,), (SHARES, "T1")))),
                ["a"],
            )
        )
    suffixes = SUFFIXES[: draw(st.integers(1, 3))]
    traits = st.sampled_from(((), (), (), (frozenset({"T1"}),)))
    groups = [
        RequestGroup(suffix, {"CUSTOM_DEV": draw(st.integers(1, 3))}, required=draw(traits))
        for suffix in suffixes
    ]
    if draw(st.booleans()):
        groups.append(RequestGroup("", {"CUSTOM_DEV": draw(st.integers(1, 2))}, required=draw(traits)))
    if draw(st.integers(0, 3)) == 0:
        groups.append(RequestGroup("_0", required=(frozenset({"T1"}),)))
        suffixes = (*suffixes, "_0")
    subtrees = st.lists(st.frozensets(st.sampled_from(suffixes), min_size=2), max_size=1)
    return build(*specs), CandidatesRequest(
        tuple(groups),
        group_policy=draw(st.sampled_from(("none", "isolate"))),
        same_subtrees=tuple(draw(subtrees)) if len(suffixes) > 1 else (),
        nested=draw(st.sampled_from((True, True, False))),
    )


@st.composite
def packings(draw: st.DrawFn) -> tuple[ModelSnapshot, CandidatesRequest]:
    """A host with devices of all sizes, partly used, and groups that need about all free amounts."""
    specs = [Spec("cn")]
    for number in range(draw(st.integers(2, 4))):
        sizes = {name: draw(st.integers(1, 7)) for name in ("CUSTOM_DEV", "VCPU")}
        used = {name: draw(st.integers(0, 2)) for name in sizes}
        traits = draw(st.sampled_from(((), ("T1",), ("T1", "T2"))))
        specs.append(Spec(f"dev{number}", "cn", sizes, traits, (), used))
    traits = st.sampled_from(((), (), (frozenset({"T1"}),), (frozenset({"T2"}),)))
    step = draw(st.sampled_from((1, 1, 2)))
    groups = []
    for number in range(draw(st.integers(2, 5))):
        resources = {"CUSTOM_DEV": step * draw(st.integers(1, 4))}
        if draw(st.booleans()):
            resources["VCPU"] = draw(st.integers(1, 4))
        groups.append(RequestGroup(f"_{number}", resources, required=draw(traits)))
    return build(*specs), CandidatesRequest(tuple(groups), group_policy="none")


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[ModelSnapshot, CandidatesRequest]:
    """Hosts that have the same inventories at the same positions, but different candidates.

    The hosts differ in at least one of these: parents, traits, aggregates, portions, usage.
    """
    size = draw(st.integers(3, 4))
    having = [draw(st.sampled_from((("VCPU",), ("VCPU",), ("VCPU", "DISK_GB"), ()))) for _ in range(size)]
    kinds = ("tree", "traits", "aggregates", "portions", "used")
    differing = {draw(st.sampled_from(kinds))} if draw(st.booleans()) else {*kinds}

    def either(kind: str, usual: T, *others: T) -> T:
        return draw(st.sampled_from((usual, *others))) if kind in differing else usual

    specs = [Spec("pool", None, {"DISK_GB": 3}, [SHARES], ["a"])] if draw(st.booleans()) else []
    for host in range(draw(st.integers(2, 3))):
        for number in range(size):
            above = either("tree", 0, *range(1, max(1, number)))
            specs.append(
                Spec(
                    f"p{host}_{number}",
                    None if number == 0 else f"p{host}_{above}",
                    {name: inventory(4, max_unit=either("portions", 9, 2)) for name in having[number]},
                    either("traits", (), ("T1",), ("T2",)),
                    either("aggregates", (), ("a",), ("b",)),
                    {name: either("used", 0, 1, 3) for name in having[number]},
                )
            )
    suffixes = SUFFIXES[: draw(st.integers(2, 3))]
    traits = st.sampled_from(((), (frozenset({"T1"}),)) if "traits" in differing else ((),))
    member_of = st.sampled_from(
        ((), (frozenset({name_to_uuid("a")}),)) if "aggregates" in differing else ((),)
    )
    groups = [
        RequestGroup(
            suffix,
            dict.fromkeys(
                draw(st.sampled_from((("VCPU",), ("DISK_GB",), ("VCPU", "DISK_GB")))), draw(amounts)
            ),
            required=draw(traits),
            member_of=draw(member_of),
        )
        for suffix in (*suffixes, *draw(st.sampled_from(((), ("",)))))
    ]
    subtrees = st.lists(st.frozensets(st.sampled_from(suffixes), min_size=2, max_size=3), max_size=2)
    return build(*specs), CandidatesRequest(
        tuple(groups),
        group_policy=draw(st.sampled_from(("none", "isolate"))),
        root_forbidden=draw(st.sampled_from((frozenset[str](), frozenset({"T2"})))),
        same_subtrees=tuple(draw(subtrees)),
        nested=draw(st.sampled_from((True, True, True, False))),
    )
