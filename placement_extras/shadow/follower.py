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
# reads give way first: a lost read costs a comparison, a lost write parts the databases for good
BOUNDS: Final = BacklogBounds(reads=128 << 20, writes=256 << 20, any_write=512 << 20)
"""Bounds of the copies that wait to be replayed.

These copies may take more memory than those in the answering process.
"""
_NICENESS: Final = 10  # clients go before the comparison
_FINISH_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 10.0
"""Maximum time of writes in flight at the moment of the copy. After this time the program tries another
moment."""
_TICK_SECONDS: Final = 0.02


@dataclass(frozen=True)
class FollowerSettings:
    """Settings of the comparing process.

    :param ours: the URL of our service.
    :param token: sent to our service instead of the clients' tokens; None to send theirs.
    :param databases: source and target of the copy at the start; None if our database is a copy already.
    :param copy_after: seconds to wait before the copy is taken.
    :param report: address and port of the report.
    """

    ours: str
    token: str | None
    databases: CopiedDatabases | None
    copy_after: float
    report: tuple[str, int]


def run_follower(
    settings: FollowerSettings, address: str, key: bytes, control: Connection, set_up_log: Callable[[], None]
) -> None:
    """Run until the other end of ``control`` is closed; then print the report.

    :param address: the UNIX socket at which copies arrive, protected by ``key``.
    """
    # a terminal sends it to all processes; the parent decides when to end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_up_log()
    # Clients must not wait for the comparison.
    with suppress(OSError):
        os.nice(_NICENESS)
    ShadowFollower(settings, address, key).run(control)


class ShadowFollower:
    """Three threads: one receives copies, one replays them, one serves the report.

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
        """Run until the other end of ``control`` is closed."""
        # before the threads: a taken port ends the process before any copy is accepted
        server = ReportServer(self._settings.report, self.status)
        # both threads may hang in a request or a connection, and must not keep the process from ending
        replaying = threading.Thread(target=self._replay_all, name="shadow-replay", daemon=True)
        try:
            threading.Thread(target=self._receive, name="shadow-receive", daemon=True).start()
            replaying.start()
            with suppress(EOFError, OSError):
                control.recv_bytes()
            # first time to replay the rest, then the end of writes that wait for our service
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
        """Receive copies from successive connections, each of another process that answers clients."""
        while not self._stopped.is_set():
            try:
                connection = self._listener.accept()
            except Exception as error:  # closed, or a peer without the key
                if not self._stopped.is_set():
                    LOG.warning("A connection to the comparing process was refused: %s", error)
                    self._stopped.wait(0.1)
                continue
            # The former connection is gone, and so are copies that it had not sent.
            if self.status.processes:
                self._tally.mark_parted(ENDED)
            self.status.processes += 1
            # The process at the other end has ended.
            with connection, suppress(EOFError, OSError):
                while True:
                    delivery = connection.recv()
                    # recv() unpickles whatever the other process has sent.
                    assert isinstance(delivery, OutboxDelivery)
                    # an answering process ended before it connected, and its copies are lost
                    if delivery.predecessors >= self.status.processes:
                        self._tally.mark_parted(ENDED)
                        self.status.processes = delivery.predecessors + 1
                    self.status.left_out = delivery.left_out
                    if delivery.copy is not None:
                        self._backlog.put(delivery.copy)
                    # Only after the copy is in the backlog: this says that all writes before are there.
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
            LOG.exception("Nothing is compared any more")
            # the other process goes on answering clients, whatever happens here
            self._report_failure(f"a defect: {error!r}")

    def _report_failure(self, why: str) -> None:
        LOG.error("Requests are passed on and not compared any more: %s", why)
        self.status.phase = f"failed: {why}"
        # Nothing reads the copies any more, and they must not fill the memory.
        while self._backlog.get() is not None:
            self.status.unread += 1

    def _copy(self) -> CopyMoment | None:
        if self._settings.databases is None:
            return None
        self.status.phase = "waiting to copy the database"
        # the clients are still led to the proxy, and writes past it would be missing in the copy
        self._stopped.wait(self._settings.copy_after)
        self.status.phase = "copying the database"
        return copied_databases.copy(self._settings.databases, self._was_quiet)

    def _was_quiet(self, moment: CopyMoment) -> bool:
        deadline = time.monotonic() + _ANSWER_SECONDS
        # a write that was in flight at the moment may still be answered; its copy comes only then
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
    """Whether no write was in flight at a moment; all earlier requests must have been answered."""
    return not backlog.any_waiting(moment.is_within)
