"""A picture of the samples of one guest or class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from compute_agent.drawing.chart import COLOURS, ChartCurve, ChartPanel, Point, draw
from compute_agent.monitoring.history import TimeSpan
from compute_agent.monitoring.samples import StoredSample

MAX_CACHES: Final = 6
"""Caches with curves of their own: those most used. The others are added up."""

BREAK: Final = 3.5
"""Curves are broken where samples are further apart than so many times the usual distance."""

_RATES: Final = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3))
_SIZES: Final = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))

Value = Callable[[StoredSample], float | None]


def plot(samples: Sequence[StoredSample], span: TimeSpan) -> str:
    """An SVG document: bandwidth and occupancy by cache, and use of CPU where it is known.

    ``samples`` are of one guest or class, by time; there has to be one.
    """
    caches = _by_use(samples)
    own, others = sorted(caches[:MAX_CACHES]), caches[MAX_CACHES:]
    rate_unit, rate = _unit((one.total or one.local for one in samples), _RATES)
    size_unit, size = _unit((one.occupancy for one in samples), _SIZES)
    bandwidth, occupancy = [], []
    for cache, colour in zip(own, COLOURS, strict=False):
        of_cache = [one for one in samples if one.cache_id == cache]
        name = f"L3 {cache}"
        bandwidth.append(ChartCurve(f"{name} total", colour, _points(of_cache, lambda one: one.total, rate)))
        local = _points(of_cache, lambda one: one.local, rate)
        bandwidth.append(ChartCurve(f"{name} local", colour, local, dashed=True))
        occupancy.append(ChartCurve(name, colour, _points(of_cache, lambda one: one.occupancy, size)))
    if others:
        rest = _added_up(samples, others)
        name = f"{len(others)} other L3"
        bandwidth.append(ChartCurve(f"{name} total", COLOURS[-1], _points(rest, lambda one: one.total, rate)))
        occupancy.append(ChartCurve(name, COLOURS[-1], _points(rest, lambda one: one.occupancy, size)))
    panels = [
        ChartPanel(f"Memory bandwidth ({rate_unit})", bandwidth),
        ChartPanel(f"Last-level cache filled ({size_unit})", occupancy),
    ]
    if any(one.cpu is not None for one in samples):
        cpu = {one.time: one.cpu for one in samples}
        panels.append(ChartPanel("CPU in use (cores)", [ChartCurve("CPU", COLOURS[0], list(cpu.items()))]))
    return draw(_title(samples[-1]), panels, span.since, span.until, BREAK * _usual_distance(samples))


def _title(sample: StoredSample) -> str:
    if not sample.guest:
        return f"Class {sample.qos_class}"
    name = f"{sample.name}, " if sample.name and sample.name != sample.guest else ""
    return f"Guest {name}{sample.guest}, class {sample.qos_class}"


def _usual_distance(samples: Sequence[StoredSample]) -> float:
    times = sorted({one.time for one in samples})
    return median(later - earlier for earlier, later in pairwise(times)) if len(times) > 1 else 1.0


def _by_use(samples: Sequence[StoredSample]) -> list[int]:
    """Cache ids, those that most was moved through first; then those that most was kept in."""
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


def _points(samples: Sequence[StoredSample], value: Value, size: float) -> list[Point]:
    return [(one.time, None if (amount := value(one)) is None else amount / size) for one in samples]


def _unit(values: Iterable[float | None], units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The largest unit that the highest value is at least one of."""
    highest = max((value or 0.0 for value in values), default=0.0)
    return next((unit for unit in units if highest >= unit[1]), units[-1])
