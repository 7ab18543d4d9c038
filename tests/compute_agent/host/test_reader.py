"""Tests of reading the topology from trees of /sys and /proc, each made for one case."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from compute_agent.host.reader import read_topology
from compute_agent.host.topology import CpuCache, HostTopology, NumaNode
from compute_agent.model import cpuset
from compute_agent.policy.cores import memory_nodes

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def write(root: Path, files: Mapping[str, str]) -> None:
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")


def cpu_files(
    cpu: int, core: str, package: str, package_id: int = 0, core_id: int | None = None
) -> dict[str, str]:
    folder = f"{CPU}/cpu{cpu}/topology"
    return {
        f"{folder}/core_cpus_list": core,
        f"{folder}/package_cpus_list": package,
        f"{folder}/physical_package_id": str(package_id),
        f"{folder}/core_id": str(min(cpuset.parse(core)) if core_id is None else core_id),
    }


def cache_files(cpu: int, index: int, shared: str, **fields: str) -> dict[str, str]:
    told = {"level": "3", "type": "Unified", "size": "8192K", "ways_of_associativity": "16", **fields}
    folder = f"{CPU}/cpu{cpu}/cache/index{index}"
    return {f"{folder}/shared_cpu_list": shared, **{f"{folder}/{name}": text for name, text in told.items()}}


def four_cpus(root: Path) -> None:
    """The files of a host with two packages of one core with two threads (CPUs 0 and 2, CPUs 1 and 3). Each
    package has an L3 cache and a NUMA node.
    """
    write(root, {f"{CPU}/online": "0-3", f"{CPU}/present": "0-3"})
    for cpu in range(4):
        package = f"{cpu % 2},{cpu % 2 + 2}"
        write(root, cpu_files(cpu, package, package, cpu % 2, core_id=0))
        write(root, cache_files(cpu, 3, package, id=str(7 * (cpu % 2) + 1)))
    for node in (0, 1):
        write(
            root,
            {
                f"{NODE}/node{node}/cpulist": f"{node},{node + 2}",
                f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal:  {1000 * (node + 1)} kB\n",
                f"{NODE}/node{node}/distance": "10 21" if node == 0 else "21 10",
                f"{NODE}/node{node}/hugepages/hugepages-2048kB/nr_hugepages": str(node),
                f"{NODE}/node{node}/hugepages/hugepages-1048576kB/nr_hugepages": "3",
            },
        )


def test_all_facts_of_the_files_are_read(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:        3000 kB\nMemFree:  1 kB",
            "proc/cpuinfo": "\n".join(
                f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon @ 2.10GHz\n"
                f"flags\t\t: lm sse {'avx' if cpu else ''}\n"
                for cpu in range(4)
            ),
        },
    )
    topology = read_topology(tmp_path)
    assert [(package.id, package.cpus) for package in topology.packages] == [(0, {0, 2}), (1, {1, 3})]
    assert [(core.id, core.package, core.cpus, core.kind) for core in topology.cores] == [
        (0, 0, {0, 2}, None),
        (0, 1, {1, 3}, None),
    ]
    assert topology.l3_domains == (
        CpuCache(3, "unified", 1, 8192, 16, frozenset({0, 2})),
        CpuCache(3, "unified", 8, 8192, 16, frozenset({1, 3})),
    )
    assert topology.numa_nodes == (
        NumaNode(0, frozenset({0, 2}), 1000, {2048: 0, 1048576: 3}),
        NumaNode(1, frozenset({1, 3}), 2000, {2048: 1, 1048576: 3}),
    )
    assert topology.distances == {0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}}
    assert topology.online == topology.present == {0, 1, 2, 3}
    assert topology.offline == frozenset()
    assert topology.memory_kib == 3000
    assert topology.cpu_flags == {"lm", "sse"}, "only what all CPUs can do"
    assert (topology.architecture, topology.vendor) == ("x86_64", "GenuineIntel")
    assert topology.base_frequency_khz == 2_100_000
    assert topology.is_hyperthreaded
    assert topology.threads_of(2) == {0, 2}
    assert topology.node_of(3) == 1
    assert (topology.threads_of(9), topology.node_of(9), topology.core_of(9)) == ({9}, None, None)


def test_json_form_is_stable(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    write(tmp_path, {f"{CPU}/present": "0-5"})
    assert json.loads(json.dumps(read_topology(tmp_path).to_dict())) == {
        "packages": [{"id": 0, "cpus": "0,2"}, {"id": 1, "cpus": "1,3"}],
        "numa_nodes": [
            {"id": 0, "cpus": "0,2", "memory_kib": 1000, "memory_type": "dram"},
            {"id": 1, "cpus": "1,3", "memory_kib": 2000, "memory_type": "dram"},
        ],
        "distances": {"0": {"0": 10, "1": 21}, "1": {"0": 21, "1": 10}},
        "cores": [{"id": 0, "package": 0, "cpus": "0,2"}, {"id": 0, "package": 1, "cpus": "1,3"}],
        "caches": [
            {"level": 3, "type": "unified", "id": 1, "size_kib": 8192, "ways": 16, "cpus": "0,2"},
            {"level": 3, "type": "unified", "id": 8, "size_kib": 8192, "ways": 16, "cpus": "1,3"},
        ],
        "online_cpus": "0-3",
        "offline_cpus": "4-5",
        "parked_cpus": "",
    }


def test_an_empty_root_is_a_host_without_facts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        topology = read_topology(tmp_path)
    assert topology == HostTopology(
        packages=(), dies=(), clusters=(), cores=(), caches=(),
        numa_nodes=(NumaNode(0, frozenset(), 0),), online=frozenset(),
    )  # fmt: skip
    assert "lists no CPUs" in caplog.text
    assert "lists no caches" in caplog.text
    assert "lists no NUMA nodes" in caplog.text


def test_cpus_of_cpuinfo_are_used_where_sys_is_missing(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\n\nprocessor : 1\n\nplatform : odd",
            "proc/meminfo": "MemTotal: 4096 kB",
        },
    )
    topology = read_topology(tmp_path)
    assert topology.online == {0, 1}
    assert [core.cpus for core in topology.cores] == [{0}, {1}]
    assert [(node.id, node.cpus, node.memory_kib) for node in topology.numa_nodes] == [(0, {0, 1}, 4096)]


@pytest.mark.parametrize("file", ["online", "present"])
def test_offline_cpus_are_only_in_the_sets_of_offline_and_present_cpus(tmp_path: Path, file: str) -> None:
    four_cpus(tmp_path)
    write(tmp_path, {f"{CPU}/online": "0-2"})
    if file == "present":
        (tmp_path / CPU / "present").unlink()
    topology = read_topology(tmp_path)
    assert (topology.online, topology.offline, topology.present) == ({0, 1, 2}, {3}, {0, 1, 2, 3})
    parts = (topology.packages, topology.cores, topology.caches, topology.numa_nodes)
    assert all(3 not in part.cpus for sets in parts for part in sets)


def test_old_kernels_have_a_file_per_offline_cpu_and_only_masks(tmp_path: Path) -> None:
    for cpu in range(4):
        write(
            tmp_path,
            {
                f"{CPU}/cpu{cpu}/topology/thread_siblings": f"00000000,0000000{5 << cpu % 2:x}",
                f"{CPU}/cpu{cpu}/topology/core_siblings": "0000000f",
                f"{CPU}/cpu{cpu}/topology/physical_package_id": "0",
                f"{CPU}/cpu{cpu}/topology/core_id": str(cpu % 2),
            },
        )
    write(
        tmp_path, {f"{CPU}/cpu3/online": "0", f"{CPU}/cpu1/online": "1", f"{NODE}/node4/cpumap": "0000000f"}
    )
    topology = read_topology(tmp_path)
    assert (topology.online, topology.offline) == ({0, 1, 2}, {3})
    assert [core.cpus for core in topology.cores] == [{0, 2}, {1}]
    assert [(node.id, node.cpus) for node in topology.numa_nodes] == [(4, {0, 1, 2})]


def test_sparse_nodes_without_cpus_or_memory_exist(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    write(
        tmp_path,
        {
            f"{NODE}/node252/cpulist": "",
            f"{NODE}/node252/meminfo": "Node 252 MemTotal: 512 kB",
            f"{NODE}/node252/distance": "80 80 10",
            f"{NODE}/node0/distance": "10 21 80",
            f"{NODE}/node1/distance": "21 10 80",
            f"{NODE}/node1/meminfo": "Node 1 MemTotal: 0 kB",
        },
    )
    topology = read_topology(tmp_path)
    assert [(node.id, node.cpus, node.memory_kib) for node in topology.numa_nodes] == [
        (0, {0, 2}, 1000),
        (1, {1, 3}, 0),
        (252, frozenset(), 512),
    ]
    assert topology.distances[252] == {0: 80, 1: 80, 252: 10}


def test_tiers_of_memory_and_capacities_of_cpus_are_read(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    tiers = "sys/devices/virtual/memory_tiering"
    write(tmp_path, {f"{tiers}/memory_tier4/nodelist": "0-1", f"{tiers}/memory_tier22/nodelist": "252"})
    write(
        tmp_path,
        {
            f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": str(capacity)
            for cpu, capacity in ((0, 1024), (3, 446))
        },
    )
    topology = read_topology(tmp_path)
    assert topology.memory_tiers == {0: 4, 1: 4, 252: 22}
    assert topology.cpu_capacities == {0: 1024, 3: 446}


@pytest.mark.parametrize("row", ["10", "10 21 30", "10 near", ""])
def test_incomplete_distances_are_ignored(tmp_path: Path, row: str, caplog: pytest.LogCaptureFixture) -> None:
    four_cpus(tmp_path)
    write(tmp_path, {f"{NODE}/node1/distance": row})
    with caplog.at_level(logging.INFO):
        assert read_topology(tmp_path).distances == {}
    assert "distances of NUMA node 1" in caplog.text


@pytest.mark.parametrize("ids", [(None, None), (None, "4"), ("3", "3")], ids=str)
def test_caches_without_distinct_ids_get_the_lowest_cpu(
    tmp_path: Path, ids: tuple[str | None, str | None]
) -> None:
    four_cpus(tmp_path)
    for cpu in range(4):
        file = tmp_path / CPU / f"cpu{cpu}/cache/index3/id"
        file.unlink()
        told = ids[cpu % 2]
        if told is not None:
            file.write_text(told)
    assert [(cache.id, cache.cpus) for cache in read_topology(tmp_path).l3_domains] == [
        (0, {0, 2}),
        (1, {1, 3}),
    ]


def test_caches_of_a_level_are_disjoint_despite_contradictions(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    write(tmp_path, cache_files(1, 3, "0-3", id="8"))
    assert [cache.cpus for cache in read_topology(tmp_path).l3_domains] == [{0, 2}, {1, 3}]


@pytest.mark.parametrize(
    ("size", "kib"), [("36608K", 36608), ("1M", 1024), ("512", None), ("0K", None), ("big", None), ("", None)]
)
def test_the_cache_size_is_in_kib_or_unknown(tmp_path: Path, size: str, kib: int | None) -> None:
    four_cpus(tmp_path)
    write(tmp_path, cache_files(0, 3, "0,2", id="1", size=size, ways_of_associativity="0"))
    cache = read_topology(tmp_path).l3_domains[0]
    assert (cache.size_kib, cache.ways) == (kib, None)


def test_caches_of_other_levels_and_types_are_no_l3_domains(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    for cpu in range(4):
        write(tmp_path, cache_files(cpu, 0, str(cpu), level="1", type="Data", size="32K", id=str(cpu)))
        write(tmp_path, cache_files(cpu, 1, str(cpu), level="1", type="Instruction", size="32K", id=str(cpu)))
        write(tmp_path, cache_files(cpu, 4, "0-3", level="4", size="131072K", id="0"))
    topology = read_topology(tmp_path)
    found = [(cache.level, cache.type, cache.id) for cache in topology.caches]
    assert found == [
        *((1, "data", cpu) for cpu in range(4)),
        *((1, "instruction", cpu) for cpu in range(4)),
        (3, "unified", 1),
        (3, "unified", 8),
        (4, "unified", 0),
    ]
    assert [cache.id for cache in topology.l3_domains] == [1, 8]


def test_cores_of_a_hybrid_processor_have_kinds(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    write(tmp_path, {"sys/devices/cpu_core/cpus": "0,2"})
    assert {core.kind for core in read_topology(tmp_path).cores} == {None}, "one kind is not a kind"
    write(
        tmp_path,
        {
            "sys/devices/cpu_atom/cpus": "1,3",
            f"{CPU}/cpu0/cpufreq/base_frequency": "3200000",
            f"{CPU}/cpu1/cpufreq/base_frequency": "2400000",
        },
    )
    topology = read_topology(tmp_path)
    assert [(core.kind, core.base_frequency_khz) for core in topology.cores] == [
        ("performance", 3_200_000),
        ("efficiency", 2_400_000),
    ]
    assert topology.base_frequency_khz == 3_200_000


def test_cores_of_different_capacity_have_kinds(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    for cpu in range(4):
        write(tmp_path, {f"{CPU}/cpu{cpu}/cpu_capacity": "446" if cpu % 2 else "1024"})
        write(tmp_path, {f"{CPU}/cpu{cpu}/acpi_cppc/nominal_freq": "2000"})
    topology = read_topology(tmp_path)
    assert [core.kind for core in topology.cores] == ["capacity-1024", "capacity-446"]
    assert topology.base_frequency_khz == 2_000_000


def test_siblings_with_different_core_ids_are_no_threads_of_one_core(tmp_path: Path) -> None:
    """AMD's family 15h lists both cores of a module as siblings."""
    write(tmp_path, {f"{CPU}/online": "0-1"})
    for cpu in (0, 1):
        write(tmp_path, cpu_files(cpu, "0-1", "0-1", core_id=cpu))
    topology = read_topology(tmp_path)
    assert [core.cpus for core in topology.cores] == [{0}, {1}]
    assert not topology.is_hyperthreaded


