"""The host in pieces: CPUs of one NUMA node, one L3 domain and one package, and the free cores in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet


@dataclass(frozen=True, slots=True, eq=False)
class CpuPiece:
    """CPUs that nothing on the host parts but their cores. Node, L3 and package are None where not known."""

    id: int
    cpus: CpuSet
    node: int | None
    l3: int | None
    package: int | None
    cores: tuple[tuple[CpuSet, tuple[int, ...]], ...]
    """The online threads of each core that has any in the piece, as a set and in order; the lowest first."""


class CoreKind(NamedTuple):
    """What tells free cores apart: how many threads are free, and whether these are all its threads."""

    free: int
    whole: bool


Amounts = tuple[tuple[CoreKind, int], ...]
"""How many cores there are of each kind: those with most threads first, and broken ones before whole ones."""


@dataclass(frozen=True, slots=True, eq=False)
class FreeCores:
    """What is free in a piece: the free threads of each core, by kind of core, lowest first."""

    piece: CpuPiece
    cpus: CpuSet
    cores: Mapping[CoreKind, tuple[tuple[int, ...], ...]]
    amounts: Amounts


class CpuLayout(NamedTuple):
    """What placing looks up of each online CPU."""

    piece_of: Mapping[int, CpuPiece]
    memory_node_of: Mapping[int, int]
    """The NUMA node, of CPUs whose node has memory."""


def free_cores(topology: HostTopology, free: CpuSet) -> list[FreeCores]:
    """The free CPUs by piece, in the order of the pieces."""
    pieces = set(map(_layout(topology).piece_of.__getitem__, free))
    if len(pieces) == 1:
        return [_free_cores(pieces.pop(), free)]
    return [_free_cores(piece, piece.cpus & free) for piece in sorted(pieces, key=lambda piece: piece.id)]


def memory_nodes(topology: HostTopology, cpus: CpuSet) -> CpuSet:
    """The NUMA nodes of CPUs that have memory."""
    node_of = _layout(topology).memory_node_of
    return frozenset({node_of[cpu] for cpu in cpus if cpu in node_of})


@lru_cache(maxsize=1024)
def _free_cores(piece: CpuPiece, free: CpuSet) -> FreeCores:
    """Kept, as most pieces are as they were when the last guest was placed."""
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
    """Numbers of cores by kind, in their order."""
    return tuple(sorted(totals.items(), key=lambda item: (-item[0].free, item[0].whole)))


_LAYOUTS: Final[dict[int, tuple[HostTopology, CpuLayout]]] = {}
"""By the identity of the topology, which is kept with it: comparing topologies takes longer than placing."""

_HOSTS: Final = 4


def _layout(topology: HostTopology) -> CpuLayout:
    known = _LAYOUTS.get(id(topology))
    if known is None:
        if len(_LAYOUTS) >= _HOSTS:
            _LAYOUTS.clear()
        known = _LAYOUTS[id(topology)] = topology, _lay_out(topology)
    return known[1]


def _lay_out(topology: HostTopology) -> CpuLayout:
    l3_of = {cpu: cache.id for cache in topology.l3_domains for cpu in cache.cpus}
    members: dict[tuple[int | None, int | None, int | None], list[int]] = {}
    for cpu in sorted(topology.online):
        core = topology.core_of(cpu)
        zone = topology.node_of(cpu), l3_of.get(cpu), None if core is None else core.package
        members.setdefault(zone, []).append(cpu)
    pieces = [
        CpuPiece(piece_id, frozenset(cpus), *zone, _cores(topology, cpus))
        for piece_id, (zone, cpus) in enumerate(members.items())
    ]
    return CpuLayout(
        {cpu: piece for piece in pieces for cpu in piece.cpus},
        {cpu: node.id for node in reversed(topology.numa_nodes) if node.memory_kib for cpu in node.cpus},
    )


def _cores(topology: HostTopology, cpus: Sequence[int]) -> tuple[tuple[CpuSet, tuple[int, ...]], ...]:
    cores = dict.fromkeys(topology.threads_of(cpu) for cpu in cpus)
    return tuple((core, tuple(sorted(core))) for core in cores)
