"""The classes of placement, and the common code of policies. CPUs are numbers of logical CPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.host.topology import HostTopology
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, CpuSets
from compute_agent.model.guest import UNCONSTRAINED, CpuAssignment, PlacementConstraints
from compute_agent.model.guest_settings import EmulatorPolicy, ThreadPolicy
from compute_agent.policy.cores import memory_nodes
from compute_agent.policy.load_profiles import ALWAYS_BUSY, LoadProfile, common_load, use_per_cpu


@dataclass(frozen=True, slots=True)
class ProviderDemand:
    """The CPUs that an allocation takes from one provider.

    :ivar zone: the name of the provider's zone (host, NUMA node or cache) for messages.
    :ivar cpus: the online CPUs of the zone. On a host with pools, these are only the CPUs of ``pool``. If
        ``pool`` is empty, these are the CPUs that belong to no pool.
    :ivar pcpu: the amount of PCPU that the allocation takes from the provider.
    :ivar vcpu: the amount of VCPU that the allocation takes from the provider.
    :ivar pool: the name of the pool to which the provider belongs; empty if it belongs to no pool.
    :ivar around: on a host with pools, all CPUs of the zone. If the guest of the allocation already
        has dedicated CPUs in the zone but outside of ``cpus``, these CPUs still count for ``pcpu``.
    """

    zone: str
    cpus: CpuSet
    pcpu: int = 0
    vcpu: int = 0
    pool: str = ""
    around: CpuSet = frozenset()


@dataclass(frozen=True, slots=True)
class GuestRequest:
    """The needs of one guest. A guest without demands has no allocation, and can run on any shared CPU.

    :ivar guest: the uuid of the guest.
    :ivar vcpus: the number of guest CPUs.
    :ivar dedicated: the number of guest CPUs that the flavor wants dedicated; 0 if unknown.
    :ivar mems: the NUMA nodes that provide the memory of the guest's allocation; empty if the memory is
        allocated from providers that are not NUMA nodes.
    :ivar near: the NUMA nodes of the guest's PCI devices. The guest gets CPUs of these nodes if enough of
        their CPUs are free.
    :ivar near_only: whether the guest is refused if the nodes in ``near`` have too few CPUs.
    """

    guest: str
    vcpus: int
    demands: tuple[ProviderDemand, ...] = ()
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER
    emulator_policy: EmulatorPolicy = EmulatorPolicy.SHARE
    dedicated: int = 0
    constraints: PlacementConstraints = UNCONSTRAINED
    mems: CpuSet = frozenset()
    dedicated_vcpus: CpuSet = frozenset()
    """The numbers of the guest CPUs that should be dedicated; empty if the guest's definition names no
    CPUs.
    """
    alone: bool = False
    """Whether the isolation level of the guest is ``alone``, for which boot options can set CPUs apart."""
    near: CpuSet = frozenset()
    near_only: bool = False

    def narrowed_to(self, cpus: CpuSet) -> GuestRequest:
        """The request, with the CPUs of its demands reduced to CPUs in ``cpus``."""
        demands = (replace(demand, cpus=demand.cpus & cpus) for demand in self.demands)
        return replace(self, demands=tuple(demands))

    @property
    def pcpu(self) -> int:
        """The sum of PCPU over all demands."""
        return sum([demand.pcpu for demand in self.demands])

    @property
    def has_emulator_cpu(self) -> bool:
        """Whether one of the dedicated CPUs is for emulator threads only."""
        return self.emulator_policy is EmulatorPolicy.ISOLATE and self.pcpu > 0

    @property
    def used_pcpu(self) -> int:
        """The number of dedicated CPUs on which threads of the guest run.

        Each guest CPU that does not float uses one dedicated CPU. With emulator policy isolate, the emulator
        threads use one more. Siblings that thread policy isolate keeps empty do not count.
        """
        on_shared = sum([demand.vcpu for demand in self.demands])
        emulator = int(self.has_emulator_cpu)
        return max(1, min(self.vcpus - on_shared, self.pcpu - emulator)) + emulator


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    """The reason why a guest cannot be placed.

    If ``leave`` is true, the guest stays on its CPUs, even if other guests hold these CPUs.
    """

    reason: str
    leave: bool = False


_UNSUITED: Final = 1000.0
"""Penalty of a core that does not suit the isolation level of a guest.

