"""The table of guests that another program starts, and of subjects that cannot be managed.

One thread reads the subjects (units or containers) and updates the table. Any thread is allowed to read
the table. The lock protects only the entries, so no reader waits for the other program.
"""

from __future__ import annotations

import abc
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestChange
from compute_agent.drivers.cgroup import GuestCgroup, group_at
from compute_agent.drivers.foreign.records import ValueRecord
from compute_agent.drivers.peer import list_changes
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError, printable_text

LOG = logging.getLogger(__name__)

_KUBERNETES_GROUPS: Final = ("kubepods.slice", "kubepods")
"""The control groups of the kubelet, with its cgroup drivers ``systemd`` and ``cgroupfs``.

The kubelet makes one of them, also if containerd or CRI-O runs its containers.
"""


class UnfitSubjectError(ValueError):
    """A unit or a container cannot be a guest. The text has the reason."""


class ExcludedSubjectError(UnfitSubjectError):
    """A unit or a container is certainly no guest: its processes belong to another guest or to the host."""


def group_members(groups: Path, folder: Path, main_pid: int) -> list[int]:
    """Check that a guest can have this group, and return the pids of the processes in it.

    The processes of at most ``MAX_GROUPS`` groups are read, see :mod:`compute_agent.drivers.cgroup`.

    :param groups: the folder of the root of all groups.
    :param main_pid: the pid of the main process, which can be in any group below the folder; 0 if there is
        none.
    :raises UnfitSubjectError: the group cannot be the group of a guest.
    """
    if not (groups / "cgroup.controllers").exists():
        raise UnfitSubjectError("the host has no control groups of version 2 (unified hierarchy)")
    group = GuestCgroup(folder)
    pids = group.process_ids()
    # A guest must not escape its limits by moving its processes below thousands of other groups. The kernel
    # knows the group of each process, so these groups need not be read.
    if main_pid not in pids and _is_member(groups, folder, main_pid):
        pids.append(main_pid)
    if not pids and group.is_populated:
        pids = [pid for pid in procfs.all_pids() if _is_member(groups, folder, pid)]
    if os.getpid() in pids or _is_member(groups, folder, os.getpid()):
        raise ExcludedSubjectError("the agent itself is in it")
    return pids


def _is_member(groups: Path, folder: Path, pid: int) -> bool:
    """Whether a process is in this group or in a group below it; False for the pid 0."""
    return bool(pid) and Path(procfs.group_folder(groups, pid)).is_relative_to(folder)


@dataclass(frozen=True, slots=True)
class GuestEntry:
    """A guest with its processes.

    :ivar main: the main process.
    :ivar memory_mb: the declared memory in MiB, which the agent claims for the guest; 0 if not declared.
    :ivar invocation: systemd's id of the run, during which the main process may change; empty if the run ends
        with its main process. ``guest.run`` is not this id, but the first main process of the same run.
    """

    guest: Guest
    main: ProcessIdentity
    memory_mb: int = 0
    invocation: str = ""

    @property
    def own_group(self) -> GuestCgroup:
        """The control group of the guest."""
        return group_at(self.guest.cgroup)

    @property
    def is_alive(self) -> bool:
        """Whether the guest's main process runs."""
        return procfs.is_alive(self.main)

    @property
    def was_alive(self) -> bool:
        """The same as :attr:`is_alive`; comparisons of one round share the reading."""
        return procfs.was_alive(self.main)

    @property
    def has_heir(self) -> bool:
        """Whether a process can take the place of the main process, because the run does not end with it."""
        folder = self.guest.cgroup
        return bool(self.invocation) and procfs.read_shared(folder, _has_processes, folder)

    @property
    def has_processes(self) -> bool:
        """Whether the main process runs, or another process of a run that does not end with it."""
        return self.was_alive or self.has_heir


@dataclass(frozen=True, slots=True)
class UnmanagedSubject:
    """A subject that is meant to be a guest, but cannot be managed.

    :ivar reason: a text with the reason and the remedy.
    :ivar is_excluded: whether the subject is certainly no guest. Otherwise it is *lost*: perhaps it uses the
        allocation and the CPUs that a guest with its uuid has.
    """

    guest_uuid: str
    reason: str
    is_excluded: bool


