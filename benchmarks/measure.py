"""Medians of interleaved repeats, so that a disturbance of the machine affects all sides alike."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson

from benchmarks.http import NoAnswer, RequestRefused, ServiceConnection

MIN_REPEATS: Final = 7
_SECONDS_PER_REPEAT: Final = 0.1
_MAX_REQUESTS: Final = 30

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class RepeatSample:
    """The repeats of one measurement on one side, or the reason of its failure."""

    values: Sequence[float] = ()
    failure: str | None = None

    @property
    def median_value(self) -> float | None:
        """Return the median, or None for a failed measurement."""
        return statistics.median(self.values) if self.values else None


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """One line of the table.

    ``unit`` is "ms" or "MB" (less is better), or something per second (more is better). ``again`` is our
    result for a repeated query without changes in between. ``cpu`` has, by side, the milliseconds of the
    workers' CPU time for one answer. ``goal`` is the ratio to reach, ``cpu_goal`` the ratio of ``cpu`` to
    reach, and ``bound`` the maximum of our value.
    """

    section: str
    name: str
    unit: str
    ours: RepeatSample
    reference: RepeatSample | None = None
    again: RepeatSample | None = None
    goal: float | None = None
    cpu_goal: float | None = None
    bound: float | None = None
    cpu: Mapping[str, float | None] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median_ratio(self) -> float | None:
        """Return the factor by which our median is better, or None if one side has no number."""
        if self.reference is None or not self.ours.median_value or not self.reference.median_value:
            return None
        if self.unit.endswith("/s"):
            return self.ours.median_value / self.reference.median_value
        return self.reference.median_value / self.ours.median_value

    @property
    def cpu_ratio(self) -> float | None:
        """Return the factor by which our CPU time is smaller, or None if one side has no number."""
        ours, reference = self.cpu.get("ours"), self.cpu.get("reference")
        return reference / ours if ours and reference else None

    @property
    def goal_reached(self) -> bool | None:
        """Return whether the goal is reached, or None without a goal or a number."""
        if self.bound is not None:
            return self.ours.median_value is not None and self.ours.median_value <= self.bound
        ratio, goal = (
            (self.median_ratio, self.goal) if self.cpu_goal is None else (self.cpu_ratio, self.cpu_goal)
        )
        return None if goal is None or ratio is None else ratio >= goal


def time_calls(call: Callable[[], _Answer], count: int) -> tuple[list[float], list[float], _Answer]:
    """Call a function some times.

    :return: milliseconds of CPU time of the thread, elapsed milliseconds, and the last answer.
    """
    work, clock = [], []
    for _ in range(count):
        began, cpu = time.perf_counter(), time.thread_time()
        answer = call()
        work.append((time.thread_time() - cpu) * 1000)
        clock.append((time.perf_counter() - began) * 1000)
    return work, clock, answer


def interleave_repeats(
    sides: Mapping[str, Callable[[], float]], repeats: int, failed: Callable[[str], None] = lambda side: None
) -> dict[str, RepeatSample]:
    """Call the sides in turn, ``repeats`` times each; a side that fails is not called again.

    :param failed: called with the name of a failed side, to repair it.
    """
    values: dict[str, list[float]] = {side: [] for side in sides}
    failures: dict[str, str] = {}
    for _ in range(repeats):
        for side, call in sides.items():
            if side not in failures:
                try:
                    values[side].append(call())
                except (NoAnswer, RequestRefused) as error:
                    failures[side] = str(error)
                    failed(side)
    return {
        side: RepeatSample((), failures[side]) if side in failures else RepeatSample(tuple(values[side]))
        for side in sides
    }


class LatencyMeasurement:
    """Measures GETs: the mean of some requests, in milliseconds from the request to the end of the answer.

    :param paths: the paths of the requests, in order.
    :param cpu_seconds: returns the CPU time of the service so far. ``median_cpu`` is the CPU time of one
        request,
        which says more than elapsed time on a machine with other work.
    """

    def __init__(
        self, connection: ServiceConnection, paths: Iterator[str], cpu_seconds: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._paths = paths
        self._cpu_seconds = cpu_seconds
        self._count = 0
        self._cpu: list[float] = []

    def __call__(self) -> float:
        """Return the milliseconds of one repeat."""
        if not self._count:
            self._warm_up()
        cpu, began = self._cpu_seconds(), time.perf_counter()
        for _ in range(self._count):
            self._connection.expect_success("GET", next(self._paths))
        seconds = time.perf_counter() - began
        self._cpu.append((self._cpu_seconds() - cpu) / self._count * 1000)
        return seconds / self._count * 1000

    def _warm_up(self) -> None:
        """Send two requests, and set the number of requests of a repeat."""
        self._connection.expect_success("GET", next(self._paths))
        began = self._cpu_seconds()
        self._connection.expect_success("GET", next(self._paths))
        # the number follows from CPU time: on a busy machine the clock would leave one request of a repeat,
        # with caches of the processor that other programs have filled
        once = max(self._cpu_seconds() - began, _SECONDS_PER_REPEAT / _MAX_REQUESTS)
        self._count = max(1, round(_SECONDS_PER_REPEAT / once))

    @property
    def median_cpu(self) -> float | None:
        """Return the median of the CPU time over the repeats, in milliseconds."""
        return statistics.median(self._cpu) if self._cpu else None


def serialisation_ms(answer: bytes, repeats: int) -> float:
    """Return the median of orjson's milliseconds to serialise the content of an answer."""
    content = orjson.loads(answer)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        orjson.dumps(content)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)
