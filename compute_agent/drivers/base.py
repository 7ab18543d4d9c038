"""The interface of drivers by subject, and the plain values that cross it.

Guests (:class:`RunningGuests`, :class:`GuestThreads`), CPUs (:class:`CpuTuning`), memory
(:class:`MemoryTuning`), block I/O (:class:`BlockIoTuning`) and launching (:class:`LaunchSupport`,
:class:`StartingDriver`). A driver is all of these together, a :class:`GuestDriver`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import BlockIo


class ChangeKind(enum.StrEnum):
    """What happened to a guest. One that is *found* ran already when the driver could first look."""

    STARTED = "started"
    FOUND = "found"
    STOPPED = "stopped"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class GuestChange:
    """One thing that happened to one guest, as a driver reports it.

    ``ending`` is the exit status or the signal of a guest that stopped, where the driver knows it.
    """

    kind: ChangeKind
    guest: Guest
    ending: str = ""


Listener = Callable[[GuestChange], None]


class RunningGuests(Protocol):
    """The guests of one kind: what runs, what ended, and how it is stopped. For any thread."""

    name: str

    @property
    def outage_reason(self) -> str:
        """Why what the guests depend on (libvirtd) cannot be asked now; empty if it can."""
        ...

    def guests(self) -> Sequence[Guest]:
        """The guests that run now.

        :raises DriverError: as long as that cannot be learnt.
        """
        ...

    def lost_guests(self) -> Mapping[str, str]:
        """The guests that may run and that cannot be looked after: by uuid, with the reason and what to do.

        They are not among ``guests()``. What they hold is theirs as long as they are here.
        """
        ...

    def watch_guests(self, listener: Listener) -> None:
        """Call ``listener`` for every guest that starts, stops or gets other settings from now on.

        It is called from a thread of the driver.
        """
        ...

    def stop(self, guest: Guest, timeout: float) -> None:
        """End the guest: politely, and by force after ``timeout`` seconds. Gone already is no error."""
        ...


class GuestThreads(Protocol):
    """The processes and threads of guests."""

    def process_ids(self, guest: Guest) -> Sequence[int]:
        """The processes whose use is that of a guest without a group of its own: its main process first."""
        ...

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The kernel thread ids of the guest now.

        :raises GuestGoneError:
        """
        ...

    def vcpu_threads(self, guest: Guest) -> frozenset[int]:
        """Those of the guest's threads that its own code runs in: all, where they cannot be told apart.

        :raises GuestGoneError:
        """
        ...


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """Where a guest's threads run, as logical CPU numbers.

    ``vcpu_cpus`` has one set per guest CPU, ``emulator_cpus`` is for all other threads.
    """

    vcpu_cpus: tuple[frozenset[int], ...]
    emulator_cpus: frozenset[int]

    @property
    def cpus(self) -> frozenset[int]:
        """Every CPU that any of the guest CPUs may use."""
        return frozenset().union(*self.vcpu_cpus)


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """How much of its CPUs a guest gets.

    ``weight`` is what it gets beside others, as cgroup v2's ``cpu.weight`` has it (1 to 10000, 100 where
    nobody says anything); None: as it is. ``quota`` is the most that it gets altogether, in cores; None: no
    limit.
    """

    weight: int | None = None
    quota: float | None = None


class QuotaError(DriverError):
    """A guest that is to have at most ``quota`` cores cannot have a quota; ``why`` says what it lacks."""

    def __init__(self, guest: Guest, quota: float, why: str) -> None:
        super().__init__(f"guest {guest} cannot be limited to {quota:g} cores: {why}")


class CpuTuning(Protocol):
    """Where the threads of guests run, and how much they get of their CPUs."""

    def misplaced_threads(self, guest: Guest, settings: CpuSettings) -> Mapping[int, frozenset[int]]:
        """The threads of the guest that the kernel does not run as ``settings`` say, with the CPUs they have.

        Empty when kernel and settings agree.

        :raises GuestGoneError:
        """
        ...

    def definition_drift(self, guest: Guest, settings: CpuSettings) -> str:
        """How the definition for the next start has its CPUs otherwise than ``settings``, for the log.

        Empty if it does not, or if there is none.

        :raises GuestGoneError:
        """
        ...

    def observed_cpus(self, guest: Guest) -> frozenset[int]:
        """The CPUs that the kernel lets the guest's threads use, all together.

        :raises GuestGoneError:
        """
        ...

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Make the kernel run the guest as ``settings`` say, and read it back: how many threads changed.

        What the guest starts with next time is made to say the same.

        :raises GuestGoneError:
        :raises DriverError: the kernel does not take it.
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

    def cpu_limits(self, guest: Guest, wanted: CpuLimits) -> CpuLimits | None:
        """The limits that the kernel has where they are not those ``wanted``; None if they agree.

        :raises GuestGoneError:
        :raises DriverError: the guest is to be limited and cannot be.
        """
        ...

    def apply_cpu_limits(self, guest: Guest, wanted: CpuLimits) -> bool:
        """Make the kernel limit the guest as ``wanted``, and read it back.

        True if anything had to be written.

        :raises GuestGoneError:
        :raises DriverError: the kernel does not take it.
        """
        ...