def test_dies_and_clusters_are_read_where_the_kernel_has_them(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    for cpu in range(4):
        write(
            tmp_path,
            {
                f"{CPU}/cpu{cpu}/topology/die_id": "5",
                f"{CPU}/cpu{cpu}/topology/cluster_id": ["65535", "-1"][cpu % 2],
            },
        )
    topology = read_topology(tmp_path)
    assert [(die.id, die.package, die.cpus) for die in topology.dies] == [(5, 0, {0, 2}), (5, 1, {1, 3})]
    assert topology.clusters == ()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (f"{CPU}/online", "all"),
        (f"{CPU}/present", "0-"),
        (f"{CPU}/cpu0/topology/core_id", "none"),
        (f"{CPU}/cpu0/topology/core_cpus_list", "0;2"),
        (f"{CPU}/cpu0/cache/index3/shared_cpu_list", "\x00"),
        (f"{CPU}/cpu0/cache/index3/level", "three"),
        (f"{NODE}/node0/cpulist", "?"),
        (f"{NODE}/node0/meminfo", "\xff\xfe"),
        (f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages", "few"),
        ("proc/cpuinfo", "processor\nprocessor : x\n:::"),
        ("proc/meminfo", "MemTotal: lots"),
    ],
)
def test_a_file_with_odd_content_costs_only_its_own_facts(tmp_path: Path, path: str, content: str) -> None:
    four_cpus(tmp_path)
    write(tmp_path, {path: content})
    topology = read_topology(tmp_path)
    assert topology.online == {0, 1, 2, 3}
    assert [package.cpus for package in topology.packages] == [{0, 2}, {1, 3}]
    assert topology.numa_nodes[1].cpus == {1, 3}
    assert topology.l3_domains[-1].cpus == {1, 3}


