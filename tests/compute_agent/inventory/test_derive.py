"""Tests of provider trees: the inventories of each provider, and its parent."""

import uuid
from collections.abc import Mapping, Set
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.host.topology import CpuCache, HostTopology
from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import SHAPES, InventorySettings, derive_provider_tree, spread_amount
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderTree, with_stock_names
from compute_agent.inventory.resctrl import CacheDomain, CachePlatform
from compute_agent.model import cpuset
from compute_agent.model.messages import ConfigError
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.inventory.trees import ROOT, totals, tree_of

GIB_KIB = 1 << 20


def parents(tree: ProviderTree) -> dict[str, str | None]:
    names = {node.uuid: node.name for node in tree.nodes}
    return {node.name: node.parent and names[node.parent] for node in tree.nodes}


def control(topology: HostTopology) -> CachePlatform:
    domains = {
        cache.id: CacheDomain(
            cache.id, ways=16, reserved_ways=4, min_ways=2, bandwidth_min=10, bandwidth_step=10
        )
        for cache in topology.l3_domains
    }
    return CachePlatform(domains, groups=16, groups_taken=3, features=frozenset({"L3_CAT", "MBA"}))


def test_host_of_48_cpus_in_a_flat_tree_has_exactly_these_inventories() -> None:
    topology = machine(packages=2, cores=12, threads=2, memory_kib=0)
    options = CpuOptions(cpu_dedicated_set="2-17", cpu_shared_set="18-47")
    tree = tree_of(topology, options, provider_tree="flat", cpu_allocation_ratio=8.0)
    (root,) = tree.nodes
    assert root.uuid == ROOT
    assert root.parent is None
    assert root.inventories == {
        "PCPU": ProviderInventory(
            total=16, reserved=0, min_unit=1, max_unit=16, step_size=1, allocation_ratio=1.0
        ),
        "VCPU": ProviderInventory(
            total=30, reserved=0, min_unit=1, max_unit=30, step_size=1, allocation_ratio=8.0
        ),
    }


@pytest.mark.parametrize(
    ("options", "classes"),
    [
        (CpuOptions(), {"VCPU": 16}),
        (CpuOptions(cpu_dedicated_set="2-5"), {"PCPU": 4}),
        (CpuOptions(cpu_shared_set="2-5"), {"VCPU": 4}),
        (CpuOptions(vcpu_pin_set="2-5"), {"PCPU": 4, "VCPU": 4}),
        (CpuOptions(vcpu_pin_set="2-5", cpu_shared_set="0-2"), {"VCPU": 4}),
    ],
)
def test_only_classes_that_a_set_backs_are_reported(options: CpuOptions, classes: dict[str, int]) -> None:
    tree = tree_of(machine(cores=8, threads=2, memory_kib=0), options, provider_tree="flat")
    assert totals(tree) == {"host": classes}


def test_ratios_and_reserves_go_to_their_classes_and_never_to_pcpu() -> None:
    tree = tree_of(
        machine(cores=8, memory_kib=8 * GIB_KIB),
        CpuOptions(vcpu_pin_set="0-3", reserved_host_cpus=1),
        provider_tree="flat",
        cpu_allocation_ratio=4.0,
        ram_allocation_ratio=1.5,
        disk_allocation_ratio=2.0,
        reserved_host_memory_mb=512,
        reserved_host_disk_mb=1025,
        disk_gb=100,
    )
    assert tree.root.inventories == {
        "PCPU": ProviderInventory(total=4, max_unit=4),
        "VCPU": ProviderInventory(total=4, reserved=1, max_unit=4, allocation_ratio=4.0),
        "MEMORY_MB": ProviderInventory(total=8192, reserved=512, max_unit=8192, allocation_ratio=1.5),
        "DISK_GB": ProviderInventory(total=100, reserved=2, max_unit=100, allocation_ratio=2.0),
    }


@pytest.mark.parametrize(("ways", "classes"), [(0, set()), (1, {"LLC"}), (2, {"LLC"})])
def test_a_cache_without_ways_to_give_is_no_inventory(ways: int, classes: set[str]) -> None:
    topology = machine(cores=4, memory_kib=0)
    domains = {cache.id: CacheDomain(cache.id, ways=ways) for cache in topology.l3_domains}
    platform = CachePlatform(domains, groups=16, groups_taken=3, features=frozenset({"L3_CAT"}))
    tree = tree_of(topology, CpuOptions(cpu_dedicated_set="0-3"), platform)
    found = [node.inventories["LLC"].total for node in tree.nodes if "LLC" in node.inventories]
    assert found == [ways] * len(classes)


