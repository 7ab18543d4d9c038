"""Verdicts on promises to guests: pure functions of promises and facts."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from compute_agent.host.topology import HostTopology
from compute_agent.isolation.facts import KernelMask
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, named_cpus
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.model.messages import named_few
from compute_agent.schedules.realtime import ThreadSchedule


class PromiseKind(enum.StrEnum):
    """The kinds of promises to a guest."""

    CPUS = "cpus"
    """The guest's threads run on its assigned CPUs, and no other guest runs on its dedicated CPUs."""
    SIBLINGS = "siblings"
    """No other guest runs on the sibling threads of the guest's cores (thread policies ``isolate``,
    ``require``).
    """
    MEMORY = "memory"
    CACHE = "cache"
    BANDWIDTH = "bandwidth"
    QUIET = "quiet"
    """Interrupts and movable work of the kernel keep off the guest's dedicated CPUs."""
    ALONE = "alone"
    """Processes of the host keep off the guest's dedicated CPUs."""
    REALTIME = "realtime"
    """The threads that run guest CPUs on dedicated CPUs have a realtime schedule."""
    CORE_SCHEDULING = "core_scheduling"
    """No guest of another group ever runs on the sibling threads of the guest's cores at the same time."""
    DEVICES = "devices"
    """The guest has the PCI devices in its allocation, and no other devices that the host offers."""


class PromiseState(enum.StrEnum):
    """The states of a promise."""

    KEPT = "kept"
    LIMITED = "limited"
    """The guest has less for a known reason: throttling, work that the kernel does not move, or settings of
    another program.
    """
    BROKEN = "broken"
    UNKNOWN = "unknown"


HeldDevices = Mapping[str, int]
"""The number of devices in an allocation, by the address of the card. The number is above 1 for several
virtual functions of a card.
"""


@dataclass(frozen=True, slots=True)
class CachePromise:
    """The shares of one L3 cache that are promised to a guest.

    :ivar ways: the number of exclusive ways that the guest holds.
    :ivar bandwidth: the percent of memory bandwidth that the guest holds; 0 means that no bandwidth is
        allocated.
    :ivar way_limit: the ways that throttling leaves to the guest; None means no limit.
    :ivar bandwidth_limit: the percent of bandwidth that throttling leaves to the guest; None means no limit.
    """

    ways: int = 0
    bandwidth: int = 0
    way_limit: int | None = None
    bandwidth_limit: int | None = None


