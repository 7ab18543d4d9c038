"""SVG documents, texts in them, and charts of values over time: panels with a common time axis."""

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
"""Colours of texts in charts, and of lines behind curves."""


def svg_document(
    title: str,
    description: str,
    width: float,
    height: float,
    parts: Iterable[str],
    left: float = 0,
    top: float = 0,
    ink: str = INK,
) -> str:
    """An SVG document of the given elements on a white background.

    :param title: the name of the picture. Screen readers read title and description.
    :param left: the x coordinate of the upper left corner; ``top`` is its y coordinate.
    :param ink: the colour of texts.
    """
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="{left} {top} {width:.0f} {height:.0f}"'
            f' font-family="sans-serif" font-size="12" fill="{ink}" role="img">',
            f"<title>{escape_text(title)}</title>",
            f"<desc>{escape_text(description)}</desc>",
            f'<rect x="{left}" y="{top}" width="100%" height="100%" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    """An SVG text. The text's start, middle or end is at the point, depending on ``anchor``."""
    where = f'x="{x:.1f}" y="{y:.1f}"'
    if anchor != "start":
        where += f' text-anchor="{anchor}"'
    if weight != "normal":
        where += f' font-weight="{weight}"'
    return f"<text {where}>{escape_text(words)}</text>"


def escape_text(words: str) -> str:
    """Text escaped for XML. Control characters are removed, since XML cannot represent them."""
    return escape(on_one_line(words))


COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5a6268", "#8c564b")
"""Colours by Okabe and Ito, which differ on white with every kind of colour vision."""

_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 76, 170, 58, 46, 52
_WIDTH, _HEIGHT = 960, 190
_LABEL: Final = 15
"""Height in pixels of a line of the legend."""

_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Possible seconds between two marks of the time axis, up to a day. Longer distances are whole days."""

Point = tuple[float, float | None]
"""A point of a curve: a time in seconds since the epoch, and a value; None breaks the curve."""


@dataclass(frozen=True, slots=True)
class ChartCurve:
    """A named series of values in a chart.

    :ivar dashed: distinguishes curves of the same colour.
    """

    name: str
    colour: str
    points: Sequence[Point]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """Curves with a common vertical axis from 0. The title includes the unit of the values."""

    title: str
    curves: Sequence[ChartCurve]


def draw_chart(title: str, panels: Sequence[ChartPanel], since: float, until: float, gap: float) -> str:
    """Draw curves over time as an SVG document, with times of the local time zone.

    :param panels: the charts, one below the other.
    :param since: the beginning in seconds since the epoch; ``until`` is the end.
    :param gap: the seconds without values after which a curve is broken.
    """
    height = _TOP + len(panels) * (_HEIGHT + _GAP) - _GAP + _BOTTOM
    width = _LEFT + _WIDTH + _RIGHT
    axis = _TimeAxis(since, max(until, since + 1))
    parts = [text(_LEFT, 24, title, weight="bold")]
    for index, panel in enumerate(panels):
        parts += _draw_panel(panel, _TOP + index * (_HEIGHT + _GAP), axis, gap)
    parts += axis.time_labels(height - _BOTTOM)
    description = f"Curves over time: {'; '.join(panel.title for panel in panels)}."
    return svg_document(title, description, width, height, parts)


@dataclass(frozen=True, slots=True)
class _TimeAxis:
    since: float
    until: float

    def x_of(self, time: float) -> float:
        return _LEFT + (time - self.since) / (self.until - self.since) * _WIDTH

    def time_marks(self) -> Iterator[datetime]:
        """The times at the marks of the axis: at most nine round times of the local time zone."""
        days = math.ceil((self.until - self.since) / 8 / 86400)
        wanted = (self.until - self.since) / 8
        step = next((step for step in _STEPS if step >= wanted), days * 86400)
        first = datetime.fromtimestamp(self.since).astimezone()
        midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
        # Marks are counted from midnight, so that they are at round times of the day.
        passed = math.ceil((first - midnight).total_seconds() / step)
        mark = midnight + timedelta(seconds=passed * step)
        while mark.timestamp() <= self.until:
            yield mark
            mark += timedelta(seconds=step)

    def time_labels(self, y: float) -> Iterator[str]:
        marks = list(self.time_marks())
        seconds = any(mark.second for mark in marks)
        day = ""
        for mark in marks:
            x = self.x_of(mark.timestamp())
            yield text(x, y + 18, f"{mark:%H:%M:%S}" if seconds else f"{mark:%H:%M}", "middle")
            if f"{mark:%Y-%m-%d}" != day:
                day = f"{mark:%Y-%m-%d}"
                yield text(x, y + 34, day, "middle")
        zone = datetime.fromtimestamp(self.until).astimezone()
        yield text(_LEFT + _WIDTH + 34, y + 18, f"time ({zone:%Z})")


