"""Tests of CPUs, memory and devices of a flavor from one NUMA node, by Nova's policies of affinity."""

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oslo_config import cfg

from placement.exceptions import InvalidRequest
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas.request_form import AskedCandidates
from placement.search.budget import SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.claims.claim import HostChoice, WantedClaim
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.search.request import CandidatesRequest
from placement.store.consumers import ConsumerOwnership
from placement_extras.flavors.flavor import ImageProperties, NovaFlavor, PciAlias, TranslationRules
from placement_extras.flavors.form import configured_rules
from placement_extras.flavors.options import GROUP, OPTIONS
from placement_extras.flavors.translation import translate_flavor
from tests.examples import examples
from tests.placement.search.snapshots import Spec, build, build_scenario

GPU = PciAlias("gpu", "CUSTOM_GPU")
NIC = PciAlias("nic", "CUSTOM_NIC", frozenset({"CUSTOM_FAST"}), "preferred")
RULES = TranslationRules(pci_aliases=(GPU, NIC), numa_affinity=True, huge_pages=True)
PINNED = {"hw:cpu_policy": "dedicated"}


def translated(rules: TranslationRules = RULES, **specs: str) -> AskedCandidates:
    return translate_flavor(NovaFlavor(4, 2048, 10, extra_specs=tuple(specs.items())), rules)


def amounts(request: CandidatesRequest | None) -> dict[str, dict[str, int]]:
    assert request is not None
    return {group.suffix: dict(group.resources) for group in request.groups}


def test_cpus_memory_and_devices_are_below_one_node() -> None:
    found = translated(
        **PINNED, **{"pci_passthrough:alias": "gpu:2", "hw:pci_numa_affinity_policy": "required"}
    )
    assert amounts(found.request) == {
        "": {"DISK_GB": 10},
        "_NODE": {},
        "_PCPU": {"PCPU": 4},
        "_MEMORY_MB": {"MEMORY_MB": 2048},
        "_PCI_0": {"CUSTOM_GPU": 1},
        "_PCI_1": {"CUSTOM_GPU": 1},
    }
    assert found.request.same_subtrees == (frozenset({"_NODE", "_PCPU", "_MEMORY_MB", "_PCI_0", "_PCI_1"}),)
    assert found.request.group_policy == "none"
    assert found.fallback is None
    assert found.warnings == ()


def test_the_alias_has_the_policy_where_flavor_and_image_have_none() -> None:
    found = translated(**PINNED, **{"pci_passthrough:alias": "gpu:1,nic:1"})
    assert found.fallback is not None
    assert found.fallback.same_subtrees == (frozenset({"_NODE", "_PCPU", "_MEMORY_MB"}),)
    outside = {group.suffix: group.outside for group in found.fallback.groups if group.outside}
    assert outside == {"_PCI_0": frozenset({ZONE})}
    assert not any(group.outside for group in found.request.groups)


def test_a_mix_of_policies_that_leaves_out_hosts_is_named() -> None:
    mixed = translated(**PINNED, **{"pci_passthrough:alias": "gpu:1,nic:1"})
    assert ["policies preferred and legacy" in each for each in mixed.warnings] == [True]
    alike = translated(**PINNED, **{"pci_passthrough:alias": "gpu:2"})
    assert alike.warnings == ()


def test_memory_of_the_root_is_of_no_node() -> None:
    """The root provider is above all nodes. A guest with its memory could have CPUs and a device of two
    nodes.
    """
    flavor = NovaFlavor(
        4,
        2048,
        extra_specs=(*PINNED.items(), ("pci_passthrough:alias", "gpu:1")),
        image=ImageProperties(),
        is_volume_backed=True,
    )
    request = translate_flavor(
        flavor, TranslationRules(pci_aliases=(replace(GPU, numa_policy="required"),), numa_affinity=True)
    ).request
    nodes = [Spec("n0", "h", {"PCPU": 8}, [ZONE]), Spec("n1", "h", {}, [ZONE])]
    device = Spec("gpu", "n1", {"CUSTOM_GPU": 1})
    assert not find_candidates(build(Spec("h", None, {"MEMORY_MB": 8192}), *nodes, device), request)


