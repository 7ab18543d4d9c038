"""The comparing process: receives copies, replays them on our service and reports the outcomes.

Only :mod:`placement_extras.shadow.command` uses this module, because it starts this process.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from typing import Final

from placement.exceptions import ServiceError
from placement_extras.shadow import copied_databases
from placement_extras.shadow.copied_databases import CopiedDatabases, CopyMoment
from placement_extras.shadow.copy_queue import BacklogBounds, ByteBacklog, OutboxDelivery
from placement_extras.shadow.exchange import MirroredRequest
from placement_extras.shadow.replay import ReplayClient, ReplayOutcome, ReplayVerdict, RequestReplay
from placement_extras.shadow.report import ComparerStatus, OutcomeTally, report_table, serve_report

LOG = logging.getLogger(__name__)

ENDED: Final = "the process that answers clients ended, and its waiting copies are lost"
BEFORE: Final = "it was answered before the database was copied"
# reads are left out before writes. A missing read is only a missing comparison, but after a missing write the
# databases differ.
BOUNDS: Final = BacklogBounds(reads=128 << 20, writes=256 << 20, any_write=512 << 20)
"""Bounds of the queue of copies that wait to be replayed. They are larger than :data:`.OUTBOX_BOUNDS`,
because the answering process should use little memory.
"""
# with this niceness, the comparing process gets CPU time after the process that answers clients
_NICENESS: Final = 10
_FINISH_SECONDS: Final = 10.0
"""Maximum seconds for the replay of the waiting copies when the program ends. Afterwards, the current request
has the same number of seconds.
"""
_ANSWER_SECONDS: Final = 10.0
"""Maximum seconds to wait until all writes that were in flight at the snapshot of the database are answered.
After this time, another snapshot is taken.
"""
_TICK_SECONDS: Final = 0.02
"""Seconds between two checks whether the writes that were in flight at the snapshot are answered."""


@dataclass(frozen=True)
class FollowerSettings:
    """Settings of the comparing process.

    :param ours: the URL of our service, on which the requests are replayed.
    :param token: the token that is sent to our service; if it is None, the tokens of the clients are sent.
    :param databases: source and target of the copy at the start; None if the operator has already copied the
        database.
    :param copy_after: seconds between the start of the program and the copy of the database.
    :param report: address and port at which the report is served.
    """

    ours: str
    token: str | None
    databases: CopiedDatabases | None
    copy_after: float
    report: tuple[str, int]


def run_follower(
    settings: FollowerSettings, address: str, key: bytes, control: Connection, set_up_log: Callable[[], None]
) -> None:
    """Receive and compare copies until the other end of ``control`` is closed, then print the report.

    :param address: path of the UNIX socket at which copies arrive. Only senders with ``key`` are accepted.
    """
    # a terminal sends SIGINT to all processes; the parent decides when this process ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_up_log()
    # clients must not wait for the comparison. Some systems do not allow the change of the niceness.
    with suppress(OSError):
        os.nice(_NICENESS)
    ShadowFollower(settings, address, key).run(control)


class ShadowFollower:
    """Runs three threads: one receives copies, one replays and compares them, and one serves the report.

    ``status`` has the content of the report.
    """

    def __init__(self, settings: FollowerSettings, address: str, key: bytes) -> None:
        self._settings = settings
        self._backlog = ByteBacklog(BOUNDS)
        self._stopped = threading.Event()
        self._settled = 0.0
        self._asking = ReplayClient(settings.ours, settings.token, self._stopped)
        self._tally = OutcomeTally()
        self._replay = RequestReplay(self._asking, self._tally.add)
        self.status = ComparerStatus(self._tally, self._backlog, self._asking, self._replay.doubt)
        self._listener = Listener(address, "AF_UNIX", authkey=key)

    def run(self, control: Connection) -> None:
        """Run until the other end of ``control`` closes, then replay waiting copies and print the report."""
        # these threads are daemons, so that the process can end although a thread waits for a request or a
        # connection
        replaying = threading.Thread(target=self._replay_all, name="shadow-replay", daemon=True)
        try:
            # the server is created first, so that the process ends before it accepts a copy if the port is
            # in use
            with serve_report(self._settings.report, self.status):
                threading.Thread(target=self._receive, name="shadow-receive", daemon=True).start()
                replaying.start()
                with suppress(EOFError, OSError):
                    control.recv_bytes()
                # the waiting copies are replayed for some seconds. Then the replay stops, even if writes
                # still wait for our service.
                self._backlog.close(keep=True)
                replaying.join(_FINISH_SECONDS)
                self._stopped.set()
                self._backlog.close(keep=False)
                replaying.join(_FINISH_SECONDS)
        finally:
            with suppress(OSError):  # perhaps the parent has already removed the folder of the socket
                self._listener.close()
        print(report_table(self.status.to_document()), end="", flush=True)

    def _receive(self) -> None:
        """Receive copies over one connection at a time. Each connection is from another answering process."""
        while not self._stopped.is_set():
            try:
                connection = self._listener.accept()
            except Exception as error:  # the listener is closed, or the process at the other end has no key
                if not self._stopped.is_set():
                    LOG.warning("A connection to the comparing process was refused: %s", error)
                    self._stopped.wait(0.1)
                continue
            # a further connection means that the previous answering process has ended. The copies that this
            # process had not sent are lost.
            if self.status.processes:
                self._tally.mark_parted(ENDED)
            self.status.processes += 1
            # these errors mean that the process at the other end has ended
            with connection, suppress(EOFError, OSError):
                while True:
                    delivery = connection.recv()
                    # the type checker does not know which objects recv() unpickles
                    assert isinstance(delivery, OutboxDelivery)
                    # an answering process that ended before it connected has lost all its copies
                    if delivery.predecessors >= self.status.processes:
                        self._tally.mark_parted(ENDED)
                        self.status.processes = delivery.predecessors + 1
                    self.status.left_out = delivery.left_out
                    if delivery.copy is not None:
                        self._backlog.put(delivery.copy)
                    # the time is set after the copy was added, because it means that the backlog has all
                    # writes from before this time
                    self._settled = delivery.settled

    def _replay_all(self) -> None:
        try:
            moment = self._copy()
            self.status.phase = "comparing"
            while (copy := self._backlog.get()) is not None:
                self._handle_copy(copy, moment)
            self._replay.conclude_all()
        except ServiceError as error:
            self._report_failure(f"the database of OpenStack Placement was not copied: {error.detail}")
        except Exception as error:
            LOG.exception("Requests are no longer compared")
            # this process continues, so that its report shows the failure. The other process still answers
            # clients.
            self._report_failure(f"a defect: {error!r}")

    def _report_failure(self, why: str) -> None:
        LOG.error("Requests are passed on, but no longer compared: %s", why)
        self.status.phase = f"failed: {why}"
        # copies are taken from the queue and dropped, so that they do not fill the memory
        while self._backlog.get() is not None:
            self.status.unread += 1

    def _copy(self) -> CopyMoment | None:
        if self._settings.databases is None:
            return None
        self.status.phase = "waiting to copy the database"
        # at first, some clients still write to the stock service directly, and these writes must be in the
        # copy
        self._stopped.wait(self._settings.copy_after)
        self.status.phase = "copying the database"
        return copied_databases.copy(self._settings.databases, self._was_quiet)

    def _was_quiet(self, moment: CopyMoment) -> bool:
        deadline = time.monotonic() + _ANSWER_SECONDS
        # a write that was in flight at this moment is perhaps not answered yet, and its copy arrives only
        # after its answer
        while self._settled < moment.latest:
            if time.monotonic() > deadline or self._stopped.wait(_TICK_SECONDS):
                return False
        return not self._backlog.any_waiting(moment.is_within)

    def _handle_copy(self, copy: MirroredRequest, moment: CopyMoment | None) -> None:
        if moment is not None and moment.is_after(copy):
            self._tally.add(ReplayOutcome(copy, ReplayVerdict.MISSED, BEFORE))
        elif moment is not None and moment.is_within(copy):
            self._replay.take_around_copy(copy)
        else:
            self._replay.replay_copy(copy)
