"""The interface of drivers: one protocol for each subject, and the types of their parameters and results.

The subjects are guests (:class:`RunningGuests`, :class:`GuestThreads`), CPUs (:class:`CpuTuning`), memory
(:class:`MemoryTuning`), block I/O (:class:`BlockIoTuning`) and launching (:class:`LaunchSupport`,
:class:`StartingDriver`). A :class:`GuestDriver` implements all of these protocols.

A method that reads or changes one guest raises :class:`~compute_agent.model.messages.GuestGoneError` if the
guest has ended.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import BlockIo


def split_names(name: str) -> tuple[str, ...]:
    """Split a name that stands for one driver or several into single names; empty for an empty name."""
    return tuple(name.split(",")) if name else ()


def join_names(names: Iterable[str]) -> str:
    """Join names of drivers to one name that stands for all of them; a single name stays as it is."""
    return ",".join(names)


class ChangeKind(enum.StrEnum):
    """The kind of a :class:`GuestChange`; a FOUND guest ran before the driver was able to manage it."""

    STARTED = "started"
    FOUND = "found"
    STOPPED = "stopped"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class GuestChange:
    """One change of one guest, as a driver reports it.

    :ivar ending: the exit status or the signal of a guest that stopped; empty if the driver does not know it
        or the guest has not stopped.
    """

    kind: ChangeKind
    guest: Guest
    ending: str = ""


# A driver calls the listener from its own thread. The listener must only queue the change: a slow listener
# would delay all later changes.
Listener = Callable[[GuestChange], None]


class RunningGuests(Protocol):
    """Lists guests of one kind, reports their changes, and stops guests."""

    name: str

    @property
    def outage_reason(self) -> str:
        """The reason why the daemon of the guests (such as libvirtd) does not answer; empty if it answers."""
        ...

    def outage_reasons(self) -> Mapping[str, str]:
        """The reasons why daemons do not answer, by driver name; no entry for a daemon that answers."""
        ...

    @property
    def awaited_drivers(self) -> frozenset[str]:
        """The names of those drivers that have not yet listed their guests since the agent started."""
        ...

    def guests(self) -> Sequence[Guest]:
        """The guests that run now.

        :raises DriverError: a driver has not yet been able to list its guests.
        """
        ...

    def listed_guests(self) -> Sequence[Guest]:
        """The guests of the drivers that have listed them, for callers that can handle missing guests.

        :raises DriverError: no driver has listed its guests yet.
        """
        ...

    def lost_guests(self) -> Mapping[str, str]:
        """The guests that cannot be managed: a dict from the uuid to a text with the reason and the remedy.

        These guests are not in ``guests()``, but they run and keep their CPUs and memory.
        """
        ...

    def excluded_guests(self) -> Mapping[str, str]:
        """The units and containers that are chosen as guests, but certainly are none: the reason by uuid.

        Their processes belong to other guests, or to the host. So they have no CPUs and no claim of their
        own, unlike ``lost_guests()``.
        """
        ...

    def watch_guests(self, listener: Listener) -> None:
        """Call ``listener``, from the driver's thread, for each later start, end and change of a guest."""
        ...

    def stop(self, guest: Guest, timeout: float) -> None:
        """Ask the guest to stop, and kill it if it still runs after ``timeout`` seconds.

        The function ignores a guest that has ended.
        """
        ...


