"""The pieces of a host, and their free cores.

A piece consists of the CPUs of one NUMA node, one L3 cache and one package. CPUs are numbers of logical CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet


@dataclass(frozen=True, slots=True, eq=False)
class CpuPiece:
    """The CPUs of one NUMA node, L3 cache and package. An id is None if it is unknown."""

    id: int
    cpus: CpuSet
    node: int | None
    l3: int | None
    package: int | None
    cores: tuple[tuple[CpuSet, tuple[int, ...]], ...]
    """The online threads of each core in the piece, as a set and in order; the lowest core first."""


class CoreKind(NamedTuple):
    """The kind of a free core: the number of its free threads, and whether all its threads are free."""

    free: int
    whole: bool


Amounts = tuple[tuple[CoreKind, int], ...]
"""Numbers of cores by kind. Kinds with more free threads come first, and partly used cores before wholly free
cores.
"""


@dataclass(frozen=True, slots=True, eq=False)
class FreeCores:
    """The free CPUs of a piece.

    :ivar cores: for each kind of core, the free threads of each core, the lowest core first.
    :ivar amounts: the number of cores of each kind.
    """

    piece: CpuPiece
    cpus: CpuSet
    cores: Mapping[CoreKind, tuple[tuple[int, ...], ...]]
    amounts: Amounts


class CpuLayout(NamedTuple):
    """For each usable CPU, its piece and its NUMA node, if the node has memory."""

    piece_of: Mapping[int, CpuPiece]
    memory_node_of: Mapping[int, int]
    """The NUMA node of each CPU, for nodes with memory."""


def free_cores(topology: HostTopology, free: CpuSet) -> list[FreeCores]:
    """The free CPUs as a list with an item for each piece, in the order of the pieces."""
    pieces = set(map(_known_layout(topology).piece_of.__getitem__, free))
    if len(pieces) == 1:  # the zone of a guest is often one piece, and no intersection is needed then
        return [_free_cores(pieces.pop(), free)]
    return [_free_cores(piece, piece.cpus & free) for piece in sorted(pieces, key=lambda piece: piece.id)]


def memory_nodes(topology: HostTopology, cpus: CpuSet) -> CpuSet:
    """Return the NUMA nodes of these CPUs, without nodes that have no memory."""
    node_of = _known_layout(topology).memory_node_of
    return frozenset({node_of[cpu] for cpu in cpus if cpu in node_of})


# The result is cached, because most pieces have the same free CPUs for one guest as for the next.
@lru_cache(maxsize=1024)
def _free_cores(piece: CpuPiece, free: CpuSet) -> FreeCores:
    whole: dict[int, list[tuple[int, ...]]] = {}
    broken: dict[int, list[tuple[int, ...]]] = {}
    for core, threads in piece.cores:
        if core <= free:
            whole.setdefault(len(threads), []).append(threads)
        elif inside := core & free:
            broken.setdefault(len(inside), []).append(tuple(sorted(inside)))
    cores = {CoreKind(threads, True): tuple(members) for threads, members in whole.items()}
    cores |= {CoreKind(threads, False): tuple(members) for threads, members in broken.items()}
    return FreeCores(piece, free, cores, in_order({kind: len(members) for kind, members in cores.items()}))


def in_order(totals: Mapping[CoreKind, int]) -> Amounts:
    """Sort numbers of cores by kind in the order of :data:`Amounts`."""
    return tuple(sorted(totals.items(), key=lambda item: (-item[0].free, item[0].whole)))


_LAYOUTS: Final[dict[int, tuple[HostTopology, CpuLayout]]] = {}
"""Layouts by ``id()`` of the topology.

The dictionary keeps the topologies, so that no other object gets their ids. A comparison of topologies would
take longer than a placement.
"""

_HOSTS: Final = 4
"""Maximum number of cached layouts. The agent uses one topology at a time, and a new one when CPUs go offline
or come online.
"""


def _known_layout(topology: HostTopology) -> CpuLayout:
    # The key is the identity, because hashing a topology covers all CPUs of the host and would be repeated
    # for each guest.
    known = _LAYOUTS.get(id(topology))
    if known is None:
        if len(_LAYOUTS) >= _HOSTS:
            _LAYOUTS.clear()
        known = _LAYOUTS[id(topology)] = topology, _lay_out(topology)
    return known[1]


def _lay_out(topology: HostTopology) -> CpuLayout:
    l3_of = {cpu: cache.id for cache in topology.l3_domains for cpu in cache.cpus}
    members: dict[tuple[int | None, int | None, int | None], list[int]] = {}
    for cpu in sorted(topology.usable):
        core = topology.core_of(cpu)
        zone = topology.node_of(cpu), l3_of.get(cpu), None if core is None else core.package
        members.setdefault(zone, []).append(cpu)
    pieces = [
        CpuPiece(piece_id, frozenset(cpus), *zone, _core_threads(topology, cpus))
        for piece_id, (zone, cpus) in enumerate(members.items())
    ]
    return CpuLayout(
        {cpu: piece for piece in pieces for cpu in piece.cpus},
        # The order is reversed, so that the first node wins if several nodes have a CPU, as in node_of().
        {cpu: node.id for node in reversed(topology.numa_nodes) if node.memory_kib for cpu in node.cpus},
    )


def _core_threads(topology: HostTopology, cpus: Sequence[int]) -> tuple[tuple[CpuSet, tuple[int, ...]], ...]:
    cores = dict.fromkeys(topology.threads_of(cpu) for cpu in cpus)
    return tuple((core, tuple(sorted(core))) for core in cores)
