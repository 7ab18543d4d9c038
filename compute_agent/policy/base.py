"""The nouns of placement: supply, request, assignment, refusal; and what all policies do alike.

CPUs are logical CPU numbers. *Dedicated* CPUs back PCPU: one guest each. *Shared* CPUs back VCPU.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compute_agent.host import cpuset
from compute_agent.host.topology import Topology
from compute_agent.inventory.cpu_sets import CpuSets

CpuSet = frozenset[int]


class ThreadPolicy(enum.StrEnum):
    """How a dedicated guest's CPUs relate to hardware threads (``hw:cpu_thread_policy``)."""

    PREFER = "prefer"
    REQUIRE = "require"
    ISOLATE = "isolate"
    SPREAD = "spread"


class EmulatorPolicy(enum.StrEnum):
    """Where emulator and I/O threads run (``hw:emulator_threads_policy``)."""

    SHARE = "share"
    ISOLATE = "isolate"


@dataclass(frozen=True, slots=True)
class Demand:
    """The part of an allocation that one provider serves: amounts, and the online CPUs of the provider's
    zone.
    """

    zone: str
    cpus: CpuSet
    pcpu: int = 0
    vcpu: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What one guest needs. Without any demand it has no allocation and floats over all shared CPUs."""

    guest: str
    vcpus: int
    demands: tuple[Demand, ...] = ()
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER
    emulator_policy: EmulatorPolicy = EmulatorPolicy.SHARE

    @property
    def pcpu(self) -> int:
        """Dedicated CPUs altogether."""
        return sum(demand.pcpu for demand in self.demands)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a guest runs.

    ``dedicated`` are the CPUs no other guest gets, in the order of the guest CPUs; ``withheld`` are siblings
    kept empty beside them, also nobody else's. ``vcpu_cpus`` has a set per guest CPU, ``emulator_cpus`` is
    for all other threads, ``mems`` are NUMA nodes.
    """

    vcpu_cpus: tuple[CpuSet, ...]
    emulator_cpus: CpuSet
    dedicated: tuple[int, ...] = ()
    withheld: CpuSet = frozenset()
    mems: CpuSet = frozenset()

    @property
    def held(self) -> CpuSet:
        """The CPUs that no other guest may have."""
        return frozenset(self.dedicated) | self.withheld

    @property
    def cpus(self) -> CpuSet:
        """The CPUs that any guest CPU may use."""
        return frozenset().union(*self.vcpu_cpus)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a guest cannot be placed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Supply:
    """What there is to give: the host, what its CPUs are for, and who holds dedicated ones."""

    topology: Topology
    cpu_sets: CpuSets
    holdings: Mapping[str, CpuSet] = field(default_factory=dict)

    def taken(self, request: Request) -> CpuSet:
        """The CPUs that are held by others than the request's guest."""
        return frozenset().union(*(cpus for guest, cpus in self.holdings.items() if guest != request.guest))

    def free(self, request: Request, demand: Demand) -> CpuSet:
        """The dedicated CPUs of a demand's zone that the request's guest may have."""
        return (self.cpu_sets.dedicated & demand.cpus & self.topology.online) - self.taken(request)


Policy = Callable[[Supply, Request], Assignment | Refusal | None]
"""None means: leave the guest as it is."""

Chooser = Callable[[Supply, Request, Demand, CpuSet], tuple[int, ...] | Refusal]
"""Picks exactly ``demand.pcpu`` of the free CPUs, in the order of the guest CPUs, or says why it cannot."""


def place(supply: Supply, request: Request, choose: Chooser) -> Assignment | Refusal:
    """What all placing policies have in common: zones, shared parts, emulator threads and memory.

    The dedicated CPUs of each zone come from ``choose``.
    """
    emulator_alone = request.emulator_policy is EmulatorPolicy.ISOLATE and request.pcpu > 0
    if emulator_alone and request.pcpu < 2:
        return Refusal("emulator policy isolate needs one PCPU more than guest CPUs; the allocation has 1")
    chosen: list[int] = []
    for demand in request.demands:
        if demand.pcpu == 0:
            continue
        free = supply.free(request, demand) - frozenset(chosen)
        if len(free) < demand.pcpu:
            return Refusal(
                f"{demand.zone} has {len(free)} free dedicated CPUs ({cpuset.format(free) or 'none'}),"
                f" {demand.pcpu} are needed"
            )
        cpus = choose(supply, request, demand, free)
        if isinstance(cpus, Refusal):
            return cpus
        chosen.extend(cpus)
    return assemble(supply, request, tuple(chosen))


