"""The interface of drivers by subject, and the plain values that cross it.

Guests (:class:`RunningGuests`, :class:`GuestThreads`), CPUs (:class:`CpuTuning`), memory
(:class:`MemoryTuning`), block I/O (:class:`BlockIoTuning`) and launching (:class:`LaunchSupport`,
:class:`StartingDriver`). A driver is all of these together, a :class:`GuestDriver`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import BlockIo


class ChangeKind(enum.StrEnum):
    """The kind of a change. A *found* guest ran already when the driver could first look."""

    STARTED = "started"
    FOUND = "found"
    STOPPED = "stopped"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class GuestChange:
    """One change of one guest, as a driver reports it.

    :ivar ending: the exit status or the signal of a guest that stopped; empty where the driver does not know.
    """

    kind: ChangeKind
    guest: Guest
    ending: str = ""


# Called from a thread of the driver, so it only queues: a slow one would hold up all later changes.
Listener = Callable[[GuestChange], None]


class RunningGuests(Protocol):
    """The guests of one kind: lists them, reports their changes, and stops them. For any thread."""

    name: str

    @property
    def outage_reason(self) -> str:
        """The reason why the daemon of the guests (libvirtd) does not answer; empty if it does."""
        ...

    def guests(self) -> Sequence[Guest]:
        """The guests that run now.

        :raises DriverError: the driver has not been able to look yet.
        """
        ...

    def lost_guests(self) -> Mapping[str, str]:
        """The guests that may run and that the driver cannot manage: by uuid, with the reason and the remedy.

        Lost guests are not among ``guests()``. Lost guests keep their CPUs and memory as long as they run
        here.
        """
        ...

    def watch_guests(self, listener: Listener) -> None:
        """Call ``listener``, from a thread of the driver, for each later start, end and change of a guest."""
        ...

    def stop(self, guest: Guest, timeout: float) -> None:
        """Stop the guest: by request, and by force after ``timeout`` seconds.

        An ended guest is not an error.
        """
        ...


class GuestThreads(Protocol):
    """The processes and threads of guests."""

    def process_ids(self, guest: Guest) -> Sequence[int]:
        """The processes that count towards usage without a cgroup; the main process is first."""
        ...

    def usage_group(self, guest: Guest) -> str:
        """The cgroup v2 folder that counts the use of the guest alone; empty if there is none."""
        ...

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The kernel thread ids of the guest now.

        :raises GuestGoneError:
        """
        ...

    def vcpu_threads(self, guest: Guest) -> frozenset[int]:
        """The threads that run the guest's own code; all threads where they cannot be told apart.

        :raises GuestGoneError:
        """
        ...


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """The CPUs of a guest's threads, as logical CPU numbers.

    :ivar vcpu_cpus: one set for each guest CPU.
    :ivar emulator_cpus: the CPUs of all other threads.
    """

    vcpu_cpus: tuple[frozenset[int], ...]
    emulator_cpus: frozenset[int]

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs of all guest CPUs together."""
        return frozenset().union(*self.vcpu_cpus)


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """The share of its CPUs that a guest gets.

    :ivar weight: the guest's share beside others, as ``cpu.weight`` of cgroup v2: 1 to 10000, the kernel's
        default is 100. None: unchanged.
    :ivar quota: the most CPU time that the guest gets, in cores; None: no limit.
    :ivar idle: whether the guest runs only on CPUs that no other group of the host wants to use
        (``cpu.idle``). The guest has no weight then.
    :ivar burst: CPU time that the guest saves up below its quota and may use later, in cores
        (``cpu.max.burst``).
    """

    weight: int | None = None
    quota: float | None = None
    idle: bool = False
    burst: float = 0.0


class QuotaError(DriverError):
    """A guest with at most ``quota`` cores cannot have a quota, because of ``why``."""

    def __init__(self, guest: Guest, quota: float, why: str) -> None:
        super().__init__(f"guest {guest} cannot be limited to {quota:g} cores: {why}")


class CpuTuning(Protocol):
    """The CPUs of guests' threads, and the share of them that guests get."""

    def misplaced_threads(self, guest: Guest, settings: CpuSettings) -> Mapping[int, frozenset[int]]:
        """The threads of the guest with other CPUs than ``settings`` give, with the CPUs that they have.

        Empty if kernel and settings agree.

        :raises GuestGoneError:
        """
        ...

    def definition_drift(self, guest: Guest, settings: CpuSettings) -> str:
        """The difference of the definition for the next start from ``settings``, in words for the log.

        Empty if they agree, or if there is no definition.

        :raises GuestGoneError:
        """
        ...

    def observed_cpus(self, guest: Guest) -> frozenset[int]:
        """The CPUs that the kernel lets the guest's threads use, all together.

        :raises GuestGoneError:
        """
        ...

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Pin the guest's threads by ``settings``, and read them back.

        The definition for the next start, if there is one, gets the same pins.

        :return: how many threads changed.
        :raises GuestGoneError:
        :raises DriverError: the kernel refuses it.
        """
        ...

    def vcpu_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs that the kernel lets the thread of each guest CPU use, by the number of the guest CPU.

        Empty where these threads cannot be told from others.

        :raises GuestGoneError:
        """
        ...

    def emulator_affinity(self, guest: Guest) -> frozenset[int]:
        """The CPUs that the kernel lets the threads use that run no guest CPU.

        Empty where these threads cannot be told from others.

        :raises GuestGoneError:
        """
        ...

    def helper_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs that the kernel lets tasks use that serve the guest outside its own processes.

        By thread id. These threads are among the misplaced threads as well.

        :raises GuestGoneError:
        """
        ...

    def emulator_threads(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs of each thread that runs no guest CPU, with those of helper_affinity(), by thread id.

        Own threads are left out where they cannot be told from those of guest CPUs.

        :raises GuestGoneError:
        """
        ...

    def move_emulator(self, guest: Guest, threads: Collection[int], cpus: frozenset[int]) -> int:
        """Move some of emulator_threads() to these CPUs, as far as restore_emulator() can undo it.

        :return: how many threads changed.
        :raises GuestGoneError:
        :raises DriverError: the pins cannot be set now.
        """
        ...

    def moved_emulator(self, guest: Guest, online: frozenset[int]) -> Mapping[int, frozenset[int]]:
        """The threads with other pins than the definition for the next start, with the CPUs that they have.

        :param online: the online CPUs of the host.
        :raises GuestGoneError:
        """
        ...

    def restore_emulator(self, guest: Guest, online: frozenset[int]) -> int:
        """Pin emulator threads by the definition again; return how many changed.

        :param online: the online CPUs of the host.
        :raises GuestGoneError:
        :raises DriverError:
        """
        ...

    def stuck_helpers(self, guest: Guest) -> Sequence[str]:
        """Sentences on such tasks that could not be moved to the CPUs of the emulator.

        :raises GuestGoneError:
        """
        ...

    def cpu_limits(self, guest: Guest, wanted: CpuLimits) -> CpuLimits | None:
        """The kernel's limits where they differ from those ``wanted``; None if they agree.

        :raises GuestGoneError:
        :raises DriverError: a quota is wanted, and the guest cannot have one.
        """
        ...

    def missing_limits(self, guest: Guest, wanted: CpuLimits) -> Sequence[str]:
        """Sentences about the parts of ``wanted`` that this guest cannot have.

        The guest gets all other parts.

        :raises GuestGoneError:
        """
        ...

    def apply_cpu_limits(self, guest: Guest, wanted: CpuLimits) -> bool:
        """Write the limits that differ from those ``wanted``, and read them back.

        :return: whether anything had to be written.
        :raises GuestGoneError:
        :raises DriverError: the kernel refuses it.
        """
        ...