class GuestThreads(Protocol):
    """Lists the processes and threads of guests."""

    def process_ids(self, guest: Guest) -> Sequence[int]:
        """The pids of the guest's own processes, the main process first.

        For a guest without a cgroup, its CPU time and its memory are sums over these processes.
        """
        ...

    def usage_group(self, guest: Guest) -> str:
        """The cgroup v2 folder with counters of this guest alone; empty if there is no such folder."""
        ...

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The ids of all threads of the guest at this moment."""
        ...

    def recent_threads(self, guest: Guest) -> frozenset[int]:
        """The ids of all threads of the guest; the comparisons of one round of controllers share the list.

        See :func:`compute_agent.drivers.procfs.sharing_reads`.
        """
        ...

    def vcpu_threads(self, guest: Guest) -> frozenset[int]:
        """The ids of the threads that run guest CPUs.

        If the driver cannot tell which threads run guest CPUs, the result contains all threads of the guest.
        """
        ...


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """The CPUs that a guest's threads shall use, as logical CPU numbers of the host.

    :ivar vcpu_cpus: the allowed CPUs of each guest CPU, in the order of guest CPU numbers.
    :ivar emulator_cpus: the allowed CPUs of all threads that run no guest CPU.
    """

    vcpu_cpus: tuple[frozenset[int], ...]
    emulator_cpus: frozenset[int]

    @property
    def cpus(self) -> frozenset[int]:
        """All CPUs that at least one guest CPU may use."""
        return frozenset().union(*self.vcpu_cpus)


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """The weight and the limits of a guest's CPU time, with the meanings of cgroup v2.

    :ivar weight: ``cpu.weight``, 1 to 10000; the kernel's default is 100. None means that the agent leaves
        the weight unchanged.
    :ivar quota: the maximum CPU time that the guest gets, in cores; None means no limit.
    :ivar idle: whether the guest gets CPU time only when no other group of the same parent cgroup wants it
        (``cpu.idle``). An idle guest has no weight.
    :ivar burst: unused CPU time, in cores, that the guest can save and later use above its quota
        (``cpu.max.burst``).
    """

    weight: int | None = None
    quota: float | None = None
    idle: bool = False
    burst: float = 0.0


class QuotaError(DriverError):
    """The agent cannot limit a guest to ``quota`` cores; ``why`` has the reason."""

    def __init__(self, guest: Guest, quota: float, why: str) -> None:
        super().__init__(f"guest {guest} cannot be limited to {quota:g} cores: {why}")


class CpuTuning(Protocol):
    """Sets and reads the CPU pinning of guests' threads, and the weight and limits of guests' CPU time."""

    def misplaced_threads(self, guest: Guest, settings: CpuSettings) -> Mapping[int, frozenset[int]]:
        """The CPUs that the kernel allows to threads with other pins than in ``settings``, by thread id."""
        ...

    def definition_drift(self, guest: Guest, settings: CpuSettings) -> str:
        """The difference between ``settings`` and the guest's definition for its next start, for the log.

        The text is empty if both agree, or if the guest has no definition.
        """
        ...

    def observed_cpus(self, guest: Guest) -> frozenset[int]:
        """The CPUs that at least one thread of the guest may use, as the kernel reports them."""
        ...

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Pin the guest's threads to the CPUs in ``settings``, and read the pins back.

        If the guest has a definition for its next start, the definition gets the same pins.

        :return: how many threads had other pins before the call.
        :raises DriverError: the kernel refuses the pins.
        """
        ...

    def vcpu_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs that the kernel allows to the thread of each guest CPU, by the number of the guest CPU.

        The dict is empty if the driver cannot distinguish threads of guest CPUs from other threads.
        """
        ...

    def emulator_affinity(self, guest: Guest) -> frozenset[int]:
        """The CPUs that at least one thread without a guest CPU may use, such as the emulator's main thread.

        The result is empty if the driver cannot distinguish these threads from the threads of guest CPUs.
        """
        ...

    def helper_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs that the kernel allows to the guest's helpers, by thread id.

        Helpers are tasks outside the guest's own processes, such as swtpm or the kernel's vhost workers.
        ``misplaced_threads`` also reports helpers that may use other CPUs than the emulator.
        """
        ...

    def emulator_threads(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs that the kernel allows to helpers and to threads that run no guest CPU, by thread id.

        The helpers are the tasks that ``helper_affinity`` returns. The guest's own threads are left out if
        the driver cannot distinguish them from threads of guest CPUs.
        """
        ...

    def move_emulator(self, guest: Guest, threads: Collection[int], cpus: frozenset[int]) -> int:
        """Move some of the threads from ``emulator_threads`` to other CPUs.

        The function does not move a thread that ``restore_emulator`` would be unable to move back.

        :return: how many threads changed their CPUs.
        :raises DriverError: the pins cannot be set now.
        """
        ...

    def moved_emulator(self, guest: Guest, online: frozenset[int]) -> Mapping[int, frozenset[int]]:
        """The CPUs of the emulator threads with other pins than the definition has, by thread id.

        :param online: the online CPUs of the host.
        """
        ...

    def restore_emulator(self, guest: Guest, online: frozenset[int]) -> int:
        """Undo ``move_emulator``: pin emulator threads again to the CPUs in the definition.

        :return: how many threads changed their CPUs.
        :raises DriverError: the pins cannot be set now.
        """
        ...

    def stuck_helpers(self, guest: Guest) -> Sequence[str]:
        """Messages about helpers of the guest that could not be moved to the CPUs of its emulator."""
        ...

    def cpu_limits(self, guest: Guest, wanted: CpuLimits) -> CpuLimits | None:
        """The kernel's limits of the guest's CPU time if they differ from ``wanted``, otherwise None.

        :raises DriverError: ``wanted`` has a quota, and the guest cannot have one.
        """
        ...

    def missing_limits(self, guest: Guest, wanted: CpuLimits) -> Sequence[str]:
        """Messages for the operator about those fields of ``wanted`` that this guest cannot have.

        ``apply_cpu_limits`` sets all other fields.
        """
        ...

    def apply_cpu_limits(self, guest: Guest, wanted: CpuLimits) -> bool:
        """Write the limits of CPU time that differ from ``wanted``, and read them back.

        :return: whether a value was written.
        :raises DriverError: the kernel refuses a value.
        """
        ...


# The number is below 2^63, the largest value of memory.max, and above the memory of any host.
UNLIMITED: Final = 1 << 62
"""The number of bytes that stands for "no limit" in :class:`MemoryLimits`."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits on a guest's memory, in bytes: memory.max, memory.high, memory.low and memory.min of cgroup v2.

    A limit of None leaves the kernel's value unchanged.

    :ivar maximum: memory.max; above it the kernel kills processes of the guest.
    :ivar high: memory.high; above it the kernel slows the guest down and reclaims its memory.
    :ivar low: memory.low; below it the kernel reclaims the guest's memory last.
    :ivar oom_score_adj: the score of proc(5), -1000 to 1000, by which the kernel chooses processes to kill.
    :ivar minimum: memory.min; below it the kernel reclaims nothing of the guest's memory.
    :ivar oom_group: memory.oom.group; whether the kernel kills all processes of the guest together.
    :ivar huge_pages: pairs of a page size in KiB and a limit in bytes. Pages of other sizes are not limited.
    """

    maximum: int | None = None
    high: int | None = None
    low: int | None = None
    oom_score_adj: int | None = None
    huge_pages: tuple[tuple[int, int], ...] | None = None
    minimum: int | None = None
    oom_group: bool | None = None


@dataclass(frozen=True, slots=True)
class OomKill:
    """Processes of one guest that the kernel killed because memory was short.

    :ivar kills: the number of killed processes.
    :ivar at_own_limit: whether the guest reached its own memory.max. If not, the host ran out of memory.
    """

    guest: Guest
    kills: int
    at_own_limit: bool


class MemoryTuning(Protocol):
    """Binds guests' memory to NUMA nodes, limits it, and reports OOM kills."""

    def memory_nodes(self, guest: Guest, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes to which the guest's memory is bound, if they differ from ``wanted``.

        An empty set means that the memory is not bound. The result is None if the binding is as wanted, or if
        the memory of this guest cannot be bound.
        """
        ...

    def bind_starting_memory(self, guest: Guest, nodes: frozenset[int]) -> bool:
        """Bind the memory of an announced guest that has a process but does not run a guest CPU yet.

        If another program binds the guest to nodes, the guest keeps that binding. A failure is only logged,
        because the agent binds the memory again once the guest runs.

        :param nodes: the NUMA nodes, at least one.
        :return: whether a value was written.
        """
        ...

    def bind_memory(self, guest: Guest, wanted: frozenset[int]) -> bool:
        """Bind the guest's memory to these NUMA nodes, and read the binding back.

        Memory that cannot be moved stays on its nodes, and the driver logs this.

        :param wanted: the NUMA nodes; empty means all nodes.
        :return: whether a value was written.
        :raises DriverError: the kernel or libvirt does not bind the memory.
        """
        ...

    def memory_use(self, guest: Guest) -> int | None:
        """The bytes in use that count towards the limit ``MemoryLimits.maximum``.

        The result is None if the guest cannot have that limit.
        """
        ...

    def huge_page_use(self, guest: Guest) -> Mapping[int, int]:
        """The bytes in use that count towards the limit ``MemoryLimits.huge_pages``, by page size in KiB."""
        ...

    def memory_limits(self, guest: Guest, wanted: MemoryLimits) -> MemoryLimits | None:
        """The kernel's memory limits of the guest if they differ from ``wanted``, otherwise None.

        A limit that another program has set, or that this guest cannot have, does not count as a difference.
        """
        ...

    def memory_missing(self, guest: Guest, wanted: MemoryLimits) -> Sequence[str]:
        """Messages for the operator about those fields of ``wanted`` that this guest cannot have."""
        ...

    def limit_memory(self, guest: Guest, wanted: MemoryLimits) -> bool:
        """Write the memory limits that differ from ``wanted``, and read them back.

        :return: whether a value was written.
        :raises DriverError: the kernel refuses a value.
        """
        ...

    def oom_kills(self) -> Sequence[OomKill]:
        """The OOM kills of all guests since the last call, including those that ended a guest."""
        ...


class BlockIoTuning(Protocol):
    """Sets the weight, rate limits and latency targets of guests on block devices."""

    def blockio_drift(self, guest: Guest, wanted: BlockIo | None) -> str:
        """A text that names the block I/O values that differ from ``wanted``; empty if none differs.

        Values that another program has set do not count as differences.

        :param wanted: the settings; None means that the guest should have no values that the agent has set.
        """
        ...

    def apply_blockio(self, guest: Guest, wanted: BlockIo | None) -> bool:
        """Write the values of block I/O that differ from ``wanted``, and read them back.

        :param wanted: the settings; None means that the agent removes the values that it set earlier.
        :return: whether a value was written.
        :raises DriverError: the kernel or libvirt refuses a value.
        """
        ...

    def blockio_missing(self, guest: Guest, wanted: BlockIo) -> Sequence[str]:
        """Messages for the operator about those fields of ``wanted`` that this guest cannot have."""
        ...


@dataclass(frozen=True, slots=True)
class GuestFlavor:
    """The flavor and the owner of a guest, as Nova wrote them into the definition of its domain.

    :ivar resources: the amounts of the flavor by resource class, without VCPU and PCPU.
    :ivar dedicated: the number of guest CPUs that have dedicated host CPUs; None if the flavor does not say
        how many.
    :ivar project_id: the id of the guest's project; empty if not known.
    :ivar user_id: the id of the guest's user; empty if not known.
    :ivar dedicated_vcpus: the numbers of the dedicated guest CPUs, if only some are dedicated
        (``hw:cpu_dedicated_mask``).
    """

    resources: Mapping[str, int] = field(default_factory=dict)
    dedicated: int | None = None
    project_id: str = ""
    user_id: str = ""
    dedicated_vcpus: frozenset[int] = frozenset()


class FlavorSource(Protocol):
    """A driver of guests with definitions, which another program, such as Nova, keeps after a stop."""

    @property
    def host_name(self) -> str:
        """The host name as the hypervisor reports it; empty until the hypervisor has answered once."""
        ...

    def read_flavor(self, guest: Guest) -> GuestFlavor:
        """The flavor of a guest; an empty flavor if the guest has none, or belongs to another driver.

        :raises DriverError: the definition cannot be read.
        """
        ...

    def inactive_guests(self) -> frozenset[str]:
        """The uuids of the guests that are defined on this host but do not run at present.

        :raises DriverError: the definitions cannot be listed.
        """
        ...


class ExpectingDriver(Protocol):
    """Finds the process of an announced guest before the guest's start is reported."""

    def expect_guest(self, description: str) -> Guest:
        """Register an announced guest, so that ``find_appeared`` looks for its process.

        :param description: the definition of the guest, for libvirt the XML of the domain.
        :return: the guest as it will start, with pid 0.
        :raises ValueError: the description cannot be read, or too many guests are expected.
        """
        ...

    def find_appeared(self) -> tuple[Sequence[Guest], bool]:
        """The announced guests that got a process since the last call, and whether more are expected.

        :raises DriverError: the processes cannot be identified now.
        """
        ...


class LaunchSupport(Protocol):
    """Tells how guests start: by the agent or by another program, and with or without an announcement."""

    @property
    def starting_driver(self) -> StartingDriver | None:
        """The driver itself if the agent starts its guests; None if another program starts them."""
        ...

    @property
    def flavor_source(self) -> FlavorSource | None:
        """The driver itself, if the definitions of its guests contain their flavors; otherwise None."""
        ...

    @property
    def expecting_driver(self) -> ExpectingDriver | None:
        """The object that finds guests before they start; None if no program announces starts."""
        ...


class GuestDriver(
    RunningGuests, GuestThreads, CpuTuning, MemoryTuning, BlockIoTuning, LaunchSupport, Protocol
):
    """A driver for one kind of guests, such as domains; any thread is allowed to call its methods.

    A function that needs only one protocol has a parameter of that type, so that its test can pass a small
    fake.
    """

    def close(self) -> None:
        """Release threads, connections and locks; guests continue to run."""
        ...


class StartingDriver(GuestDriver, Protocol):
    """A driver through which the agent starts guests; the driver keeps a record of each guest on disk."""

    def create_guest(
        self,
        guest_uuid: str,
        name: str,
        settings: GuestSettings,
        command: Sequence[str],
        cwd: str = "/",
        environment: Mapping[str, str] | None = None,
        declared: Sequence[str] = (),
    ) -> Guest:
        """Start the process of a guest, and hold it before the first instruction of the guest's program.

        :param cwd: the working folder of the program.
        :param environment: environment variables in addition to the variables that every guest gets. The
            agent's own environment is not inherited.
        :param declared: the names of the settings that the request contained. ``settings`` has defaults for
            all others.
        :raises DriverError: the guest exists, or cannot be started or recorded.
        """
        ...

    def release(self, guest: Guest) -> None:
        """Let the program of a guest run after create_guest().

        :raises DriverError: the guest has ended.
        """
        ...

    def discard(self, guest: Guest) -> None:
        """Undo create_guest(): end the held process before the guest's program runs; remove its record."""
        ...

    def recent_ending(self, guest: Guest, seconds: float) -> str:
        """The exit status or the signal with which a guest has ended.

        The result is empty if the guest still runs, or if its status is not known.

        :param seconds: the longest time to wait for the end of the guest.
        """
        ...

    def adopt_guest(
        self,
        guest_uuid: str,
        name: str,
        settings: GuestSettings,
        origin: int | Path,
        declared: Sequence[str] = (),
    ) -> Guest:
        """Adopt a running process, or all processes of a cgroup, as a guest of the agent.

        :param origin: the pid of the process, or the folder of the cgroup v2 group.
        :param declared: the names of the settings that the request contained.
        :raises DriverError: the process or cgroup cannot be a guest.
        """
        ...