The penalty exceeds the load of all siblings of a core together. The load of one sibling is at most 1.
"""


@dataclass(frozen=True, slots=True)
class CpuSupply:
    """The CPUs of the host, what they are used for, and the guests that hold them.

    :ivar cpu_sets: which CPUs are dedicated, which are shared, and which belong to pools.
    :ivar holdings: the dedicated CPUs that guests hold, by uuid.
    """

    topology: HostTopology
    cpu_sets: CpuSets
    holdings: Mapping[str, CpuSet] = field(default_factory=dict)
    lent: Mapping[str, CpuSet] = field(default_factory=dict)
    """Free dedicated CPUs on which guests can float, by pool.

    The empty name stands for guests outside of pools.
    """
    use: Mapping[str, LoadProfile] = field(default_factory=dict)
    """The measured CPU use of guests in cores by hour of the week, by uuid of the guest."""
    busy: Mapping[int, LoadProfile] = field(default_factory=dict)
    """The measured share of time, 0 to 1, for which each dedicated CPU is busy, by hour of the week."""
    woken: CpuSet = frozenset()
    """Parked CPUs that a policy can assign to a guest, because the agent can bring them online."""

    set_apart: CpuSet = frozenset()
    """CPUs in the boot options ``isolcpus`` and ``nohz_full``, which are for guests with the isolation level
    ``alone``.
    """

    def core_order(self, request: GuestRequest) -> Callable[[int], float] | None:
        """A sort key of cores for a guest; None if the order does not matter.

        Cores that suit the isolation level of the guest come first. Among these cores, the ones with the
        least busy siblings come first.
        """
        if not (self.busy or self.set_apart):
            return None
        return lambda cpu: self.is_unsuited(request, cpu) * _UNSUITED + self.sibling_load(request, cpu)

    def is_unsuited(self, request: GuestRequest, cpu: int) -> bool:
        """Whether a CPU does not suit the isolation level of the guest.

        CPUs in the boot options isolcpus and nohz_full suit only guests with the level ``alone``. All other
        CPUs suit only guests with other levels. On a host without the boot options isolcpus and nohz_full,
        each CPU suits each guest.
        """
        return bool(self.set_apart) and (cpu in self.set_apart) != request.alone

    def sibling_load(self, request: GuestRequest, cpu: int) -> float:
        """How much other guests use the siblings of a CPU while the guest is busy; 0 if not measured."""
        if not self.busy:
            return 0.0
        siblings = self.topology.threads_of(cpu) - self.holdings.get(request.guest, frozenset()) - {cpu}
        loads = [self.busy[sibling] for sibling in siblings if sibling in self.busy]
        mine = self.own_load(request) or ALWAYS_BUSY
        return sum([common_load(mine, load) for load in loads])

    def own_load(self, request: GuestRequest) -> LoadProfile | None:
        """How much each CPU of the guest is busy, by hour of the week; None if not known."""
        use = self.use.get(request.guest)
        count = len(self.holdings.get(request.guest, ())) or request.pcpu
        return use_per_cpu(use, count) if use is not None and count else None

    def taken_cpus(self, request: GuestRequest) -> CpuSet:
        """The dedicated CPUs that other guests hold."""
        held = self.holdings
        # The set is copied only for a guest that already holds CPUs, which a new guest does not.
        if request.guest in held:
            held = {guest: cpus for guest, cpus in held.items() if guest != request.guest}
        return frozenset().union(*held.values())

    def free(self, request: GuestRequest, demand: ProviderDemand) -> CpuSet:
        """The dedicated CPUs in the zone of a demand that no other guest holds."""
        there = self.topology.online | self.woken
        return self.cpu_sets.dedicated.intersection(demand.cpus, there) - self.taken_cpus(request)


Policy = Callable[[CpuSupply, GuestRequest], CpuAssignment | PlacementRefusal | None]
"""A policy: a function that assigns CPUs to a guest, refuses the guest, or returns None to leave it on its
CPUs.
"""

Chooser = Callable[[CpuSupply, GuestRequest, ProviderDemand, CpuSet], tuple[int, ...] | PlacementRefusal]
"""Chooses exactly ``demand.pcpu`` of the free CPUs of a demand, in the order of the guest CPUs, or refuses.