@dataclass(frozen=True, slots=True)
class _ValueAxis:
    """The vertical axis of a panel, from 0 at the bottom to ``highest`` at the y coordinate ``top``.

    :ivar step: the distance of two horizontal lines, in the unit of the values.
    """

    top: float
    step: float
    highest: float

    @classmethod
    def for_highest(cls, highest: float, top: float) -> _ValueAxis:
        """The axis up to a highest value, with at most five steps. The step is a round number."""
        if highest <= 0:
            return cls(top, 1.0, 1.0)
        size = 10.0 ** math.floor(math.log10(highest / 5))
        # The factor 0.999 tolerates rounding, so that a highest value on a line needs no further step.
        step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * 5 >= highest * 0.999)
        return cls(top, step, math.ceil(highest / step * 0.999) * step)

    def y_of(self, value: float) -> float:
        return self.top + _HEIGHT * (1 - value / self.highest)

    def grid_lines(self) -> Iterator[str]:
        for index in range(round(self.highest / self.step) + 1):
            y = self.y_of(index * self.step)
            yield f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" stroke="{GRID if index else INK}"/>'
            yield text(_LEFT - 8, y + 4, f"{round(index * self.step, 9):g}", "end")


def _draw_panel(panel: ChartPanel, top: float, axis: _TimeAxis, gap: float) -> Iterator[str]:
    scale = _ValueAxis.for_highest(
        max((value or 0.0 for curve in panel.curves for _, value in curve.points), default=0.0), top
    )
    yield text(_LEFT, top - 10, panel.title, weight="bold")
    for mark in axis.time_marks():
        yield f'<path d="M{axis.x_of(mark.timestamp()):.1f} {top}v{_HEIGHT}" stroke="{GRID}"/>'
    yield from scale.grid_lines()
    for row, curve in enumerate(panel.curves):
        style = f'fill="none" stroke="{curve.colour}" stroke-width="1.6" stroke-linecap="round"'
        if curve.dashed:
            style += ' stroke-dasharray="4 4"'
        path = "".join(_path(piece, axis, scale) for piece in _curve_pieces(curve.points, gap))
        if path:
            yield f'<path d="{path}" {style} stroke-linejoin="round"/>'
        beside = top + 8 + row * _LABEL
        yield f'<path d="M{_LEFT + _WIDTH + 10} {beside}h22" {style}/>'
        yield text(_LEFT + _WIDTH + 38, beside + 4, curve.name)


def _curve_pieces(points: Sequence[Point], gap: float) -> Iterator[list[tuple[float, float]]]:
    """The pieces of a curve. Values of None, and gaps of more than ``gap`` seconds, break the curve."""
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
    points = [f"{axis.x_of(time):.1f} {scale.y_of(value):.1f}" for time, value in _thin_points(piece, axis)]
    # A single value is drawn as a dot: a line of length 0 with round ends.
    return f"M{'L'.join(points)}" + ("h0" if len(points) == 1 else "")


def _thin_points(piece: Sequence[tuple[float, float]], axis: _TimeAxis) -> Iterator[tuple[float, float]]:
    """Thin a piece of a curve: each pixel keeps its first, lowest, highest and last point."""
    for _, group in groupby(piece, key=lambda point: int(axis.x_of(point[0]))):
        points = list(group)
        if len(points) > 4:
            ends = {points[0], points[-1], *(of(points, key=lambda point: point[1]) for of in (min, max))}
            points = sorted(ends)
        yield from points
