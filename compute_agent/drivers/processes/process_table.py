"""The table of process guests, in memory and on disk, and the watch for their ends through pidfd_open(2).

The table is separate from the process driver because it has its own lock and thread. The driver gets records
from the table, and changes settings in the kernel without the table's lock. Each change of a record is
written to disk before it takes effect in memory.
"""

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
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import ChangeKind, GuestChange, Listener
from compute_agent.drivers.memory_limits import OomWatch
from compute_agent.drivers.processes.launch import GUEST_VARIABLE
from compute_agent.drivers.processes.records import ProcessRecord, RecordStore
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.threads import ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

PIDWATCH_THREAD: Final = ThreadSpec(
    "pidwatch",
    "when a process of a guest ends (pidfd)",
    "cleans up after guests that ended, and reports their end",
    "that of the watched processes; that of the table of guests",
    "files of the state folder, cgroups; the queue of ``arrivals``",
)


class PidWatch:
    """One thread that waits for the ends of any number of guests, and calls a function when one ends."""

    def __init__(self, ended: Callable[[ProcessRecord], None]) -> None:
        """Start the thread.

        :param ended: called once for each guest with an ended main process, from the watch's thread.
        """
        self._ended = ended
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        # close() writes to this pipe to wake the thread from select(). The pipe does not block: if it is
        # full, one byte is in it already, which is enough.
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closed = False
        self._watched: dict[int, tuple[int, select.poll]] = {}
        """The watched processes by pid: the pidfd of each, and a poll object that tells whether the process
        has ended.
        """
        self._thread = start_thread(PIDWATCH_THREAD, self._run)

    def add(self, record: ProcessRecord) -> bool:
        """Watch a guest; return whether its process was still there. If not, ``ended`` is not called."""
        pid = record.identity.pid
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        # pidfd_open() opens the process that has the pid at that moment. Only a check after the call proves
        # that this is the right process. A zombie has the identity None; the watch notices its end at once.
        if procfs.identify_process(pid) not in (record.identity, None):
            os.close(descriptor)
            return False
        with self._lock:
            if self._closed:
                os.close(descriptor)
                return True
            self._selector.register(descriptor, selectors.EVENT_READ, record)
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
        """Stop watching and end the thread. The processes run on."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.write(self._wake_write, b"x")
        # A listener that runs in the watch's thread may close the driver, and a thread cannot join itself.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            for ready, _ in self._selector.select():
                if ready.data is None:
                    continue  # This is the pipe of close().
                record, pid = ready.data, ready.data.identity.pid
                with self._lock:
                    self._selector.unregister(ready.fileobj)
                    # Only an entry with this descriptor is removed, because another process with the same pid
                    # may be watched by now.
                    if pid in self._watched and self._watched[pid][0] == ready.fd:
                        del self._watched[pid]
                    os.close(ready.fd)
                # The callback may add the next main process of the guest, so it is called without the lock.
                try:
                    self._ended(record)
                except Exception:
                    LOG.exception("Could not handle the end of %s", record)
        with self._lock:
            # Without entries, is_running() returns False for all processes, and the table asks /proc instead.
            self._watched.clear()
        with contextlib.suppress(OSError):
            for watched in list(self._selector.get_map().values()):
                os.close(watched.fd)
            os.close(self._wake_write)
            self._selector.close()


# Seconds between a kill and the next search for processes that still run.
_KILL_PAUSE: Final = 0.02


MAX_ENDINGS: Final = 64
"""The number of ended guests for which the exit status is kept. Commands ask for the exit status within a
second of the guest's end, so the agent keeps only a few.
"""

ENDING_PAUSE: Final = 0.01
"""Seconds between two checks whether a guest has ended."""


class ProcessTable:
    """The guests of one store of records. Any thread is allowed to call the methods."""

    def __init__(self, store: RecordStore, look_only: bool = False) -> None:
        """Take over the recorded guests that still run, and remove records and groups of ended guests.

        A record that cannot be used stays on disk, and its guest is reported as lost.

        :param look_only: whether records of guests that have ended are ignored instead of removed.
        """
        self._store = store
        # The lock is reentrant, because handle_end() holds it and calls functions that take it again.
        self._lock = threading.RLock()
        self._records: dict[str, ProcessRecord] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._endings: dict[tuple[str, int], str] = {}
        """The exit status or signal of ended guests, by uuid and pid, oldest first."""
        self._listener: Listener | None = None
        self._watch: PidWatch | None = None
        self.oom = OomWatch()
        records, self._unusable = store.load()
        for record in records:
            # The record is added first, because current_record() reads the table.
            self._records[record.uuid] = record
            if self.current_record(record.uuid) is None:
                if look_only:
                    del self._records[record.uuid]
                    continue
                LOG.info("Guest %s (pid %d) ended while the agent did not run", record, record.identity.pid)
                _end_leftovers(record)
                self.forget_guest(record)
            elif record.newer:
                LOG.warning(
                    "A later release wrote the record of guest %s: this release uses the parts that it"
                    " knows, and the settings of the guest cannot be changed",
                    record,
                )
            self.oom.begin_counting(record.uuid, record.own_group)
        for it in self._unusable:
            LOG.error("The agent does not manage a guest: %s", it.lost_reason)

    def start_watch(self, listener: Listener) -> None:
        """Call ``listener`` from now on for each guest that ends, or gets another main process."""
        # The thread starts here and not in the constructor, because a driver that only reads needs no thread.
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

    # Guests that come

    def forbid_double(self, guest_uuid: str) -> None:
        """Check that no guest in the table has this uuid.

        :raises DriverError: a guest has this uuid already.
        """
        with self._lock:
            if guest_uuid in self._records:
                raise DriverError(f"guest {guest_uuid} exists already")

    def forbid_lost(self, guest_uuid: str) -> None:
        """Check that there is no unusable record of this uuid, because the recorded guest may still run.

        :raises DriverError: there is such a record.
        """
        if (it := self._store.find_unusable(guest_uuid)) is not None:
            raise DriverError(it.lost_reason)

    def forbid_guests(self, pids: set[int]) -> None:
        """Check that none of the processes is the main process of a guest or one of its descendants.

        :raises DriverError: one of the processes belongs to a guest.
        """
        guests = {record.identity.pid: record for record in self.running_records()}
        for pid in pids:
            for ancestor in procfs.ancestors_of(pid):
                if ancestor in guests:
                    belongs = "is" if ancestor == pid else "is a process of"
                    raise DriverError(f"pid {pid} {belongs} guest {guests[ancestor]} already")

    def add(self, record: ProcessRecord, child: subprocess.Popen[bytes] | None = None) -> None:
        """Add a guest, on disk and then in memory. The guest's end is not watched yet.

        :param child: the process of the guest, if this agent started it.
        :raises OSError: the record cannot be written, and the guest is not added.
        """
        self._store.save(record)
        with self._lock:
            self._records[record.uuid] = record
            if child is not None:
                self._children[record.uuid] = child

    def watch_ending(self, record: ProcessRecord) -> None:
        """Watch for the end of a guest. If the guest has ended already, handle its end at once."""
        if self._watch is not None and not self._watch.add(record):
            self.handle_end(record)

    def child_process(self, guest_uuid: str) -> subprocess.Popen[bytes]:
        """The process of a guest that this agent started.

        :raises KeyError: an earlier agent started the guest, or it was adopted.
        """
        return self._children[guest_uuid]

    # Running

    def lost_guests(self) -> dict[str, str]:
        """The guests with records that cannot be used: a dict from each uuid to reason and remedy."""
        # The records are read again at each call: an operator may have adopted the process again, or removed
        # the file.
        with self._lock:
            found = {it.guest_uuid: self._store.find_unusable(it.guest_uuid) for it in self._unusable}
        return {guest_uuid: it.lost_reason for guest_uuid, it in found.items() if it is not None}

    def running_records(self) -> list[ProcessRecord]:
        """The records of the guests that run now."""
        known = (record.uuid for record in self.known_records())
        return [record for guest_uuid in known if (record := self.current_record(guest_uuid)) is not None]

    def known_records(self) -> list[ProcessRecord]:
        """The records of guests that run, or that have ended without the agent noticing it yet."""
        with self._lock:
            return list(self._records.values())

    def current_record(self, guest_uuid: str) -> ProcessRecord | None:
        """The record of a running guest; None if the guest has ended.

        If the main process of a guest that is a whole group has ended, the oldest process of the group takes
        its place in the record.
        """
        with self._lock:
            record = self._records.get(guest_uuid)
            if record is None or self._is_running(record.identity):
                return record
            # The oldest process is chosen, so that each reader of the record chooses the same process.
            heir = procfs.oldest_process(record.member_pids()) if record.whole_group else None
            if heir is None:
                return None
            record = replace(record, identity=heir, command=procfs.command_line(heir.pid))
            self._records[guest_uuid] = record
        LOG.info("The main process of guest %s has ended, and process %d replaces it", record, heir.pid)
        try:
            self._store.save(record)
        except OSError as error:
            # A failed write does no harm: the next agent reads the former pid and chooses the same process.
            LOG.warning(
                "The new main process cannot be recorded; the agent searches for it again when needed: %s",
                error,
            )
        self._report_change(ChangeKind.CHANGED, record)
        self.watch_ending(record)
        return record

    def _is_running(self, identity: ProcessIdentity) -> bool:
        """Whether a process runs. A watched process is polled, because a read of /proc costs more."""
        return (self._watch is not None and self._watch.is_running(identity.pid)) or procfs.is_alive(identity)

    def note_limits(self, guest_uuid: str, names: Collection[str]) -> ProcessRecord:
        """Note in the guest's record, on disk first, the files with limits that the agent is about to write.

        If the agent crashes between the note and the write, the next agent corrects or removes the value as
        its own. If the note came after the write, a crash could leave a value that seems to belong to another
        program for ever.

        :raises GuestGoneError: the guest has ended.
        :raises DriverError: the note cannot be written.
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

        :raises GuestGoneError: the guest has ended.
        """
        record = self.current_record(guest_uuid)
        if record is None:
            raise GuestGoneError(f"guest {guest_uuid} has ended")
        return record

    def known_record(self, guest_uuid: str) -> ProcessRecord:
        """The record of a guest that runs, or that has ended without the agent noticing it yet.

        :raises GuestGoneError: the agent has handled the end of the guest.
        """
        with self._lock:
            record = self._records.get(guest_uuid)
        if record is None:
            raise GuestGoneError(f"guest {guest_uuid} has ended")
        return record

    def is_alive(self, record: ProcessRecord) -> bool:
        """Whether the guest runs: its main process, or any process of a guest that is a whole group.

        The function also reads the exit status of an ended child of the agent.
        """
        self._reap_child(record.uuid)
        return procfs.is_alive(record.identity) or (record.whole_group and bool(record.member_pids()))

    # Guests that end

    def handle_end(self, record: ProcessRecord) -> None:
        """Remove record and group of an ended guest, and report its end.

        If several threads call this for one guest, only the first call reports the end.
        """
        if record.whole_group and self.current_record(record.uuid) is not None:
            return
        with self._lock:
            present = self._records.get(record.uuid)
            if present is None or present.identity != record.identity:
                return  # Another thread handled the end, and the uuid may have a new guest by now.
            status = self._reap_child(record.uuid)
            ending = "" if status is None else describe_status(status)
            self._endings[record.uuid, record.identity.pid] = ending
            # A dict keeps the order of insertion, so its first key is the oldest.
            while len(self._endings) > MAX_ENDINGS:
                del self._endings[next(iter(self._endings))]
            # Leftovers are killed under the lock, because a new guest of this uuid has the same variable and
            # would be killed, too.
            _end_leftovers(record)
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
                # The process has ended, and handle_end() has not yet run for it in another thread.
                status = self._reap_child(guest.uuid)
                return "" if status is None else describe_status(status)
            return self._endings.get((guest.uuid, guest.pid), "")

    def forget_guest(self, record: ProcessRecord) -> None:
        """Remove record and group of an ended guest. If the record stays, the next agent removes it."""
        with self._lock:
            self._records.pop(record.uuid, None)
            self._children.pop(record.uuid, None)
        if (group := record.own_group) is not None:
            # The kernel removes the counters of OOM kills together with the group.
            self.oom.look_at_group(record.as_guest(), group, last=True)
            group.remove()
        try:
            self._store.remove(record)
        except OSError as error:
            LOG.error("The record of guest %s cannot be removed: %s", record, error)

    def _reap_child(self, guest_uuid: str) -> int | None:
        """The exit status of an ended child; None if the guest runs or is no child of the agent."""
        # The lock is held, because if two threads call Popen.poll() at once, the second thread gets None.
        with self._lock:
            child = self._children.get(guest_uuid)
            # An ended child stays a zombie until its status is read, and keeps its pid and its group busy.
            return None if child is None else child.poll()

    def _report_change(self, kind: ChangeKind, record: ProcessRecord, ending: str = "") -> None:
        if self._listener is not None:
            self._listener(GuestChange(kind, record.as_guest(), ending))


def describe_status(status: int) -> str:
    """The exit status or signal of a child in words.

    :param status: the return value of :meth:`subprocess.Popen.poll`; a negative number stands for a signal.
    """
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        # Real-time signals have no names.
        return f"signal {-status}"


def _end_leftovers(record: ProcessRecord) -> None:
    """Kill the processes that an ended guest left behind, because they would continue to use its CPUs."""
    # Leftovers in a group are killed when the group is removed. Processes of an adopted guest belong to the
    # program that started them. After a reboot no process of the guest is left, and other processes may have
    # the pids.
    if record.cgroup or record.adopted or record.identity.boot_id != procfs.boot_id():
        return
    killed: set[int] = set()
    # A leftover may start another process during the search.
    for _ in range(procfs.MAX_PASSES):
        left = _find_leftovers(record)
        if not left:
            return
        for pid in left:
            # The agent is not allowed to kill a process of another user. Such a process stays, and the
            # message below names it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left - killed:
            LOG.warning("Guest %s ended and left process %d behind, which was killed", record, pid)
        killed |= left
        time.sleep(_KILL_PAUSE)
    LOG.error(
        "Guest %s ended, but some of its processes still run: %s", record, sorted(_find_leftovers(record))
    )


def _find_leftovers(record: ProcessRecord) -> set[int]:
    """The pids of processes in the guest's session, or with the guest's variable in other sessions."""
    leader = record.identity.pid
    # If a process with the leader's pid lives, the guest's session has no members: the kernel does not reuse
    # a pid while its session exists, so the present session is another one.
    found = set(procfs.session_members(leader)) if procfs.identify_process(leader) is None else set()
    for pid in procfs.all_pids():
        if pid != os.getpid() and procfs.has_variable(pid, GUEST_VARIABLE, record.uuid):
            identity = procfs.identify_process(pid)
            # A process that is older than the guest did not get the variable from it.
            if identity is not None and identity.start_time >= record.identity.start_time:
                found.add(pid)
    return found
