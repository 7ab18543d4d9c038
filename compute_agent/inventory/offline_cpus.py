"""Remembers the topology of CPUs that are offline now, from the time when they were online.

While a CPU is offline, sysfs does not show its topology and caches (folders ``topology`` and ``cache``,
Documentation/admin-guide/cputopology.rst). A power manager takes dedicated CPUs offline while no guest holds
them: nova-compute with ``cpu_power_management``, or the agent with ``[cpu_class:idle] park``. Such CPUs are
*parked*: they count as present, so the agent must know their cores, caches and NUMA nodes.

An example: a host has the cores with CPUs ``0-1`` and ``2-3``, and all four CPUs were online before. If CPUs
2 and 3 are offline now, the remembered topology adds the core ``2-3``. If only CPU 3 is offline, the
remembered topology adds CPU 3 to the core of CPU 2.

Invariants: the remembered topology only adds parked CPUs to cores, caches and nodes. If the remembered
topology contradicts the online CPUs (another machine, other firmware settings), it is not used.

The remembered topology is kept in a file of the state folder. Without the file, an offline CPU does not count
as present until it has been online again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from compute_agent import kept_json
from compute_agent.files import UnsafeFileError, put_aside, read_own, write_durably
from compute_agent.host.topology import (
    CpuCache,
    CpuCluster,
    CpuCore,
    CpuDie,
    CpuPackage,
    HostTopology,
    NumaNode,
)
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet

LOG = logging.getLogger(__name__)

FILE_NAME: Final = "topology.json"
_VERSION: Final = 1

_CpuGroup = TypeVar("_CpuGroup", CpuPackage, CpuDie, CpuCluster, CpuCore, CpuCache)


def with_parked(topology: HostTopology, memory: HostTopology | None, parkable: CpuSet) -> HostTopology:
    """The topology, with the parked CPUs added: offline CPUs in ``parkable`` that ``memory`` contains.

    :param memory: the remembered topology; None means that no topology is remembered.
    :param parkable: the CPUs that a power manager is allowed to take offline.
    """
    if memory is None:
        return topology
    parked = topology.offline & parkable & memory.online
    if not parked or not is_consistent(topology, memory):
        return topology
    return replace(
        topology,
        packages=_join_groups(topology.packages, memory.packages, parked),
        dies=_join_groups(topology.dies, memory.dies, parked),
        clusters=_join_groups(topology.clusters, memory.clusters, parked),
        cores=_join_groups(topology.cores, memory.cores, parked),
        caches=_join_groups(topology.caches, memory.caches, parked),
        numa_nodes=_join_nodes(topology.numa_nodes, memory.numa_nodes, parked),
        cpu_capacities={
            **{cpu: each for cpu, each in memory.cpu_capacities.items() if cpu in parked},
            **topology.cpu_capacities,
        },
        parked=parked,
    )


def _join_groups(
    present: Sequence[_CpuGroup], known: Iterable[_CpuGroup], parked: CpuSet
) -> tuple[_CpuGroup, ...]:
    """The present groups with their parked CPUs added, and remembered groups that have only parked CPUs."""
    found = list(present)
    for group in known:
        missing = group.cpus & parked
        if not missing:
            continue
        at = next(
            (
                index
                for index, each in enumerate(found)
                if _kind_of(each) == _kind_of(group) and not each.cpus.isdisjoint(group.cpus)
            ),
            None,
        )
        if at is None:
            found.append(replace(group, cpus=missing))
        else:
            # The id is taken from the remembered group, because the kernel uses the id of the lowest CPU for
            # some groups, and this CPU may be parked now.
            found[at] = replace(group, cpus=found[at].cpus | missing)
    # The order is that of HostTopology. Ids of packages and cores are not always unique.
    return tuple(
        sorted(found, key=lambda each: (_kind_of(each), getattr(each, "package", 0), each.id, min(each.cpus)))
    )


def _kind_of(group: _CpuGroup) -> tuple[int, str]:
    """The level and type of a cache, because a CPU has several caches; all other groups are of one kind."""
    return (group.level, group.type) if isinstance(group, CpuCache) else (0, "")


def _join_nodes(
    present: Sequence[NumaNode], known: Iterable[NumaNode], parked: CpuSet
) -> tuple[NumaNode, ...]:
    """The present NUMA nodes with their parked CPUs added, and nodes that have only parked CPUs."""
    missing = {node.id: node.cpus & parked for node in known if node.cpus & parked}
    found = [replace(node, cpus=node.cpus | missing.pop(node.id, frozenset())) for node in present]
    # A node that the kernel does not show has no memory, because the kernel shows a node with memory even if
    # its CPUs are offline.
    found += [NumaNode(node_id, cpus, 0) for node_id, cpus in missing.items()]
    return tuple(sorted(found, key=lambda node: node.id))


def is_consistent(topology: HostTopology, memory: HostTopology) -> bool:
    """Whether the online CPUs are in the same cores, caches and nodes as in the remembered topology."""
    if not memory.online <= topology.present or memory.model_name != topology.model_name:
        return False
    both = topology.online & memory.online
    return _group_places(topology, both) == _group_places(memory, both)


def _group_places(topology: HostTopology, cpus: CpuSet) -> frozenset[tuple[Any, ...]]:
    # Ids of dies, clusters, cores and caches are not compared, because the kernel can derive them from the
    # lowest online CPU.
    groups: list[tuple[Any, ...]] = [("package", each.id, each.cpus & cpus) for each in topology.packages]
    groups += [("die", each.package, each.cpus & cpus) for each in topology.dies]
    groups += [("cluster", each.package, each.cpus & cpus) for each in topology.clusters]
    groups += [("core", each.package, each.cpus & cpus) for each in topology.cores]
    groups += [("cache", each.level, each.type, each.cpus & cpus) for each in topology.caches]
    groups += [("node", each.id, each.cpus & cpus) for each in topology.numa_nodes]
    return frozenset(group for group in groups if group[-1])


def learn_topology(topology: HostTopology, memory: HostTopology | None) -> HostTopology:
    """The topology to remember: that of all online CPUs, and of those offline CPUs that are already known.

    :param topology: the topology as the kernel shows it, without parked CPUs.
    :param memory: the topology remembered so far.
    """
    # All known offline CPUs are remembered; the options decide later which of them count as parked.
    known = with_parked(topology, memory, topology.offline)
    return replace(known, online=known.online | known.parked, parked=frozenset())


def recall_topology(folder: Path) -> HostTopology | None:
    """Read the remembered topology from the state folder; None if the folder has none."""
    try:
        return kept_json.parse(_VERSION, read_own(folder / FILE_NAME), _read_document)
    except FileNotFoundError:
        return None
    except (OSError, UnsafeFileError, ValueError) as error:
        LOG.warning(
            "The file %s cannot be used, so the inventory lacks offline CPUs until they are online: %s",
            folder / FILE_NAME,
            error,
        )
        return None


def remember_topology(folder: Path, topology: HostTopology) -> HostTopology:
    """Update the remembered topology in the state folder, and return it.

    If the file cannot be written, a restart of the agent forgets CPUs that go offline.
    """
    before = recall_topology(folder)
    if before is not None and not is_consistent(topology, before):
        LOG.warning(
            "The topology in %s contradicts the online CPUs: the agent writes the file again",
            folder / FILE_NAME,
        )
    after = learn_topology(topology, before)
    content = _content(after)
    if before is None or _content(before) != content:
        try:
            # A file that exists but could not be read is damaged. It is renamed, so that an operator can look
            # at it.
            if before is None and (folder / FILE_NAME).exists():
                put_aside(folder / FILE_NAME)
            write_durably(folder / FILE_NAME, content)
        except OSError as error:
            LOG.warning("The topology of CPUs cannot be written to %s: %s", folder / FILE_NAME, error)
    return after


def _content(memory: HostTopology) -> bytes:
    data = {
        "model": memory.model_name,
        "cpus": cpuset.format(memory.online),
        "packages": [[each.id, cpuset.format(each.cpus)] for each in memory.packages],
        "dies": [[each.id, each.package, cpuset.format(each.cpus)] for each in memory.dies],
        "clusters": [[each.id, each.package, cpuset.format(each.cpus)] for each in memory.clusters],
        "cores": [
            [each.id, each.package, cpuset.format(each.cpus), each.kind, each.base_frequency_khz]
            for each in memory.cores
        ],
        "caches": [
            [each.level, each.type, each.id, each.size_kib, each.ways, cpuset.format(each.cpus)]
            for each in memory.caches
        ],
        "nodes": [[each.id, cpuset.format(each.cpus)] for each in memory.numa_nodes if each.cpus],
        "capacities": {str(cpu): each for cpu, each in sorted(memory.cpu_capacities.items())},
    }
    return kept_json.dump(_VERSION, kept_json.checked_content(data))


def _read_document(document: Mapping[str, Any]) -> HostTopology:
    data = kept_json.checked_data(document)
    cpus = cpuset.parse(data["cpus"])
    return HostTopology(
        packages=tuple(CpuPackage(int(one), cpuset.parse(text)) for one, text in data["packages"]),
        dies=tuple(CpuDie(int(one), int(at), cpuset.parse(text)) for one, at, text in data["dies"]),
        clusters=tuple(
            CpuCluster(int(one), int(at), cpuset.parse(text)) for one, at, text in data["clusters"]
        ),
        cores=tuple(
            CpuCore(int(one), int(at), cpuset.parse(text), kind, base)
            for one, at, text, kind, base in data["cores"]
        ),
        caches=tuple(
            CpuCache(int(level), str(kind), int(one), size, ways, cpuset.parse(text))
            for level, kind, one, size, ways, text in data["caches"]
        ),
        # The memory of a node need not be remembered: the kernel shows it even while the node's CPUs are
        # offline.
        numa_nodes=tuple(NumaNode(int(one), cpuset.parse(text), 0) for one, text in data["nodes"]),
        online=cpus,
        present=cpus,
        cpu_capacities={int(cpu): int(each) for cpu, each in data["capacities"].items()},
        model_name=data["model"],
    )
