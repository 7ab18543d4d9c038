"""What all pictures are made of.

Lines over time as SVG: panels one below the other that share the time axis, each with one unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final
from xml.sax.saxutils import escape

from compute_agent.model.messages import on_one_line

INK, GRID = "#22272b", "#e3e6e8"
"""Of charts: what is written, and lines behind curves."""


def document(
    title: str,
    description: str,
    width: float,
    height: float,
    parts: Iterable[str],
    left: float = 0,
    top: float = 0,
    ink: str = INK,
) -> str:
    """The document of these parts on white; ``left`` and ``top`` are the coordinates of its corner.

    Title and description are for those who cannot see it, and are what it is called.
    """
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{left} {top} {width:.0f} {height:.0f}"'
            f' font-family="sans-serif" font-size="12" fill="{ink}" role="img">',
            f"<title>{escaped(title)}</title>",
            f"<desc>{escaped(description)}</desc>",
            f'<rect x="{left}" y="{top}" width="100%" height="100%" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    """Words that begin at a point, or have it as their middle or end, as ``anchor`` says."""
    where = f'x="{x:.1f}" y="{y:.1f}"'
    if anchor != "start":
        where += f' text-anchor="{anchor}"'
    if weight != "normal":
        where += f' font-weight="{weight}"'
    return f"<text {where}>{escaped(words)}</text>"


def escaped(words: str) -> str:
    """Words for XML, which has no way to hold control characters."""
    return escape(on_one_line(words))


COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5a6268", "#8c564b")
"""After Okabe and Ito: told apart with any kind of colour vision, on white."""

_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 76, 170, 58, 46, 52
_WIDTH, _HEIGHT = 960, 190
_LABEL: Final = 15
"""Height of a line of the legend."""

_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between two marks of the time axis, up to a day; then whole days."""

Point = tuple[float, float | None]
"""A time in seconds since the epoch and a value; None where there is none."""


@dataclass(frozen=True, slots=True)
class ChartCurve:
    """``dashed`` tells curves of one colour apart."""

    name: str
    colour: str
    points: Sequence[Point]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """Curves with a common axis from 0 on. ``title`` has the unit in it."""

    title: str
    curves: Sequence[ChartCurve]


def draw(title: str, panels: Sequence[ChartPanel], since: float, until: float, gap: float) -> str:
    """An SVG document of the time from ``since`` to ``until``.

    Curves are broken where there are no values for more than ``gap`` seconds. Times are those of the local
    time zone.
    """
    height = _TOP + len(panels) * (_HEIGHT + _GAP) - _GAP + _BOTTOM
    width = _LEFT + _WIDTH + _RIGHT
    axis = _TimeAxis(since, max(until, since + 1))
    parts = [text(_LEFT, 24, title, weight="bold")]
    for index, panel in enumerate(panels):
        parts += _panel(panel, _TOP + index * (_HEIGHT + _GAP), axis, gap)
    parts += axis.labels(height - _BOTTOM)
    description = f"Curves over time: {'; '.join(panel.title for panel in panels)}."
    return document(title, description, width, height, parts)


@dataclass(frozen=True, slots=True)
class _TimeAxis:
    since: float
    until: float

    def x(self, time: float) -> float:
        return _LEFT + (time - self.since) / (self.until - self.since) * _WIDTH

    def marks(self) -> Iterator[datetime]:
        """Round times of the local zone, at most eight."""
        days = math.ceil((self.until - self.since) / 8 / 86400)
        wanted = (self.until - self.since) / 8
        step = next((step for step in _STEPS if step >= wanted), days * 86400)
        first = datetime.fromtimestamp(self.since).astimezone()
        midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
        passed = math.ceil((first - midnight).total_seconds() / step)
        mark = midnight + timedelta(seconds=passed * step)
        while mark.timestamp() <= self.until:
            yield mark
            mark += timedelta(seconds=step)

    def labels(self, y: float) -> Iterator[str]:
        marks = list(self.marks())
        seconds = any(mark.second for mark in marks)
        day = ""
        for mark in marks:
            x = self.x(mark.timestamp())
            yield text(x, y + 18, f"{mark:%H:%M:%S}" if seconds else f"{mark:%H:%M}", "middle")
            if f"{mark:%Y-%m-%d}" != day:
                day = f"{mark:%Y-%m-%d}"
                yield text(x, y + 34, day, "middle")
        zone = datetime.fromtimestamp(self.until).astimezone()
        yield text(_LEFT + _WIDTH + 34, y + 18, f"time ({zone:%Z})")


