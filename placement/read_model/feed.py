"""Keeps a worker's :class:`~placement.read_model.snapshot.ModelSnapshot` equal to the database.

Before each answer, a worker reads the version of the database: the sum of all change counters, and the
history of the database. Counters only grow, so the same version means that nothing has changed. If the
version differs, the worker finds the buckets with changed counters, and reads the providers with newer
stamps. The worker reads all of this in one snapshot of the database.

This comparison finds every change as long as the database continues one history. A database restored from a
backup begins another history, and so does a standby server that took over without the latest changes. In
another history, counters may be below their known values, or other changes may have raised them to these
values again. Most database servers show an identity, which identifies the history
(:mod:`placement.db.position`). In addition, counters grow by random numbers (:mod:`placement.db.buckets`), so
that stamps and sums differ in another history. After a contradiction, the worker reads all content again.

Only one request at a time uses the model. A long request yields between slices of its work, so that other
requests can run.
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
from placement.read_model.columns import DamagedFile, WritableModel, decode_model
from placement.read_model.follower import (
    ANOTHER_HISTORY,
    FullReread,
    ModelState,
    follow_database,
    read_all,
    without_collection,
)
from placement.read_model.model_file import ModelFile, ModelFileWriter, drop_preloaded, find_preloaded
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot

# A waiting thread gets the interpreter within this time, and a slice of work takes ten times as long:
# 2 ms.
_YIELD_SECONDS: Final = 0.0002
"""Seconds that a long request sleeps when it yields, so that another thread runs."""
LONG_REQUESTS: Final = 2
"""Maximum number of simultaneous long requests, for callers that do not know the number of threads."""


class ReadGate:
    """The locks of a read model, with which requests take turns, and long requests let other requests run.

    :param long_requests: maximum number of requests that may yield at the same time; further requests are
        refused.
    """

    def __init__(self, long_requests: int = LONG_REQUESTS) -> None:
        #: the semaphore limits the requests that have yielded: each of these requests holds it until the
        #: request ends
        self.long_requests = threading.BoundedSemaphore(long_requests)
        #: this lock is held by the request that is allowed to update the model
        self.first = threading.RLock()
        #: among the requests that have yielded, the one that runs at the moment holds this lock
        self.later = threading.Lock()
        #: this lock is held while numbers of pins are changed
        self.counting = threading.Lock()
        #: the total number of pins of all snapshots
        self.pin_count = 0

    def pin_snapshot(self, snapshot: ModelSnapshot) -> None:
        """Pin the snapshot, so that no update changes it until :meth:`unpin_snapshot` undoes each pin.

        The caller must hold the turn, so that it is the only thread that changes the model. This method also
        makes the trees of the snapshot, because later readers must not make trees.
        """
        snapshot.whole_trees()
        with self.counting:
            snapshot.pin_count += 1
            self.pin_count += 1

    def unpin_snapshot(self, snapshot: ModelSnapshot) -> None:
        """Undo one call of :meth:`pin_snapshot`."""
        with self.counting:
            snapshot.pin_count -= 1
            self.pin_count -= 1


class ReadTurn:
    """The turn of one request, which holds the lock of the model until the context ends."""

    def __init__(self, gate: ReadGate) -> None:
        self._gate = gate
        self._kept: ModelSnapshot | None = None
        self._slice_held = False

    def __enter__(self) -> ReadTurn:
        self._gate.first.acquire()
        return self

    def yield_lock(self, snapshot: ModelSnapshot) -> None:
        """Release the lock for a moment, so that other requests run.

        The snapshot stays pinned until the turn ends.

        :raises Unavailable: too many long requests have yielded already.
        """
        # the first yield gives up the lock for updates; later yields only release the lock of long requests
        # for a moment
        if self._kept is None:
            # this attempt does not wait, because a waiting thread could not serve short requests
            if not self._gate.long_requests.acquire(blocking=False):
                raise Unavailable(
                    "This worker serves the maximum number of long requests. "
                    "Please try again in a few seconds, or ask for less at once."
                )
            self._gate.pin_snapshot(snapshot)
            self._kept = snapshot
            self._gate.first.release()
        else:
            self._slice_held = False
            self._gate.later.release()
        # the sleep gives the lock to a waiting thread; without it, this thread would mostly get the lock
        # again at once
        time.sleep(_YIELD_SECONDS)
        self._gate.later.acquire()
        self._slice_held = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept is None:
            self._gate.first.release()
            return
        if self._slice_held:
            self._gate.later.release()
        self._gate.unpin_snapshot(self._kept)
        self._gate.long_requests.release()


LOG = logging.getLogger(__name__)

# after an attempt without effect the thread pauses: if the clock of the server for writes is slow, the
# allocation has not expired there yet
_PAUSE: Final = 1.0
"""Seconds between an attempt that released no expired allocation and the next attempt."""


class ModelView:
    """The providers, and the names of resource classes and traits, as they were when a request arrived.

    ``clock`` is the time of the database, in seconds since 1970, when the version of the model was read.
    ``next_expiry`` is the time of the next expiry or start of a window; infinity if there is neither.
    """

    def __init__(self, state: ModelState, turn: ReadTurn, reread: int, clock: float) -> None:
        self.clock = clock
        self.next_expiry = state.next_expiry
        self.snapshot = state.snapshot
        self.names = state.names
        #: number of times that the whole model was read again; counters of views with another number cannot
        #: be compared
        self.reread = reread
        self._turn = turn
        self._stamps: Mapping[int, Mapping[int, int]] = state.stamps
        self._counters: Mapping[int, int] = state.counters

    def change_seq(self, provider: Provider) -> int:
        """Return a number that changes whenever the provider or one of its allocations changes.

        Only requests that have not yielded may call this method.
        """
        return self._stamps[buckets.bucket_of(provider.uuid)][provider.id]

    def bucket_counters(self) -> dict[int, int]:
        """Return the change counters of all buckets; not to be called after the request has yielded."""
        return {**self._counters}

    def changed_since(self, counters: Mapping[int, int]) -> list[int]:
        """Return the ids of the providers that have changed since their buckets had these counters.

        Only requests that have not yielded may call this method.

        :param counters: counters of a view with the same ``reread``. Without counters, all providers count as
            changed.
        """
        return [
            provider_id
            for bucket, stamps in self._stamps.items()
            if (known := counters.get(bucket, -1)) != self._counters[bucket]
            for provider_id, seq in stamps.items()
            if seq > known
        ]

    def yield_lock(self) -> None:
        """Release the lock for a moment, so that other requests run.

        The view stays unchanged, even if other requests change the model.

        :raises placement.exceptions.Unavailable: too many long requests have yielded already.
        """
        self._turn.yield_lock(self.snapshot)

    def yield_after(self, check: Callable[[], None]) -> Callable[[], None]:
        """Return a function that runs ``check``, which can raise an error, and then yields the lock."""

        def yield_lock() -> None:
            check()
            self.yield_lock()

        return yield_lock


class ReadModel:
    """The read model of one worker process.

    Searches are pure Python, and only one thread of a process at a time runs Python code. So requests wait
    for one lock, and each request sees a snapshot that does not change. A long search yields
    (:meth:`ModelView.yield_lock`). From its first yield on, the snapshot of the request stays pinned, and
    updates change a copy of the snapshot. At most ``long_requests`` requests can have yielded at the same
    time, so that threads remain for short requests.

    :param file: the file from which the model starts, and to which the worker writes the model.
    :param give_back_expired: a function that releases expired allocations and updates the next expiry for all
        workers. The function returns the number of released allocations.
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
        #: an expiry for which an attempt has released nothing, and the monotonic time of the next attempt
        self._in_vain = (math.inf, 0.0)
        self._gate = ReadGate(long_requests)
        self._state: ModelState | None = None
        #: the version of the database at the last update; None while the model may be outdated
        self._position: DatabaseVersion | None = None
        self._history: str | None = None
        #: the monotonic time of the query that returned the version in ``_position``
        self._current_at = -math.inf
        #: the time of the database at this query
        self._clock = -math.inf
        #: the number of updates so far
        self.refreshed = 0
        #: number of times that the whole model was read again, for instance after a restore of the database
        self.reread = 0
        self.file = file
        #: writes the file after updates, when this is due
        self.writer = None if file is None else ModelFileWriter(file, self._writable_model)
        #: whether the state comes from the file and has not yet been compared with the database
        self._unproven = False

    @contextmanager
    def fresh_view(self) -> Iterator[ModelView]:
        """Return the current model: all changes committed before this call, no expired allocations."""
        expires = self._give_back_expired is not None
        while True:
            # the query precedes the turn, so that no other request waits for its answer
            refreshed, asked_at, position = self.refreshed, time.monotonic(), self._database.position()
            with ReadTurn(self._gate) as turn:
                # this answer is outdated if another request has updated the model in the meantime
                if position != self._position and refreshed != self.refreshed:
                    position = self._database.position()
                if position != self._position:
                    self._update_state(position.history)
                # this line is for the type checker: the model has been updated by now, so there is a state
                assert self._state is not None
                if asked_at > self._current_at:
                    self._current_at, self._clock = asked_at, position.clock
                if position.clock < self._state.next_expiry or not expires:
                    yield ModelView(self._state, turn, self.reread, position.clock)
                    return
            # Expired allocations are released outside of the turn, so that no request waits. The clock of the
            # server for writes decides. In a Galera cluster this clock may be behind the clock of the server
            # that was asked, and then the attempt releases nothing.
            expires = self._release_expired(position.clock)

    @contextmanager
    def recent_view(self, seconds: float) -> Iterator[ModelView]:
        """Return a model that lacks at most the changes of the last ``seconds`` seconds.

        Only callers that check the data again in a transaction before they write may use this view. Many such
        views share the answer to one query of the version.
        """
        with ReadTurn(self._gate) as turn:
            known = self._state is not None and self._position is not None
            if known and time.monotonic() - self._current_at <= seconds:
                # this line is for the type checker: the variable above says that the state exists
                assert self._state is not None
                yield ModelView(self._state, turn, self.reread, self._clock)
                return
        with self.fresh_view() as view:
            yield view

    def _release_expired(self, now: float) -> bool:
        """Release expired allocations; return whether the model has possibly changed."""
        # fresh_view() calls this only if the function exists
        assert self._give_back_expired is not None
        # one thread releases the allocations for all threads: a thread that has waited here mostly finds
        # nothing left to release
        with self._expiring:
            if self._state is None or now < self._state.next_expiry:
                return True
            expiry, (tried, again_at) = self._state.next_expiry, self._in_vain
            if expiry == tried and time.monotonic() < again_at:
                return False
            count = self._give_back_expired(self._database)
            self._in_vain = (math.inf if count else expiry, time.monotonic() + _PAUSE)
        if count:
            LOG.info(
                "Released the allocations of expired consumers, or let reservations begin: %d consumers in"
                " total",
                count,
            )
        return bool(count)

    @contextmanager
    def pinned_snapshot(self) -> Iterator[tuple[ModelSnapshot, int]]:
        """Return the snapshot as it was for the last request, and the number of updates so far.

        The snapshot is pinned until the context ends. The caller needs no turn, so other requests do not
        wait, and the caller does not count as a long request.

        :raises placement.exceptions.Unavailable: the model is not up to date.
        """
        with ReadTurn(self._gate):
            if self._state is None or self._position is None:
                raise Unavailable("The read model is not up to date.")
            snapshot, refreshed = self._state.snapshot, self.refreshed
            self._gate.pin_snapshot(snapshot)
        try:
            yield snapshot, refreshed
        finally:
            self._gate.unpin_snapshot(snapshot)

    def long_requests(self) -> int:
        """Return the current number of pins, by long requests and by other readers of the snapshot."""
        return self._gate.pin_count

    def _writable_model(self) -> WritableModel:
        """Return a copy of the model for its file, or raise Unavailable if it is not up to date."""
        with ReadTurn(self._gate):
            state = self._state
            if state is None or self._position is None:
                raise Unavailable("The read model is not up to date.")
            # the turn covers only this quick copy; the dictionary of all stamps is made afterwards
            providers = list(state.snapshot.providers.values())
            stamps = [each.copy() for each in state.stamps.values()]
            counters, deletions = state.counters.copy(), state.deletions.copy()
            history, names, next_expiry = self._position.history, state.names, state.next_expiry
        stamp_of = {provider_id: seq for some in stamps for provider_id, seq in some.items()}
        return WritableModel(history, names, counters, deletions, next_expiry, providers, stamp_of)

    def _update_state(self, history: str) -> None:
        # The value is None during the update, so that the next request tries again after a failure
        self._position = None
        if self._state is None and self.file is not None and not self.refreshed:
            self._take_preloaded(self.file, history)
            if self._state is None:
                self._load_file(self.file)
        with self._database.read() as conn:
            if self._state is not None:
                anew = self._follow_database(conn, self._state, history)
                if anew is not None:
                    self._give_up(anew)
                elif self._unproven:
                    LOG.info(
                        "Loaded the read model of %d resource providers from its file; only later changes"
                        " come from the database",
                        len(self._state.snapshot),
                    )
            if self._state is None:
                self._state = read_all(conn)
        self._unproven = False
        self._history = history
        self._position = DatabaseVersion(self._state.counters_sum(), history, math.nan)
        self.refreshed += 1
        if self.writer is not None:
            self.writer.start_if_due()

    def _take_preloaded(self, file: ModelFile, history: str) -> None:
        """Start with the model that the parent process has read, if later changes can be applied to it."""
        preloaded = find_preloaded(file.path)
        if preloaded is None:
            return
        self._history, state = preloaded
        # if the database fails here, the model stays for the next attempt
        with self._database.read() as conn:
            anew = self._follow_database(conn, state, history)
        drop_preloaded(file.path)
        if anew is None:
            self._state = state
            LOG.info(
                "Took over the read model of %d resource providers from the parent process; only later"
                " changes come from the database",
                len(state.snapshot),
            )
        else:
            # the file may be newer than the model of the parent process
            LOG.info("The read model of the parent process is not used: %s", anew.reason)

    def _load_file(self, file: ModelFile) -> None:
        """Start with the model in the file; a comparison with the database follows."""
        try:
            with without_collection():
                self._history, self._state = decode_model(file.read())
            self._unproven = True
        except FileNotFoundError:
            LOG.info("There is no model file %s yet: reading everything from the database", file.path)
        except OSError as error:
            # the file stays, because it may belong to another service
            _warn_of(file, str(error))
        except DamagedFile as error:
            _warn_of(file, str(error))
            # the file is removed, so that the next worker does not read a damaged file
            file.discard()

    def _give_up(self, anew: FullReread) -> None:
        """Drop the content of the model, because it contradicts the database."""
        self._state = None
        if self._unproven and self.file is not None:
            _warn_of(self.file, anew.reason)
            self.file.discard()
        else:
            if anew.is_odd:
                LOG.warning("Reading all of the database again: %s", anew.reason)
            else:
                LOG.info("Reading all of the database again: %s", anew.reason)
            self.reread += 1

    def _follow_database(self, conn: sa.Connection, state: ModelState, history: str) -> FullReread | None:
        """Apply the changes of the database to the model; return the reason for a full read, or None."""
        if history != self._history:
            return FullReread(f"{ANOTHER_HISTORY}: its server, timeline, table or file has changed")
        return follow_database(conn, state)


def _warn_of(file: ModelFile, reason: str) -> None:
    LOG.warning("The model file %s is not used: %s. Reading everything from the database", file.path, reason)
