"""The table of process guests, in memory and on disk, and the watch for their end through pidfd_open(2)."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, Generic, TypeVar

from compute_agent.drivers import procfs
from compute_agent.drivers.base import ChangeKind, GuestChange, Listener
from compute_agent.drivers.memory_limits import OomWatch
from compute_agent.drivers.processes import launch
from compute_agent.drivers.processes.launch import GUEST_VARIABLE
from compute_agent.drivers.processes.records import ProcessRecord, RecordStore, UnusableRecord
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.threads import ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

Key = TypeVar("Key")

PIDWATCH_THREAD: Final = ThreadSpec(
    "pidwatch",
    "when a process of a guest ends (pidfd)",
    "cleans up after guests that ended, and reports their end",
    "that of the watched processes; that of the table of guests",
    "files of the state folder, cgroups; the queue of ``arrivals``",
)


class PidWatch(Generic[Key]):
    """One thread that waits for any number of processes and calls back when one ends."""

    def __init__(self, ended: Callable[[Key], None]) -> None:
        """``ended`` is called with the key of a process, from the watch's thread, once, when it has ended."""
        self._ended = ended
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closed = False
        self._watched: dict[int, tuple[int, select.poll]] = {}
        """The pidfd of each process that is watched, and what tells whether it has ended."""
        self._thread = start_thread(PIDWATCH_THREAD, self._run)

    def add(self, key: Key, pid: int) -> bool:
        """Watch a process. False if it is gone already (``ended`` is then not called)."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        with self._lock:
            if self._closed:
                os.close(descriptor)
                return True
            self._selector.register(descriptor, selectors.EVENT_READ, (key, pid))
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            self._watched[pid] = descriptor, poll
        return True

    def is_running(self, pid: int) -> bool:
        """Whether a process is watched and has not ended."""
        with self._lock:
            watched = self._watched.get(pid)
            return watched is not None and not watched[1].poll(0)

    def close(self) -> None:
        """Stop watching and end the thread. Processes are left alone."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.write(self._wake_write, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            for ready, _ in self._selector.select():
                if ready.data is None:
                    continue  # the wake-up pipe
                key, pid = ready.data
                with self._lock:
                    self._selector.unregister(ready.fileobj)
                    if pid in self._watched and self._watched[pid][0] == ready.fd:
                        del self._watched[pid]
                    os.close(ready.fd)
                try:
                    self._ended(key)
                except Exception:
                    LOG.exception("Could not handle the end of %s", key)
        with self._lock:
            self._watched.clear()
        with contextlib.suppress(OSError):
            for watched in list(self._selector.get_map().values()):
                os.close(watched.fd)
            os.close(self._wake_write)
            self._selector.close()


_KILL_PAUSE: Final = 0.02
"""Seconds that the kernel has to end what was killed, before it is looked for more."""


MAX_ENDINGS: Final = 64
"""Endings that are kept for commands: each asks within a moment."""

ENDING_PAUSE: Final = 0.01