@dataclass(frozen=True, slots=True)
class _ValueAxis:
    """Values from 0 at the bottom of a panel to ``highest`` at its ``top``, with a line at each ``step``."""

    top: float
    step: float
    highest: float

    @classmethod
    def to(cls, highest: float, top: float) -> _ValueAxis:
        """At most five round steps."""
        if highest <= 0:
            return cls(top, 1.0, 1.0)
        size = 10.0 ** math.floor(math.log10(highest / 5))
        step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * 5 >= highest * 0.999)
        return cls(top, step, math.ceil(highest / step * 0.999) * step)

    def y(self, value: float) -> float:
        return self.top + _HEIGHT * (1 - value / self.highest)

    def lines(self) -> Iterator[str]:
        for index in range(round(self.highest / self.step) + 1):
            y = self.y(index * self.step)
            yield f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" stroke="{GRID if index else INK}"/>'
            yield text(_LEFT - 8, y + 4, f"{round(index * self.step, 9):g}", "end")


def _panel(panel: ChartPanel, top: float, axis: _TimeAxis, gap: float) -> Iterator[str]:
    scale = _ValueAxis.to(
        max((value or 0.0 for curve in panel.curves for _, value in curve.points), default=0.0), top
    )
    yield text(_LEFT, top - 10, panel.title, weight="bold")
    for mark in axis.marks():
        yield f'<path d="M{axis.x(mark.timestamp()):.1f} {top}v{_HEIGHT}" stroke="{GRID}"/>'
    yield from scale.lines()
    for row, curve in enumerate(panel.curves):
        style = f'fill="none" stroke="{curve.colour}" stroke-width="1.6" stroke-linecap="round"'
        if curve.dashed:
            style += ' stroke-dasharray="4 4"'
        path = "".join(_path(piece, axis, scale) for piece in _pieces(curve.points, gap))
        if path:
            yield f'<path d="{path}" {style} stroke-linejoin="round"/>'
        beside = top + 8 + row * _LABEL
        yield f'<path d="M{_LEFT + _WIDTH + 10} {beside}h22" {style}/>'
        yield text(_LEFT + _WIDTH + 38, beside + 4, curve.name)


def _pieces(points: Sequence[Point], gap: float) -> Iterator[list[tuple[float, float]]]:
    """The parts of a curve that have values without a break."""
    piece: list[tuple[float, float]] = []
    for time, value in points:
        if piece and (value is None or time - piece[-1][0] > gap):
            yield piece
            piece = []
        if value is not None:
            piece.append((time, value))
    if piece:
        yield piece


def _path(piece: Sequence[tuple[float, float]], axis: _TimeAxis, scale: _ValueAxis) -> str:
    points = [f"{axis.x(time):.1f} {scale.y(value):.1f}" for time, value in _thinned(piece, axis)]
    # A value alone is a dot: a line of no length with round ends.
    return f"M{'L'.join(points)}" + ("h0" if len(points) == 1 else "")


def _thinned(piece: Sequence[tuple[float, float]], axis: _TimeAxis) -> Iterator[tuple[float, float]]:
    """Of values that share a pixel the first, the lowest, the highest and the last."""
    for _, group in groupby(piece, key=lambda point: int(axis.x(point[0]))):
        points = list(group)
        if len(points) > 4:
            ends = {points[0], points[-1], *(of(points, key=lambda point: point[1]) for of in (min, max))}
            points = sorted(ends)
        yield from points
