"""Keeps the skylines of all providers in the memory of a worker, similar to the read model.

The first search for windows reads the timed amounts of all providers. Later searches read only the timed
amounts of providers that have changed. Each write of timed amounts stamps their providers, and the counters
of a view show new stamps. So if no client searches for windows, the worker reads and keeps no timed amounts.

The worker reads amounts after a view has shown a change, and then opens another view. If a provider changes
between the read and the second view, the usage in the view and the timed amounts may be from different times.
Such amounts are *doubtful*. Before a caller refuses a request, it reads doubtful amounts once more
(:meth:`WindowTimetable.has_changed`). No other decision depends on such amounts, because the transaction of a
booking checks the booking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from placement.db.database import ServiceDatabase
from placement.read_model.feed import ModelView, ReadModel
from placement.search.claims.availability import skylines_in
from placement.search.claims.host_rooms import NO_SKYLINES, KeptSkylines, Skylines
from placement.store.holds import read_schedule
from placement.store.time_skyline import SkylinesByClass, SkylinesByProvider, make_skylines

_ATTEMPTS: Final = 3
"""Maximum number of reads for one view, if many providers change between each read and the view."""
_FEW: Final = 50
"""For at most this number of providers, amounts are read again for each view, and may be doubtful."""
_WAIT: Final = 0.5
"""Seconds between two checks whether the client still waits, while another thread reads amounts."""
_CHUNK: Final = 500
"""Maximum number of providers of which one transaction reads the timed amounts."""


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

    def changed_in(self, view: ModelView) -> dict[str, int]:
        """Return the providers that have changed between the read and the given view, by uuid."""
        providers = view.snapshot.providers
        known = self.counters if self.reread == view.reread else {}
        return {providers[each].uuid: each for each in view.changed_since(known)}


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
        self, only: Collection[str] | None = None, check_awaited: Callable[[], None] = lambda: None
    ) -> Iterator[TimedView]:
        """Return a fresh view of the model with the skylines of its providers.

        :param only: the uuids of the providers with the needed skylines; None means all providers. If there
            are few providers, their amounts are read each time.
        :param check_awaited: a function that is called regularly; its exception ends the wait.
        :raises placement.exceptions.Unavailable: the database does not answer.
        """
        if only is not None and len(only) <= _FEW:
            found = self._read_skylines(only)
            with self._model.fresh_view() as view:
                used = {uuid: found.get(uuid, NO_SKYLINES) for uuid in only}
                yield TimedView(view, skylines_in(view.snapshot, found), used)
            return
        has_read = False
        for attempt in range(_ATTEMPTS + 1):
            with self._model.fresh_view() as view:
                read, providers = self._read, view.snapshot.providers
                changed = read.changed_in(view)
                # windows of a provider end before it is deleted, so no change of it shows their end
                gone = set() if read.is_from(view) else read.skylines.keys() - providers.keys()
                # a view with few changes since a read suffices: in a busy cloud each view has some
                if not changed or (has_read and len(changed) <= _FEW) or attempt == _ATTEMPTS:
                    found = {uuid: read.skylines.get(each, NO_SKYLINES) for uuid, each in changed.items()}
                    # a copy of the skylines of a large cloud takes a millisecond
                    left = read.skylines.with_changes({}, gone, ()) if gone else read.skylines
                    yield TimedView(view, left, found)
                    return
                counters, reread = view.bucket_counters(), view.reread
                roots = {providers[each].root_id for each in changed.values()}
            # one thread reads for all others, outside of the turn, so that no other request waits
            while not self._refreshing.acquire(timeout=_WAIT):
                check_awaited()
            try:
                has_read = self._read is read
                if has_read:
                    found = self._read_skylines(changed, check_awaited)
                    kept = read.skylines.with_changes(
                        {changed[uuid]: each for uuid, each in found.items()},
                        {*gone, *changed.values()},
                        roots,
                    )
                    self._read = _ReadSkylines(reread, counters, kept)
            finally:
                self._refreshing.release()

    def has_changed(self, timed: TimedView) -> bool:
        """Return whether doubtful amounts have changed, so that a refusal may be wrong."""
        found = self._read_skylines(timed.doubtful)
        return any(found.get(uuid, NO_SKYLINES) != used for uuid, used in timed.doubtful.items())

    def _read_skylines(
        self, uuids: Collection[str], check_awaited: Callable[[], None] = lambda: None
    ) -> SkylinesByProvider:
        found: dict[str, SkylinesByClass] = {}
        asked = list(uuids)
        for start in range(0, len(asked), _CHUNK):
            check_awaited()
            with self._database.read() as conn:
                schedule = read_schedule(conn, of_providers=asked[start : start + _CHUNK])
            found.update(make_skylines(schedule.amounts, schedule.holds))
        return found
