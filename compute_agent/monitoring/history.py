"""Reads the samples that are kept; the agent need not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import sqlalchemy as sa

from compute_agent.monitoring.reading import CacheUse, add_up
from compute_agent.monitoring.samples import StoredSample
from compute_agent.monitoring.tables import NO_CACHE, SAMPLES, TARGETS, engine_to_read


class HistoryError(Exception):
    """There is nothing to read, or not what was asked for; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Seconds since the epoch, both ends included."""

    since: float
    until: float


class SampleHistory:
    """The samples of a file."""

    def __init__(self, path: Path) -> None:
        """Samples in the database ``path``.

        :raises HistoryError: there is no such file.
        """
        if not path.is_file():
            raise HistoryError(f"there are no samples: no file {path}; does the agent keep any here?")
        self._path = path
        self._engine = engine_to_read(path)

    def latest(self) -> list[StoredSample]:
        """The last samples of each guest and class: one for each cache.

        :raises HistoryError:
        """
        with self._connect() as connection:
            # The end of each target is where its key ends: no need to look at the rest.
            other = SAMPLES.alias()
            last = sa.select(sa.func.max(other.c.time)).where(other.c.target_id == TARGETS.c.id)
            query = _query().where(SAMPLES.c.time == last.correlate(TARGETS).scalar_subquery())
            found = [_sample(row) for row in connection.execute(query)]
        newest: dict[str, float] = {}
        for one in found:  # a guest that changed its class or name is in it more than once
            newest[_who(one)] = max(newest.get(_who(one), one.time), one.time)
        return sorted(
            (one for one in found if one.time == newest[_who(one)]),
            key=lambda one: (bool(one.guest), one.qos_class, one.name, one.guest, _cache_order(one)),
        )

    def latest_together(self) -> list[StoredSample]:
        """The last sample of each guest and class, of all its caches in one.

        :raises HistoryError:
        """
        groups = groupby(self.latest(), key=lambda one: (one.guest, one.qos_class))
        return [_together(list(samples)) for _, samples in groups]

    def of(self, wanted: str, span: TimeSpan) -> list[StoredSample]:
        """The samples of a guest (its uuid or name) or of a class, by time and cache.

        :raises HistoryError:
        """
        with self._connect() as connection:
            columns = TARGETS.c
            targets = connection.execute(
                sa.select(columns.id, columns.guest, columns.name, columns.qos_class)
            )
            chosen = _choose(wanted, [tuple(row) for row in targets])
            query = _query().where(
                columns.id.in_(chosen), SAMPLES.c.time >= span.since, SAMPLES.c.time <= span.until
            )
            found = [_sample(row) for row in connection.execute(query)]
        return sorted(found, key=lambda one: (one.time, _cache_order(one)))

    @contextmanager
    def _connect(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except sa.exc.DatabaseError as error:
            raise HistoryError(f"the samples in {self._path} cannot be read: {error.orig}") from error


def _together(samples: Sequence[StoredSample]) -> StoredSample:
    caches = add_up({0: CacheUse(each.occupancy, each.local, each.total)} for each in samples)[0]
    return replace(
        samples[0], cache_id=None, occupancy=caches.occupancy, local=caches.local, total=caches.total
    )


def _query() -> sa.Select[tuple[object, ...]]:
    return sa.select(SAMPLES, TARGETS.c.guest, TARGETS.c.name, TARGETS.c.qos_class).where(
        SAMPLES.c.target_id == TARGETS.c.id
    )


def _sample(row: sa.Row[tuple[object, ...]]) -> StoredSample:
    cache = None if row.cache_id == NO_CACHE else row.cache_id
    return StoredSample(
        row.time, row.guest, row.name, row.qos_class, cache, row.occupancy, row.local, row.total, row.cpu
    )


def _choose(wanted: str, targets: Sequence[tuple[int, str, str, str]]) -> list[int]:
    """The ids of what is meant: a uuid before a name, and a name before a class."""
    for meant in (
        {(ident, guest) for ident, guest, _, _ in targets if guest and guest == wanted.lower()},
        {(ident, guest) for ident, guest, name, _ in targets if guest and name == wanted},
        {(ident, "") for ident, guest, _, qos_class in targets if not guest and qos_class == wanted},
    ):
        guests = {guest for _, guest in meant}
        if len(guests) > 1:
            raise HistoryError(f"several guests are called {wanted}: {', '.join(sorted(guests))}")
        if meant:
            return [ident for ident, _ in meant]
    raise HistoryError(f"there are no samples of a guest or class {wanted}")


def _who(sample: StoredSample) -> str:
    return sample.guest or f"class {sample.qos_class}"


def _cache_order(sample: StoredSample) -> int:
    return NO_CACHE if sample.cache_id is None else sample.cache_id
