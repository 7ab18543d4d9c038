"""Keeps a worker's :class:`~placement.read_model.snapshot.ModelSnapshot` equal to the database.

Before it answers, a worker asks where the database stands: for the sum of all change counters, and whose
they are. Counters only grow, so the same answer means that nothing changed. Otherwise it finds the buckets
whose counters moved and reads the providers that were stamped since, all in one snapshot of the database.

That misses nothing as long as the database continues from where it was. One that was restored from a backup,
or whose standby took over before it had everything, does not: counters may be below those read before, and
other changes may have raised them again by the time of the next question. Mostly its server tells
(:mod:`placement.db.position`). Besides, counters grow by random numbers (:mod:`placement.db.buckets`), so
stamps and sums of another history differ. Where something does not fit, everything is read again.

Requests look at the model one after the other. A long one does so in slices, and others pass in between.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Final

import sqlalchemy as sa

from placement.db import buckets
from placement.db.database import ServiceDatabase
from placement.db.position import DatabaseVersion
from placement.exceptions import Unavailable
from placement.read_model import rows
from placement.read_model.columns import DamagedFile, WritableModel, decode
from placement.read_model.follower import (
    ANOTHER_HISTORY,
    FullReread,
    ModelState,
    follow,
    nothing_but_to_keep,
    read_all,
)
from placement.read_model.model_file import ModelFile, ModelFileWriter
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot

_YIELD_SECONDS: Final = 0.0002
"""Seconds in which whoever waits for the interpreter gets it."""
LONG_REQUESTS: Final = 2
"""Requests that may be long at the same time, where nobody says how many threads answer requests."""


class ReadGate:
    """The locks of a model.

    :param long_requests: so many requests at once may give way, others that would are refused.
    """

    def __init__(self, long_requests: int = LONG_REQUESTS) -> None:
        #: held in part by each request that gave way before, until it ends
        self.long_requests = threading.BoundedSemaphore(long_requests)
        #: held by the one request that may bring the model up to date
        self.first = threading.RLock()
        #: held by one of the requests that gave way before
        self.later = threading.Lock()
        #: held to count who keeps a snapshot
        self.counting = threading.Lock()
        #: how many keep one
        self.keepers = 0

    def keep(self, snapshot: ModelSnapshot) -> None:
        """From now on nobody changes this snapshot, until :meth:`let_go` is called as often.

        To be called within the turn: of several who look at it later none may bring its trees up to date.
        """
        snapshot.whole_trees()
        with self.counting:
            snapshot.keepers += 1
            self.keepers += 1

    def let_go(self, snapshot: ModelSnapshot) -> None:
        """Undo :meth:`keep`."""
        with self.counting:
            snapshot.keepers -= 1
            self.keepers -= 1


class ReadTurn:
    """The turn of one request: it begins when nobody else has the model, and ends with the context."""

    def __init__(self, turns: ReadGate) -> None:
        self._turns = turns
        self._kept: ModelSnapshot | None = None
        self._slice_held = False

    def __enter__(self) -> ReadTurn:
        self._turns.first.acquire()
        return self

    def give_way(self, snapshot: ModelSnapshot) -> None:
        """Let others have their turn; nobody changes this snapshot meanwhile, nor until the turn ends.

        :raises Unavailable: too many others go on like this already.
        """
        if self._kept is None:
            if not self._turns.long_requests.acquire(blocking=False):
                raise Unavailable(
                    "This worker has as many long requests in hand as it may. "
                    "Please try again in a few seconds, or ask for less at once."
                )
            self._turns.keep(snapshot)
            self._kept = snapshot
            self._turns.first.release()
        else:
            self._slice_held = False
            self._turns.later.release()
        time.sleep(_YIELD_SECONDS)
        self._turns.later.acquire()
        self._slice_held = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept is None:
            self._turns.first.release()
            return
        if self._slice_held:
            self._turns.later.release()
        self._turns.let_go(self._kept)
        self._turns.long_requests.release()


LOG = logging.getLogger(__name__)

_PAUSE: Final = 1.0  # seconds until what is not to be given back yet is tried again


class ModelView:
    """What a request may look at: providers and names, as they were when it came."""

    def __init__(
        self,
        snapshot: ModelSnapshot,
        names: rows.NameTable,
        turn: ReadTurn,
        stamps: Mapping[int, Mapping[int, int]],
    ) -> None:
        self.snapshot = snapshot
        self.names = names
        self._turn = turn
        self._stamps = stamps

    def change_seq(self, provider: Provider) -> int:
        """A number that is another one when anything changed of the provider, be it who holds what of it.

        Only for who has not given way.
        """
        return self._stamps[buckets.bucket_of(provider.uuid)][provider.id]

    def give_way(self) -> None:
        """Let other requests go on. What is looked at stays as it was, even if they change it.

        :raises placement.exceptions.Unavailable: as many long requests as may be are under way.
        """
        self._turn.give_way(self.snapshot)

    def giving_way_after(self, check: Callable[[], None]) -> Callable[[], None]:
        """What a long search calls again and again: ``check``, which may end it, then :meth:`give_way`."""

        def give_way() -> None:
            check()
            self.give_way()

        return give_way


class ReadModel:
    """The read model of one worker process.

    Searches are pure Python, so threads of one process would wait for each other
    anyway: they do it here, on one lock, and each sees a snapshot that stands still. One that
    takes long gives way (:meth:`View.give_way`): from then on the snapshot that it looks at is
    left alone, and what others have to change in it they change in a copy. Only
    ``long_requests`` at once may: threads are left for those that are short.

    :param file: from which it starts, and in which it is written down.
    :param give_back_expired: gives back what reservations hold that expired, and has all workers read anew
        when the next one does; of how many that was.
    """

    def __init__(
        self,
        database: ServiceDatabase,
        long_requests: int = LONG_REQUESTS,
        give_back_expired: Callable[[ServiceDatabase], int] | None = None,
        file: ModelFile | None = None,
    ) -> None:
        self._database = database
        self._give_back_expired = give_back_expired
        self._expiring = threading.Lock()
        #: the expiry at which there was nothing to give back, and when (monotonic) to try that again
        self._in_vain = (math.inf, 0.0)
        self._turns = ReadGate(long_requests)
        self._state: ModelState | None = None
        #: where the database stood when the model was brought up to date; None while it may not be
        self._position: DatabaseVersion | None = None
        self._history: str | None = None
        #: when (monotonic) a question was asked whose answer was that position
        self._current_at = -math.inf
        #: how often it was brought up to date
        self.refreshed = 0
        #: how often all that had been read was read anew, as after a restore
        self.reread = 0
        self.file = file
        self._writer = None if file is None else ModelFileWriter(file, self._written)
        #: whether the state comes from the file, and was not compared with the database yet
        self._unproven = False

    @contextmanager
    def fresh(self) -> Iterator[ModelView]:
        """The model with every change that was committed before this call, and without what expired.

        :raises placement.exceptions.Unavailable: when the database does not answer.
        """
        expires = self._give_back_expired is not None
        while True:
            # Asked before our turn, so that who waits for the database keeps nobody.
            refreshed, asked_at, position = self.refreshed, time.monotonic(), self._database.position()
            with ReadTurn(self._turns) as turn:
                # Somebody may have brought it up to date while we asked, or waited for our turn.
                if position != self._position and refreshed != self.refreshed:
                    position = self._database.position()
                if position != self._position:
                    self._refresh(position.history)
                assert self._state is not None
                self._current_at = max(self._current_at, asked_at)
                if position.clock < self._state.next_expiry or not expires:
                    yield ModelView(self._state.snapshot, self._state.names, turn, self._state.stamps)
                    return
            # Nobody is kept meanwhile. If there was nothing to give back, the server that is written to has a
            # slower clock than the one that was asked, as nodes of one Galera cluster may: it decides.
            expires = self._expire(position.clock)

    @contextmanager
    def recent(self, seconds: float) -> Iterator[ModelView]:
        """The model with every change that was committed so long before this call, if not with later ones.

        For who writes only where the database still has what was seen here, and looks again otherwise: the
        database is asked once for many.

        :raises placement.exceptions.Unavailable: when the database does not answer.
        """
        with ReadTurn(self._turns) as turn:
            known = self._state is not None and self._position is not None
            if known and time.monotonic() - self._current_at <= seconds:
                assert self._state is not None
                yield ModelView(self._state.snapshot, self._state.names, turn, self._state.stamps)
                return
        with self.fresh() as view:
            yield view

    def _expire(self, now: float) -> bool:
        """Have given back what expired until then; whether anything may have been."""
        assert self._give_back_expired is not None
        with self._expiring:  # one thread does it for all
            if self._state is None or now < self._state.next_expiry:
                return True
            expiry, (tried, again_at) = self._state.next_expiry, self._in_vain
            if expiry == tried and time.monotonic() < again_at:
                return False
            count = self._give_back_expired(self._database)
            self._in_vain = (math.inf if count else expiry, time.monotonic() + _PAUSE)
        if count:
            LOG.info("gave back what %d expired reservations held", count)
        return bool(count)

    @contextmanager
    def aside(self) -> Iterator[tuple[ModelSnapshot, int]]:
        """The snapshot of the last request, and how often the model had been brought up to date then.

        Nobody changes it until the context ends, and nobody waits for that: it takes no turn and is none of
        the long requests.

        :raises placement.exceptions.Unavailable: there is none at present.
        """
        with ReadTurn(self._turns):
            if self._state is None or self._position is None:
                raise Unavailable("The read model is not up to date.")
            snapshot, refreshed = self._state.snapshot, self.refreshed
            self._turns.keep(snapshot)
        try:
            yield snapshot, refreshed
        finally:
            self._turns.let_go(snapshot)

    def long_requests(self) -> int:
        """How many requests take long at present."""
        return self._turns.keepers

    def _written(self) -> WritableModel:
        """The model, to be written down.

        :raises placement.exceptions.Unavailable: there is none at present.
        """
        with ReadTurn(self._turns):
            state = self._state
            if state is None or self._position is None:
                raise Unavailable("The read model is not up to date.")
            providers = list(state.snapshot.providers.values())
            stamps = [each.copy() for each in state.stamps.values()]
            counters, deletions = state.counters.copy(), state.deletions.copy()
            history, names, next_expiry = self._position.history, state.names, state.next_expiry
        stamp_of = {provider_id: seq for some in stamps for provider_id, seq in some.items()}
        return WritableModel(history, names, counters, deletions, next_expiry, providers, stamp_of)

    def _refresh(self, history: str) -> None:
        self._position = None  # should this fail, the next request goes on with it
        if self._state is None and self.file is not None and not self.refreshed:
            self._restore(self.file)
        with self._database.read() as conn:
            if self._state is not None:
                anew = self._difference(conn, self._state, history)
                if anew is not None:
                    self._give_up(anew)
                elif self._unproven:
                    LOG.info(
                        "read model of %d resource providers goes on from its file", len(self._state.snapshot)
                    )
            if self._state is None:
                self._state = read_all(conn)
        self._unproven = False
        self._history = history
        self._position = DatabaseVersion(self._state.counters_sum(), history, math.nan)
        self.refreshed += 1
        if self._writer is not None:
            self._writer.look()

    def _restore(self, file: ModelFile) -> None:
        """Begin with what the file has, which is not proven yet."""
        try:
            with nothing_but_to_keep():
                self._history, self._state = decode(file.read())
            self._unproven = True
        except FileNotFoundError:
            LOG.info("there is no model file %s yet: everything is read from the database", file.path)
        except OSError as error:  # not ours, perhaps: it stays
            _warn_of(file, str(error))
        except DamagedFile as error:
            _warn_of(file, str(error))
            file.discard()

    def _give_up(self, anew: FullReread) -> None:
        """Forget the state, which is not what the database has."""
        self._state = None
        if self._unproven and self.file is not None:
            _warn_of(self.file, anew.reason)
            self.file.discard()
        else:
            if anew.is_odd:
                LOG.warning("all of the database is read anew: %s", anew.reason)
            else:
                LOG.info("all of the database is read anew: %s", anew.reason)
            self.reread += 1

    def _difference(self, conn: sa.Connection, state: ModelState, history: str) -> FullReread | None:
        """Bring the state up to date; why that does not help, and only reading everything anew can, or None.

        :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer.
        """
        if history != self._history:
            return FullReread(f"{ANOTHER_HISTORY}: its server, timeline, table or file is another one")
        return follow(conn, state)


def _warn_of(file: ModelFile, reason: str) -> None:
    LOG.warning("the model file %s is not used: %s. Everything is read from the database", file.path, reason)
