"""Draws a simulation as SVG: usage and thresholds over time, and a mark for each action.

All panels have the same time axis, and each panel has one scale for its values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compute_agent.drawing.svg import GRID, escape_text, svg_document

# A palette that people with any kind of colour vision tell apart, on white, after Okabe and Ito.
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#8a8f94"

_LEFT, _RIGHT, _TOP, _GAP = 70, 150, 62, 40
_WIDTH = 1000


@dataclass(frozen=True)
class Curve:
    """A curve with one value for each round. A ``faint`` curve is drawn behind the others."""

    name: str
    colour: str
    values: Sequence[float]
    faint: bool = False


@dataclass(frozen=True)
class Line:
    """A horizontal line with its name at the right end."""

    name: str
    colour: str
    value: float


@dataclass(frozen=True)
class Panel:
    """Curves and lines, in a panel from 0 to ``top``."""

    title: str
    curves: Sequence[Curve]
    top: float
    lines: Sequence[Line] = ()
    height: int = 200
    filled: bool = False


@dataclass(frozen=True)
class Marks:
    """A row of ticks, one for each round with an action."""

    name: str
    colour: str
    rounds: Sequence[int]


def draw(title: str, panels: Sequence[Panel], marks: Sequence[Marks], first: int = 0) -> str:
    """The picture as an SVG document. The rounds are numbered from ``first``."""
    count = max(len(curve.values) for panel in panels for curve in panel.curves)
    parts, y = [], _TOP
    for panel in panels:
        parts += _panel(panel, y, count)
        y += panel.height + _GAP
    for row, mark in enumerate(marks):
        parts += _marks(mark, y - 14 + row * 18, count)
    y += len(marks) * 18
    parts += _time_axis(y - 8, count, first)
    height = y + 34
    width = _LEFT + _WIDTH + _RIGHT
    head = f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{escape_text(title)}</text>'
    description = f"Curves over rounds: {'; '.join(panel.title for panel in panels)}."
    return svg_document(title, description, width, height, [head, *parts])


def _x(number: float, count: int) -> float:
    return _LEFT + number / max(1, count) * _WIDTH


def _panel(panel: Panel, top: float, count: int) -> Iterator[str]:
    def y(value: float) -> float:
        return top + panel.height * (1 - min(max(value / panel.top, 0.0), 1.0))

    yield f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{escape_text(panel.title)}</text>'
    for value in _ticks(panel.top):
        yield f'<path d="M{_LEFT} {y(value):.1f}h{_WIDTH}" stroke="{GRID}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
    for curve in sorted(panel.curves, key=lambda curve: not curve.faint):
        points = "L".join(
            f"{_x(number, count):.1f} {y(value):.1f}" for number, value in _thinned(curve.values)
        )
        if panel.filled:
            path = f"M{_x(0, count):.1f} {y(0):.1f}L{points}L{_x(len(curve.values), count):.1f} {y(0):.1f}Z"
            yield f'<path d="{path}" fill="{curve.colour}" fill-opacity="0.35"/>'
        opacity = ' stroke-opacity="0.55"' if curve.faint else ""
        yield f'<path d="M{points}" fill="none" stroke="{curve.colour}" stroke-width="1.4"{opacity}/>'
    labels = [(y(line.value), line.name, line.colour) for line in panel.lines]
    labels += [(y(curve.values[-1]), curve.name, curve.colour) for curve in panel.curves]
    for line in panel.lines:
        yield (
            f'<path d="M{_LEFT} {y(line.value):.1f}h{_WIDTH}" stroke="{line.colour}" stroke-width="1.4"'
            ' stroke-dasharray="7 4"/>'
        )
    # Named at the right end, moved apart where they would overlap.
    place = float("-inf")
    for wanted, name, colour in sorted(labels):
        place = max(wanted, place + 15)
        yield (
            f'<text x="{_LEFT + _WIDTH + 8}" y="{place + 4:.1f}" fill="{colour}" font-weight="bold">'
            f"{escape_text(name)}</text>"
        )


def _marks(marks: Marks, y: float, count: int) -> Iterator[str]:
    strokes = "".join(f"M{_x(number, count):.1f} {y}v12" for number in marks.rounds)
    yield f'<path d="M{_LEFT} {y + 6}h{_WIDTH}" stroke="{GRID}"/>'
    yield f'<path d="{strokes or "M0 0"}" stroke="{marks.colour}" stroke-width="1.6"/>'
    yield (
        f'<text x="{_LEFT + _WIDTH + 8}" y="{y + 10}" fill="{marks.colour}" font-weight="bold">'
        f"{escape_text(marks.name)}</text>"
    )


def _time_axis(y: float, count: int, first: int) -> Iterator[str]:
    for number in _ticks(count):
        yield f'<text x="{_x(number, count):.1f}" y="{y + 16}" text-anchor="middle">{first + number:g}</text>'
    yield f'<text x="{_LEFT + _WIDTH}" y="{y + 34}" text-anchor="end">round (one second each)</text>'


def _ticks(top: float) -> Iterator[float]:
    step = next(
        size * 10**power for power in range(-2, 9) for size in (1, 2, 5) if top / (size * 10**power) <= 6
    )
    value = 0.0
    while value <= top + 1e-9:
        yield round(value, 6)
        value += step


def _thinned(values: Sequence[float]) -> Iterator[tuple[int, float]]:
    """For each pixel, the lowest and the highest of the values that fall on it."""
    size = max(1, len(values) // _WIDTH)
    for start in range(0, len(values), size):
        part = list(enumerate(values[start : start + size], start))
        ends = {min(part, key=lambda pair: pair[1]), max(part, key=lambda pair: pair[1])}
        yield from sorted(ends)
