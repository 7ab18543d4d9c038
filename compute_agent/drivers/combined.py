"""Combines several drivers to one: each guest belongs to one driver, which gets all calls for the guest.

The drivers are in the order of the option ``[guests] drivers``. If two drivers report the same uuid, the
agent manages the guest of the first driver in this order. The guest of the other driver counts as lost, and
``lost_guests`` returns the reason. The same rule applies to two guests that share processes, because a
process guest without a group of its own can run in the group of a service. If the group of a guest is below
the group of another driver's guest, the agent manages the inner guest. For example, if a service runs a
container that is a guest, the driver of containers manages it, and the service is no guest.

If the daemon of one driver is down, the agent still manages the guests of the other drivers. A driver that
has not listed its guests since the start of the agent is called *awaited*. The guests of an awaited driver
are unknown, so :meth:`CombinedDriver.guests` raises an error while any driver is awaited.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from compute_agent.drivers import procfs
from compute_agent.drivers.base import (
    BlockIoTuning,
    ChangeKind,
    CpuTuning,
    ExpectingDriver,
    FlavorSource,
    GuestChange,
    GuestDriver,
    GuestThreads,
    Listener,
    MemoryTuning,
    OomKill,
    RunningGuests,
    StartingDriver,
    join_names,
)
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError

LOG = logging.getLogger(__name__)

# The folder where systemd mounts the hierarchy of cgroup v2.
_GROUPS: Final = Path("/sys/fs/cgroup")


Method = TypeVar("Method", bound=Callable[..., Any])
T = TypeVar("T")


def _pass_on(method: Method) -> Method:
    """Return a method that calls the method of the same name of the guest's driver.

    :param method: the method of a protocol. For the type checker, the result has the same signature.
    """

    @functools.wraps(method)
    def call_driver(self: CombinedDriver, guest: Guest, *arguments: Any, **named: Any) -> Any:
        return getattr(self._driver_of(guest), method.__name__)(guest, *arguments, **named)

    return cast(Method, call_driver)


class CombinedDriver:
    """Passes each call to the driver to which the guest belongs."""

    def __init__(self, drivers: Sequence[GuestDriver], groups: Path = _GROUPS) -> None:
        """Combine drivers.

        :param drivers: the drivers, at least one. No two drivers have the same name. If two drivers report
            one guest, the earlier driver manages it.
        :param groups: the root of all control groups of version 2.
        """
        self.name = join_names([driver.name for driver in drivers])
        self.drivers = tuple(drivers)
        """The drivers in their order."""
        self._by_name = {driver.name: driver for driver in drivers}
        self._doubles: Mapping[str, str] = {}
        """The reasons why guests with the uuid or processes of another guest are not managed, by uuid."""
        self._groups = groups

    # Running guests

    @property
    def outage_reason(self) -> str:
        """A text with the reasons why daemons of drivers do not answer; empty if all daemons answer."""
        away = self.outage_reasons()
        there = [name for name in self._by_name if name not in away]
        if not away:
            return ""
        told = "; ".join(f"driver {name}: {reason}" for name, reason in away.items())
        if not there:
            return told
        return (
            f"{told}. Guests of driver {' and '.join(there)} are managed, and changes of others wait: start"
            f" the service of driver {' and '.join(away)} again"
        )

    def outage_reasons(self) -> Mapping[str, str]:
        """See :meth:`compute_agent.drivers.base.RunningGuests.outage_reasons`."""
        return {name: reason for one in self.drivers for name, reason in one.outage_reasons().items()}

    @property
    def awaited_drivers(self) -> frozenset[str]:
        """The names of the drivers that have not listed their guests since the start of the agent."""
        return frozenset().union(*(driver.awaited_drivers for driver in self.drivers))

    def guests(self) -> Sequence[Guest]:
        """The guests of all drivers.

        :raises DriverError: a driver has not yet been able to list its guests.
        """
        return self._join_guests({driver.name: driver.guests() for driver in self.drivers})

    def listed_guests(self) -> Sequence[Guest]:
        """The guests of the drivers that are not awaited.

        :raises DriverError: all drivers are awaited.
        """
        awaited = self.awaited_drivers
        there = [driver for driver in self.drivers if driver.name not in awaited]
        if not there:
            raise DriverError(self.outage_reason)
        return self._join_guests({driver.name: driver.guests() for driver in there})

    def lost_guests(self) -> Mapping[str, str]:
        """The lost guests of all drivers, and guests that share a uuid or processes with a managed guest."""
        found: dict[str, str] = dict(self._doubles)
        for driver in self.drivers:
            for guest_uuid, reason in driver.lost_guests().items():
                found[guest_uuid] = f"{found[guest_uuid]}; {reason}" if guest_uuid in found else reason
        return found

    def excluded_guests(self) -> Mapping[str, str]:
        """See :meth:`compute_agent.drivers.base.RunningGuests.excluded_guests`."""
        return {uuid: why for driver in self.drivers for uuid, why in driver.excluded_guests().items()}

    def overruling_guests(self, name: str) -> Mapping[str, Guest]:
        """The guests that overrule guests of the driver ``name``, which contain these processes too.

        These are the guests of other drivers with a group of their own, and all guests of earlier drivers.
        The keys are folders: a guest is overruled if its group is one of them or above it.
        """
        found: dict[str, Guest] = {}
        is_earlier = True
        for driver in self.drivers:
            if driver.name == name:
                is_earlier = False
            if driver.name == name or driver.awaited_drivers:
                continue
            for guest in driver.guests():
                if guest.cgroup:
                    found[guest.cgroup.rpartition("/")[0]] = guest
                elif is_earlier and (folder := procfs.group_folder(self._groups, guest.pid)):
                    found[folder] = guest
        return found

    def watch_guests(self, listener: Listener) -> None:
        """Call ``listener`` for each change that a driver reports of a guest that this object manages."""
        for place, driver in enumerate(self.drivers):
            driver.watch_guests(functools.partial(self._pass_change, self.drivers[:place], listener))

    stop = _pass_on(RunningGuests.stop)

    def close(self) -> None:
        """Close all drivers, including the rest if one driver cannot be closed; guests continue to run."""
        with ExitStack() as closing:
            for driver in self.drivers:
                closing.callback(driver.close)

    # Threads

    process_ids = _pass_on(GuestThreads.process_ids)
    usage_group = _pass_on(GuestThreads.usage_group)
    thread_ids = _pass_on(GuestThreads.thread_ids)
    recent_threads = _pass_on(GuestThreads.recent_threads)
    vcpu_threads = _pass_on(GuestThreads.vcpu_threads)

    # CPUs

    misplaced_threads = _pass_on(CpuTuning.misplaced_threads)
    definition_drift = _pass_on(CpuTuning.definition_drift)
    observed_cpus = _pass_on(CpuTuning.observed_cpus)
    apply_cpu_settings = _pass_on(CpuTuning.apply_cpu_settings)
    vcpu_affinity = _pass_on(CpuTuning.vcpu_affinity)
    emulator_affinity = _pass_on(CpuTuning.emulator_affinity)
    helper_affinity = _pass_on(CpuTuning.helper_affinity)
    emulator_threads = _pass_on(CpuTuning.emulator_threads)
    move_emulator = _pass_on(CpuTuning.move_emulator)
    moved_emulator = _pass_on(CpuTuning.moved_emulator)
    restore_emulator = _pass_on(CpuTuning.restore_emulator)
    stuck_helpers = _pass_on(CpuTuning.stuck_helpers)
    cpu_limits = _pass_on(CpuTuning.cpu_limits)
    missing_limits = _pass_on(CpuTuning.missing_limits)
    apply_cpu_limits = _pass_on(CpuTuning.apply_cpu_limits)

    # Memory

    memory_nodes = _pass_on(MemoryTuning.memory_nodes)
    bind_starting_memory = _pass_on(MemoryTuning.bind_starting_memory)
    bind_memory = _pass_on(MemoryTuning.bind_memory)
    memory_use = _pass_on(MemoryTuning.memory_use)
    huge_page_use = _pass_on(MemoryTuning.huge_page_use)
    memory_limits = _pass_on(MemoryTuning.memory_limits)
    memory_missing = _pass_on(MemoryTuning.memory_missing)
    limit_memory = _pass_on(MemoryTuning.limit_memory)

    def oom_kills(self) -> Sequence[OomKill]:
        """The OOM kills of the guests of all drivers since the last call."""
        return [kill for driver in self.drivers for kill in driver.oom_kills()]

    # Block I/O

    blockio_drift = _pass_on(BlockIoTuning.blockio_drift)
    apply_blockio = _pass_on(BlockIoTuning.apply_blockio)
    blockio_missing = _pass_on(BlockIoTuning.blockio_missing)

    # Launching

    @property
    def starting_driver(self) -> StartingDriver | None:
        """The first driver through which the agent can start guests; None if no driver can start guests."""
        return _first_of(driver.starting_driver for driver in self.drivers)

    @property
    def flavor_source(self) -> FlavorSource | None:
        """The flavors of the first driver that has flavors; None if no driver has flavors."""
        return _first_of(driver.flavor_source for driver in self.drivers)

    @property
    def expecting_driver(self) -> ExpectingDriver | None:
        """The object of the first driver with one that finds announced guests; None if no driver has one."""
        return _first_of(driver.expecting_driver for driver in self.drivers)

    # Inner parts

    def _driver_of(self, guest: Guest) -> GuestDriver:
        driver = self._by_name.get(guest.driver)
        if driver is None:
            raise DriverError(f"guest {guest} is of driver {guest.driver!r}, which is not used here")
        return driver

    def _join_guests(self, listed: Mapping[str, Sequence[Guest]]) -> list[Guest]:
        """Join the guests of several drivers; leave out and record guests that are the same as another guest.

        :param listed: the guests by the name of the driver, in the order of the drivers.
        """
        kept: dict[str, Guest] = {}
        doubles: dict[str, str] = {}
        sharing = _SharedGroups(self._groups)
        everyone = [guest for guests in listed.values() for guest in guests]
        inner = _find_inner(everyone)
        for guest in everyone:
            if (below := inner.get(guest.cgroup)) is not None and below.driver != guest.driver:
                doubles[guest.uuid] = (
                    f"guest {guest} of driver {guest.driver} (pid {guest.pid}) runs guest {below} of driver"
                    f" {below.driver} in its control group, so the agent manages only the inner one: remove"
                    " one of the two"
                )
                continue
            outer = None if guest.uuid in kept else sharing.find_other(guest)
            if outer is not None:
                doubles[guest.uuid] = (
                    f"guest {guest} of driver {guest.driver} (pid {guest.pid}) has processes of guest {outer}"
                    f" of driver {outer.driver}, which comes first in [guests] drivers, so the agent does not"
                    " manage it: remove one of the two"
                )
            elif (first := kept.setdefault(guest.uuid, guest)) is guest:
                sharing.add_guest(guest)
            else:
                doubles[guest.uuid] = (
                    f"guest {guest} of driver {guest.driver} (pid {guest.pid}) has the uuid of guest {first}"
                    f" of driver {first.driver} (pid {first.pid}), which comes first in [guests] drivers, so"
                    " the agent does not manage it: stop one of the two"
                )
        for guest_uuid, reason in doubles.items():
            if self._doubles.get(guest_uuid) != reason:
                LOG.warning("The agent manages only one of two guests: %s", reason)
        self._doubles = doubles
        return list(kept.values())

    def _pass_change(self, earlier: Sequence[GuestDriver], listener: Listener, change: GuestChange) -> None:
        """Pass a change to the listener, unless one of the ``earlier`` drivers has the guest.

        The thread that calls this function perhaps holds a lock of its driver.
        """
        # The listener always gets the end of a guest, because the worker compares the pid.
        if change.kind is ChangeKind.STOPPED or not self._is_taken(change.guest, earlier):
            listener(change)

    def _is_taken(self, guest: Guest, earlier: Sequence[GuestDriver]) -> bool:
        listed = [driver for driver in earlier if not driver.awaited_drivers]
        others = [other for driver in listed for other in driver.guests()]
        if any(other.uuid == guest.uuid for other in others):
            return True
        if guest.cgroup in _find_inner([*others, guest]):
            return True
        sharing = _SharedGroups(self._groups)
        for other in others:
            sharing.add_guest(other)
        return sharing.find_other(guest) is not None


def _first_of(found: Iterable[T | None]) -> T | None:
    return next((one for one in found if one is not None), None)


def _find_inner(guests: Iterable[Guest]) -> Mapping[str, Guest]:
    """Return guests with a group below the group of another driver's guest, by the outer folder."""
    by_group = {guest.cgroup: guest for guest in guests if guest.cgroup}
    found: dict[str, Guest] = {}
    for folder, guest in by_group.items():
        upper = folder.rpartition("/")[0]
        while upper:
            if upper in by_group and by_group[upper].driver != guest.driver:
                found[upper] = guest
            upper = upper.rpartition("/")[0]
    return found


