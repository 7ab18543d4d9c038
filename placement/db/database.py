"""Transactions on the database: consistent snapshots for reading, and writes that run again after conflicts.

During an outage of the database, each worker lets one request at a time try to reach the database, and
refuses all other requests immediately. Each function that uses a database, here and elsewhere, raises
:class:`~placement.exceptions.Unavailable` if the database does not answer.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import buckets, engine, errors, migration
from placement.db.batch import (
    PreparedStatement,
    StatementAnswer,
    StatementBatch,
    StatementFamily,
    Values,
    insertion_statements,
)
from placement.db.engine import PoolOptions
from placement.db.position import ChangeProbe, DatabaseVersion
from placement.db.tables import resource_providers
from placement.exceptions import InvalidRequest, TransactionConflict, Unavailable
from placement.outage import PeerOutage

LOG = logging.getLogger(__name__)

_NOT_AVAILABLE: Final = "The database is not available. Please try again later."


T = TypeVar("T")


class WriteTransaction:
    """One write transaction with its statements, locks and changed providers.

    :meth:`queue` queues statements. The queued statements are sent when an answer is read, when ``conn`` is
    used, or at the end of the transaction. ``now`` is the time of the changes, in seconds since 1970. In an
    ``optimistic`` transaction, the function ``work`` of :meth:`ServiceDatabase.write` can insert rows without
    a check whether the rows exist. If the database refuses such a row, ``work`` runs again in a transaction
    that is not optimistic.
    """

    def __init__(self, conn: sa.Connection, *, optimistic: bool) -> None:
        self._conn = conn
        self._batch = StatementBatch(conn)
        self.optimistic = optimistic
        # all rows of a transaction get the same time
        self.now = time.time()
        self._changed: dict[int, _ProviderChange] = {}
        #: whether the database has perhaps received the commit
        self.committing = False

    @property
    def conn(self) -> sa.Connection:
        """The connection, for rare statements. Access to this property first sends the queued statements."""
        self._batch.send()
        return self._conn

    @property
    def sends_at_once(self) -> bool:
        """Whether queued statements are sent together. An early read of an answer then costs a round trip."""
        return self._batch.sends_at_once

    def queue(self, statement: PreparedStatement, values: Values) -> StatementAnswer:
        """Queue a statement. It is executed at the latest when the caller reads its answer."""
        return self._batch.add(statement, values)

    def insert(
        self, table: sa.Table, rows: Sequence[Values], keys: tuple[str, ...] = (), **shared: Any
    ) -> None:
        """Queue the insertion of rows, with the parameters of :func:`.insertion_statements`."""
        for statement, values in insertion_statements(table, rows, keys, shared):
            self.queue(statement, values)

    def lock(self, uuids: Iterable[str], more: Iterable[int] = ()) -> None:
        """Lock providers, given by their uuids, against writes of other transactions.

        The lock is effective as soon as the next answer is read. ``more`` has further buckets, which the same
        statement locks.

        After a second call in the same transaction, this transaction and another one can wait for each other.
        In that case the database ends one of the two, and :meth:`ServiceDatabase.write` runs it again.
        """
        self.lock_buckets({*(buckets.bucket_of(uuid) for uuid in uuids), *more})

    def lock_names(self) -> None:
        """Lock the names of resource classes and traits until the end of the transaction."""
        self.lock_buckets((buckets.NAMES,))

    def lock_trees(self) -> None:
        """Prevent other transactions from changing parents of providers until the end of this transaction."""
        self.lock_buckets((buckets.TREES,))

    def renew_epoch(self) -> None:
        """Make every worker read all content again, as is needed after changes that increment no counter."""
        buckets.renew_epoch(self._batch)

    def lock_buckets(self, bucket_ids: Iterable[int]) -> None:
        """Lock these buckets with all their providers or other objects, as :meth:`lock` does."""
        # on SQLite, the order does not matter, because a writer locks the whole file
        buckets.lock(self._batch, bucket_ids, in_order=self._conn.dialect.name != "sqlite")

    def has_row(self, condition: sa.ColumnElement[bool]) -> bool:
        """Return whether a table has a row that meets the condition."""
        return self.conn.execute(sa.select(sa.literal(1)).where(condition).limit(1)).first() is not None

    def note_changed(
        self, provider_ids: Iterable[int], *, generation: bool, usage_only: bool = False
    ) -> None:
        """Note that these locked providers have changed.

        If ``generation`` is set, also increase their generations.

        ``usage_only`` means that only the usage of the providers has changed, so that readers have to read
        less.
        """
        for provider_id in provider_ids:
            before = self._changed.get(provider_id, _NO_CHANGE)
            # the change is only recorded here, and written once at the end, because an operation can change a
            # provider several times
            self._changed[provider_id] = _ProviderChange(
                before.bumps + generation, before.usage_only and usage_only
            )

    def note_deleted(self, uuid: str) -> None:
        """Record that this locked provider is deleted."""
        buckets.count_deletion(self._batch, buckets.bucket_of(uuid))

    def send_rest(self) -> None:
        """Send the queued statements, and then the stamps of changed providers. Only the commit follows."""
        # one statement writes the stamps of all providers with the same kind of change
        for change in sorted(set(self._changed.values())):
            ids = sorted(provider_id for provider_id, each in self._changed.items() if each == change)
            stamp = _STAMP if change.usage_only else _DESCRIBED_STAMP
            self.queue(*stamp.bind_list(ids, now=self.now, by=change.bumps))
        # the attribute is set before the commit is sent. After an error it is unknown whether the database
        # has received the commit.
        self.committing = self._batch.carries_commit
        self._batch.send(commit=True)
        self.committing = True


class _ProviderChange(NamedTuple):
    """The increase of a provider's generation, and whether only its usage has changed."""

    bumps: int
    usage_only: bool


