"""Tests that the agent reads the same topology from captured machines as hwloc's lstopo."""

import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from compute_agent.host.reader import read_topology
from compute_agent.host.topology import HostTopology
from tests.compute_agent.host.captured import ARCHIVES, SHARED, unpack

LSTOPO = shutil.which("lstopo-no-graphics")

pytestmark = pytest.mark.slow

CpuSet = frozenset[int]


@dataclass(frozen=True)
class Reading:
    """The values that both readings have: sizes in KiB, NUMA nodes by id, and caches with their CPUs."""

    online: CpuSet
    packages: frozenset[tuple[int, CpuSet]]
    cores: frozenset[CpuSet]
    node_cpus: dict[int, CpuSet]
    node_memory: dict[int, int]
    last_level: frozenset[tuple[int, CpuSet, int]]


@dataclass(frozen=True)
class Difference:
    """The reason why the readings of a machine differ. With the given options they agree, except for the
    given fields.
    """

    reason: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    fields: frozenset[str] = frozenset()


HIDDEN = Difference(
    "hwloc hides CPUs and nodes that a cgroup keeps from it; they belong to the host", ("--disallowed",)
)

DIFFERENCES = {
    "16amd64-4n4c-cgroup-distance-merge": HIDDEN,
    "16amd64-8n2c-cpusets": HIDDEN,
    "16em64t-4s2ca2c-cpusetreorder": HIDDEN,
    "4fake-4gr1nu1pu": Difference(
        "a cgroup hides CPUs as above; hwloc leaves cores out that the kernel does not tell, to the agent"
        " every CPU is on a core, here alone",
        HIDDEN.options,
        fields=frozenset({"cores"}),
    ),
    "2ps3-2t": Difference(
        "hwloc leaves the package out that the kernel does not tell, to the agent every CPU is on one",
        fields=frozenset({"packages"}),
    ),
    "40intel64-4n10c+pci-conflicts": Difference(
        "one mask of a package and one of an L3 are wrong in the capture, hwloc drops both objects; the"
        " lists beside the masks are right",
        fields=frozenset({"packages", "last_level"}),
    ),
    "fakeheteromemtiers": Difference(
        "hwloc gives memory-only nodes the CPUs they are near, the kernel none",
        fields=frozenset({"node_cpus"}),
    ),
    "nvidiagpunumanodes": Difference(
        "hwloc hides the memory of GPUs, which the kernel has as NUMA nodes and counts in MemTotal",
        environment={"HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES": "1"},
        fields=frozenset({"node_cpus"}),
    ),
}


def of_agent(topology: HostTopology) -> Reading:
    data = [cache for cache in topology.caches if cache.type != "instruction"]
    last = max((cache.level for cache in data), default=0)
    return Reading(
        online=topology.online,
        packages=frozenset((package.id, package.cpus) for package in topology.packages),
        cores=frozenset(core.cpus for core in topology.cores),
        node_cpus={node.id: node.cpus for node in topology.numa_nodes},
        node_memory={node.id: node.memory_kib for node in topology.numa_nodes},
        last_level=frozenset(
            (cache.level, cache.cpus, cache.size_kib or 0) for cache in data if cache.level == last
        ),
    )


def of_lstopo(
    folder: Path, options: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> Reading:
    command = [str(LSTOPO), "-i", str(folder), "--of", "xml", "--no-io", *options, "-"]
    env = {**os.environ, **(environment or {})}
    output = subprocess.run(command, check=True, capture_output=True, timeout=60, env=env).stdout
    things = list(ET.fromstring(output).iter("object"))

    def of_type(name: str) -> list[ET.Element]:
        return [thing for thing in things if thing.get("type") == name]

    levels = [level for level in (1, 2, 3, 4, 5) if of_type(f"L{level}Cache")]
    return Reading(
        online=frozenset(int(thing.get("os_index", "")) for thing in of_type("PU")),
        packages=frozenset((int(thing.get("os_index", "")), _cpus(thing)) for thing in of_type("Package")),
        cores=frozenset(_cpus(thing) for thing in of_type("Core")),
        node_cpus={int(thing.get("os_index", "")): _cpus(thing) for thing in of_type("NUMANode")},
        node_memory={
            int(thing.get("os_index", "")): int(thing.get("local_memory", "0")) // 1024
            for thing in of_type("NUMANode")
        },
        last_level=frozenset(
            (level, _cpus(thing), int(thing.get("cache_size", "")) // 1024)
            for level in levels[-1:]
            for thing in of_type(f"L{level}Cache")
        ),
    )


def _cpus(thing: ET.Element) -> CpuSet:
    """The CPUs in a mask of hwloc: 32-bit words as in `0x00000040,,,0x0`, where an empty word is 0."""
    mask = 0
    for word in thing.get("cpuset", "").split(","):
        mask = mask << 32 | int(word or "0", 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.bz2"))
def captured(request: pytest.FixtureRequest, unpacked: Path) -> Path:
    """The unpacked files of one machine."""
    folder = unpack(request.param, unpacked)
    folder.joinpath("proc").mkdir(exist_ok=True)  # lstopo refuses a folder without it
    return folder


@pytest.mark.skipif(LSTOPO is None, reason="lstopo-no-graphics (Debian package hwloc) is not installed")
@pytest.mark.skipif(not ARCHIVES, reason=f"no captured machines in {SHARED}/topologies")
def test_the_topology_equals_that_of_lstopo(captured: Path) -> None:
    difference = DIFFERENCES.get(captured.name, Difference("none"))
    ours = asdict(of_agent(read_topology(captured)))
    theirs = asdict(of_lstopo(captured, difference.options, difference.environment))
    differing = {name for name in ours if ours[name] != theirs[name]}
    assert differing == difference.fields, difference.reason
    if difference.options or difference.environment:
        plain = asdict(of_lstopo(captured))
        assert any(ours[name] != plain[name] for name in ours), f"no longer true: {difference.reason}"


def test_the_topology_has_facts_of_the_kernel_that_lstopo_lacks(unpacked: Path) -> None:
    """Where the two readings differ, the agent's reading equals the kernel's files."""
    archives = {path.name: path for path in ARCHIVES}
    topologies = []
    for name in ("40intel64-4n10c+pci-conflicts", "2ps3-2t"):
        if f"{name}.tar.bz2" not in archives:
            pytest.skip(f"no captured machine {name} in {SHARED}/topologies")
        topologies.append(read_topology(unpack(archives[f"{name}.tar.bz2"], unpacked)))
    intel, cell = topologies
    assert [package.cpus for package in intel.packages] == [frozenset(range(n, 40, 4)) for n in range(4)]
    assert [cache.cpus for cache in intel.l3_domains] == [frozenset(range(n, 40, 4)) for n in range(4)]
    assert [(package.id, package.cpus) for package in cell.packages] == [(0, frozenset({0, 1}))]