@pytest.mark.parametrize("policy", ["required", "socket"])
def test_a_required_node_has_no_fallback(policy: str) -> None:
    specs = {"pci_passthrough:alias": "gpu:1,nic:1", "hw:pci_numa_affinity_policy": policy}
    assert translated(**PINNED, **specs).fallback is None


def test_traits_of_the_guest_are_those_of_the_root() -> None:
    found = translated(**PINNED, **{"hw:cpu_thread_policy": "isolate", "trait:CUSTOM_GOLD": "required"})
    assert found.request.root_required == {"CUSTOM_GOLD"}
    assert {"HW_CPU_HYPERTHREADING"} < found.request.root_forbidden


def test_a_group_of_the_flavor_with_cpus_is_below_the_node() -> None:
    found = translated(**{"resources_A:PCPU": "4", "resources_A:CUSTOM_X": "1", "hw:numa_nodes": "1"})
    assert found.request.same_subtrees == (frozenset({"_NODE", "_A", "_MEMORY_MB"}),)


def test_suffixes_of_the_flavor_stay_its_own() -> None:
    found = translated(**PINNED, **{"resources_NODE:CUSTOM_X": "1"})
    assert amounts(found.request)["_NODE"] == {"CUSTOM_X": 1}
    assert found.request.same_subtrees == (frozenset({"_NODE_0", "_PCPU", "_MEMORY_MB"}),)


@pytest.mark.parametrize(
    ("specs", "warnings"),
    [
        ({}, ()),
        (
            {"hw:numa_nodes": "2"},
            (
                "CPUs, memory and devices are requested from the whole host, because the guest has 2"
                " NUMA nodes",
            ),
        ),
        (
            {**PINNED, "resources1:CUSTOM_X": "1", "group_policy": "isolate"},
            ("CPUs, memory and devices are requested from the whole host, because group_policy is isolate",),
        ),
    ],
)
def test_other_guests_are_requested_as_by_nova(specs: dict[str, str], warnings: tuple[str, ...]) -> None:
    found, as_nova = translated(**specs), translated(TranslationRules(), **specs)
    assert found.request == as_nova.request
    assert found.warnings == (*as_nova.warnings, *warnings)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("1GB", {"CUSTOM_HUGE_PAGES_1GB": 2}),
        ("2048", {"CUSTOM_HUGE_PAGES_2MB": 1024}),
        ("2MiB", {"CUSTOM_HUGE_PAGES_2MB": 1024}),
        ("large", {"MEMORY_MB": 2048}),
        ("4", {"MEMORY_MB": 2048}),
    ],
)
def test_huge_pages_are_counted_by_size(size: str, expected: dict[str, int]) -> None:
    rules = TranslationRules(huge_pages=True)
    assert amounts(translated(rules, **{"hw:mem_page_size": size}).request) == {
        "": {"VCPU": 4, "DISK_GB": 10, **expected}
    }
    near = amounts(translated(**{"hw:mem_page_size": size}).request)
    assert expected in near.values()
    assert near[""] == {"DISK_GB": 10}


def test_memory_that_is_no_multiple_of_its_pages_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="2048 MiB of memory are not a multiple of the page size of 16777216 KiB"
    ):
        translated(**{"hw:mem_page_size": "16GB"})


def test_options_are_read() -> None:
    conf = cfg.ConfigOpts()
    conf.register_opts(OPTIONS, group=GROUP.name)
    conf.register_opt(cfg.ListOpt("additional_resource_classes", default=[]), group="placement")
    conf([])
    conf.set_override("numa_affinity", True, group="flavors")
    conf.set_override("huge_pages", True, group="flavors")
    rules = configured_rules(conf)
    assert rules.numa_affinity
    assert rules.huge_pages
    conf.set_override("disable_fallback_pcpu_query", False, group="flavors")
    with pytest.raises(ValueError, match="numa_affinity needs disable_fallback_pcpu_query = true"):
        configured_rules(conf)


