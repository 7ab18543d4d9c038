"""Keeps the skylines of all providers in the memory of a worker, similar to the read model.

If there are timed amounts when a worker starts, the worker reads those of all providers in the background;
otherwise the first search for windows reads them. In a large cloud this takes seconds, so it is done in
steps, and a request that has waited too long gives up. Later searches read only the timed amounts of
providers that have changed. Each write of timed amounts stamps their providers, and the counters of a view
show new stamps. So a cloud without windows and without claims that end reads and keeps nothing.

The worker reads amounts after a view has shown a change, and then opens another view. If a provider changes
between the read and the second view, the usage in the view and the timed amounts are perhaps from different
times. Such amounts are *doubtful*. Before a caller refuses a request, it reads doubtful amounts once more
(:meth:`WindowTimetable.has_changed`). No other decision depends on such amounts, because the transaction of a
booking checks the booking.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from placement.db.buckets import bucket_of
from placement.db.database import ServiceDatabase
from placement.exceptions import SEARCH_TOO_LONG, Unavailable
from placement.read_model.feed import ModelView, ReadModel
from placement.read_model.provider import Provider
from placement.search.claims.availability import skylines_in
from placement.search.claims.host_rooms import NO_SKYLINES, KeptSkylines, Skylines
from placement.store.time_schedule import has_amounts, read_schedule
from placement.store.time_skyline import SkylinesByClass, SkylinesByProvider, make_skylines

_ATTEMPTS: Final = 3
"""Maximum number of reads for one view, if many providers change between each read and the view."""
_FEW: Final = 50
"""For at most this number of providers, amounts are read again for each view, and may be doubtful."""
_WAIT: Final = 0.5
"""Seconds between two checks whether the client still waits, while another thread reads amounts."""
_CHUNK: Final = 500
"""Maximum number of providers of which one transaction reads the timed amounts."""
# the first search after the start reads all windows of the cloud
MAX_WAIT: Final = 5.0
"""Maximum seconds for which a request reads timed amounts or waits for another thread that reads them."""


@dataclass(frozen=True, slots=True)
class TimedView:
    """A view of the model with the skylines of its providers.

    ``doubtful`` has the used skylines of those providers that may have changed between the read of their
    amounts and the view.
    """

    view: ModelView
    skylines: Skylines
    doubtful: SkylinesByProvider


@dataclass(frozen=True, slots=True)
class _ReadSkylines:
    """Unchangeable skylines by provider id, and the counters of the view before the read."""

    reread: int = -1
    counters: Mapping[int, int] = field(default_factory=dict)
    skylines: KeptSkylines = field(default_factory=KeptSkylines)

    def is_from(self, view: ModelView) -> bool:
        """Return whether the database has not changed between the read and the given view."""
        return self.reread == view.reread and self.counters == view.bucket_counters()

    def changed_in(self, view: ModelView) -> list[Provider]:
        """Return the providers that have changed between the read and the given view."""
        providers = view.snapshot.providers
        known = self.counters if self.reread == view.reread else {}
        return [providers[each] for each in view.changed_since(known)]

    def with_step(
        self,
        target: _ReadSkylines,
        some: Sequence[Provider],
        found: SkylinesByProvider,
        gone: Collection[int],
    ) -> _ReadSkylines:
        """Return a copy with other skylines of all changed providers of some buckets.

        :param target: the counters of the view that has shown the changes.
        """
        known = self.counters if self.reread == target.reread else {}
        read = {bucket: target.counters[bucket] for bucket in {bucket_of(each.uuid) for each in some}}
        skylines = self.skylines.with_changes(
            {each.id: found[each.uuid] for each in some if each.uuid in found},
            {*gone, *(each.id for each in some)},
            {each.root_id for each in some},
        )
        return _ReadSkylines(target.reread, {**known, **read}, skylines)


class WindowTimetable:
    """The skylines that a worker keeps in memory.

    :param model: the read model; the skylines belong to its views.
    """

    def __init__(self, model: ReadModel, database: ServiceDatabase) -> None:
        self._model = model
        self._database = database
        self._refreshing = threading.Lock()
        self._read = _ReadSkylines()

    @contextmanager
    def fresh_view(
        self,
        only: Collection[str] | None = None,
        check_awaited: Callable[[], None] = lambda: None,
        *,
        max_wait: float = MAX_WAIT,
    ) -> Iterator[TimedView]:
        """Return a fresh view of the model with the skylines of its providers.

        :param only: the uuids of the providers with the needed skylines; None means all providers. If there
            are few providers, their amounts are read each time.
        :param check_awaited: a function that is called regularly; its exception ends the wait.
        :param max_wait: maximum seconds for which this call reads timed amounts of all providers.
        :raises placement.exceptions.Unavailable: the database does not answer, or reading takes too long; the
            next call goes on with the rest.
        """
        if only is not None and len(only) <= _FEW:
            found = self._read_skylines(only)
            with self._model.fresh_view() as view:
                used = {uuid: found.get(uuid, NO_SKYLINES) for uuid in only}
                yield TimedView(view, skylines_in(view.snapshot, found), used)
            return
        has_read, end = False, time.monotonic() + max_wait
        for attempt in range(_ATTEMPTS + 1):
            with self._model.fresh_view() as view:
                read, providers = self._read, view.snapshot.providers
                changed = read.changed_in(view)
                # windows of a provider end before the provider is deleted, so no change of a provider shows
                # their end
                known = read.skylines.keys()
                # the comparison is quick, and mostly no provider is deleted
                gone = set() if read.is_from(view) or known <= providers.keys() else known - providers.keys()
                # a view with few changes since a read suffices, because in a busy cloud each view has some
                # changes
                if not changed or (has_read and len(changed) <= _FEW) or attempt == _ATTEMPTS:
                    found = {each.uuid: read.skylines.get(each.id, NO_SKYLINES) for each in changed}
                    # a copy of the skylines of a large cloud takes a millisecond
                    left = read.skylines.with_changes({}, gone, ()) if gone else read.skylines
                    yield TimedView(view, left, found)
                    return
                target = _ReadSkylines(view.reread, view.bucket_counters())
            # one thread reads for all others. It has no view meanwhile, so that no other request waits
            while not self._refreshing.acquire(timeout=_WAIT):
                check_awaited()
                _check_time(end)
            try:
                has_read = self._read is read
                if has_read:
                    for some in _whole_buckets(changed):
                        check_awaited()
                        # each request makes at least one step, and the results of all steps are kept
                        if self._read is not read:
                            _check_time(end)
                        found = self._read_skylines([each.uuid for each in some])
                        self._read = self._read.with_step(target, some, found, gone)
                    self._read = replace(target, skylines=self._read.skylines)
            finally:
                self._refreshing.release()

    @contextmanager
    def recent_view(self, seconds: float) -> Iterator[TimedView | None]:
        """Return a recent view of the model with the skylines that are in memory, without reading amounts.

        The skylines of a few providers may be outdated. Only callers that check amounts again in a
        transaction before they write may use this view.

        :param seconds: the maximum age of the view of the model.
        :returns: None if the skylines of many providers are outdated or were never read.
        """
        with self._model.recent_view(seconds) as view:
            read = self._read
            if read.reread != view.reread or len(read.changed_in(view)) > _FEW:
                yield None
            else:
                yield TimedView(view, read.skylines, {})

    def read_ahead(self) -> None:
        """Read the timed amounts of all providers, if there are any, so that no search waits for them."""
        # without a database, searches report the error
        with suppress(Unavailable):
            with self._database.read() as conn:
                if not has_amounts(conn):
                    return
            with self.fresh_view(max_wait=math.inf):
                pass

    def has_changed(self, timed: TimedView) -> bool:
        """Return whether doubtful amounts have changed, so that a refusal is perhaps wrong."""
        found = self._read_skylines(timed.doubtful)
        return any(found.get(uuid, NO_SKYLINES) != used for uuid, used in timed.doubtful.items())

    def _read_skylines(self, uuids: Collection[str]) -> SkylinesByProvider:
        found: dict[str, SkylinesByClass] = {}
        asked = list(uuids)
        for start in range(0, len(asked), _CHUNK):
            with self._database.read() as conn:
                schedule = read_schedule(conn, of_providers=asked[start : start + _CHUNK])
            found.update(make_skylines(schedule.amounts, schedule.holds))
        return found


def _check_time(end: float) -> None:
    """Raise Unavailable if a request has waited too long for amounts."""
    if time.monotonic() > end:
        raise Unavailable(
            "This worker is still reading the windows of all hosts, which takes seconds in a large cloud."
            " Please try again.",
            SEARCH_TOO_LONG,
        )


def _whole_buckets(providers: Iterable[Provider]) -> Iterator[list[Provider]]:
    """Divide providers into lists of about :data:`_CHUNK`, or of one bucket; no bucket is divided."""
    some: list[Provider] = []
    for _, members in groupby(sorted(providers, key=_provider_bucket), _provider_bucket):
        of_bucket = list(members)
        if some and len(some) + len(of_bucket) > _CHUNK:
            yield some
            some = []
        some += of_bucket
    if some:
        yield some


def _provider_bucket(provider: Provider) -> int:
    return bucket_of(provider.uuid)
