"""Reads the stored samples of cache use, also without a running agent, and draws them."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from compute_agent.drawing.svg import COLOURS, ChartCurve, ChartPanel, Point, draw_chart
from compute_agent.monitoring.readings import CacheUse, add_up
from compute_agent.monitoring.samples import NO_CACHE, StoredSample, connect_to_read


class HistoryError(Exception):
    """The file is missing or unreadable, or has no such guest or class; the text names the reason."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A span of time in seconds since the epoch, including both ends."""

    since: float
    until: float


class SampleHistory:
    """Reads the stored samples of a file."""

    def __init__(self, path: Path) -> None:
        """Open the database ``path``.

        :raises HistoryError: the file is missing.
        """
        if not path.is_file():
            raise HistoryError(f"there are no samples: no file {path}; does the agent store any here?")
        self._path = path

    def latest_samples(self) -> list[StoredSample]:
        """The latest samples of each guest and class, one for each cache.

        :raises HistoryError: the file cannot be read.
        """
        with self._connect() as connection:
            # SQLite finds the last time of a target by the primary key, which begins with target and time.
            last = "SELECT max(other.time) FROM samples AS other WHERE other.target_id = targets.id"
            found = [_stored_sample(row) for row in connection.execute(f"{_QUERY} AND time = ({last})")]
        newest: dict[str, float] = {}
        # A guest that had another class or name before has several targets, of which only the newest counts.
        for one in found:
            newest[_target_name(one)] = max(newest.get(_target_name(one), one.time), one.time)
        return sorted(
            (one for one in found if one.time == newest[_target_name(one)]),
            key=lambda one: (bool(one.guest), one.qos_class, one.name, one.guest, _cache_order(one)),
        )

    def latest_together(self) -> list[StoredSample]:
        """The latest sample of each guest and class, as the sum over its caches.

        :raises HistoryError: the file cannot be read.
        """
        groups = groupby(self.latest_samples(), key=lambda one: (one.guest, one.qos_class))
        return [_add_caches(list(samples)) for _, samples in groups]

    def samples_of(self, wanted: str, span: TimeSpan) -> list[StoredSample]:
        """The samples of a guest or class in a span of time, sorted by time, then by id of the L3 cache.

        :param wanted: the uuid or name of a guest, or the name of a QoS class.
        :raises HistoryError: the file cannot be read, or has no such guest or class.
        """
        with self._connect() as connection:
            targets = connection.execute("SELECT id, guest, name, class FROM targets").fetchall()
            found = [
                _stored_sample(row)
                for target in _choose_targets(wanted, targets)
                for row in connection.execute(
                    f"{_QUERY} AND id = ? AND time BETWEEN ? AND ?", (target, span.since, span.until)
                )
            ]
        return sorted(found, key=lambda one: (one.time, _cache_order(one)))

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(connect_to_read(self._path)) as connection:
                yield connection
        except sqlite3.DatabaseError as error:
            raise HistoryError(f"the samples in {self._path} cannot be read: {error}") from error


def _add_caches(samples: Sequence[StoredSample]) -> StoredSample:
    caches = add_up({0: CacheUse(each.occupancy, each.local, each.total)} for each in samples)[0]
    return replace(
        samples[0], cache_id=None, occupancy=caches.occupancy, local=caches.local, total=caches.total
    )


_QUERY: Final = """
SELECT time, guest, name, class, cache_id, occupancy, local, total, cpu
FROM samples, targets WHERE target_id = id"""


def _stored_sample(row: tuple[Any, ...]) -> StoredSample:
    time, guest, name, qos_class, cache, *values = row
    return StoredSample(time, guest, name, qos_class, None if cache == NO_CACHE else cache, *values)


def _choose_targets(wanted: str, targets: Sequence[tuple[int, str, str, str]]) -> list[int]:
    """The database ids of the targets that match: by uuid of a guest, else by its name, else by QoS class.

    :raises HistoryError: no target matches, or several guests have the name.
    """
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


def _target_name(sample: StoredSample) -> str:
    return sample.guest or f"class {sample.qos_class}"


def _cache_order(sample: StoredSample) -> int:
    return NO_CACHE if sample.cache_id is None else sample.cache_id


MAX_CACHES: Final = 6
"""Maximum number of caches with a curve of their own. One more curve shows the sum of all other caches."""