class ProcessTable:
    """The guests of one store. Methods may be called from any thread."""

    def __init__(self, store: RecordStore, look_only: bool = False) -> None:
        """Take up the guests on disk that still run, and forget the others, with their groups.

        With ``look_only`` those are just passed over.

        A record that cannot be used is left as it is, and so is whoever it is about.
        """
        self._store = store
        self._lock = threading.RLock()
        self._records: dict[str, ProcessRecord] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._endings: dict[tuple[str, int], str] = {}
        """By uuid and pid."""
        self._listener: Listener | None = None
        self._watch: PidWatch[ProcessRecord] | None = None
        self.oom = OomWatch()
        records, self._unusable = store.load()
        for record in records:
            self._records[record.uuid] = record
            if self.current_record(record.uuid) is None:
                if look_only:
                    del self._records[record.uuid]
                    continue
                LOG.info("Guest %s (pid %d) ended while nobody looked", record, record.identity.pid)
                _end_leftovers(record)
                self.forget_guest(record)
            elif record.newer:
                LOG.warning(
                    "The record of guest %s was written by a later release: it is used as far as it is"
                    " understood, and the settings of the guest cannot be changed",
                    record,
                )
            self.oom.begin_counting(record.uuid, record.own_group)
        for it in self._unusable:
            LOG.error("%s", describe_unusable(it))

    def start_watch(self, listener: Listener) -> None:
        """Call ``listener`` for every guest that ends, or gets another main process, from now on."""
        with self._lock:
            self._listener = listener
            self._watch = PidWatch(self.handle_end)
            records = list(self._records.values())
        for record in records:
            self.watch_ending(record)

    def close(self) -> None:
        """Stop watching; the guests keep running."""
        if self._watch is not None:
            self._watch.close()

    # Coming

    def forbid_double(self, guest_uuid: str) -> None:
        """See that there is no guest of that uuid.

        :raises DriverError: there is a guest of that uuid.
        """
        with self._lock:
            if guest_uuid in self._records:
                raise DriverError(f"guest {guest_uuid} exists already")

    def forbid_lost(self, guest_uuid: str) -> None:
        """See that there can be no guest of that uuid whose record cannot be used.

        :raises DriverError: there may be a guest of that uuid, whose record cannot be used.
        """
        if (it := self._store.find_unusable(guest_uuid)) is not None:
            raise DriverError(describe_unusable(it))

    def forbid_guests(self, pids: set[int]) -> None:
        """See that none of the processes is the main process of a guest.

        :raises DriverError: one of the processes is the main process of a guest.
        """
        for record in self.running_records():
            if record.identity.pid in pids:
                raise DriverError(f"pid {record.identity.pid} is guest {record} already")

    def add(self, record: ProcessRecord, child: subprocess.Popen[bytes] | None = None) -> None:
        """Take a guest up, on disk first; its end is not watched yet.

        ``child`` is its process if it is one of this process's.

        :raises OSError:
        """
        self._store.save(record)
        with self._lock:
            self._records[record.uuid] = record
            if child is not None:
                self._children[record.uuid] = child

    def watch_ending(self, record: ProcessRecord) -> None:
        """Wait for the end of a guest, which may have come already."""
        if self._watch is not None and not self._watch.add(record, record.identity.pid):
            self.handle_end(record)

    def child_process(self, guest_uuid: str) -> subprocess.Popen[bytes]:
        """The process of a guest that this process started.

        :raises KeyError:
        """
        return self._children[guest_uuid]

    # Running

    def lost_guests(self) -> dict[str, str]:
        """The guests that may run and are not looked after, as their records cannot be used, and why."""
        with self._lock:
            found = {it.guest_uuid: self._store.find_unusable(it.guest_uuid) for it in self._unusable}
        return {guest_uuid: describe_unusable(it) for guest_uuid, it in found.items() if it is not None}

    def running_records(self) -> list[ProcessRecord]:
        """The guests that run now."""
        known = (record.uuid for record in self.known_records())
        return [record for guest_uuid in known if (record := self.current_record(guest_uuid)) is not None]

    def known_records(self) -> list[ProcessRecord]:
        """The guests whose end nobody has seen yet."""
        with self._lock:
            return list(self._records.values())

    def current_record(self, guest_uuid: str) -> ProcessRecord | None:
        """The record of a guest that runs; None if it has ended.

        When the main process of a whole group ends before others, the oldest of these takes its place.
        """
        with self._lock:
            record = self._records.get(guest_uuid)
            if record is None or self._is_running(record.identity):
                return record
            heir = launch.oldest_process(record.member_pids()) if record.whole_group else None
            if heir is None:
                return None
            record = replace(record, identity=heir, command=procfs.command_line(heir.pid))
            self._records[guest_uuid] = record
        LOG.info("Guest %s goes on with main process %d", record, heir.pid)
        try:
            self._store.save(record)
        except OSError as error:
            LOG.warning("That cannot be recorded, and is found out again when it has to be: %s", error)
        self._report_change(ChangeKind.CHANGED, record)
        self.watch_ending(record)
        return record

    def _is_running(self, identity: ProcessIdentity) -> bool:
        """Whether a process runs. Of one that is watched that is known sooner than /proc can be read."""
        return (self._watch is not None and self._watch.is_running(identity.pid)) or procfs.is_alive(identity)

    def note_limits(self, guest_uuid: str, names: Collection[str]) -> ProcessRecord:
        """Note that these limits of a guest are the agent's, on disk first.

        :raises GuestGoneError:
        :raises DriverError: that cannot be kept.
        """
        with self._lock:
            record = self.running_record(guest_uuid)
            if not set(names) <= set(record.limits):
                record = replace(record, limits=tuple(sorted({*record.limits, *names})))
                try:
                    self._store.save(record)
                except OSError as error:
                    raise DriverError(
                        f"guest {record} keeps the limits it has, as its record cannot be written: {error}"
                    ) from error
                self._records[guest_uuid] = record
        return record

    def running_record(self, guest_uuid: str) -> ProcessRecord:
        """The record of a guest that runs.

        :raises GuestGoneError:
        """
        record = self.current_record(guest_uuid)
        if record is None:
            raise GuestGoneError(f"guest {guest_uuid} has ended")
        return record

    def known_record(self, guest_uuid: str) -> ProcessRecord:
        """The record of a guest whose end nobody has seen yet.

        :raises GuestGoneError:
        """
        with self._lock:
            record = self._records.get(guest_uuid)
        if record is None:
            raise GuestGoneError(f"guest {guest_uuid} has ended")
        return record

    def is_alive(self, record: ProcessRecord) -> bool:
        """Whether anything of a guest runs that is to end with it; a child that has ended is reaped."""
        self._reap_child(record.uuid)
        return procfs.is_alive(record.identity) or (record.whole_group and bool(record.member_pids()))

    # Leaving

    def handle_end(self, record: ProcessRecord) -> None:
        """Clean up after a guest and tell of it; once, whoever sees its end first."""
        if record.whole_group and self.current_record(record.uuid) is not None:
            return
        with self._lock:
            present = self._records.get(record.uuid)
            if present is None or present.identity != record.identity:
                return  # done before, and there may be a new guest of that consumer
            status = self._reap_child(record.uuid)
            ending = "" if status is None else describe_status(status)
            self._endings[record.uuid, record.identity.pid] = ending
            while len(self._endings) > MAX_ENDINGS:
                del self._endings[next(iter(self._endings))]
            _end_leftovers(record)  # before there can be a new guest with this mark
            del self._records[record.uuid]
        self.forget_guest(record)
        LOG.info("Guest %s ended%s", record, f": {ending}" if ending else "")
        self._report_change(ChangeKind.STOPPED, record, ending)

    def recent_ending(self, guest: Guest, seconds: float) -> str:
        """See :meth:`compute_agent.drivers.base.StartingDriver.recent_ending`."""
        until = time.monotonic() + seconds
        while not (ending := self._known_ending(guest)) and time.monotonic() < until:
            time.sleep(ENDING_PAUSE)
        return ending

    def _known_ending(self, guest: Guest) -> str:
        with self._lock:
            record = self._records.get(guest.uuid)
            if record is not None and record.identity.pid == guest.pid:
                if self.is_alive(record):
                    return ""
                # Another thread has seen the end, and ended() has not come to it yet.
                status = self._reap_child(guest.uuid)
                return "" if status is None else describe_status(status)
            return self._endings.get((guest.uuid, guest.pid), "")

    def forget_guest(self, record: ProcessRecord) -> None:
        """Leave nothing of a guest that has ended: neither record nor group.

        A record that cannot be removed is found again by the next agent.
        """
        with self._lock:
            self._records.pop(record.uuid, None)
            self._children.pop(record.uuid, None)
        if (group := record.own_group) is not None:
            self.oom.look_at_group(record.as_guest(), group, last=True)
            group.remove()
        try:
            self._store.remove(record)
        except OSError as error:
            LOG.error("The record of guest %s cannot be removed: %s", record, error)

    def _reap_child(self, guest_uuid: str) -> int | None:
        """Take the exit status of a guest that is a child of this process.

        None if it is not, or has not ended.
        """
        with self._lock:  # of two that ask a child at once, Popen answers one that it knows nothing
            child = self._children.get(guest_uuid)
            return None if child is None else child.poll()

    def _report_change(self, kind: ChangeKind, record: ProcessRecord, ending: str = "") -> None:
        if self._listener is not None:
            self._listener(GuestChange(kind, record.as_guest(), ending))