The free CPUs are the last argument; there are at least ``demand.pcpu`` of them.
"""


def place_guest(
    supply: CpuSupply, request: GuestRequest, choose: Chooser
) -> CpuAssignment | PlacementRefusal:
    """Place a guest: choose dedicated CPUs for each demand, then add shared CPUs, emulator CPUs and memory.

    All policies that place guests share this function.

    :param choose: a function that chooses the dedicated CPUs for one demand.
    """
    if request.has_emulator_cpu and request.pcpu < 2:
        return PlacementRefusal(
            "emulator policy isolate needs one PCPU more than guest CPUs; the allocation has 1"
        )
    if _was_allocated_shared(request):
        return PlacementRefusal(
            f"the flavor wants {request.dedicated} dedicated CPUs, but the allocation has VCPU and no PCPU,"
            " as after nova-scheduler's fall-back query: resize or migrate it, and set [workarounds]"
            " disable_fallback_pcpu_query = true in nova.conf"
        )
    chosen: tuple[int, ...] = ()
    for demand in request.demands:
        if demand.pcpu == 0:
            continue
        free = supply.free(request, demand).difference(chosen)
        if len(free) < demand.pcpu:
            parked = demand.cpus & supply.cpu_sets.dedicated & supply.topology.parked - supply.woken
            waits = f", and CPUs {cpuset.format(parked)} are offline" if parked else ""
            return PlacementRefusal(
                f"{demand.zone} has {len(free)} free dedicated CPUs ({cpuset.format(free) or 'none'}),"
                f" but {demand.pcpu} are needed{waits}"
            )
        cpus = _choose_near(supply, request, demand, free, choose)
        if isinstance(cpus, PlacementRefusal):
            return cpus
        chosen += cpus
    # Isolation is checked after all demands, because ``choose`` sees one demand at a time, and the whole
    # cores of all demands together are perhaps too few.
    if not _is_isolated(supply, request, chosen):
        return PlacementRefusal(
            f"thread policy isolate takes whole cores: {request.pcpu} PCPU are too few for"
            f" {request.used_pcpu} cores"
        )
    return build_assignment(supply, request, chosen)


def _choose_near(
    supply: CpuSupply, request: GuestRequest, demand: ProviderDemand, free: CpuSet, choose: Chooser
) -> tuple[int, ...] | PlacementRefusal:
    """Choose free CPUs near the guest's PCI devices.

    If these CPUs are too few, choose among all free CPUs, or with ``near_only`` refuse the guest.
    """
    near = near_cpus(supply, request, demand.cpus)
    # No CPU is preferred if all CPUs of the zone are near the devices, or if no CPU is near them.
    if not near or near == demand.cpus:
        return choose(supply, request, demand, free)
    found: tuple[int, ...] | PlacementRefusal = PlacementRefusal(
        f"NUMA nodes {cpuset.format(request.near)} of its PCI devices have {len(free & near)} free dedicated"
        f" CPUs of {demand.zone}, but {demand.pcpu} are needed"
    )
    if len(free & near) >= demand.pcpu:
        found = choose(supply, request, demand, free & near)
    if isinstance(found, PlacementRefusal) and not request.near_only:
        return choose(supply, request, demand, free)
    return found


def near_cpus(supply: CpuSupply, request: GuestRequest, cpus: CpuSet) -> CpuSet:
    """The CPUs among ``cpus`` that are on the NUMA nodes of the guest's PCI devices."""
    return cpus & supply.topology.cpus_of(request.near)


