"""Transactions: snapshots to read, serialised and retried ones to write."""

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import buckets, engine, errors
from placement.db.engine import PoolOptions
from placement.db.names import Names
from placement.db.probe import Probe
from placement.db.tables import change_buckets, resource_providers
from placement.exceptions import InvalidRequest, Unavailable

LOG = logging.getLogger(__name__)
T = TypeVar("T")

_chosen_providers: Final = resource_providers.c.id.in_(sa.bindparam("ids", expanding=True))
_present_counter: Final = (
    sa.select(change_buckets.c.counter)
    .where(change_buckets.c.id == resource_providers.c.bucket)
    .scalar_subquery()
)
_stamp_usage: Final = (
    sa.update(resource_providers)
    .where(_chosen_providers)
    .values(
        change_seq=_present_counter,
        generation=resource_providers.c.generation + sa.bindparam("by"),
        updated_at=sa.bindparam("now"),
    )
)
_stamp_all: Final = _stamp_usage.values(described_seq=_present_counter)


class Transaction:
    """One write transaction: a connection, the locks it took and what it changed.

    ``now`` is the time (seconds since 1970) that its changes carry.
    """

    def __init__(self, conn: sa.Connection, names: Names) -> None:
        self.conn = conn
        self.names = names
        self.now = time.time()
        self._changed: dict[int, _Change] = {}

    def lock(self, uuids: Iterable[str]) -> None:
        """Wait until no other transaction writes to these providers.

        A second call in one transaction may wait in a circle with another
        transaction; the database ends that and :meth:`Database.write` starts again.
        """
        buckets.lock(self.conn, (buckets.bucket_of(uuid) for uuid in uuids))

    def lock_names(self) -> None:
        """As :meth:`lock`, for the names of resource classes and traits."""
        buckets.lock(self.conn, (buckets.NAMES,))

    def lock_trees(self) -> None:
        """As :meth:`lock`, for moving providers between parents."""
        buckets.lock(self.conn, (buckets.TREES,))

    def exists(self, condition: sa.ColumnElement[bool]) -> bool:
        """Whether the table that the condition is about has such a row."""
        return self.conn.execute(sa.select(sa.literal(1)).where(condition).limit(1)).first() is not None

    def changed(self, provider_ids: Iterable[int], *, generation: bool, usage_only: bool = False) -> None:
        """Note that these (locked) providers changed; with ``generation`` theirs goes up by one (more).

        With ``usage_only`` nothing changed but how much of them is used, which readers take up faster.
        """
        for number in provider_ids:
            before = self._changed.get(number, _NO_CHANGE)
            self._changed[number] = _Change(before.bumps + generation, before.usage_only and usage_only)

    def deleted(self, uuid: str) -> None:
        """Note that this (locked) provider is gone."""
        buckets.count_deletion(self.conn, buckets.bucket_of(uuid))

    def flush(self) -> None:
        """Write the stamps of what changed; the last thing before the commit."""
        for change in sorted(set(self._changed.values())):
            statement = _stamp_usage if change.usage_only else _stamp_all
            ids = sorted(number for number, each in self._changed.items() if each == change)
            self.conn.execute(statement, {"ids": ids, "now": self.now, "by": change.bumps})


class _Change(NamedTuple):
    """By how much the generation of a provider goes up, and whether nothing but its usage changed."""

    bumps: int
    usage_only: bool


_NO_CHANGE: Final = _Change(0, usage_only=True)


class Database:
    """The one database of a service process.

    :param url: an SQLAlchemy URL of SQLite, PostgreSQL, MySQL or MariaDB.
    """

    def __init__(self, url: str, options: PoolOptions | None = None) -> None:
        options = options or PoolOptions()
        self.url = url
        self.names = Names()
        self._patience = options.lock_timeout
        self._attempts = 1 + options.retries
        self._writer = engine.create(url, "READ COMMITTED", options)
        self._reader = engine.create(url, "REPEATABLE READ", options, ping=True)
        self._autocommitting = engine.create(url, "AUTOCOMMIT", options)
        self._probe = Probe(self._autocommitting)

    def close(self) -> None:
        """Give all connections back."""
        self._probe.close()
        for each in (self._writer, self._reader, self._autocommitting):
            each.dispose()

    def counters_sum(self) -> int:
        """The sum of all change counters: the same number as before means that nothing changed.

        :raises Unavailable: when the database does not answer.
        """
        try:
            return self._probe.counters_sum()
        except self._probe.errors as error:
            raise _unavailable(error) from error

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection whose queries all see one and the same state.

        :raises Unavailable: when the database does not answer.
        """
        try:
            with self._reader.connect() as conn, conn.begin():
                yield conn
        except exc.SQLAlchemyError as error:
            raise _unavailable(error) from error

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run ``work`` in a transaction of its own and commit what it did.

        It runs again, from the start, when it lost to another transaction
        (deadlock, a row that both inserted); nothing it did before is kept. A
        commit whose outcome is unknown is never repeated.

        :raises Unavailable: when the database does not answer or contention does not end.
        """
        deadline = time.monotonic() + self._patience
        for attempt in range(1, self._attempts + 1):
            committing = False
            try:
                with self._writer.connect() as connection:
                    conn = connection.execution_options(**{engine.WRITES: True})
                    with conn.begin() as begun:
                        tx = Transaction(conn, self.names)
                        result = work(tx)
                        tx.flush()
                        committing = True
                        begun.commit()
                        return result
            except exc.IntegrityError as error:
                self.names.clear()
                last: exc.SQLAlchemyError = error
            except exc.DataError as error:
                raise InvalidRequest("The request holds a value that the database cannot.") from error
            except exc.SQLAlchemyError as error:
                if errors.is_too_much(error):
                    raise InvalidRequest(
                        "The request names more things than can be handled at once."
                    ) from error
                again = errors.is_transient(error) or (errors.is_disconnect(error) and not committing)
                if not again:
                    raise _unavailable(error) from error
                last = error
            LOG.debug("transaction attempt %d failed: %s", attempt, last)
            if time.monotonic() > deadline:
                break
            time.sleep(random.uniform(0, 0.002 * 2**attempt))
        raise _unavailable(last) from last


def _unavailable(error: Exception) -> Unavailable:
    LOG.error("database error: %s", error)
    return Unavailable("The database is not available. Please try again later.")