class _SharedGroups:
    """Finds guests of different drivers that share processes.

    Two guests with different groups of their own share no process, unless _find_inner() returns one of them.
    In all other cases one of the two guests has no group, and its main process is in the group of the other
    guest, or below it. Groups are looked up by their folders, because the agent compares hundreds of guests
    every few seconds.
    """

    def __init__(self, groups: Path) -> None:
        """:param groups: the root of all control groups."""
        self._groups = groups
        self._with_group: dict[str, list[Guest]] = {}
        """The guests with a group of their own, by its folder."""
        self._unread: list[Guest] = []
        """The guests without a group that are not yet in ``_running_below``."""
        self._running_below: dict[str, list[Guest]] = {}
        """The guests without a group, by the group of the main process and by each upper group."""

    def add_guest(self, guest: Guest) -> None:
        """Add a guest, so that later calls of find_other() compare with it."""
        if guest.cgroup:
            self._with_group.setdefault(guest.cgroup, []).append(guest)
        else:
            self._unread.append(guest)

    def find_other(self, guest: Guest) -> Guest | None:
        """A guest of another driver that shares processes with this guest; None if no guest does."""
        found: list[Guest] = []
        if guest.cgroup:
            # Processes are read only on a host that has guests with a group and guests without a group.
            unread, self._unread = self._unread, []
            for other in unread:
                for folder in _upper_folders(procfs.group_folder(self._groups, other.pid)):
                    self._running_below.setdefault(folder, []).append(other)
            for guests in (self._with_group, self._running_below):
                found += guests.get(guest.cgroup, ())
        elif self._with_group:
            for folder in _upper_folders(procfs.group_folder(self._groups, guest.pid)):
                found += self._with_group.get(folder, ())
        return next((other for other in found if other.driver != guest.driver), None)


def _upper_folders(folder: str) -> Iterator[str]:
    """The folder itself, and all folders above it; none for an empty text."""
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