def build_assignment(
    supply: CpuSupply,
    request: GuestRequest,
    dedicated: tuple[int, ...],
    floating: CpuSet | None = None,
    withheld: CpuSet = frozenset(),
) -> CpuAssignment | PlacementRefusal:
    """Build the assignment of a guest around its dedicated CPUs.

    :param floating: shared CPUs for the guest's ``VCPU``; by default the shared CPUs of its zones.
    :param withheld: dedicated CPUs of the guest that are already kept empty.
    """
    # Held CPUs are left out, because a change of the options has perhaps made them shared CPUs.
    held = supply.taken_cpus(request).union(dedicated)
    if floating is None:
        floating = floating_cpus(supply, request)
    floating -= held
    if not dedicated and not floating:
        return PlacementRefusal(_why_not_shared(supply, request))
    pinned = used = _used_cpus(supply, request, dedicated, withheld)
    # The emulator threads get the last used CPU; _is_isolated() and read_back() rely on this order.
    if request.emulator_policy is EmulatorPolicy.ISOLATE and len(used) > 1:
        pinned, emulator = used[:-1], frozenset(used[-1:])
    else:
        own = frozenset(used) or floating
        emulator = shared_emulator_cpus(supply, request, held, own) or own
    per_vcpu = _spread_over_vcpus(pinned, floating, request)
    empty = frozenset(dedicated).difference(used) if len(used) < len(dedicated) else frozenset()
    mems = memory_of(supply, request, frozenset().union(*per_vcpu), bool(dedicated))
    return CpuAssignment(per_vcpu, emulator, dedicated, empty, mems)


def memory_of(supply: CpuSupply, request: GuestRequest, cpus: CpuSet, pinned: bool) -> CpuSet:
    """The NUMA nodes for the memory of a guest on ``cpus``; an empty set means any node.

    The nodes come from the guest's definition or, if the definition names no nodes, from the allocation. If
    neither names a node, a guest that is ``pinned`` or has to be near its devices gets the nodes of ``cpus``.
    """
    told = request.constraints.memory_nodes or request.mems
    follows = pinned or (request.near_only and bool(request.near))
    return told or (memory_nodes(supply.topology, cpus) if follows else frozenset())


def refit_assignment(
    supply: CpuSupply, request: GuestRequest, current: CpuAssignment
) -> CpuAssignment | None:
    """The assignment that keeps the guest's dedicated CPUs; None if these CPUs do not satisfy the request.

    The CPUs serve the request if their number and zones are those of the allocation, and no other guest holds
    one of them. With thread policy isolate, all siblings of used CPUs must also be among the guest's CPUs.
    CPUs that have left ``cpu_dedicated_set`` or gone offline still serve the request, because a running guest
    is not moved for this reason.
    """
    if _was_allocated_shared(request):
        return None
    taken = supply.taken_cpus(request)
    for dedicated in _what_may_be_its_own(supply, request, current):
        own = frozenset(dedicated)
        if taken & own or not _amounts_match(supply, request, own):
            continue
        if _is_isolated(supply, request, dedicated, current.withheld):
            again = build_assignment(supply, request, dedicated, withheld=current.withheld)
            return in_place(again, current, request) if isinstance(again, CpuAssignment) else None
    return None


def _was_allocated_shared(request: GuestRequest) -> bool:
    """Whether the flavor wants dedicated CPUs but the allocation has only shared CPUs."""
    return bool(request.dedicated and request.demands and not request.pcpu)


def _what_may_be_its_own(
    supply: CpuSupply, request: GuestRequest, current: CpuAssignment
) -> Iterator[tuple[int, ...]]:
    """Yield the possible sets of the guest's own CPUs: with and without siblings of its emulator CPU."""
    yield current.dedicated
    used = _used_cpus(supply, request, current.dedicated, current.withheld)
    if request.thread_policy is ThreadPolicy.ISOLATE and request.has_emulator_cpu and used:
        beside = supply.topology.threads_of(used[-1]) - {used[-1]}
        # If the assignment was read back from the kernel, it is unknown whether the allocation includes the
        # siblings.
        yield tuple(cpu for cpu in current.dedicated if cpu not in beside)


