"""The comparing process: receives copies, replays them on our service and reports the outcomes."""

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
from placement_extras.shadow.report import ComparerStatus, OutcomeTally, ReportServer, report_table

LOG = logging.getLogger(__name__)

ENDED: Final = "the process that answers clients ended, and its waiting copies are lost"
BEFORE: Final = "it was answered before the database was copied"
# reads are left out first: without a read one comparison is missing, without a write the databases differ for
# good
BOUNDS: Final = BacklogBounds(reads=128 << 20, writes=256 << 20, any_write=512 << 20)
"""Bounds of the copies that wait to be replayed. These bounds are larger than :data:`.OUTBOX_BOUNDS`, because
the answering process should use little memory.
"""
# the number is added to the priority of the process, so that answers to clients go first
_NICENESS: Final = 10
_FINISH_SECONDS: Final = 10.0
"""At the end of the program: seconds for replaying the waiting copies, and again for the current request."""
_ANSWER_SECONDS: Final = 10.0
"""Seconds to wait for answers to writes that were in flight when the database was copied. After this time
another snapshot is taken.
"""
_TICK_SECONDS: Final = 0.02
"""Seconds between two checks of the writes that were in flight at the moment of the copy."""


@dataclass(frozen=True)
class FollowerSettings:
    """Settings of the comparing process.

    :param ours: the URL of our service, to which the requests are replayed.
    :param token: the token that is sent to our service; None to send the tokens of the clients.
    :param databases: source and target of the copy at the start; None if our database is a copy already.
    :param copy_after: seconds between the start and the copy of the database.
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

    :param address: path of the UNIX socket at which copies arrive; senders need ``key``.
    """
    # a terminal sends SIGINT to all processes; the parent decides when this process ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_up_log()
    # clients must not wait for the comparison; a system may forbid the change
    with suppress(OSError):
        os.nice(_NICENESS)
    ShadowFollower(settings, address, key).run(control)


class ShadowFollower:
    """Runs the comparison in three threads, which receive copies, replay copies, and serve the report.

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
        # the server is created before the threads, so that a port in use ends the process before a copy is
        # accepted
        server = ReportServer(self._settings.report, self.status)
        # both threads are daemons, because they may hang in a request or a connection, and must not keep the
        # process alive
        replaying = threading.Thread(target=self._replay_all, name="shadow-replay", daemon=True)
        try:
            threading.Thread(target=self._receive, name="shadow-receive", daemon=True).start()
            replaying.start()
            with suppress(EOFError, OSError):
                control.recv_bytes()
            # the waiting copies are replayed first; then replaying stops, even if writes still wait for our
            # service
            self._backlog.close(keep=True)
            replaying.join(_FINISH_SECONDS)
            self._stopped.set()
            self._backlog.close(keep=False)
            replaying.join(_FINISH_SECONDS)
        finally:
            server.close()
            with suppress(OSError):  # the parent may have removed the folder of the socket
                self._listener.close()
        print(report_table(self.status.to_document()), end="", flush=True)

    def _receive(self) -> None:
        """Receive copies, over one connection at a time, each from another answering process."""
        while not self._stopped.is_set():
            try:
                connection = self._listener.accept()
            except Exception as error:  # the listener is closed, or the peer does not have the key
                if not self._stopped.is_set():
                    LOG.warning("A connection to the comparing process was refused: %s", error)
                    self._stopped.wait(0.1)
                continue
            # a second connection means that the former answering process has ended; the copies that it had
            # not sent are lost
            if self.status.processes:
                self._tally.mark_parted(ENDED)
            self.status.processes += 1
            # these errors mean that the process at the other end has ended
            with connection, suppress(EOFError, OSError):
                while True:
                    delivery = connection.recv()
                    # this line is for the type checker: recv() unpickles any object
                    assert isinstance(delivery, OutboxDelivery)
                    # an answering process that ended before it connected has lost all its copies
                    if delivery.predecessors >= self.status.processes:
                        self._tally.mark_parted(ENDED)
                        self.status.processes = delivery.predecessors + 1
                    self.status.left_out = delivery.left_out
                    if delivery.copy is not None:
                        self._backlog.put(delivery.copy)
                    # the time is set after the copy is in the backlog, because it means that the backlog has
                    # all earlier writes
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
            # this process continues and reports the failure; the other process still answers clients
            self._report_failure(f"a defect: {error!r}")

    def _report_failure(self, why: str) -> None:
        LOG.error("Requests are passed on, but no longer compared: %s", why)
        self.status.phase = f"failed: {why}"
        # Copies are removed and dropped, so that they do not fill the memory.
        while self._backlog.get() is not None:
            self.status.unread += 1

    def _copy(self) -> CopyMoment | None:
        if self._settings.databases is None:
            return None
        self.status.phase = "waiting to copy the database"
        # some clients may still write to the stock service directly; such writes must be in the copy
        self._stopped.wait(self._settings.copy_after)
        self.status.phase = "copying the database"
        return copied_databases.copy(self._settings.databases, self._was_quiet)

    def _was_quiet(self, moment: CopyMoment) -> bool:
        deadline = time.monotonic() + _ANSWER_SECONDS
        # a write that was in flight at this moment may be unanswered, and its copy arrives only after the
        # answer
        while self._settled < moment.latest:
            if time.monotonic() > deadline or self._stopped.wait(_TICK_SECONDS):
                return False
        return was_quiet(self._backlog, moment)

    def _handle_copy(self, copy: MirroredRequest, moment: CopyMoment | None) -> None:
        if moment is not None and moment.is_after(copy):
            self._tally.add(ReplayOutcome(copy, ReplayVerdict.MISSED, BEFORE))
        elif moment is not None and moment.is_within(copy):
            self._replay.take_around_copy(copy)
        else:
            self._replay.replay_copy(copy)


def was_quiet(backlog: ByteBacklog, moment: CopyMoment) -> bool:
    """Return whether no write was in flight at a moment, once all earlier writes are answered."""
    return not backlog.any_waiting(moment.is_within)
