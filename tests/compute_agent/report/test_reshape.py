"""Tests of the moves of a reshape: tables of cases, and random guests on random trees."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import SHAPES, InventorySettings, derive_provider_tree
from compute_agent.inventory.resctrl import CacheDomain, CachePlatform
from compute_agent.model.guest import ConsumerAllocations
from compute_agent.report.capacity import CpuLocation
from compute_agent.report.plan import OwnedNames, ReportedProvider
from compute_agent.report.reshape import InfeasibleReshape, ReshapePlan, plan_reshape, to_body
from tests.compute_agent.inventory.machines import machine
from tests.examples import examples

ROOT = "11111111-0000-4000-8000-000000000000"
TWO_NODES = machine(nodes=2, cores=4, threads=2)  # CPUs 0-7 on node 0, 8-15 on node 1
CONTROLLED = CachePlatform({0: CacheDomain(0, ways=11), 10: CacheDomain(10, ways=11)}, groups=8)
GUEST, OTHER = "22222222-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"


def tree(topology, shape, dedicated=None, shared=None, platform=None, **options):
    sets = resolve_cpu_sets(CpuOptions(cpu_dedicated_set=dedicated, cpu_shared_set=shared), topology)
    return derive_provider_tree(
        topology, sets, InventorySettings(provider_tree=shape, **options), ROOT, "h", platform
    )


def reported(of):
    return {
        node.uuid: ReportedProvider(node.uuid, node.name, node.parent, 7, node.inventories, node.traits)
        for node in of.nodes
    }


def owned(of):
    return {node.uuid: OwnedNames(frozenset(node.inventories), node.traits) for node in of.nodes}


def plan(before, after, held, locations):
    """The plan of a reshape, with the names of providers instead of uuids."""
    zones = {node.uuid: node.cpus for node in (*before.nodes, *after.nodes)}
    held = {consumer: by_uuid(before, holding) for consumer, holding in held.items()}
    return plan_reshape(after, reported(before), owned(before), held, locations, zones)


def by_uuid(of, holding):
    uuids = {node.name: node.uuid for node in of.nodes}
    return {uuids[name]: amounts for name, amounts in holding.items()}


def by_name(of, holding):
    names = {node.uuid: node.name for node in of.nodes}
    return {names[uuid]: amounts for uuid, amounts in holding.items()}


FLAT = {"h": {"VCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10}}


@pytest.mark.parametrize(
    ("shape", "held", "location", "becomes"),
    [
        pytest.param(
            "flat",
            FLAT,
            CpuLocation(own=frozenset({0, 1, 2, 3}), pinned_vcpus=4),
            {"h": {"PCPU": 4, "MEMORY_MB": 1024, "DISK_GB": 10}},
            id="pinned VCPU become PCPU",
        ),
        pytest.param(
            "flat",
            FLAT,
            CpuLocation(own=frozenset({0, 1, 2, 3, 4, 5, 6, 7}), pinned_vcpus=4),
            {"h": {"PCPU": 8, "MEMORY_MB": 1024, "DISK_GB": 10}},
            id="with siblings kept empty twice as many",
        ),
        pytest.param(
            "numa",
            FLAT,
            CpuLocation(own=frozenset({2, 3, 8, 9}), pinned_vcpus=4),
            {
                "h": {"DISK_GB": 10},
                "h_NUMA_0": {"PCPU": 2, "MEMORY_MB": 512},
                "h_NUMA_1": {"PCPU": 2, "MEMORY_MB": 512},
            },
            id="both at once, to the nodes of the CPUs, and the memory with them",
        ),
        pytest.param(
            "numa",
            FLAT,
            CpuLocation(floating=frozenset(range(10, 16))),
            {"h": {"DISK_GB": 10}, "h_NUMA_1": {"VCPU": 4, "MEMORY_MB": 1024}},
            id="a floating guest goes to the node that it floats on",
        ),
        pytest.param(
            "numa",
            FLAT,
            CpuLocation(floating=frozenset(range(16))),
            {
                "h": {"DISK_GB": 10},
                "h_NUMA_0": {"VCPU": 2, "MEMORY_MB": 512},
                "h_NUMA_1": {"VCPU": 2, "MEMORY_MB": 512},
            },
            id="or to all of them",
        ),
        pytest.param(
            "numa",
            FLAT,
            None,
            {"h": {"DISK_GB": 10}, "h_NUMA_0": {"VCPU": 4, "MEMORY_MB": 1024}},
            id="an allocation without a guest goes to one zone as a whole",
        ),
        pytest.param("flat", FLAT, CpuLocation(floating=frozenset(range(16))), None, id="nothing to do"),
        pytest.param(
            "flat",
            FLAT,
            CpuLocation(own=frozenset({0, 1, 2}), pinned_vcpus=3),
            None,
            id="as many VCPU as pinned guest CPUs, or it is not a pinned guest",
        ),
        pytest.param(
            "l3",
            FLAT,
            CpuLocation(own=frozenset({2, 3, 8, 9}), pinned_vcpus=4),
            {
                "h": {"DISK_GB": 10},
                "h_NUMA_0": {"MEMORY_MB": 512},
                "h_L3_0": {"PCPU": 2},
                "h_NUMA_1": {"MEMORY_MB": 512},
                "h_L3_10": {"PCPU": 2},
            },
            id="CPUs to the L3 domain, memory to the node around it",
        ),
    ],
)
def test_an_allocation_of_a_flat_tree_moves_to_the_zones(shape, held, location, becomes):
    before = tree(TWO_NODES, "flat", disk_gb=50)
    after = tree(TWO_NODES, shape, dedicated="0-9", shared="10-15", disk_gb=50)
    if location is None or location.floating >= frozenset(range(16)):
        after = tree(TWO_NODES, shape, disk_gb=50)
    found = plan(before, after, {GUEST: held}, {GUEST: location} if location else {})
    assert found.allocations == ({} if becomes is None else {GUEST: by_uuid(after, becomes)})


@pytest.mark.parametrize("old", SHAPES)
@pytest.mark.parametrize("new", SHAPES)
def test_there_and_back_again(old, new):
    """A pinned guest keeps its allocation and its cache ways when the tree changes between all shapes and
    back.
    """
    trees = {s: tree(TWO_NODES, s, "0-9", "10-15", CONTROLLED, disk_gb=50) for s in SHAPES}
    cpu, memory = {"flat": ("h", "h"), "numa": ("h_NUMA_1",) * 2, "l3": ("h_L3_10", "h_NUMA_1")}[old]
    held = {"h": {"DISK_GB": 5}, "h_L3_10": {"LLC": 3}}
    held = {**held, cpu: {**held.get(cpu, {}), "PCPU": 2}}
    held = {**held, memory: {**held.get(memory, {}), "MEMORY_MB": 512}}
    locations = {GUEST: CpuLocation(own=frozenset({8, 9}))}
    there = plan(trees[old], trees[new], {GUEST: held}, locations)
    if old == new:
        assert there == ReshapePlan()
        return
    moved = by_name(trees[new], there.allocations[GUEST])
    assert moved["h_L3_10"]["LLC"] == 3
    assert not any("LLC" in (move.source_class, move.target_class) for move in there.moves)
    back = plan(trees[new], trees[old], {GUEST: moved}, locations)
    assert by_name(trees[old], back.allocations[GUEST]) == held


def test_an_allocation_without_a_guest_stays_in_its_zone():
    before, after = (tree(TWO_NODES, shape) for shape in ("l3", "numa"))
    found = plan(before, after, {GUEST: {"h_L3_10": {"VCPU": 3}}}, {})
    assert by_name(after, found.allocations[GUEST]) == {"h_NUMA_1": {"VCPU": 3}}


def test_amounts_that_do_not_fit_in_one_zone_go_to_the_next():
    before = tree(TWO_NODES, "flat", reserved_host_memory_mb=0)
    after = tree(TWO_NODES, "numa", reserved_host_memory_mb=0)
    held = {"h": {"VCPU": 2, "MEMORY_MB": 12 << 10}}
    found = plan(before, after, {GUEST: held}, {GUEST: CpuLocation(floating=frozenset({8, 9}))})
    assert by_name(after, found.allocations[GUEST]) == {
        "h_NUMA_0": {"MEMORY_MB": 4 << 10},
        "h_NUMA_1": {"VCPU": 2, "MEMORY_MB": 8 << 10},
    }


def test_guests_on_cpus_of_their_own_come_first():
    before = tree(TWO_NODES, "flat", "0-15")
    after = tree(TWO_NODES, "numa", "0-15")
    pinned = {GUEST: CpuLocation(own=frozenset(range(8))), OTHER: None}
    found = plan(
        before,
        after,
        {OTHER: {"h": {"PCPU": 8}}, GUEST: {"h": {"PCPU": 8}}},
        {guest: location for guest, location in pinned.items() if location},
    )
    assert by_name(after, found.allocations[GUEST]) == {"h_NUMA_0": {"PCPU": 8}}
    assert by_name(after, found.allocations[OTHER]) == {"h_NUMA_1": {"PCPU": 8}}


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (CpuLocation(own=frozenset({2, 3})), CpuLocation(floating=frozenset({4}))),
        (CpuLocation(own=frozenset({2, 3})), None),
        (CpuLocation(floating=frozenset({4})), None),
    ],
    ids=["own CPUs before floating", "own CPUs before nobody", "floating before nobody"],
)
def test_a_guest_on_its_own_cpus_gets_capacity_where_it_runs(first, last):
    """The node has memory for only one of the guests. The result does not depend on their uuids."""
    before, after = (
        tree(TWO_NODES, shape, "2-3,10-11", "4-7,12-15", reserved_host_memory_mb=0)
        for shape in ("flat", "numa")
    )
    surer = {"PCPU": 2} if first.own else {"VCPU": 2}
    other = {"PCPU": 2} if last and last.own else {"VCPU": 2}
    for sure, less_sure in ((GUEST, OTHER), (OTHER, GUEST)):
        locations = {sure: first, less_sure: last}
        found = plan(
            before,
            after,
            {sure: {"h": {**surer, "MEMORY_MB": 8 << 10}}, less_sure: {"h": {**other, "MEMORY_MB": 8 << 10}}},
            {guest: location for guest, location in locations.items() if location},
        )
        assert by_name(after, found.allocations[sure]) == {"h_NUMA_0": {**surer, "MEMORY_MB": 8 << 10}}
        assert by_name(after, found.allocations[less_sure])["h_NUMA_1"]["MEMORY_MB"] == 8 << 10


def test_too_little_room_is_told_with_consumer_class_and_what_is_free():
    before = tree(TWO_NODES, "flat")
    after = tree(TWO_NODES, "numa", shared="0-1", cpu_allocation_ratio=1.0)
    found = plan(before, after, {GUEST: {"h": {"VCPU": 4}}}, {})
    assert isinstance(found, InfeasibleReshape)
    words = "h_NUMA_0 8, but at most 2 in one allocation"
    assert found.reason == f"{GUEST}: there is no room for 4 VCPU (free: {words})"


def test_allocations_of_classes_without_inventory_stay():
    """If all CPUs become dedicated, floating guests keep their VCPU, and the root provider keeps its
    inventory.
    """
    before, after = tree(TWO_NODES, "flat"), tree(TWO_NODES, "numa", dedicated="0-15")
    held = {GUEST: {"h": {"VCPU": 4, "MEMORY_MB": 64}}}
    found = plan(before, after, held, {GUEST: CpuLocation(floating=frozenset(range(8)))})
    assert by_name(after, found.allocations[GUEST]) == {"h": {"VCPU": 4}, "h_NUMA_0": {"MEMORY_MB": 64}}
    (root,) = [change for change in found.inventories if change.uuid == ROOT]
    assert root.after == {"VCPU": before.root.inventories["VCPU"]}


def test_ways_under_their_stock_name_are_renamed_in_place():
    after = tree(TWO_NODES, "numa", platform=CONTROLLED)
    nodes = tuple(
        replace(node, inventories={{"LLC": "CUSTOM_LLC"}.get(n, n): i for n, i in node.inventories.items()})
        for node in after.nodes
    )
    before = replace(after, nodes=nodes)
    found = plan(before, after, {GUEST: {"h_L3_10": {"CUSTOM_LLC": 3}}}, {})
    assert by_name(after, found.allocations[GUEST]) == {"h_L3_10": {"LLC": 3}}


def test_the_body_has_all_that_a_consumer_holds_anywhere():
    before, after = tree(TWO_NODES, "flat"), tree(TWO_NODES, "numa")
    found = plan(before, after, {GUEST: {"h": {"VCPU": 2}}}, {})
    node = after.nodes[1].uuid
    record = ConsumerAllocations(
        GUEST, {ROOT: {"VCPU": 2}, "elsewhere": {"DISK_GB": 9}}, 3, "project", "user", "INSTANCE"
    )
    there = reported(before) | {n.uuid: ReportedProvider(n.uuid, n.name, ROOT, 0) for n in after.nodes[1:]}
    body = to_body(found, there, {GUEST: record})
    assert body["allocations"] == {
        GUEST: {
            "allocations": {
                "elsewhere": {"resources": {"DISK_GB": 9}},
                node: {"resources": {"VCPU": 2}},
            },
            "project_id": "project",
            "user_id": "user",
            "consumer_generation": 3,
            "consumer_type": "INSTANCE",
        }
    }
    assert body["inventories"][ROOT] == {"resource_provider_generation": 7, "inventories": {}}
    assert body["inventories"][node]["resource_provider_generation"] == 0
    assert body["inventories"][node]["inventories"]["VCPU"]["total"] == 8


@st.composite
def transitions(draw):
    """A strategy for a machine, guests that fit on it, and the provider trees before and after."""
    topology = machine(
        packages=draw(st.integers(1, 2)),
        nodes=draw(st.integers(1, 3)),
        l3=draw(st.integers(1, 2)),
        cores=draw(st.integers(1, 4)),
        threads=draw(st.integers(1, 2)),
        memory_kib=draw(st.integers(4, 64)) << 10,
        l3_spans_nodes=draw(st.booleans()),
    )
    cpus = sorted(topology.online)
    kinds = draw(st.lists(st.sampled_from("dsh"), min_size=len(cpus), max_size=len(cpus)))
    dedicated = {cpu for cpu, kind in zip(cpus, kinds, strict=True) if kind == "d"}
    shared = {cpu for cpu, kind in zip(cpus, kinds, strict=True) if kind == "s"} or {cpus[0]}
    dedicated -= shared
    control = CachePlatform({cache.id: CacheDomain(cache.id, ways=8) for cache in topology.l3_domains})
    options = {
        "shared": ",".join(map(str, sorted(shared))),
        "reserved_host_memory_mb": 0,
        "platform": draw(st.sampled_from([None, control])),
    }
    sets = ",".join(map(str, sorted(dedicated))) or None
    old, new = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(SHAPES))
    first_configured = old == "flat" and draw(st.booleans())
    after = tree(topology, new, dedicated=sets, **options)
    if first_configured:
        before = tree(topology, old, **options | {"shared": None})
    else:
        before = tree(topology, old, dedicated=sets, **options)
    used, held, locations = {}, {}, {}
    own_left = sorted(dedicated)
    for number in range(draw(st.integers(0, 8))):
        guest = f"22222222-0000-4000-8000-{number:012d}"
        amount = draw(st.integers(0, min(3, len(own_left))))
        own = frozenset(draw(st.permutations(own_left))[:amount]) if amount else frozenset()
        own_left = [cpu for cpu in own_left if cpu not in own]
        name = "PCPU" if own and not first_configured else "VCPU"
        count = len(own) or draw(st.integers(1, 3))
        holding = {}
        ok = True
        needs = [(name, count, own or topology.online), ("MEMORY_MB", draw(st.integers(1, 8)), own)]
        for wish, total, where in needs:
            for _ in range(total):
                options_here = sorted(
                    (-len(node.cpus & where), -len(node.cpus), index)
                    for index, node in enumerate(before.nodes)
                    if wish in node.inventories
                )
                for *_rest, index in options_here:
                    node = before.nodes[index]
                    inventory = node.inventories[wish]
                    has = used.get((node.uuid, wish), 0)
                    if has + 1 <= int(inventory.total * inventory.allocation_ratio):
                        used[node.uuid, wish] = has + 1
                        amounts = holding.setdefault(node.uuid, {})
                        amounts[wish] = amounts.get(wish, 0) + 1
                        break
                else:
                    ok = False
        if not ok:
            for uuid, amounts in holding.items():
                for wish, total in amounts.items():
                    used[uuid, wish] -= total
            continue
        held[guest] = holding
        kind = draw(st.sampled_from(["placed", "placed", "absent"]))
        if own:
            locations[guest] = CpuLocation(own=own, pinned_vcpus=len(own))
        elif kind == "placed":
            locations[guest] = CpuLocation(floating=frozenset(shared))
    return before, after, held, locations


def totals(holding):
    found = {}
    for amounts in holding.values():
        for name, amount in amounts.items():
            found[name] = found.get(name, 0) + amount
    return found


@settings(max_examples=examples(300), deadline=None)
@given(transitions())
def test_random_transitions(case):
    before, after, held, locations = case
    zones = {node.uuid: node.cpus for node in (*before.nodes, *after.nodes)}
    found = plan_reshape(after, reported(before), owned(before), held, locations, zones)
    if isinstance(found, InfeasibleReshape):
        # Only possible where the new tree has less: VCPU of CPUs that became dedicated or the host's.
        assert "VCPU" in found.reason or "PCPU" in found.reason
        return

    now = {**held, **found.allocations}
    for guest, holding in held.items():
        location = locations.get(guest)
        converted = location is not None and location.pinned_vcpus == totals(holding).get("VCPU")
        expected = totals(holding)
        if converted:
            expected["PCPU"] = expected.pop("VCPU")
        assert totals(now[guest]) == expected, "amounts are preserved"
        moved = sum(m.target_amount for m in found.moves if (m.consumer, m.target_class) == (guest, "PCPU"))
        if location is not None and location.own and moved == len(location.own):
            for node in after.providers_of("PCPU"):
                inner = [n for n in after.providers_of("PCPU") if n.parent == node.uuid]
                here = location.own & node.cpus - frozenset().union(*(n.cpus for n in inner))
                assert now[guest].get(node.uuid, {}).get("PCPU", 0) == len(here), "where the CPUs are"

    if found.moves:
        inventories = {uuid: p.inventories for uuid, p in reported(before).items()}
        inventories |= {change.uuid: change.after for change in found.inventories}
        # A consumer without moves may hold more than a provider has left, which an ordinary report shows.
        for uuid, name in {(move.target, move.target_class) for move in found.moves}:
            inventory = inventories[uuid][name]
            used = [holding.get(uuid, {}).get(name, 0) for holding in now.values()]
            assert sum(used) <= int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
            for guest in {
                move.consumer for move in found.moves if (move.target, move.target_class) == (uuid, name)
            }:
                assert now[guest][uuid][name] <= inventory.max_unit
        for guest in found.allocations:
            moves = [move for move in found.moves if move.consumer == guest]
            after_moves = {uuid: dict(amounts) for uuid, amounts in held[guest].items()}
            for move in moves:
                source = after_moves[move.source]
                source[move.source_class] -= move.source_amount
                target = after_moves.setdefault(move.target, {})
                target[move.target_class] = target.get(move.target_class, 0) + move.target_amount
            left = {u: {n: a for n, a in amounts.items() if a} for u, amounts in after_moves.items()}
            assert {u: amounts for u, amounts in left.items() if amounts} == found.allocations[guest]

    again = plan_reshape(after, reported(after), owned(after), now, locations, zones)
    assert again == ReshapePlan(), "a second reshape has nothing to do"