def in_place(fresh: CpuAssignment, current: CpuAssignment, request: GuestRequest) -> CpuAssignment:
    """The ``fresh`` assignment, reordered so that guest CPUs stay on their present host CPUs where possible.

    The order of ``fresh`` is kept if the definition names the dedicated guest CPUs and ``current`` pins other
    guest CPUs.
    """
    own = frozenset(fresh.dedicated)
    named = request.dedicated_vcpus
    if named and named == _own_positions(fresh, own) != _own_positions(current, own):
        return fresh
    pinned, were_pinned = (
        [cpus for cpus in assignment.vcpu_cpus if cpus <= own] for assignment in (fresh, current)
    )
    if len(pinned) != len(were_pinned) or len(fresh.vcpu_cpus) != len(current.vcpu_cpus):
        return fresh
    if frozenset().union(*pinned) != frozenset().union(*were_pinned):
        return fresh
    floating = [cpus for cpus in fresh.vcpu_cpus if not cpus <= own]
    # The first of these sets is used, because all floating guest CPUs have the same host CPUs.
    vcpu_cpus = tuple(cpus if cpus <= own else floating[0] for cpus in current.vcpu_cpus)
    return replace(fresh, vcpu_cpus=vcpu_cpus)


def _own_positions(assignment: CpuAssignment, own: CpuSet) -> CpuSet:
    """The numbers of the guest CPUs that run only on CPUs in ``own``."""
    return frozenset(number for number, cpus in enumerate(assignment.vcpu_cpus) if cpus <= own)


def _is_isolated(
    supply: CpuSupply, request: GuestRequest, dedicated: tuple[int, ...], withheld: CpuSet = frozenset()
) -> bool:
    """Whether each pinned guest CPU has a whole core, if the thread policy is isolate."""
    if request.thread_policy is not ThreadPolicy.ISOLATE or not dedicated:
        return True
    used = _used_cpus(supply, request, dedicated, withheld)
    # The last used CPU belongs to the emulator threads, and may share its core with other guests.
    alone = used[:-1] if request.has_emulator_cpu else used
    return len(used) >= request.used_pcpu and all(
        supply.topology.threads_of(cpu) <= frozenset(dedicated) for cpu in alone
    )


def _amounts_match(supply: CpuSupply, request: GuestRequest, dedicated: CpuSet) -> bool:
    """Whether the number of a guest's dedicated CPUs in each zone equals its allocation in the zone."""
    remaining = dedicated
    missing: list[CpuSet] = []
    for demand in request.demands:
        inside = remaining & demand.cpus
        if len(inside) > demand.pcpu and not demand.around:
            return False
        inside = frozenset(sorted(inside)[: demand.pcpu])
        # Zones list only usable CPUs. An offline CPU of the guest takes the place of a missing CPU.
        missing += [demand.around] * (demand.pcpu - len(inside))
        remaining -= inside
    # A usable CPU outside of ``cpus`` but within ``around`` was moved to another pool by the options.
    for cpu in sorted(remaining & supply.topology.usable):
        around = next((cpus for cpus in missing if cpu in cpus), None)
        if around is None:
            return False
        missing.remove(around)
    return len(remaining - supply.topology.usable) == len(missing)


def floating_cpus(supply: CpuSupply, request: GuestRequest) -> CpuSet:
    """The CPUs on which guest CPUs without a dedicated CPU float.

    These CPUs are the shared CPUs of the zones from which the guest has VCPU. A guest without an allocation
    floats on all shared CPUs outside of pools. If there are shared CPUs, lent CPUs are added. If some of the
    found CPUs are on the nodes of the guest's devices, a guest with ``near_only`` gets only these CPUs.
    """
    found = _floating_anywhere(supply, request)
    return (near_cpus(supply, request, found) if request.near_only else found) or found