def test_numa_tree_has_cpus_and_memory_on_the_nodes_and_disk_on_the_root() -> None:
    topology = machine(packages=2, cores=4, threads=2, memory_kib=8 * GIB_KIB)
    tree = tree_of(topology, CpuOptions(cpu_dedicated_set="2-7", cpu_shared_set="8-13"), disk_gb=50)
    assert totals(tree) == {
        "host": {"DISK_GB": 50},
        "host_NUMA_0": {"PCPU": 6, "MEMORY_MB": 8192},
        "host_NUMA_1": {"VCPU": 6, "MEMORY_MB": 8192},
    }
    assert parents(tree) == {"host": None, "host_NUMA_0": "host", "host_NUMA_1": "host"}
    assert [node.traits for node in tree.nodes[1:]] == [frozenset({"HW_NUMA_ROOT"})] * 2
    assert [cpuset.format(node.cpus) for node in tree.nodes] == ["0-15", "0-7", "8-15"]
    assert [node.numa_nodes for node in tree.nodes] == [{0, 1}, {0}, {1}]
    assert [node.l3_ids for node in tree.nodes] == [{0, 10}, {0}, {10}]


def test_l3_tree_has_cpus_on_the_domains_and_memory_on_the_nodes() -> None:
    topology = machine(nodes=2, l3=2, cores=2, threads=2, memory_kib=4 * GIB_KIB)
    tree = tree_of(topology, CpuOptions(cpu_dedicated_set="0-5", cpu_shared_set="6-15"), provider_tree="l3")
    assert totals(tree) == {
        "host": {},
        "host_NUMA_0": {"MEMORY_MB": 4096},
        "host_NUMA_1": {"MEMORY_MB": 4096},
        "host_L3_0": {"PCPU": 4},
        "host_L3_10": {"PCPU": 2, "VCPU": 2},
        "host_L3_20": {"VCPU": 4},
        "host_L3_30": {"VCPU": 4},
    }
    assert parents(tree) == {
        "host": None,
        "host_NUMA_0": "host",
        "host_NUMA_1": "host",
        "host_L3_0": "host_NUMA_0",
        "host_L3_10": "host_NUMA_0",
        "host_L3_20": "host_NUMA_1",
        "host_L3_30": "host_NUMA_1",
    }


@pytest.mark.parametrize("shape", ["numa", "l3"])
def test_nodes_are_children_of_the_l3_that_spans_them(shape: str) -> None:
    topology = machine(packages=2, nodes=2, cores=4, l3_spans_nodes=True, memory_kib=4 * GIB_KIB)
    tree = tree_of(topology, platform=control(topology), provider_tree=shape)
    zone = {"VCPU": 4, "MEMORY_MB": 4096}
    cache = {"LLC": 16, "MBA": 100}
    assert totals(tree) == {
        "host": {"CUSTOM_RESCTRL_GROUP": 16},
        "host_L3_0": cache,
        "host_L3_10": cache,
        "host_NUMA_0": zone,
        "host_NUMA_1": zone,
        "host_NUMA_2": zone,
        "host_NUMA_3": zone,
    }
    assert parents(tree) == {
        "host": None,
        "host_L3_0": "host",
        "host_L3_10": "host",
        "host_NUMA_0": "host_L3_0",
        "host_NUMA_1": "host_L3_0",
        "host_NUMA_2": "host_L3_10",
        "host_NUMA_3": "host_L3_10",
    }


def test_zones_that_cross_each_other_are_all_children_of_the_host() -> None:
    topology = machine(nodes=2, cores=4, memory_kib=GIB_KIB)
    crossing = (CpuCache(3, "unified", 0, 8192, 8, frozenset({0, 1, 2, 4})),)
    topology = replace(topology, caches=crossing)
    tree = tree_of(topology, provider_tree="l3")
    assert parents(tree) == {"host": None, "host_L3_0": "host", "host_NUMA_0": "host", "host_NUMA_1": "host"}
    assert {name: held.get("VCPU") for name, held in totals(tree).items()} == {
        "host": None,
        "host_L3_0": None,
        "host_NUMA_0": 4,
        "host_NUMA_1": 4,
    }