# Below 2^63, the largest value of memory.max, and above the memory of any host.
UNLIMITED: Final = 1 << 62
"""Bytes of memory that stand for no limit."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The memory that a guest gets, in bytes: memory.max, memory.high and memory.low of cgroup v2.

    A field of None stays unchanged.

    :ivar oom_score_adj: the value of proc(5), -1000 to 1000.
    :ivar huge_pages: sizes of pages in KiB, each with its bytes. Pages of other sizes are not limited.
    """

    maximum: int | None = None
    high: int | None = None
    low: int | None = None
    oom_score_adj: int | None = None
    huge_pages: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class OomKill:
    """Processes of a guest that the kernel killed for lack of memory.

    :ivar at_own_limit: whether the guest's own limit was reached, and not that of the host.
    """

    guest: Guest
    kills: int
    at_own_limit: bool


class MemoryTuning(Protocol):
    """The NUMA nodes of guests' memory, its limits, and the kernel's kills for lack of memory."""

    def memory_nodes(self, guest: Guest, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes of the guest's memory where they differ from those ``wanted``.

        Empty stands for no binding. None if they agree, or if the memory of this guest cannot be bound.

        :raises GuestGoneError:
        """
        ...

    def bind_memory(self, guest: Guest, wanted: frozenset[int]) -> bool:
        """Bind the guest's memory to these NUMA nodes (empty: to all), and read the binding back.

        Memory that cannot be bound stays where it is, and the log says so once.

        :return: whether anything had to be written.
        :raises GuestGoneError:
        :raises DriverError:
        """
        ...

    def memory_use(self, guest: Guest) -> int | None:
        """The bytes that count against ``MemoryLimits.maximum``; None where there can be no such limit.

        :raises GuestGoneError:
        """
        ...

    def huge_page_use(self, guest: Guest) -> Mapping[int, int]:
        """The bytes that count against ``MemoryLimits.huge_pages``, by the size of the page in KiB.

        :raises GuestGoneError:
        """
        ...

    def memory_limits(self, guest: Guest, wanted: MemoryLimits) -> MemoryLimits | None:
        """The kernel's limits where they differ from those ``wanted``; None if they agree.

        Limits that another program has set, or that this guest cannot have, count as agreeing.

        :raises GuestGoneError:
        """
        ...

    def limit_memory(self, guest: Guest, wanted: MemoryLimits) -> bool:
        """Write the limits that differ from those ``wanted``, and read them back.

        :return: whether anything had to be written.
        :raises GuestGoneError:
        :raises DriverError: the kernel refuses it.
        """
        ...

    def oom_kills(self) -> Sequence[OomKill]:
        """The kernel's kills since the last call, including those that ended a guest."""
        ...


class BlockIoTuning(Protocol):
    """The shares and limits of guests on block devices."""

    def blockio_drift(self, guest: Guest, wanted: BlockIo | None) -> str:
        """The difference of the guest's block I/O from ``wanted``, in words; empty if they agree.

        Values that another program has set count as agreeing.

        :param wanted: None: no values of the agent.

        :raises GuestGoneError:
        """
        ...

    def apply_blockio(self, guest: Guest, wanted: BlockIo | None) -> bool:
        """Write the values of block I/O that differ from ``wanted``, and read them back.

        :return: whether anything had to be written.
        :raises GuestGoneError:
        :raises DriverError: the kernel refuses it.
        """
        ...

    def blockio_missing(self, guest: Guest, wanted: BlockIo) -> Sequence[str]:
        """Sentences about the parts of ``wanted`` that this guest cannot have.

        :raises GuestGoneError:
        """
        ...


@dataclass(frozen=True, slots=True)
class GuestFlavor:
    """The order that made a guest: amounts by resource class, without CPUs, and its owner.

    :ivar dedicated: the number of guest CPUs with dedicated CPUs; None if the order does not say.
    :ivar project_id: empty if not known, and so is ``user_id``.
    :ivar dedicated_vcpus: the numbers of the dedicated guest CPUs, if only some are dedicated
        (``hw:cpu_dedicated_mask``).
    """

    resources: Mapping[str, int] = field(default_factory=dict)
    dedicated: int | None = None
    project_id: str = ""
    user_id: str = ""
    dedicated_vcpus: frozenset[int] = frozenset()


class FlavorSource(Protocol):
    """A driver of guests that another program defines, and that outlive their processes."""

    @property
    def host_name(self) -> str:
        """The name of this host by its hypervisor; empty until the hypervisor has answered once."""
        ...

    def read_flavor(self, guest: Guest) -> GuestFlavor:
        """The order that made a guest; an empty one if there is none.

        :raises GuestGoneError:
        :raises DriverError:
        """
        ...

    def inactive_guests(self) -> frozenset[str]:
        """The uuids of the guests that are defined here and do not run now.

        :raises DriverError:
        """
        ...


class ExpectingDriver(Protocol):
    """Guests that are about to start, before the driver itself can see them. For any thread."""

    def expect_guest(self, description: str) -> Guest:
        """Wait for the process of a guest from now on.

        :return: the guest that the start will make, with pid 0.
        :raises ValueError: the description cannot be read, or too many guests are expected.
        """
        ...

    def find_appeared(self) -> tuple[Sequence[Guest], bool]:
        """The expected guests that have a process now, each reported once, and whether others are expected.

        :raises DriverError:
        """
        ...


class LaunchSupport(Protocol):
    """The ways in which guests of this kind start: by the agent, by another program, or announced."""

    @property
    def starting_driver(self) -> StartingDriver | None:
        """The driver itself, if the agent starts its guests; None if another program does."""
        ...

    @property
    def flavor_source(self) -> FlavorSource | None:
        """The driver itself, if it knows the orders of its guests; otherwise None."""
        ...

    @property
    def expecting_driver(self) -> ExpectingDriver | None:
        """The part that expects announced guests; None if starts of this kind are not announced."""
        ...


class GuestDriver(
    RunningGuests, GuestThreads, CpuTuning, MemoryTuning, BlockIoTuning, LaunchSupport, Protocol
):
    """One kind of guests with all subjects. Methods may be called from any thread.

    Code that needs one subject asks for that protocol alone, so that its tests need no more.
    """

    def close(self) -> None:
        """Release threads, connections and locks; the guests keep running."""
        ...


class StartingDriver(GuestDriver, Protocol):
    """A driver through which the agent itself starts guests, and which records them."""

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
        """Make a guest that is held before its first instruction.

        :param environment: variables in addition to those that each guest has. No variable comes from the
            agent's own environment.
        :param declared: the names of the settings that the order has.
        :raises DriverError: the guest exists, or cannot be started or recorded.
        """
        ...

    def release(self, guest: Guest) -> None:
        """Let a guest made by create_guest() run.

        :raises DriverError: the guest is gone.
        """
        ...

    def discard(self, guest: Guest) -> None:
        """Undo create_guest(): nothing of the guest remains, and its program never ran."""
        ...

    def recent_ending(self, guest: Guest, seconds: float) -> str:
        """The exit status or the signal of a guest that ended; empty if it runs, or if that is not known.

        :param seconds: the longest time to wait for an end.
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
        """Take a running process, or all processes of a cgroup, as a guest.

        :param origin: the pid, or the folder of a cgroup v2 group.
        :raises DriverError: the process or cgroup cannot be a guest.
        """
        ...