def _floating_anywhere(supply: CpuSupply, request: GuestRequest) -> CpuSet:
    online = supply.topology.online
    if not request.demands:
        shared, lent = supply.cpu_sets.open_shared & online, supply.lent.get("", frozenset())
        # Lent CPUs can be taken back at any time, so a guest must not have lent CPUs only.
        return shared | lent if shared else shared
    found: CpuSet = frozenset()
    for demand in request.demands:
        shared = supply.cpu_sets.shared & online & demand.cpus
        if demand.vcpu and shared:
            lent = supply.lent.get(demand.pool, frozenset()) & (demand.around or demand.cpus)
            found |= shared | lent
    return found


def _why_not_shared(supply: CpuSupply, request: GuestRequest) -> str:
    """The reason why a guest without PCPU cannot get shared CPUs, for the refusal of the guest."""
    if not supply.cpu_sets.shared & supply.topology.online:
        return "the host has no shared CPUs, and the guest holds no PCPU"
    zones = ", ".join([demand.zone for demand in request.demands]) or "the host"
    return f"{zones} has no shared CPUs that no other guest holds, and the guest holds no PCPU"


def shared_emulator_cpus(supply: CpuSupply, request: GuestRequest, held: CpuSet, own: CpuSet) -> CpuSet:
    """The shared CPUs for a guest's emulator threads: CPUs of its zones, or else all CPUs outside of pools.

    If some of these shared CPUs are on the NUMA nodes of ``own``, the result contains only CPUs on these
    nodes.

    :param held: the dedicated CPUs that guests hold.
    :param own: host CPUs on which the guest's CPUs run.
    """
    everywhere = supply.cpu_sets.emulator & supply.topology.online - held
    if not everywhere:
        return everywhere
    zones: CpuSet = frozenset().union(*(demand.cpus for demand in request.demands))
    usable = (everywhere & zones) or everywhere - supply.cpu_sets.pooled
    nodes = supply.topology.nodes_of(own)
    near = frozenset(cpu for cpu in usable if supply.topology.node_of(cpu) in nodes)
    return near or usable


def _used_cpus(
    supply: CpuSupply, request: GuestRequest, dedicated: tuple[int, ...], withheld: CpuSet
) -> tuple[int, ...]:
    """The dedicated CPUs on which threads run; with thread policy isolate, the first CPU of each core."""
    if request.thread_policy is not ThreadPolicy.ISOLATE:
        return dedicated
    used: list[int] = []
    # ``withheld`` CPUs stay empty, even if the topology does not show them as siblings any more.
    covered = set(withheld)
    for cpu in dedicated:
        if cpu not in covered:
            used.append(cpu)
            covered |= supply.topology.threads_of(cpu)
    return tuple(used)


def _spread_over_vcpus(
    pinned: tuple[int, ...], floating: CpuSet, request: GuestRequest
) -> tuple[CpuSet, ...]:
    """The host CPUs of each guest CPU, by the number of the guest CPU.

    Dedicated CPUs go to the guest CPUs that the definition names, or else to the first guest CPUs. All other
    guest CPUs float. If no CPU floats and the numbers differ, guest CPUs share the dedicated CPUs evenly.
    """
    if not pinned:
        return (floating,) * request.vcpus
    if floating:
        named = request.dedicated_vcpus
        if len(named) == len(pinned) and max(named) < request.vcpus:
            given = dict(zip(sorted(named), pinned, strict=True))
            return tuple(
                frozenset({given[number]}) if number in given else floating for number in range(request.vcpus)
            )
        alone = tuple(frozenset({cpu}) for cpu in pinned[: request.vcpus])
        return alone + (floating,) * (request.vcpus - len(alone))
    if request.vcpus <= len(pinned):
        return tuple([frozenset(pinned[index :: request.vcpus]) for index in range(request.vcpus)])
    return tuple(frozenset({pinned[index % len(pinned)]}) for index in range(request.vcpus))
