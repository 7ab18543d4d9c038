"""Tests of the plan of a report: the changes in their order, and values that stay unchanged."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.report.plan import (
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    DeleteProvider,
    KnownNames,
    OwnedNames,
    ReportedProvider,
    SetInventories,
    SetTraits,
    UpdateProvider,
    assume_ownership,
    ownership_after,
    ownership_before,
    plan_actions,
)

ROOT, CHILD, OTHER = "root", "child", "other"
KNOWN = KnownNames(frozenset({"PCPU", "VCPU", "DISK_GB"}), frozenset({"COMPUTE_NODE", "HW_NUMA_ROOT"}))
PCPU = ProviderInventory(4, max_unit=4)


def node(uuid, parent=None, inventories=None, traits=()):
    return ProviderNode(uuid, uuid, parent, inventories or {}, frozenset(traits))


def reported(uuid, parent=None, inventories=None, traits=(), generation=1):
    return ReportedProvider(uuid, uuid, parent, generation, inventories or {}, frozenset(traits))


def tree(*nodes):
    return ProviderTree(nodes)


def test_an_unknown_host_is_created_from_the_root_down():
    derived = tree(node(ROOT, traits=["COMPUTE_NODE"]), node(CHILD, ROOT, {"PCPU": PCPU}))
    assert plan_actions(derived, {}, {}, KNOWN) == (
        CreateProvider(ROOT, ROOT, None),
        CreateProvider(CHILD, CHILD, ROOT),
        SetInventories(CHILD, {"PCPU": PCPU}),
        SetTraits(ROOT, frozenset({"COMPUTE_NODE"})),
    )


def test_equal_trees_need_no_action():
    derived = tree(node(ROOT, None, {"PCPU": PCPU}, ["COMPUTE_NODE"]))
    has = {ROOT: reported(ROOT, None, {"PCPU": PCPU}, ["COMPUTE_NODE"])}
    assert plan_actions(derived, has, {}, KNOWN) == ()


def test_custom_names_are_made_known_first_and_unknown_standard_traits_are_left_out():
    derived = tree(node(ROOT, None, {"CUSTOM_LLC": PCPU}, ["CUSTOM_X", "HW_CPU_OF_TOMORROW"]))
    assert plan_actions(derived, {ROOT: reported(ROOT)}, {}, KNOWN) == (
        CreateResourceClass("CUSTOM_LLC"),
        CreateTrait("CUSTOM_X"),
        SetInventories(ROOT, {"CUSTOM_LLC": PCPU}),
        SetTraits(ROOT, frozenset({"CUSTOM_X"})),
    )


def test_inventories_and_traits_of_others_stay():
    derived = tree(node(ROOT, None, {"PCPU": PCPU}, ["COMPUTE_NODE"]))
    fpga = ProviderInventory(1)
    has = {ROOT: reported(ROOT, None, {"CUSTOM_FPGA": fpga}, ["CUSTOM_RACK_7"])}
    assert plan_actions(derived, has, {ROOT: OwnedNames()}, KNOWN) == (
        SetInventories(ROOT, {"CUSTOM_FPGA": fpga, "PCPU": PCPU}),
        SetTraits(ROOT, frozenset({"CUSTOM_RACK_7", "COMPUTE_NODE"})),
    )


def test_former_parts_of_the_agent_are_removed():
    derived = tree(node(ROOT, None, {"VCPU": PCPU}))
    has = {ROOT: reported(ROOT, None, {"VCPU": PCPU, "PCPU": PCPU}, ["COMPUTE_NODE", "CUSTOM_RACK_7"])}
    owned = {ROOT: OwnedNames(frozenset({"VCPU", "PCPU"}), frozenset({"COMPUTE_NODE"}))}
    assert plan_actions(derived, has, owned, KNOWN) == (
        SetInventories(ROOT, {"VCPU": PCPU}),
        SetTraits(ROOT, frozenset({"CUSTOM_RACK_7"})),
    )


def test_capacity_that_moves_leaves_before_it_arrives():
    derived = tree(node(ROOT), node(CHILD, ROOT, {"PCPU": PCPU}))
    has = {ROOT: reported(ROOT, None, {"PCPU": PCPU}), CHILD: reported(CHILD, ROOT)}
    owned = {ROOT: OwnedNames(frozenset({"PCPU"}))}
    assert plan_actions(derived, has, owned, KNOWN) == (
        SetInventories(ROOT, {}),
        SetInventories(CHILD, {"PCPU": PCPU}),
    )


def test_providers_of_ours_go_leaves_first_and_those_of_others_stay():
    derived = tree(node(ROOT))
    has = {
        ROOT: reported(ROOT),
        "numa": reported("numa", ROOT),
        "l3": reported("l3", "numa"),
        OTHER: reported(OTHER, ROOT),
    }
    owned = {uuid: OwnedNames() for uuid in (ROOT, "numa", "l3")}
    assert plan_actions(derived, has, owned, KNOWN) == (DeleteProvider("l3"), DeleteProvider("numa"))


def test_a_provider_goes_when_its_child_has_moved_elsewhere():
    derived = tree(node(ROOT), node(CHILD, ROOT))
    has = {ROOT: reported(ROOT), "gone": reported("gone", ROOT), CHILD: reported(CHILD, "gone")}
    owned = {uuid: OwnedNames() for uuid in has}
    assert plan_actions(derived, has, owned, KNOWN) == (
        UpdateProvider(CHILD, CHILD, ROOT),
        DeleteProvider("gone"),
    )


def test_a_provider_with_a_foreign_child_stays():
    has = {ROOT: reported(ROOT), CHILD: reported(CHILD, ROOT), OTHER: reported(OTHER, CHILD)}
    assert plan_actions(tree(node(ROOT)), has, {CHILD: OwnedNames()}, KNOWN) == ()


def test_a_renamed_or_moved_provider_is_updated():
    derived = tree(replace(node(ROOT), name="new"), node(CHILD, ROOT))
    has = {ROOT: reported(ROOT), CHILD: reported(CHILD, OTHER), OTHER: reported(OTHER, ROOT)}
    assert plan_actions(derived, has, {}, KNOWN) == (
        UpdateProvider(ROOT, "new", None),
        UpdateProvider(CHILD, CHILD, ROOT),
    )


def test_a_trait_that_was_there_before_us_is_not_claimed():
    derived = tree(node(ROOT, None, {}, ["COMPUTE_NODE", "CUSTOM_X"]))
    has = {ROOT: reported(ROOT, None, {}, ["CUSTOM_X"])}
    claims = ownership_before(derived, has, {ROOT: OwnedNames()})
    assert claims == {ROOT: OwnedNames(traits=frozenset({"COMPUTE_NODE"}))}


def test_no_part_of_novas_root_is_the_agents():
    derived = ProviderTree((node(ROOT), node(CHILD, ROOT, {"PCPU": PCPU})), beside=True)
    owned = {ROOT: OwnedNames(classes=frozenset({"PCPU"})), CHILD: OwnedNames()}
    assert ownership_before(derived, {}, owned).keys() == {CHILD}
    own_root = replace(derived, beside=False)
    assert ownership_before(own_root, {}, owned).keys() == {ROOT, CHILD}


def test_without_a_memory_what_only_we_can_have_reported_is_ours():
    derived = tree(node(ROOT, None, {"VCPU": PCPU}, ["COMPUTE_NODE"]))
    has = {ROOT: reported(ROOT, None, {"PCPU": PCPU, "CUSTOM_FPGA": PCPU}, ["COMPUTE_NODE", "CUSTOM_X"])}
    assert assume_ownership(derived, has, {}) == {
        ROOT: OwnedNames(frozenset({"PCPU"}), frozenset({"COMPUTE_NODE"}))
    }


CLASSES = ("PCPU", "VCPU", "CUSTOM_A")
TRAITS = ("COMPUTE_NODE", "HW_NUMA_ROOT", "CUSTOM_B")
INVENTORIES = st.dictionaries(st.sampled_from(CLASSES), st.builds(ProviderInventory, st.integers(1, 3)))
TRAIT_SETS = st.frozensets(st.sampled_from(TRAITS))


@st.composite
def trees(draw):
    """A strategy for a root provider with any of three children. A child may be the parent of another."""
    nodes = [node(ROOT, None, draw(INVENTORIES), draw(TRAIT_SETS))]
    for name in draw(st.lists(st.sampled_from("abc"), unique=True)):
        parent = draw(st.sampled_from([known.uuid for known in nodes]))
        nodes.append(node(name, parent, draw(INVENTORIES), draw(TRAIT_SETS)))
    return ProviderTree(tuple(nodes))


def carry_out(actions, has):
    """The state of Placement after these actions. The function fails where Placement would refuse."""
    has = dict(has)
    for action in actions:
        match action:
            case CreateProvider(uuid, name, parent):
                assert parent is None or parent in has
                has[uuid] = ReportedProvider(uuid, name, parent, 0)
            case UpdateProvider(uuid, name, parent):
                has[uuid] = replace(has[uuid], name=name, parent=parent)
            case SetInventories(uuid, inventories):
                has[uuid] = replace(has[uuid], inventories=inventories)
            case SetTraits(uuid, traits):
                has[uuid] = replace(has[uuid], traits=traits)
            case DeleteProvider(uuid):
                assert not any(provider.parent == uuid for provider in has.values())
                del has[uuid]
    return has


@given(trees(), trees(), TRAIT_SETS, INVENTORIES)
def test_from_any_tree_to_any_other_in_one_plan(before, after, foreign_traits, foreign_inventories):
    """The agent's values become the wanted values. Values that other programs have added meanwhile stay."""
    known = KnownNames(frozenset(CLASSES), frozenset(TRAITS))
    first = carry_out(plan_actions(before, {}, {}, known), {})
    owned = ownership_after(before, ownership_before(before, {}, {}), first)
    fpga = {f"CUSTOM_FPGA_{name}": held for name, held in foreign_inventories.items()}
    racks = frozenset(f"CUSTOM_RACK_{trait}" for trait in foreign_traits)
    root = first[ROOT]
    first[ROOT] = replace(root, traits=root.traits | racks, inventories={**root.inventories, **fpga})

    second = carry_out(plan_actions(after, first, owned, known), first)

    assert second.keys() == {node.uuid for node in after.nodes}
    for wanted in after.nodes:
        has = second[wanted.uuid]
        extra = (fpga, racks) if wanted.uuid == ROOT else ({}, frozenset())
        assert has.parent == wanted.parent
        assert has.inventories == {**extra[0], **wanted.inventories}
        assert has.traits == wanted.traits | extra[1]
    claims = ownership_before(after, first, owned)
    assert plan_actions(after, second, ownership_after(after, claims, second), known) == ()