UNLIMITED: Final = 1 << 62
"""An amount of memory that is no limit."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """How much memory a guest gets, in bytes: memory.max, memory.high and memory.low of cgroup v2.

    ``oom_score_adj`` is that of proc(5). ``huge_pages`` are bytes in pages by their size in KiB, in that
    order; those of other sizes are not limited. None: as it is.
    """

    maximum: int | None = None
    high: int | None = None
    low: int | None = None
    oom_score_adj: int | None = None
    huge_pages: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class OomKill:
    """Processes of a guest that the kernel killed as there was no memory: how many, and at whose limit."""

    guest: Guest
    kills: int
    at_own_limit: bool


class MemoryTuning(Protocol):
    """Where the memory of guests comes from, how much they get, and which of them the kernel killed."""

    def memory_nodes(self, guest: Guest, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes that the kernel binds the guest's memory to where they are not those ``wanted``.

        Empty stands for none, or all. None if they agree, or if the memory of this guest cannot be bound.

        :raises GuestGoneError:
        """
        ...

    def bind_memory(self, guest: Guest, wanted: frozenset[int]) -> bool:
        """Let the guest have memory of these NUMA nodes only (empty: of all), and read it back.

        True if anything had to be written.

        A guest whose memory cannot be bound is left as it is, and the log says so once.

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
        """The limits that the kernel has where they are not those ``wanted``; None if they agree.

        What somebody else has set, or cannot be set for this guest, agrees.

        :raises GuestGoneError:
        """
        ...

    def limit_memory(self, guest: Guest, wanted: MemoryLimits) -> bool:
        """Make the kernel limit the guest as ``wanted``, and read it back.

        True if anything had to be written.

        :raises GuestGoneError:
        :raises DriverError: the kernel does not take it.
        """
        ...

    def oom_kills(self) -> Sequence[OomKill]:
        """What the kernel killed of guests since the last call, also of those that have ended by it."""
        ...


class BlockIoTuning(Protocol):
    """What guests get of block devices."""

    def blockio_drift(self, guest: Guest, wanted: BlockIo | None) -> str:
        """How block I/O of the guest is otherwise than ``wanted`` (None: left to all); empty if it is not.

        What somebody else has set agrees.

        :raises GuestGoneError:
        """
        ...

    def apply_blockio(self, guest: Guest, wanted: BlockIo | None) -> bool:
        """Give the guest what is ``wanted`` of block I/O, and read it back.

        True if anything had to be written.

        :raises GuestGoneError:
        :raises DriverError: the kernel does not take it.
        """
        ...

    def blockio_missing(self, guest: Guest, wanted: BlockIo) -> Sequence[str]:
        """Why some of what is ``wanted`` cannot be had for this guest, a sentence each.

        :raises GuestGoneError:
        """
        ...


@dataclass(frozen=True, slots=True)
class GuestFlavor:
    """An order: amounts by resource class, CPUs left out, and the ids of its owner (empty if unknown).

    ``dedicated`` is how many guest CPUs are to have CPUs of their own; None if that is not said.
    ``dedicated_vcpus`` are their numbers where only some are (``hw:cpu_dedicated_mask``).
    """

    resources: Mapping[str, int] = field(default_factory=dict)
    dedicated: int | None = None
    project_id: str = ""
    user_id: str = ""
    dedicated_vcpus: frozenset[int] = frozenset()


class FlavorSource(Protocol):
    """A driver whose guests are defined by somebody else, and outlive their processes."""

    def read_flavor(self, guest: Guest) -> GuestFlavor:
        """What a guest was ordered with.

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
        """Wait for the process of a guest from now on. The guest that it will be, with pid 0.

        :raises ValueError: the description is none, or too many are waited for.
        """
        ...

    def find_appeared(self) -> tuple[Sequence[Guest], bool]:
        """The guests whose processes are there now, each told once, and whether others are waited for.

        :raises DriverError:
        """
        ...


class LaunchSupport(Protocol):
    """How guests of this kind come to be: by the agent, by an order of others, or announced."""

    @property
    def starting_driver(self) -> StartingDriver | None:
        """The driver itself, where the agent itself starts its guests; None where others do."""
        ...

    @property
    def flavor_source(self) -> FlavorSource | None:
        """The driver itself, where it knows the flavors of its guests; None where nobody says."""
        ...

    @property
    def expecting_driver(self) -> ExpectingDriver | None:
        """What waits for guests that others are about to start; None where nobody says that they are."""
        ...


class GuestDriver(
    RunningGuests, GuestThreads, CpuTuning, MemoryTuning, BlockIoTuning, LaunchSupport, Protocol
):
    """One kind of guests, whole. Methods may be called from any thread.

    Code that needs a part of it asks for that part, so that its tests need no more.
    """

    def close(self) -> None:
        """Let go of everything but the guests, which keep running."""
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

        ``environment`` has variables beside those that every guest has; nothing comes from the agent's own.
        ``declared`` are the names of settings that were chosen for this guest.

        :raises DriverError:
        """
        ...

    def release(self, guest: Guest) -> None:
        """Let a guest made by create() run.

        :raises DriverError: it is gone.
        """
        ...

    def discard(self, guest: Guest) -> None:
        """Undo create(): nothing of the guest remains, and its program never ran."""
        ...

    def recent_ending(self, guest: Guest, seconds: float) -> str:
        """The exit status or the signal of a guest that ended; waits for an end, at most these seconds.

        Empty if the guest runs, or if its ending is not known.
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
        """Take what runs already as a guest.

        ``origin`` is the pid of a process, or the folder of a cgroup v2 group, of which all processes are
        meant.

        :raises DriverError:
        """
        ...