_NO_CHANGE: Final = _ProviderChange(0, usage_only=True)


_counter: Final = buckets.present_counter(resource_providers.c.bucket)
_stamp: Final = sa.update(resource_providers).values(
    change_seq=_counter,
    generation=resource_providers.c.generation + sa.bindparam("by"),
    updated_at=sa.bindparam("now"),
)
_STAMP: Final = StatementFamily(resource_providers.c.id, _stamp.where)
_DESCRIBED_STAMP: Final = StatementFamily(
    resource_providers.c.id, _stamp.values(described_seq=_counter).where
)


def database_outage() -> PeerOutage:
    """Return an object that prevents requests from waiting for a database that does not answer."""
    return PeerOutage(
        errors.is_timeout,
        "The database does not answer. Please try again later.",
        lambda _: LOG.error(
            "the database does not answer: until it answers, one request at a time waits for it, and other"
            " requests get the answer 503. Check the database, the network, and the limits in"
            " [placement_database]"
        ),
        lambda seconds: LOG.warning("the database answers again, after %.0f seconds", seconds),
    )


class ServiceDatabase:
    """The database of a service process, with its connections.

    :param url: an SQLAlchemy URL of SQLite, PostgreSQL, MySQL or MariaDB.
    """

    def __init__(self, url: str, options: PoolOptions | None = None) -> None:
        options = options or PoolOptions()
        self.url = url
        self._lock_timeout = options.lock_timeout
        self._attempts = 1 + options.retries
        self._outage = database_outage()
        # the limit of the server includes waits for locks, so lock_timeout is added to it
        max_seconds = options.statement_timeout and options.statement_timeout + options.lock_timeout
        writer = engine.create_engine(url, "READ COMMITTED", replace(options, statement_timeout=max_seconds))
        self._writer = writer.execution_options(**{engine.WRITES: True})
        # the time between two statements of a reader is not limited, because no transaction waits for a
        # reader
        self._reader = engine.create_engine(
            url, "REPEATABLE READ", replace(options, idle_timeout=0), ping=True
        )
        # this limit is for the query of the version, which precedes each answer. A server that does not
        # answer this query in time counts as unreachable.
        brief = replace(options, statement_timeout=options.connect_timeout)
        self._autocommitting = engine.create_engine(url, "AUTOCOMMIT", brief)
        self._change_probe = ChangeProbe(self._autocommitting)
        self._history: str | None = None
        self._is_elsewhere = False  # whether the log already has the message about the wrong server
        self._is_not_ours = False  # whether the log already has the message about an unusable database

    def close(self) -> None:
        """Close all connections."""
        self._change_probe.close()
        for each in (self._writer, self._reader, self._autocommitting):
            each.dispose()

    def position(self) -> DatabaseVersion:
        """Return the version of the database. If the version is unchanged, the content is unchanged.

        :raises sqlalchemy.exc.SQLAlchemyError: the database refuses the statement because of a defect of this
            service.
        """
        with self._asking_database():
            position = self._change_probe.position()
            self._is_elsewhere = self._is_not_ours = False
            if position.history != self._history:
                known, self._history = self._history, position.history
                # the first history since the start of the process causes no line in the log
                if known is not None:
                    LOG.info(
                        "the database has another history than before, so the worker reads all of it again:"
                        " now %s, before %s",
                        position.history,
                        known,
                    )
                    self._renew_connections()
        return position

    @contextmanager
    def _asking_database(self) -> Iterator[None]:
        """Return a context in which errors of the database become Unavailable or InvalidRequest."""
        try:
            with self._outage.attempt_request():
                yield
        except exc.SQLAlchemyError as error:
            self._look_elsewhere(error)
            self._require_schema(error)
            # write() repeats its transactions itself, but a query can only be repeated by its caller
            if errors.is_conflict(error):
                LOG.info("a query failed because of another transaction: %s", errors.database_words(error))
                raise TransactionConflict(_NOT_AVAILABLE) from error
            _refuse_unless_defect(error)
            raise

    def _require_schema(self, error: exc.SQLAlchemyError) -> None:
        """Check the schema if the error is about a missing table or a missing value.

        :raises Unavailable: this service cannot use the database. For example, the database was given back to
            OpenStack Placement, or it lacks rows that each write needs, or it does not answer.
        """
        # if a row of change_buckets was deleted, a stamp would be NULL, which the database refuses
        is_own_fault = isinstance(error, exc.IntegrityError) and not errors.is_conflict(error)
        if not (errors.is_missing_table(error) or is_own_fault):
            return
        try:
            migration.require_schema(self.url)
        except Unavailable as reason:
            if not self._is_not_ours:
                self._is_not_ours = True
                LOG.error("the database cannot be used any more: %s", reason)
            raise

    def _look_elsewhere(self, error: exc.SQLAlchemyError) -> None:
        """Replace all connections if the error means that they perhaps lead to the wrong server."""
        if errors.is_elsewhere(error.orig if isinstance(error, exc.DBAPIError) else error):
            if not self._is_elsewhere:
                self._is_elsewhere = True
                LOG.warning(
                    "the connected database server must not be used now, so the service closes all"
                    " connections and connects again: %s",
                    error,
                )
            self._renew_connections()

    def _renew_connections(self) -> None:
        """Replace all connections. A connection that is in use is closed after its use."""
        self._change_probe.give_up()
        for each in (self._writer, self._reader, self._autocommitting):
            each.dispose()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Yield a connection for reading, on which all queries see one snapshot of the database.

        :raises TransactionConflict: another transaction, such as a change of the schema on another node of a
            Galera cluster, has made a query fail.
        :raises InvalidRequest: a value, or the number of values, is too large for the database.
        :raises sqlalchemy.exc.SQLAlchemyError: a query is wrong because of a defect of this service.
        """
        with self._asking_database(), self._reader.connect() as conn, conn.begin():
            yield conn

    def write(self, work: Callable[[WriteTransaction], T]) -> T:
        """Run ``work`` in a new transaction, and commit it.

        An attempt can fail because of another transaction. For example, the two transactions wait for each
        other, or insert the same row. Then the attempt is rolled back, and ``work`` runs again from its
        beginning. A commit with an unknown outcome is never repeated.

        :raises Unavailable: the database does not answer, or each attempt conflicts with other transactions.
        :raises InvalidRequest: the database cannot store a value, or there are too many values.
        :raises sqlalchemy.exc.SQLAlchemyError: a statement is wrong because of a defect of this service.
        """
        deadline = time.monotonic() + self._lock_timeout
        for attempt in range(1, self._attempts + 1):
            tx = None
            try:
                with self._outage.attempt_request(), self._writer.connect() as conn, conn.begin() as begun:
                    # the first attempt is optimistic only if a second attempt is allowed, which checks for
                    # rows
                    tx = WriteTransaction(conn, optimistic=attempt == 1 and self._attempts > 1)
                    result = work(tx)
                    tx.send_rest()
                    # if the batch has already committed, this call only ends SQLAlchemy's transaction object
                    begun.commit()
                    return result
            # the exception must not be kept after this block. Its traceback refers to this frame, and this
            # reference cycle would keep all objects of the transaction until a garbage collection.
            except exc.SQLAlchemyError as error:
                self._look_elsewhere(error)
                self._require_schema(error)
                committing = tx is not None and tx.committing
                again = errors.is_conflict(error) or (errors.is_unavailable(error) and not committing)
                # after a failed optimistic attempt, another one is made even if this one has waited long for
                # locks
                refuted = tx is not None and tx.optimistic and isinstance(error, exc.IntegrityError)
                late = time.monotonic() > deadline and not refuted
                if not again or attempt == self._attempts or late:
                    _refuse_unless_defect(error)
                    raise
                LOG.debug(
                    "attempt %d of a transaction failed, and the transaction begins again: %s", attempt, error
                )
            # the pause is random, so that two transactions in conflict do not meet again
            time.sleep(random.uniform(0, 0.002 * 2**attempt))
        raise AssertionError("not reached")


def _refuse_unless_defect(error: exc.SQLAlchemyError) -> None:
    """Raise an error for the client, unless the error of the database is caused by a defect of this service.

    :raises InvalidRequest: the request can never succeed.
    :raises Unavailable: the database does not answer, or the transaction failed too often because of other
        transactions.
    """
    if isinstance(error, exc.DataError):
        raise InvalidRequest("The request contains a value that the database cannot store.") from error
    if errors.is_too_much(error):
        raise InvalidRequest("The request names more objects than can be handled at once.") from error
    if errors.is_conflict(error) or errors.is_unavailable(error):
        LOG.error("the database failed, and the client gets the answer 503: %s", error)
        raise Unavailable(_NOT_AVAILABLE) from error