@st.composite
def hosts(draw: st.DrawFn) -> ModelSnapshot:
    """A strategy for hosts with one or two NUMA nodes, and with devices below the nodes, below a switch, or
    below the root.
    """
    specs: list[Spec] = []
    for host in range(draw(st.integers(1, 2))):
        root = f"h{host}"
        of_root = draw(st.sampled_from(({}, {}, {"MEMORY_MB": 2}, {"PCPU": 3})))
        specs.append(Spec(root, None, {"DISK_GB": 1, **of_root}))
        places = [root]
        for node in range(draw(st.integers(1, 2))):
            name = f"{root}n{node}"
            having = {"PCPU": draw(st.integers(1, 3)), "MEMORY_MB": draw(st.integers(1, 2))}
            specs += [Spec(name, root, having, [ZONE]), Spec(f"{name}sw", name)]
            places += [name, f"{name}sw"]
        specs += [
            Spec(f"{root}d{number}", draw(st.sampled_from(places)), {"CUSTOM_GPU": 1})
            for number in range(draw(st.integers(0, 3)))
        ]
    return build(*specs)


@settings(max_examples=examples(300), deadline=None)
@given(
    hosts(),
    st.sampled_from(("required", "socket", "preferred", "legacy")),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
)
def test_a_guest_is_placed_as_its_policy_says(
    snapshot: ModelSnapshot, policy: str, cpus: int, memory: int, devices: int
) -> None:
    specs = {**PINNED, "pci_passthrough:alias": f"gpu:{devices}", "hw:pci_numa_affinity_policy": policy}
    flavor = NovaFlavor(
        cpus, memory, extra_specs=tuple(specs.items()), image=ImageProperties(), is_volume_backed=True
    )
    rules = TranslationRules(pci_aliases=(GPU,), numa_affinity=True)
    found = translate_flavor(flavor, rules)
    # Nova wants a trait of hosts that can do this; the hosts here have none
    request = found.request if policy != "socket" else without_root_traits(found.request)
    wanted = WantedClaim(
        "c", None, ConsumerOwnership("p", "u", "INSTANCE"), request, (1, 39), fallback=found.fallback
    )
    placed = place_claims(build_scenario(snapshot), [wanted], SearchBudget(), random.Random(0))
    expected = ways(snapshot, policy, cpus, memory, devices)
    near = {way for way in expected if is_near(snapshot, way)}
    if isinstance(placed, UnplacedClaim):
        assert not expected
    else:
        assert way_of(placed[0].choice) in (near or expected)


def without_root_traits(request: CandidatesRequest) -> CandidatesRequest:
    return CandidatesRequest(request.groups, request.group_policy, same_subtrees=request.same_subtrees)


Way = tuple[int, frozenset[int]]
"""The node of CPUs and memory, and the devices."""


def way_of(choice: HostChoice) -> Way:
    (node,) = {provider.id for provider, amounts in choice.resources if "PCPU" in amounts}
    (same,) = {provider.id for provider, amounts in choice.resources if "MEMORY_MB" in amounts}
    assert node == same
    return node, frozenset(provider.id for provider, amounts in choice.resources if "CUSTOM_GPU" in amounts)


def node_of(snapshot: ModelSnapshot, provider: Provider) -> int | None:
    while provider.parent_id is not None:
        if ZONE in provider.traits:
            return provider.id
        provider = snapshot.providers[provider.parent_id]
    return None


def is_near(snapshot: ModelSnapshot, way: Way) -> bool:
    return {node_of(snapshot, snapshot.providers[device]) for device in way[1]} == {way[0]}


def ways(snapshot: ModelSnapshot, policy: str, cpus: int, memory: int, devices: int) -> set[Way]:
    """All ways that the policy allows. With policy legacy, either all devices are near, or all are outside of
    nodes.
    """
    found = set()
    for node in snapshot:
        if node.inventories.keys() < {"PCPU", "MEMORY_MB"} or ZONE not in node.traits:
            continue
        if node.inventories["PCPU"].total < cpus or node.inventories["MEMORY_MB"].total < memory:
            continue
        of_host = [
            each.id for each in snapshot if each.root_id == node.root_id and "CUSTOM_GPU" in each.inventories
        ]
        for chosen in combinations(of_host, devices):
            at = {node_of(snapshot, snapshot.providers[each]) for each in chosen}
            if policy == "preferred" or at == {node.id} or (policy == "legacy" and at == {None}):
                found.add((node.id, frozenset(chosen)))
    return found