def describe_status(status: int) -> str:
    """The exit status of a child, as :meth:`subprocess.Popen.poll` returns it, in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:  # a real-time signal has no name
        return f"signal {-status}"


def describe_unusable(it: UnusableRecord) -> str:
    """What is wrong with a record, and what to do about it."""
    return (
        f"the guest record {it.path} cannot be used ({it.reason}), so that its guest is not looked after:"
        f" adopt the process again (compute-agent guest adopt --uuid {it.guest_uuid} --pid PID), or remove"
        " the file if the guest does not run any more"
    )


def _end_leftovers(record: ProcessRecord) -> None:
    """End the processes that the guest left behind, which would go on using its CPUs."""
    if record.cgroup or record.adopted or record.identity.boot_id != procfs.boot_id():
        return  # the group has them all; what others started is theirs; nothing outlives a boot
    killed: set[int] = set()
    for _ in range(procfs.MAX_PASSES):  # one may start another one while it is looked for
        left = _find_leftovers(record)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # what stays is said below
                os.kill(pid, signal.SIGKILL)
        for pid in left - killed:
            LOG.warning("Guest %s ended and left process %d behind: killed", record, pid)
        killed |= left
        time.sleep(_KILL_PAUSE)
    LOG.error(
        "Guest %s ended, and there are processes of it still: %s", record, sorted(_find_leftovers(record))
    )


def _find_leftovers(record: ProcessRecord) -> set[int]:
    """The processes of the guest's session, and those of other ones that have its mark from it.

    A mark in the environment of a process that is older than the guest is not from the guest.
    """
    leader = record.identity.pid
    # A pid is not given to another process as long as there is a session of that number.
    found = set(procfs.session_members(leader)) if procfs.identify_process(leader) is None else set()
    for pid in procfs.all_pids():
        if pid != os.getpid() and procfs.has_variable(pid, GUEST_VARIABLE, record.uuid):
            identity = procfs.identify_process(pid)
            if identity is not None and identity.start_time >= record.identity.start_time:
                found.add(pid)
    return found