@dataclass(frozen=True, slots=True)
class SubjectFinding:
    """The result of reading a unit or a container.

    :ivar managed: the uuid of a guest, or of a subject that is between two runs and soon a guest again.
    :ivar is_other: whether the subject is not meant to be a guest.
    """

    entry: GuestEntry | None = None
    managed: str = ""
    unmanaged: UnmanagedSubject | None = None
    is_other: bool = False

    @classmethod
    def from_refusal(cls, guest_uuid: str, subject: str, error: ValueError) -> SubjectFinding:
        """The finding about a subject that cannot be a guest, because of this error."""
        reason = printable_text(f"{subject} cannot be a guest: {error}")
        return cls(unmanaged=UnmanagedSubject(guest_uuid, reason, isinstance(error, ExcludedSubjectError)))


class GuestTable(abc.ABC):
    """The guests, by the key of their unit or container, and the subjects that cannot be managed."""

    def __init__(self, driver: str, host: str, groups: Path, report: Callable[[GuestChange], None]) -> None:
        """Begin without guests; :meth:`look_around` finds them.

        :param driver: the name of the driver; each guest stores this name.
        :param host: the name of the host's resource provider, from which uuids are derived.
        :param groups: the root of all control groups.
        :param report: called for each change of a guest.
        """
        self._driver = driver
        self._host = host
        self._groups = groups
        self._report = report
        self._lock = threading.Lock()
        self._entries: dict[str, GuestEntry] = {}
        self._by_uuid: dict[str, GuestEntry] = {}
        self._unmanaged: dict[str, UnmanagedSubject] = {}
        # Only the thread of the table changes these attributes.
        self._managed: dict[str, str] = {}
        """The uuids of guests that have not ended, by the key of the subject."""
        self._others: set[str] = set()
        """The keys of subjects that are not meant to be guests."""
        self._complete = False

    # For any thread

    def all_entries(self) -> list[GuestEntry]:
        """All guests of the table, including those that have just ended."""
        with self._lock:
            return list(self._entries.values())

    def lost_guests(self) -> dict[str, str]:
        """The subjects that are perhaps guests: a dict from the uuid to a text with reason and remedy."""
        return self._unmanaged_reasons(is_excluded=False)

    def excluded_guests(self) -> dict[str, str]:
        """The chosen subjects that are certainly no guests, as a dict from the uuid to the reason."""
        return self._unmanaged_reasons(is_excluded=True)

    def _unmanaged_reasons(self, is_excluded: bool) -> dict[str, str]:
        with self._lock:
            found = self._unmanaged.values()
            return {one.guest_uuid: one.reason for one in found if one.is_excluded == is_excluded}

    def find_living(self, guest: Guest) -> GuestEntry:
        """Return the entry of a guest that runs.

        The main process of the entry may have ended, if another process of the same run takes its place.

        :raises GuestGoneError: the guest has ended, or was started again.
        """
        entry = self._find_entry_of(guest)
        if entry is None or not (entry.is_alive or entry.has_heir):
            raise GuestGoneError(f"guest {guest} has ended")
        return entry

    def find_recent(self, guest: Guest) -> GuestEntry:
        """The same as :meth:`find_living`; comparisons of one round share the reading.

        A caller that changes the guest uses :meth:`find_living`.

        :raises GuestGoneError: the guest has ended, or was started again.
        """
        if (entry := self.find_running(guest)) is None:
            raise GuestGoneError(f"guest {guest} has ended")
        return entry

    def find_running(self, guest: Guest) -> GuestEntry | None:
        """The same as :meth:`find_recent`, but None if the guest has ended, or was started again."""
        entry = self._find_entry_of(guest)
        return entry if entry is not None and entry.has_processes else None

    def _find_entry_of(self, guest: Guest) -> GuestEntry | None:
        with self._lock:
            entry = self._by_uuid.get(guest.uuid)
        if entry is None or entry.guest.name != guest.name or not entry.guest.is_same_run(guest):
            return None
        return entry

    def is_other(self, key: str, guest_uuid: str) -> bool:
        """Whether a subject is no longer a guest, or is a guest with another uuid."""
        with self._lock:
            entry, unmanaged = self._entries.get(key), self._unmanaged.get(key)
        if entry is not None:
            return entry.guest.uuid != guest_uuid
        return key in self._others or (unmanaged is not None and unmanaged.is_excluded)

    @abc.abstractmethod
    def may_return(self, key: str, guest_uuid: str) -> bool:
        """Whether a subject runs, or its next run can be a guest with this uuid.

        :raises DriverError: the other program does not answer, or gives an unexpected answer.
        """

    # For the thread of the table

    def begin_round(self) -> None:
        """Begin a round of reads, in which the reads of single subjects can share what they need."""
        return

    @abc.abstractmethod
    def is_managed(self, record: ValueRecord) -> bool:
        """Whether the subject of a record is still a guest with this uuid."""

    def look_around(self, everything: bool) -> None:
        """Read subjects that have started or ended without a signal.

        :param everything: whether to read all subjects, as after a new connection.
        :raises DriverError: the other program does not answer, or the kubelet manages CPUs of this host.
        """
        self._refuse_kubelet()
        if everything:
            self._others.clear()
        for key in self.order_keys({*self._find_suspects(everything), *self._unmanaged}):
            self.look_at(key)
        self._complete = True

    def look_at(self, key: str, is_new: bool = False) -> None:
        """Read the state of one subject, update the table, and report the change.

        :param is_new: whether a new subject with this key may have replaced the former one.
        :raises DriverError: the other program does not answer.
        """
        if is_new:
            self._others.discard(key)
        if key in self._others:
            return
        found = self._look_closely(key)
        # Only this thread changes the entries.
        found = _with_first_process(self._entries.get(key), found)
        if found.is_other:
            self._others.add(key)
        if found.managed:
            self._managed[key] = found.managed
        else:
            self._managed.pop(key, None)
        with self._lock:
            before = self._entries.get(key)
            if found.entry is not None:
                self._entries[key] = found.entry
            else:
                self._entries.pop(key, None)
            self._by_uuid = {entry.guest.uuid: entry for entry in self._entries.values()}
            known = self._unmanaged.pop(key, None)
            if found.unmanaged is not None:
                self._unmanaged[key] = found.unmanaged
        if found.unmanaged is not None and found.unmanaged != known:
            _log_unmanaged(found.unmanaged)
        # The listener may read the table, so it is called without the lock.
        was_lost = known is not None and found.unmanaged is None
        now, former = (None if one is None else one.guest for one in (found.entry, before))
        same = before is not None and found.entry is not None and _is_same_run(before, found.entry)
        for change in list_changes(former, now, same, self._complete and not was_lost):
            self._report(change)

    # The parts of each kind of guests

    def order_keys(self, keys: Iterable[str]) -> list[str]:
        """The keys of subjects in the order in which they are read."""
        return sorted(keys)

    def unsteady_keys(self) -> list[str]:
        """The keys of subjects that may change whenever another subject does."""
        return []

    @abc.abstractmethod
    def _find_suspects(self, everything: bool) -> Collection[str]:
        """The keys of subjects that may have changed without a signal.

        :param everything: whether the settings of any subject may have changed.
        :raises DriverError: the other program does not answer.
        """

    @abc.abstractmethod
    def _look_closely(self, key: str) -> SubjectFinding:
        """Read the state of one subject.

        :raises DriverError: the other program does not answer.
        """

    # Inner parts

    def _refuse_kubelet(self) -> None:
        """Refuse to manage guests on a host on which the kubelet gives CPUs to its containers.

        :raises DriverError: the kubelet has a control group on this host.
        """
        for name in _KUBERNETES_GROUPS:
            if (folder := self._groups / name).is_dir():
                raise DriverError(
                    f"this is a node of Kubernetes (the control group {folder} exists), and the kubelet"
                    f" manages its CPUs: remove {self._driver} from [guests] drivers; if Kubernetes was"
                    " removed from this host, restart the host"
                )

    def _refuse_namesake(self, key: str, guest_uuid: str, subject: str, remedy: str) -> None:
        """Refuse a subject that has the uuid of another guest.

        :raises UnfitSubjectError: another guest has the uuid.
        """
        with self._lock:
            other = next(
                (
                    entry.guest.name
                    for other, entry in self._entries.items()
                    if entry.guest.uuid == guest_uuid and other != key
                ),
                "",
            )
        if other:
            raise UnfitSubjectError(f"{subject} {other} has the same uuid: change {remedy} of one of the two")


def _log_unmanaged(subject: UnmanagedSubject) -> None:
    if subject.is_excluded:
        LOG.info("The agent does not manage a guest: %s", subject.reason)
    else:
        LOG.warning("The agent does not manage a guest, which perhaps runs: %s", subject.reason)


def _has_processes(folder: str) -> bool:
    return any(map(procfs.identify_recent, group_at(folder).process_ids()))


def _is_same_run(before: GuestEntry, now: GuestEntry) -> bool:
    # A service that names another main process goes on as the same guest.
    return before.guest.uuid == now.guest.uuid and (
        before.main == now.main
        or (before.invocation == now.invocation if now.invocation else before.is_alive)
    )


def _with_first_process(before: GuestEntry | None, found: SubjectFinding) -> SubjectFinding:
    """A finding in which a run that goes on keeps its first main process."""
    entry = found.entry
    if before is None or entry is None or not _is_same_run(before, entry):
        return found
    return replace(found, entry=replace(entry, guest=replace(entry.guest, run=before.guest.run)))