@pytest.mark.parametrize(
    ("size_kib", "way_kib", "named"),
    [
        (None, None, frozenset()),
        (15, None, frozenset()),
        (16, None, {"CUSTOM_LLC_WAY_1KIB"}),
        (None, 512, {"CUSTOM_LLC_WAY_512KIB"}),
    ],
    ids=["size not known", "less than a KiB a way", "a KiB a way", "resctrl knows"],
)
def test_the_size_of_a_way_is_a_trait_where_it_is_known(
    size_kib: int | None, way_kib: int | None, named: Set[str]
) -> None:
    topology = machine(cores=4)
    topology = replace(topology, caches=tuple(replace(cache, size_kib=size_kib) for cache in topology.caches))
    platform = control(topology)
    domains = {cache: replace(domain, way_kib=way_kib) for cache, domain in platform.domains.items()}
    (domain,) = tree_of(topology, platform=replace(platform, domains=domains)).providers_of("LLC")
    assert {trait for trait in domain.traits if trait.startswith("CUSTOM_LLC")} == named


@pytest.mark.parametrize("shape", SHAPES)
def test_cache_and_bandwidth_sit_on_the_l3_domain_in_every_tree(shape: str) -> None:
    topology = machine(packages=2, cores=4)
    tree = tree_of(topology, platform=control(topology), provider_tree=shape)
    for name in ("LLC", "MBA"):
        assert [node.name for node in tree.providers_of(name)] == ["host_L3_0", "host_L3_10"]
    domain = tree.providers_of("LLC")[0]
    assert domain.inventories["LLC"] == ProviderInventory(total=16, reserved=4, min_unit=2, max_unit=16)
    assert domain.inventories["MBA"] == ProviderInventory(total=100, min_unit=10, max_unit=100, step_size=10)
    assert domain.traits == {"CUSTOM_LLC_WAY_1024KIB"}
    assert tree.root.inventories["CUSTOM_RESCTRL_GROUP"] == ProviderInventory(
        total=16, reserved=3, max_unit=16
    )
    assert {"CUSTOM_RESCTRL_L3_CAT", "CUSTOM_RESCTRL_MBA"} <= tree.root.traits


def test_domain_without_control_gets_no_provider_and_one_with_bandwidth_alone_no_llc() -> None:
    topology = machine(packages=2, cores=4, memory_kib=0)
    platform = CachePlatform({0: CacheDomain(0), 10: CacheDomain(10, bandwidth_min=1, bandwidth_step=1)})
    tree = tree_of(topology, platform=platform, provider_tree="flat")
    assert totals(tree) == {"host": {"VCPU": 8}, "host_L3_10": {"MBA": 100}}
    assert tree.nodes[1].traits == frozenset()


def test_host_without_l3_has_its_cpus_on_the_nodes_in_an_l3_tree() -> None:
    topology = replace(machine(packages=2, cores=4, memory_kib=0), caches=())
    assert totals(tree_of(topology, provider_tree="l3")) == {
        "host": {},
        "host_NUMA_0": {"VCPU": 4},
        "host_NUMA_1": {"VCPU": 4},
    }


def test_memory_only_node_offers_its_memory_and_carries_no_reserve() -> None:
    topology = machine(packages=2, cores=2, memory_kib=GIB_KIB, more_nodes={7: 3 * GIB_KIB, 9: 0})
    tree = tree_of(topology, reserved_host_memory_mb=101)
    memory = {node.name: node.inventories.get("MEMORY_MB") for node in tree.nodes}
    assert memory == {
        "host": None,
        "host_NUMA_0": ProviderInventory(total=1024, reserved=51, max_unit=1024),
        "host_NUMA_1": ProviderInventory(total=1024, reserved=50, max_unit=1024),
        "host_NUMA_7": ProviderInventory(total=3072, max_unit=3072),
    }