def test_a_mask_replaces_a_list_without_its_own_cpu(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    four_cpus(tmp_path)
    for cpu in range(4):
        peers = f"{cpu % 2},{cpu % 2 + 2}"
        write(tmp_path, cache_files(cpu, 3, str((cpu + 1) % 4), id=str(cpu % 2)))
        write(tmp_path, {f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_map": "5" if cpu % 2 == 0 else "a"})
        write(tmp_path, {f"{CPU}/cpu{cpu}/topology/core_cpus_list": str((cpu + 1) % 4)})
        write(tmp_path, {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": peers})
        write(tmp_path, {f"{CPU}/cpu{cpu}/topology/package_cpus_list": str((cpu + 1) % 4)})
        write(tmp_path, {f"{CPU}/cpu{cpu}/topology/core_siblings_list": peers})
    topology = read_topology(tmp_path)
    assert [(cache.id, cache.cpus) for cache in topology.l3_domains] == [(0, {0, 2}), (1, {1, 3})]
    assert [core.cpus for core in topology.cores] == [{0, 2}, {1, 3}]
    assert [package.cpus for package in topology.packages] == [{0, 2}, {1, 3}]
    assert [message for message in caplog.messages if "that they belong to" in message] == [
        f"6 files of {tmp_path / CPU}, such as {CPU}/cpu0/topology/package_cpus_list, do not list the CPU"
        " that they belong to; the agent uses other files instead"
    ]


def test_a_cache_with_wrong_files_is_shared_by_the_threads_of_a_core(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    write(tmp_path, cache_files(0, 3, "1", id="1"))
    write(tmp_path, {f"{CPU}/cpu0/cache/index3/shared_cpu_map": "0000000a"})
    assert [cache.cpus for cache in read_topology(tmp_path).l3_domains] == [{0, 2}, {1, 3}]


def test_nodes_with_the_same_cpus_give_a_warning_and_the_first_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    four_cpus(tmp_path)
    write(tmp_path, {f"{NODE}/node1/cpulist": "0-2", f"{NODE}/node3/cpulist": ""})
    topology = read_topology(tmp_path)
    assert [node.cpus for node in topology.numa_nodes] == [{0, 2}, {0, 1, 2}, frozenset()], "as the kernel"
    assert [topology.node_of(cpu) for cpu in range(4)] == [0, 1, 0, None]
    assert memory_nodes(topology, frozenset({0, 2})) == {0}
    assert [message for message in caplog.messages if "both have" in message] == [
        "The NUMA nodes of the host overlap: NUMA nodes 0 and 1 both have CPUs 0,2, as emulated nodes do"
        " (numa=fake): these CPUs count as those of node 0"
    ]


def test_every_file_may_be_missing(tmp_path: Path) -> None:
    """If any one file is missing, the host is still read, and its other package completely."""
    four_cpus(tmp_path)
    of_first = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and not {"cpu1", "cpu3", "node1"} & set(path.parts)
    ]
    assert len(of_first) > 20
    for path in of_first:
        content = path.read_text()
        path.unlink()
        topology = read_topology(tmp_path)
        assert topology.online == {0, 1, 2, 3}, path
        assert topology.threads_of(1) == {1, 3}, path
        assert {cpu for core in topology.cores for cpu in core.cpus} == topology.online, path
        path.write_text(content)


def test_folder_in_place_of_a_file_is_like_a_missing_file(tmp_path: Path) -> None:
    four_cpus(tmp_path)
    (tmp_path / CPU / "online").unlink()
    (tmp_path / CPU / "online").mkdir()
    assert read_topology(tmp_path).online == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("cpuinfo", "architecture"),
    [
        ("processor : 0\nvendor_id : GenuineIntel\nflags : fpu lm", "x86_64"),
        ("processor : 0\nvendor_id : GenuineIntel\nflags : fpu", "i686"),
        ("processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU architecture: 8", "aarch64"),
        ("processor : 0\ncpu : POWER9, altivec supported\n\nplatform : PowerNV", "ppc64le"),
        ("processor : 0\ncpu : POWER7 (architected)", "ppc64"),
        ("processor : 0\narch : IA-64", "ia64"),
        ("processor : 0\nisa : rv64imafdc", "unknown"),
    ],
)
def test_the_architecture_comes_from_cpuinfo(tmp_path: Path, cpuinfo: str, architecture: str) -> None:
    write(tmp_path, {"proc/cpuinfo": cpuinfo, f"{CPU}/online": "0"})
    assert read_topology(tmp_path).architecture == architecture
    write(tmp_path, {"proc/sys/kernel/arch": "riscv64"})
    assert read_topology(tmp_path).architecture == "riscv64"


@pytest.mark.parametrize(
    ("node", "machine", "told"), [(4000, 9000, 9000), (4000, 3900, 4000), (4000, None, 4000)]
)
def test_a_single_node_has_all_the_memory_of_the_machine(
    tmp_path: Path, node: int, machine: int | None, told: int
) -> None:
    """The node's own value is too small after memory was plugged in while the machine ran."""
    write(tmp_path, {f"{CPU}/online": "0", f"{NODE}/node0/cpulist": "0"})
    write(tmp_path, {f"{NODE}/node0/meminfo": f"Node 0 MemTotal: {node} kB"})
    if machine is not None:
        write(tmp_path, {"proc/meminfo": f"MemTotal: {machine} kB"})
    assert [node.memory_kib for node in read_topology(tmp_path).numa_nodes] == [told]