@dataclass(frozen=True, slots=True)
class GuestPromises:
    """All promises to one guest.

    :ivar vcpu_cpus: the CPUs of each guest CPU; empty if the agent does not place the guest.
    :ivar emulator_cpus: the CPUs of the guest's other threads.
    :ivar held: the guest's dedicated CPUs, including those that are kept empty for it.
    :ivar thread_policy: decides whether sibling CPUs are promised.
    :ivar mems: the NUMA nodes of the guest's memory; empty means any.
    :ivar group: the name of the guest's resctrl group; None means no promise of caches.
    :ivar caches: the promised shares by L3 cache id.
    :ivar quiet: whether the kernel's movable work must stay off the guest's dedicated CPUs.
    :ivar alone: whether processes of the host must stay off the dedicated CPUs.
    :ivar given: whether another program placed the guest.
    :ivar devices: the PCI devices in the guest's allocation.
    :ivar priority: the guest's realtime priority; None means no promise.
    :ivar core_group: a text that names the guests that may share the guest's cores; empty if all guests may
        share them.
    """

    uuid: str
    name: str
    vcpu_cpus: tuple[CpuSet, ...] = ()
    emulator_cpus: CpuSet = frozenset()
    held: CpuSet = frozenset()
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER
    mems: CpuSet = frozenset()
    group: str | None = None
    caches: Mapping[int, CachePromise] = field(default_factory=dict)
    quiet: bool = False
    alone: bool = False
    given: bool = False
    devices: HeldDevices = field(default_factory=dict)
    priority: int | None = None
    core_group: str = ""

    @property
    def guest_cpus(self) -> CpuSet:
        """The CPUs of all guest CPUs together."""
        return frozenset().union(*self.vcpu_cpus)

    @property
    def cpus(self) -> CpuSet:
        """The CPUs of all threads of the guest together."""
        return self.emulator_cpus | self.guest_cpus


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts about the resctrl group of a guest.

    :ivar ways: by L3 cache id, the number of the group's ways, and the number of these ways that another
        group can also fill.
    :ivar bandwidth: the percent of bandwidth by L3 cache id.
    :ivar slack: the percent by which the kernel's rounding can change a bandwidth.
    :ivar outside: the ids of the guest's threads that are in other groups.
    """

    ways: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    bandwidth: Mapping[int, int] = field(default_factory=dict)
    slack: int = 0
    outside: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ObservedGuest:
    """The facts about one guest, as the kernel shows them.

    :ivar vcpus: the CPUs of the thread of each guest CPU; empty if the agent cannot tell the guest's threads
        apart.
    :ivar emulator: the CPUs of the guest's other threads; empty if the agent cannot tell the guest's threads
        apart.
    :ivar threads: the CPUs of all threads, by thread id.
    :ivar bound: the NUMA nodes to which the guest's memory is bound; empty means any. None means that the
        memory cannot be bound.
    :ivar memory: the bytes by NUMA node; empty if the kernel does not count memory by node.
    :ivar group: the facts about the guest's resctrl group. None means that the group does not exist, or
        cannot be read.
    :ivar problem: the reason why the agent can read nothing of the guest.
    :ivar helpers: the CPUs of tasks that serve the guest outside its own processes, by thread id.
    :ivar devices: the addresses of the guest's PCI devices; None if unknown.
    :ivar schedules: the schedules of the threads that run guest CPUs, by thread id.
    :ivar cookies: the core cookies of all threads by thread id, 0 for no cookie; None means that the cookies
        cannot be read.
    """

    vcpus: Mapping[int, CpuSet] = field(default_factory=dict)
    emulator: CpuSet = frozenset()
    threads: Mapping[int, CpuSet] = field(default_factory=dict)
    bound: CpuSet | None = None
    memory: Mapping[int, int] = field(default_factory=dict)
    group: GroupFacts | None = None
    problem: str = ""
    helpers: Mapping[int, CpuSet] = field(default_factory=dict)
    devices: frozenset[str] | None = None
    schedules: Mapping[int, ThreadSchedule] = field(default_factory=dict)
    cookies: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class HostTask:
    """A thread of a process that belongs to no guest, and the CPUs that it may use."""

    pid: int
    tid: int
    name: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The facts about the host, as the kernel shows them.

    :ivar guests: the facts about each guest, by uuid.
    :ivar masks: the CPU masks that contain CPUs of guests with an isolation level; None means that they
        cannot be read.
    :ivar fixed: the paths of masks that the kernel refuses to change.
    :ivar owners: the uuid of the guest that has a PCI device, by the address of the device.
    :ivar tasks: the threads that may run on CPUs of guests with the level ``alone``.
    :ivar cards: by the address of each offered PCI device, the address of its card. The card of a virtual
        function is its physical function.
    :ivar refused: sentences about settings that the kernel refuses, by uuid of the guest and kind of promise.
    """

    topology: HostTopology
    guests: Mapping[str, ObservedGuest] = field(default_factory=dict)
    masks: tuple[KernelMask, ...] | None = ()
    fixed: frozenset[str] = frozenset()
    owners: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[HostTask, ...] = ()
    cards: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[tuple[str, PromiseKind], Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PromiseVerdict:
    """The verdict on one promise to one guest.

    :ivar guest: the uuid of the guest.
    :ivar name: the name of the guest.
    :ivar promised: a text about the promise.
    :ivar found: a text about the state of the kernel, if it differs from the promise.
    """

    guest: str
    name: str
    kind: PromiseKind
    state: PromiseState
    promised: str
    found: str = ""


_SHOWN: Final = 4
"""Maximum number of CPUs, threads or masks that one verdict names. Further items are only counted."""

STRAY_PERCENT: Final = 2
"""The percent of a guest's memory that may be on other nodes.

These nodes can have pages from before the binding of the memory, and shared code.
"""


def judge_promises(promises: Iterable[GuestPromises], facts: HostFacts) -> list[PromiseVerdict]:
    """The verdicts on all promises, in the order of guests and kinds."""
    promises = tuple(promises)
    groups = {promise.uuid: promise.core_group for promise in promises}
    found: list[PromiseVerdict] = []
    for promise in promises:
        guest = facts.guests.get(promise.uuid, ObservedGuest(problem="it was not read"))
        judge = _GuestJudge(promise, guest, facts, groups)
        found += judge.list_verdicts()
    return found


class _GuestJudge:
    """Makes the verdicts on the promises to one guest."""

    def __init__(
        self, promise: GuestPromises, guest: ObservedGuest, facts: HostFacts, groups: Mapping[str, str]
    ) -> None:
        """``groups`` are the core scheduling groups by guest."""
        self._promise, self._guest, self._facts, self._groups = promise, guest, facts, groups

    def list_verdicts(self) -> Iterator[PromiseVerdict]:
        promise = self._promise
        if promise.vcpu_cpus:
            text = f"{'dedicated' if promise.held else 'shared'} CPUs {cpuset.format(promise.guest_cpus)}"
            yield self._judge_promise(PromiseKind.CPUS, text, self._cpu_faults(), self._cpu_limits())
        siblings = self._sibling_cpus()
        if siblings is not None:
            text = f"no other guest on CPUs {cpuset.format(siblings)}" if siblings else "it has no siblings"
            yield self._judge_promise(PromiseKind.SIBLINGS, text, self._list_intruders(siblings))
        if promise.mems:
            yield self._judge_memory(f"NUMA nodes {cpuset.format(promise.mems)}")
        if promise.group is not None:
            yield from self._judge_caches(promise.group or "(default)")
        held = cpuset.format(promise.held)
        if promise.quiet:
            yield self._judge_quiet(f"no movable work of the kernel on CPUs {held}")
        if promise.alone:
            tasks = [f"{task.name} ({task.tid})" for task in self._facts.tasks if task.cpus & promise.held]
            faults = [f"{named_few(tasks, _SHOWN)} may run there"] if tasks else []
            yield self._judge_promise(PromiseKind.ALONE, f"no process of the host on CPUs {held}", faults)
        if promise.priority is not None:
            yield self._judge_realtime(f"realtime priority {promise.priority} on CPUs {held}")
        if promise.core_group:
            yield self._judge_cores(f"no core together with others than {promise.core_group}")
        if promise.devices or not self._facts.cards.keys().isdisjoint(self._guest.devices or ()):
            yield self._judge_devices(f"PCI devices {_devices_text(promise.devices)}")

    def _judge_promise(
        self, kind: PromiseKind, promised: str, faults: Iterable[str], limits: Iterable[str] = ()
    ) -> PromiseVerdict:
        # Without facts a promise is neither kept nor broken.
        if self._guest.problem:
            return self._make_verdict(kind, PromiseState.UNKNOWN, promised, [self._guest.problem])
        faults, limits = list(faults), list(limits)
        state = PromiseState.BROKEN if faults else PromiseState.LIMITED if limits else PromiseState.KEPT
        return self._make_verdict(kind, state, promised, [*faults, *limits])

    def _make_verdict(
        self, kind: PromiseKind, state: PromiseState, promised: str, found: Iterable[str]
    ) -> PromiseVerdict:
        return PromiseVerdict(self._promise.uuid, self._promise.name, kind, state, promised, "; ".join(found))

    # CPUs

    def _cpu_faults(self) -> Iterator[str]:
        promise, guest, online = self._promise, self._guest, self._facts.topology.online
        if not guest.threads:
            yield "it has no threads"
        for number, wanted in enumerate(promise.vcpu_cpus):
            if not wanted & online:
                yield f"{named_cpus(wanted)} of guest CPU {number} is offline"
            # Both fewer and more CPUs than wanted break the promise.
            elif number in guest.vcpus and guest.vcpus[number] != wanted & online:
                has = cpuset.format(guest.vcpus[number])
                yield f"guest CPU {number} may use {has} in place of {cpuset.format(wanted & online)}"
        # A guest with only offline CPUs runs on other CPUs for the time, and the offline CPUs are reported
        # above.
        if promise.cpus & online:
            if not guest.vcpus:
                # The threads of a process guest are not divided into guest CPUs and other threads.
                allowed = promise.cpus if guest.emulator else promise.guest_cpus
                outside = {tid: cpus for tid, cpus in guest.threads.items() if not cpus <= allowed}
                if outside:
                    tid, cpus = min(outside.items())
                    threads = _counted_things(outside, "thread")
                    yield f"{threads} elsewhere, such as {tid} on CPUs {cpuset.format(cpus)}"
            elif promise.emulator_cpus & online and not guest.emulator <= promise.emulator_cpus:
                has = cpuset.format(guest.emulator)
                yield f"emulator threads may use {has} in place of {cpuset.format(promise.emulator_cpus)}"
            astray = {tid: cpus for tid, cpus in guest.helpers.items() if not cpus <= promise.emulator_cpus}
            # If another program places the guest, _cpu_limits() reports the helpers of the guest.
            if astray and promise.emulator_cpus & online and not promise.given:
                tid, cpus = min(astray.items())
                threads = _counted_things(astray, "helper thread")
                yield f"{threads} elsewhere, such as {tid} on CPUs {cpuset.format(cpus)}"
        yield from self._list_intruders(promise.held)

    def _cpu_limits(self) -> Iterator[str]:
        """Sentences about threads that another program left on dedicated CPUs of guest CPUs."""
        promise, guest = self._promise, self._guest
        others = guest.emulator.union(*guest.helpers.values())
        inside = others & promise.held & promise.guest_cpus
        if promise.given and inside:
            yield f"threads that run no guest CPU may use CPUs {cpuset.format(inside)}"

    def _sibling_cpus(self) -> CpuSet | None:
        """CPUs that the thread policy keeps from other guests; None if it promises none."""
        promise = self._promise
        if not promise.held or promise.thread_policy not in (ThreadPolicy.ISOLATE, ThreadPolicy.REQUIRE):
            return None
        used = promise.held & promise.guest_cpus
        return self._facts.topology.siblings_of(used) if used else None

    def _list_intruders(self, cpus: CpuSet) -> Iterator[str]:
        """Sentences about other guests that may run on these CPUs."""
        for uuid, other in sorted(self._facts.guests.items()):
            if uuid == self._promise.uuid:
                continue
            inside = frozenset().union(*other.threads.values(), *other.helpers.values()) & cpus
            if inside:
                yield f"guest {uuid} may run on CPUs {cpuset.format(inside)}"

    # Memory

    def _judge_memory(self, promised: str) -> PromiseVerdict:
        if self._guest.bound is None and not self._guest.memory and not self._guest.problem:
            found = ["its memory cannot be bound, and its pages are not counted"]
            return self._make_verdict(PromiseKind.MEMORY, PromiseState.UNKNOWN, promised, found)
        return self._judge_promise(PromiseKind.MEMORY, promised, self._memory_faults())

    def _memory_faults(self) -> Iterator[str]:
        promise, guest = self._promise, self._guest
        # Memory that is not bound can be on all nodes that have memory.
        everywhere = frozenset(node.id for node in self._facts.topology.numa_nodes if node.memory_kib)
        if guest.bound is not None and not (guest.bound or everywhere) <= promise.mems:
            yield f"it is bound to NUMA nodes {cpuset.format(guest.bound) or 'any'}"
        whole = sum(guest.memory.values())
        stray = {node: amount for node, amount in guest.memory.items() if node not in promise.mems and amount}
        if whole and sum(stray.values()) * 100 > whole * STRAY_PERCENT:
            parts = (f"{amount >> 20} MiB on node {node}" for node, amount in sorted(stray.items()))
            yield f"of {whole >> 20} MiB it has {', '.join(parts)}"

    # Caches

    def _judge_caches(self, group: str) -> Iterator[PromiseVerdict]:
        caches, facts = sorted(self._promise.caches.items()), self._guest.group
        unreadable = [f"its resctrl group {group} cannot be read"]
        ways = ", ".join(f"{one.ways} of L3 {cache}" for cache, one in caches if one.ways)
        yield self._judge_promise(
            PromiseKind.CACHE,
            f"ways {ways}" if ways else f"the ways of group {group}",
            unreadable if facts is None else self._way_faults(facts),
            (
                f"throttled to {one.way_limit} ways of L3 {cache}"
                for cache, one in caches
                if one.way_limit is not None and one.way_limit < one.ways
            ),
        )
        if shares := [f"{one.bandwidth} % of L3 {cache}" for cache, one in caches if one.bandwidth]:
            yield self._judge_promise(
                PromiseKind.BANDWIDTH,
                f"memory bandwidth {', '.join(shares)}",
                unreadable if facts is None else self._bandwidth_faults(facts),
                (
                    f"throttled to {one.bandwidth_limit} % of L3 {cache}"
                    for cache, one in caches
                    if one.bandwidth_limit is not None and one.bandwidth_limit < one.bandwidth
                ),
            )

    def _way_faults(self, group: GroupFacts) -> Iterator[str]:
        if group.outside:
            threads, first = _counted_things(group.outside, "thread"), min(group.outside)
            yield f"{threads} outside of its resctrl group, such as {first}"
        for cache, one in sorted(self._promise.caches.items()):
            ways, common = group.ways.get(cache, (0, 0))
            # Throttling leaves at least one way: a mask is never empty.
            wanted = one.ways if one.way_limit is None else min(one.ways, max(one.way_limit, 1))
            if ways < wanted:
                yield f"{ways} ways of L3 {cache}"
            elif one.ways and ways - common < wanted:
                yield f"another group can fill {common} of its {ways} ways of L3 {cache}"

    def _bandwidth_faults(self, group: GroupFacts) -> Iterator[str]:
        for cache, one in sorted(self._promise.caches.items()):
            limit = one.bandwidth_limit
            wanted = one.bandwidth if limit is None else min(one.bandwidth, limit)
            # A group without a value has the whole bandwidth.
            if one.bandwidth and group.bandwidth.get(cache, 100) + group.slack < wanted:
                yield f"{group.bandwidth[cache]} % of L3 {cache}"

    # Isolation

    def _judge_quiet(self, promised: str) -> PromiseVerdict:
        if self._facts.masks is None:
            found = ["the masks of interrupts cannot be read"]
            return self._make_verdict(PromiseKind.QUIET, PromiseState.UNKNOWN, promised, found)
        movable: list[str] = []
        fixed: list[str] = []
        for mask in self._facts.masks:
            # A guest may handle the interrupts of its own PCI devices on its own CPUs.
            if self._facts.owners.get(mask.pci_address, "") == self._promise.uuid and mask.pci_address:
                continue
            is_fixed = mask.path in self._facts.fixed or not mask.movable
            # An interrupt that the kernel does not move fires on only one CPU of its mask.
            if (mask.reached_cpus if is_fixed else mask.cpus) & self._promise.held:
                (fixed if is_fixed else movable).append(mask.in_words)
        faults = [f"{named_few(movable, _SHOWN)} may run there"] if movable else []
        limits = [f"the kernel keeps {named_few(fixed, _SHOWN)} there"] if fixed else []
        return self._judge_promise(PromiseKind.QUIET, promised, faults, limits)

    # Schedules

    def _judge_realtime(self, promised: str) -> PromiseVerdict:
        guest, held = self._guest, self._promise.held
        # A thread that may also run on other CPUs is left out here: it breaks the promise of CPUs.
        threads = {tid: one for tid, one in guest.schedules.items() if guest.threads.get(tid, held) <= held}
        usual = [tid for tid, one in threads.items() if not one.is_realtime]
        foreign = {one.priority for one in threads.values() if one.is_realtime} - {self._promise.priority}
        limits = [f"priority {priority} of another program" for priority in sorted(foreign)]
        faults = []
        if not threads:
            faults.append("no thread of a guest CPU has dedicated CPUs alone")
        elif usual and (guest.vcpus or len(usual) == len(threads)):
            faults.append(f"{_counted_things(frozenset(usual), 'thread')} without, such as {min(usual)}")
        elif usual:
            # This is no fault, because a process makes new threads all the time.
            limits.append(f"{_counted_things(frozenset(usual), 'new thread')} until the next reconcile")
        return self._judge_refused(PromiseKind.REALTIME, promised, faults, limits)

    def _judge_cores(self, promised: str) -> PromiseVerdict:
        kind, cookies = PromiseKind.CORE_SCHEDULING, self._guest.cookies
        topology = self._facts.topology
        if all(len(topology.threads_of(cpu) & topology.online) < 2 for cpu in topology.online):
            return self._judge_promise(kind, promised, [])
        if cookies is None and not self._guest.problem:
            if not self._facts.refused.get((self._promise.uuid, kind)):
                return self._make_verdict(kind, PromiseState.UNKNOWN, promised, ["no cookie can be read"])
            return self._judge_refused(kind, promised, ["it has no cookie"])
        return self._judge_refused(kind, promised, self._cookie_faults(cookies or {}))

    def _cookie_faults(self, cookies: Mapping[int, int]) -> Iterator[str]:
        without = frozenset(tid for tid, cookie in cookies.items() if not cookie)
        if without:
            yield f"{_counted_things(without, 'thread')} without a cookie, such as {min(without)}"
        own = set(cookies.values()) - {0}
        for uuid, other in sorted(self._facts.guests.items()):
            is_stranger = self._groups.get(uuid, "") != self._promise.core_group
            if is_stranger and not own.isdisjoint((other.cookies or {}).values()):
                yield f"guest {uuid} has the same cookie"

    def _judge_refused(
        self, kind: PromiseKind, promised: str, faults: Iterable[str], limits: Iterable[str] = ()
    ) -> PromiseVerdict:
        """The verdict on a promise. If the kernel refuses a change, the promise is limited, not broken."""
        faults = list(faults)
        refused = self._facts.refused.get((self._promise.uuid, kind))
        if faults and refused:
            return self._judge_promise(kind, promised, [], refused)
        return self._judge_promise(kind, promised, faults, limits)

    # Devices

    def _judge_devices(self, promised: str) -> PromiseVerdict:
        has = self._guest.devices
        if has is None and not self._guest.problem:
            found = ["the agent does not know the devices of such guests, and does not restrict them"]
            return self._make_verdict(PromiseKind.DEVICES, PromiseState.UNKNOWN, promised, found)
        faults = device_faults(self._promise.devices, has or (), self._facts.cards)
        return self._judge_promise(PromiseKind.DEVICES, promised, faults)


def device_faults(held: HeldDevices, has: Collection[str], cards: Mapping[str, str]) -> list[str]:
    """One message for each difference between the devices that a guest has and those in its allocation.

    :param held: the devices in the guest's allocation.
    :param has: the addresses of the devices that the guest has. Devices that the host does not offer belong
        to other programs, and are ignored.
    :param cards: the card of each offered device.
    """
    present = Counter(cards[address] for address in has if address in cards)
    return [
        f"it has {present[card]} of {card}, and holds {held.get(card, 0)}"
        for card in sorted({*held, *present})
        if held.get(card, 0) != present[card]
    ]


def _devices_text(held: HeldDevices) -> str:
    """The devices of an allocation as text, such as ``0000:81:00.0, 2 of 0000:a1:00.0``, or ``none``."""
    parts = (card if amount == 1 else f"{amount} of {card}" for card, amount in sorted(held.items()))
    return ", ".join(parts) or "none"


def _counted_things(things: Mapping[int, object] | frozenset[int], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def count_broken(verdicts: Iterable[PromiseVerdict]) -> dict[PromiseKind, int]:
    """The number of broken promises by kind. A kind without a broken promise has 0."""
    found = dict.fromkeys(PromiseKind, 0)
    for verdict in verdicts:
        found[verdict.kind] += verdict.state is PromiseState.BROKEN
    return found


def broken_text(counts: Mapping[PromiseKind, int]) -> str:
    """A text with the broken promises, such as ``2 cpus, 1 quiet``; empty if no promise is broken."""
    return ", ".join(f"{number} {kind}" for kind, number in counts.items() if number)