def test_memory_of_unknown_place_is_the_roots() -> None:
    topology = replace(machine(packages=2, cores=2, memory_kib=0), memory_kib=2 * GIB_KIB)
    assert totals(tree_of(topology))["host"] == {"MEMORY_MB": 2048}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"reserved_host_memory_mb": 9000}, "reserved_host_memory_mb = 9000"),
        ({"reserved_host_disk_mb": 2049, "disk_gb": 2}, "reserved_host_disk_mb = 2049"),
        ({"cpu_allocation_ratio": 0.0}, "cpu_allocation_ratio = 0.0"),
        ({"ram_allocation_ratio": float("nan")}, "ram_allocation_ratio = nan"),
        ({"provider_tree": "ring"}, "provider_tree = 'ring'"),
    ],
)
def test_settings_that_do_not_fit_the_host_are_refused(settings: Mapping[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        tree_of(machine(cores=2), **settings)


def test_name_too_long_for_placement_is_refused() -> None:
    topology = machine(cores=2)
    with pytest.raises(ConfigError, match="resource_provider_name"):
        derive_provider_tree(
            topology, resolve_cpu_sets(CpuOptions(), topology), InventorySettings(), ROOT, "h" * 190
        )


def test_uuids_of_zones_come_from_the_roots_and_survive_a_rename() -> None:
    topology = machine(packages=2, cores=2)
    sets, settings = resolve_cpu_sets(CpuOptions(), topology), InventorySettings(provider_tree="l3")
    before = derive_provider_tree(topology, sets, settings, ROOT, "old.example.org")
    after = derive_provider_tree(topology, sets, settings, ROOT, "new.example.org")
    assert [node.uuid for node in before.nodes] == [node.uuid for node in after.nodes]
    assert [after.get(node.uuid) for node in before.nodes] == list(after.nodes)
    assert after.get(str(uuid.uuid4())) is None
    assert before.nodes[1].uuid == str(uuid.uuid5(uuid.UUID(ROOT), "NUMA_0"))
    assert len({node.uuid for node in before.nodes}) == len(before.nodes)
    other = derive_provider_tree(topology, sets, settings, str(uuid.uuid4()), "old.example.org")
    assert not {node.uuid for node in other.nodes} & {node.uuid for node in before.nodes}


def test_stock_placement_gets_custom_classes_with_the_same_inventories() -> None:
    topology = machine(cores=4)
    tree = tree_of(topology, platform=control(topology))
    stock = with_stock_names(tree)
    (ours,), (theirs,) = tree.providers_of("LLC"), stock.providers_of("CUSTOM_LLC")
    assert set(theirs.inventories) == {"CUSTOM_LLC", "CUSTOM_MBA"}
    assert theirs.inventories["CUSTOM_LLC"] == ours.inventories["LLC"]
    assert theirs.inventories["CUSTOM_MBA"] == ours.inventories["MBA"]
    assert [node.uuid for node in stock.nodes] == [node.uuid for node in tree.nodes]
    assert stock.root == tree.root


def test_a_server_that_knows_some_of_the_classes_gets_these_under_their_names() -> None:
    topology = machine(cores=4)
    tree = tree_of(topology, platform=control(topology))
    (cache,) = with_stock_names(tree, {"LLC", "VCPU"}).providers_of("LLC")
    assert set(cache.inventories) == {"LLC", "CUSTOM_MBA"}
    assert with_stock_names(tree, {"LLC", "MBA"}) == tree


MACHINES = st.builds(
    machine,
    packages=st.integers(1, 2),
    nodes=st.integers(1, 3),
    l3=st.integers(1, 3),
    cores=st.integers(1, 3),
    threads=st.integers(1, 2),
    l3_spans_nodes=st.booleans(),
    memory_kib=st.just(100 * 1024),
)


@given(topology=MACHINES, controlled=st.booleans(), reserved=st.integers(0, 64), data=st.data())
def test_every_shape_offers_the_same_and_every_parent_precedes_and_contains_its_children(
    topology: HostTopology, controlled: bool, reserved: int, data: st.DataObject
) -> None:
    dedicated = data.draw(st.frozensets(st.sampled_from(sorted(topology.online))))
    options = CpuOptions(
        cpu_dedicated_set=cpuset.format(dedicated) or None,
        cpu_shared_set=cpuset.format(topology.online - dedicated) or None,
    )
    platform = control(topology) if controlled else None
    for shape in SHAPES:
        tree = tree_of(topology, options, platform, provider_tree=shape, reserved_host_memory_mb=reserved)
        sums: dict[str, int] = {}
        for node in tree.nodes:
            for name, inventory in node.inventories.items():
                sums[name] = sums.get(name, 0) + inventory.total
                assert 0 <= inventory.reserved <= inventory.total
        assert sums.get("PCPU", 0) == len(dedicated)
        assert sums.get("VCPU", 0) == len(topology.online - dedicated)
        assert sums["MEMORY_MB"] == 100 * len(topology.numa_nodes)
        reserves = [node.inventories["MEMORY_MB"].reserved for node in tree.providers_of("MEMORY_MB")]
        assert sum(reserves) == reserved
        for index, node in enumerate(tree.nodes[1:], start=1):
            parent = next(above for above in tree.nodes[:index] if above.uuid == node.parent)
            assert node.cpus <= parent.cpus
        for node in tree.nodes:
            held = sum(node.inventories[name].total for name in ("PCPU", "VCPU") if name in node.inventories)
            assert held <= len(node.cpus)


@given(st.integers(0, 1000), st.lists(st.integers(0, 200), min_size=1, max_size=8))
def test_spread_is_whole_exact_and_within_one_of_proportion(amount: int, weights: list[int]) -> None:
    parts, whole = spread_amount(amount, weights), sum(weights)
    assert sum(parts) == min(amount, whole)
    for part, weight in zip(parts, weights, strict=True):
        assert 0 <= part <= weight
        assert not whole or abs(part - min(amount, whole) * weight / whole) < 1


def test_node_without_cpus_in_any_set_still_offers_memory() -> None:
    tree = tree_of(machine(packages=2, cores=2, memory_kib=GIB_KIB), CpuOptions(cpu_dedicated_set="0-1"))
    assert totals(tree)["host_NUMA_1"] == {"MEMORY_MB": 1024}


def test_disk_is_not_offered_where_its_size_is_unknown() -> None:
    assert "DISK_GB" not in tree_of(machine(cores=2), disk_gb=0, reserved_host_disk_mb=10).root.inventories


def test_the_host_may_reserve_all_of_its_memory_and_not_one_mebibyte_more() -> None:
    topology = machine(packages=2, cores=2, memory_kib=GIB_KIB)
    nodes = tree_of(topology, reserved_host_memory_mb=2048).providers_of("MEMORY_MB")
    assert [
        (node.inventories["MEMORY_MB"].total, node.inventories["MEMORY_MB"].reserved) for node in nodes
    ] == [
        (1024, 1024),
        (1024, 1024),
    ]
    with pytest.raises(ConfigError, match="reserved_host_memory_mb = 2049 is more than the 2048 MiB"):
        tree_of(topology, reserved_host_memory_mb=2049)


def test_a_host_of_unknown_memory_reports_none_and_is_not_refused_for_what_is_reserved() -> None:
    tree = tree_of(machine(cores=2, memory_kib=0), reserved_host_memory_mb=512)
    assert not list(tree.providers_of("MEMORY_MB"))


def test_memory_is_reserved_on_nodes_without_cpus_only_where_those_with_cpus_have_too_little() -> None:
    topology = machine(packages=2, cores=2, memory_kib=GIB_KIB)
    far = replace(topology.numa_nodes[1], cpus=frozenset())
    topology = replace(topology, numa_nodes=(topology.numa_nodes[0], far))

    def reserved(mebibytes: int) -> list[int]:
        nodes = tree_of(topology, reserved_host_memory_mb=mebibytes).providers_of("MEMORY_MB")
        return [node.inventories["MEMORY_MB"].reserved for node in nodes]

    assert reserved(1024) == [1024, 0]
    assert reserved(1026) == [513, 513]


def test_the_host_may_reserve_the_whole_disk_and_not_one_mebibyte_more() -> None:
    tree = tree_of(machine(cores=2), reserved_host_disk_mb=2048, disk_gb=2)
    assert tree.root.inventories["DISK_GB"] == ProviderInventory(total=2, reserved=2, max_unit=2)
    with pytest.raises(ConfigError, match="reserved_host_disk_mb = 2049 is more than the 2 GiB"):
        tree_of(machine(cores=2), reserved_host_disk_mb=2049, disk_gb=2)


def test_the_rest_of_a_division_goes_to_the_largest_remainders() -> None:
    assert spread_amount(7, [4, 5, 11]) == [1, 2, 4]  # the exact parts are 1.4, 1.75 and 3.85
    assert spread_amount(1, [5, 5]) == [1, 0]
