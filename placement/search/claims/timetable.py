"""The skylines of all providers in the memory of a worker, kept like the read model.

The first search for windows reads the timed amounts of all providers. Later ones read those of the providers
that have changed: each write of timed amounts stamps their providers, and the counters of a view show new
stamps. So a cloud without windows and without such searches reads and keeps nothing.

Amounts are read after the view that shows a change, and then the view is opened again. A provider that
changes at each attempt may have newer amounts than its usage in the view. This is harmless, because a booking
is checked in its transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from placement.db.database import ServiceDatabase
from placement.read_model.feed import ModelView, ReadModel
from placement.search.claims.availability import skylines_in
from placement.search.claims.host_times import Skylines
from placement.store.holds import read_schedule
from placement.store.time_skyline import SkylinesByClass, make_skylines

_ATTEMPTS: Final = 3
"""Maximum number of reads for one view, while providers change between the read and the view."""
_FEW: Final = 50
"""Number of providers up to which a view reads their timed amounts, instead of keeping all skylines."""
_CHUNK: Final = 500
"""Maximum number of providers of which one transaction reads the timed amounts."""


@dataclass(frozen=True, slots=True)
class _ReadSkylines:
    """Skylines by provider id, which are never changed, and the counters of the view before their read."""

    reread: int = -1
    counters: Mapping[int, int] = field(default_factory=dict)
    skylines: Skylines = field(default_factory=dict)

    def is_current(self, view: ModelView) -> bool:
        """Return whether no provider has changed between the read and the view."""
        return self.reread == view.reread and self.counters == view.bucket_counters()


class WindowTimetable:
    """The skylines of a worker.

    :param model: the read model; the skylines belong to its views.
    """

    def __init__(self, model: ReadModel, database: ServiceDatabase) -> None:
        self._model = model
        self._database = database
        self._refreshing = threading.Lock()
        self._read = _ReadSkylines()

    @contextmanager
    def fresh_view(self, only: Collection[str] | None = None) -> Iterator[tuple[ModelView, Skylines]]:
        """Return a fresh view of the model with the skylines of its providers.

        :param only: the uuids of the providers that matter; None for all. Few ones are read each time.
        :raises placement.exceptions.Unavailable: the database does not answer.
        """
        if only is not None and len(only) <= _FEW:
            found = self._read_skylines(only) if only else {}
            with self._model.fresh_view() as view:
                yield view, skylines_in(view.snapshot, found)
            return
        for attempt in range(_ATTEMPTS + 1):
            with self._model.fresh_view() as view:
                read = self._read
                if read.is_current(view):
                    yield view, read.skylines
                    return
                if attempt == _ATTEMPTS:
                    yield (
                        view,
                        {
                            each: some
                            for each, some in read.skylines.items()
                            if each in view.snapshot.providers
                        },
                    )
                    return
            # one thread reads for all others, outside of the turn, so that no other request waits
            with self._refreshing:
                self._refresh_skylines()

    def _refresh_skylines(self) -> None:
        with self._model.fresh_view() as view:
            read = self._read
            if read.is_current(view):
                return
            if read.reread != view.reread:
                read = _ReadSkylines(view.reread)
            providers, counters = view.snapshot.providers, view.bucket_counters()
            changed = {providers[each].uuid: each for each in view.changed_since(read.counters)}
            # windows of a provider end before it is deleted, so no change shows their end
            kept = {each: some for each, some in read.skylines.items() if each in providers}
        uuids = list(changed)
        for start in range(0, len(uuids), _CHUNK):
            chunk = uuids[start : start + _CHUNK]
            found = self._read_skylines(chunk)
            for uuid in chunk:
                kept.pop(changed[uuid], None)
                if uuid in found:
                    kept[changed[uuid]] = found[uuid]
        self._read = _ReadSkylines(read.reread, counters, kept)

    def _read_skylines(self, uuids: Collection[str]) -> Mapping[str, SkylinesByClass]:
        with self._database.read() as conn:
            schedule = read_schedule(conn, of_providers=uuids)
        return make_skylines(schedule.amounts, schedule.holds)