# Up to two missing samples do not break a curve, because a round can be late.
BREAK: Final = 3.5
"""A gap between samples breaks a curve if it is longer than this multiple of the usual distance of
samples.
"""

_RATES: Final = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3))
_SIZES: Final = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))

Value = Callable[[StoredSample], float | None]


def plot_samples(samples: Sequence[StoredSample], span: TimeSpan) -> str:
    """Draw an SVG document with bandwidth and occupancy by cache, and CPU use if it is known.

    :param samples: the samples of one guest or class in the order of their times; at least one.
    :param span: the span of time of the horizontal axis.
    """
    caches = _by_use(samples)
    own, others = sorted(caches[:MAX_CACHES]), caches[MAX_CACHES:]
    rate_unit, rate = _choose_unit((one.total or one.local for one in samples), _RATES)
    size_unit, size = _choose_unit((one.occupancy for one in samples), _SIZES)
    # COLOURS has more entries than MAX_CACHES, and zip() leaves out colours without a cache.
    shown = [
        (f"L3 {cache}", colour, [one for one in samples if one.cache_id == cache])
        for cache, colour in zip(own, COLOURS, strict=False)
    ]
    if others:
        shown.append((f"{len(others)} other L3", COLOURS[-1], _added_up(samples, others)))
    bandwidth, occupancy = [], []
    for name, colour, of_cache in shown:
        total = _curve_points(of_cache, lambda one: one.total, rate)
        bandwidth.append(ChartCurve(f"{name} total", colour, total))
        # The sum over other caches has no bandwidth to local memory.
        if of_cache[0].cache_id is not None:
            local = _curve_points(of_cache, lambda one: one.local, rate)
            bandwidth.append(ChartCurve(f"{name} local", colour, local, dashed=True))
        occupancy.append(ChartCurve(name, colour, _curve_points(of_cache, lambda one: one.occupancy, size)))
    panels = [
        ChartPanel(f"Memory bandwidth ({rate_unit})", bandwidth),
        ChartPanel(f"Last-level cache filled ({size_unit})", occupancy),
    ]
    if any(one.cpu is not None for one in samples):
        cpu = {one.time: one.cpu for one in samples}
        panels.append(ChartPanel("CPU in use (cores)", [ChartCurve("CPU", COLOURS[0], list(cpu.items()))]))
    return draw_chart(
        _chart_title(samples[-1]), panels, span.since, span.until, BREAK * _usual_distance(samples)
    )


def _chart_title(sample: StoredSample) -> str:
    if not sample.guest:
        return f"Class {sample.qos_class}"
    name = f"{sample.name}, " if sample.name and sample.name != sample.guest else ""
    return f"Guest {name}{sample.guest}, class {sample.qos_class}"


def _usual_distance(samples: Sequence[StoredSample]) -> float:
    times = sorted({one.time for one in samples})
    return median(later - earlier for earlier, later in pairwise(times)) if len(times) > 1 else 1.0


def _by_use(samples: Sequence[StoredSample]) -> list[int]:
    """The ids of caches, sorted by bytes moved and then by occupancy, the largest first."""
    used: dict[int, tuple[float, int]] = {}
    for one in samples:
        if one.cache_id is not None:
            moved, kept = used.get(one.cache_id, (0.0, 0))
            used[one.cache_id] = (moved + (one.total or one.local or 0.0), kept + (one.occupancy or 0))
    return sorted(used, key=lambda cache: (-used[cache][0], -used[cache][1], cache))


def _added_up(samples: Sequence[StoredSample], caches: Collection[int]) -> list[StoredSample]:
    sums: dict[float, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for one in samples:
        if one.cache_id in caches:
            moved, kept = sums[one.time]
            sums[one.time] = (moved + (one.total or 0.0), kept + (one.occupancy or 0))
    return [
        StoredSample(time, "", "", "", None, occupancy=kept, total=moved)
        for time, (moved, kept) in sums.items()
    ]


def _curve_points(samples: Sequence[StoredSample], value: Value, size: float) -> list[Point]:
    return [(one.time, None if (amount := value(one)) is None else amount / size) for one in samples]


def _choose_unit(values: Iterable[float | None], units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The name and the size of the largest unit that does not exceed the highest value."""
    highest = max((value or 0.0 for value in values), default=0.0)
    return next((unit for unit in units if highest >= unit[1]), units[-1])