def assemble(
    supply: Supply, request: Request, dedicated: tuple[int, ...], floating: CpuSet | None = None
) -> Assignment | Refusal:
    """The assignment that follows from a guest's dedicated CPUs.

    ``floating`` are the shared CPUs of its VCPU part; those of its zones unless given.
    """
    if floating is None:
        floating = _floating_cpus(supply, request)
    if not dedicated and not floating:
        return Refusal("the host has no shared CPUs, and the guest holds no PCPU")
    pinned, withheld = _withhold_siblings(supply, request, dedicated)
    emulator: CpuSet = _emulator_cpus(supply, request) or frozenset(pinned)
    if request.emulator_policy is EmulatorPolicy.ISOLATE and len(pinned) > 1:
        emulator = frozenset(pinned[-1:])
        pinned = pinned[:-1]
    per_vcpu = _spread_over_vcpus(pinned, floating, request)
    mems = _nodes(supply, frozenset().union(*per_vcpu)) if dedicated else frozenset()
    return Assignment(per_vcpu, emulator, dedicated, withheld, mems)


def refit(supply: Supply, request: Request, current: Assignment) -> Assignment | None:
    """The guest's assignment with the dedicated CPUs it has, which it keeps as long as they serve the
    request.

    None if they do not: another number, or not in the zones of the allocation, or also somebody else's. CPUs
    that left ``cpu_dedicated_set`` or went offline do not count against it: a running guest is not moved for
    that.
    """
    taken = supply.taken(request)
    # What is in use goes before what is withheld, or else the guest would change places with its siblings.
    with_siblings = (*current.dedicated, *sorted(current.withheld.difference(current.dedicated)))
    for dedicated in (current.dedicated, with_siblings):
        if not taken & frozenset(dedicated) and _amounts_match(request, frozenset(dedicated)):
            again = assemble(supply, request, dedicated)
            return again if isinstance(again, Assignment) else None
    return None


def _amounts_match(request: Request, dedicated: CpuSet) -> bool:
    """Whether the CPUs are as many as the allocation says in every zone."""
    remaining = dedicated
    for demand in request.demands:
        inside = remaining & demand.cpus
        if len(inside) != demand.pcpu:
            return False
        remaining -= inside
    return not remaining


def _floating_cpus(supply: Supply, request: Request) -> CpuSet:
    """The shared CPUs for the VCPU part: those of its zones; all of them without an allocation."""
    shared = supply.cpu_sets.shared & supply.topology.online
    if not request.demands:
        return shared
    zones: CpuSet = frozenset().union(*(demand.cpus for demand in request.demands if demand.vcpu))
    return shared & zones


def _emulator_cpus(supply: Supply, request: Request) -> CpuSet:
    """The shared CPUs for emulator threads: near the guest where there are any, else wherever."""
    everywhere = supply.cpu_sets.emulator & supply.topology.online
    zones: CpuSet = frozenset().union(*(demand.cpus for demand in request.demands))
    return (everywhere & zones) or everywhere


def _withhold_siblings(
    supply: Supply, request: Request, dedicated: tuple[int, ...]
) -> tuple[tuple[int, ...], CpuSet]:
    """With thread policy isolate: the CPUs that are used, one per core, and the siblings that stay empty."""
    if request.thread_policy is not ThreadPolicy.ISOLATE:
        return dedicated, frozenset()
    used: list[int] = []
    covered: set[int] = set()
    for cpu in dedicated:
        if cpu not in covered:
            used.append(cpu)
            covered |= supply.topology.threads_of(cpu)
    return tuple(used), frozenset(covered & supply.cpu_sets.dedicated) - frozenset(used)


def _spread_over_vcpus(pinned: tuple[int, ...], floating: CpuSet, request: Request) -> tuple[CpuSet, ...]:
    """A set per guest CPU: first one dedicated CPU each, then the shared ones.

    Where amounts and guest CPUs do not match, the guest CPUs take turns on what the guest holds: never on
    more.
    """
    if not pinned:
        return (floating,) * request.vcpus
    if floating:
        alone = tuple(frozenset({cpu}) for cpu in pinned[: request.vcpus])
        return alone + (floating,) * (request.vcpus - len(alone))
    if request.vcpus <= len(pinned):
        return tuple(frozenset(pinned[index :: request.vcpus]) for index in range(request.vcpus))
    return tuple(frozenset({pinned[index % len(pinned)]}) for index in range(request.vcpus))


def _nodes(supply: Supply, cpus: CpuSet) -> CpuSet:
    """The NUMA nodes of CPUs that have memory."""
    with_memory = {node.id for node in supply.topology.numa_nodes if node.memory_kib}
    return frozenset(
        node for cpu in cpus if (node := supply.topology.node_of(cpu)) is not None and node in with_memory
    )
