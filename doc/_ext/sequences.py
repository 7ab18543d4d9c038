"""Draws sequence diagrams of the flows in `flows.yaml`.

The participants of a diagram are modules. A step is a call from one participant to another, an answer, or a
note.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from compute_agent.drawing import svg

_COLUMN: Final = 150
_LEFT: Final = 80
_TOP, _STEP, _NOTE = 64, 34, 26
_LINE, _CALL, _ANSWER = "#9fb1c1", "#22272b", "#5a6268"
_BOX: Final = "#e8eef4"


def page(source: Path) -> str:
    """Return a section with a text and a diagram for each flow."""
    flows = yaml.safe_load(source.read_text(encoding="utf-8"))
    return "\n\n".join(f"## {flow['title']}\n\n{flow['text']}\n\n{drawing(flow)}" for flow in flows)


def drawing(flow: dict[str, Any]) -> str:
    """Return the diagram of a flow as SVG, on one line of a page."""
    participants: list[str] = flow["participants"]
    steps = [_parsed(step, participants) for step in flow["steps"]]
    height = _TOP + sum(_NOTE if len(step) == 1 else _STEP for step in steps) + 24
    width = _LEFT * 2 + _COLUMN * (len(participants) - 1)
    parts = [*_lifelines(participants, height), *_steps(steps, width)]
    text = svg.svg_document(f"Sequence: {flow['title']}", "; ".join(flow["steps"]), width, height, parts)
    return '<div style="overflow-x: auto">' + text.replace("\n", "") + "</div>"


def _parsed(step: str, participants: Sequence[str]) -> tuple[str] | tuple[int, int, str, bool]:
    """Return the text of a note; or for a call or an answer, the numbers of both participants, the words, and
    whether it is an answer.
    """
    ends, colon, words = step.partition(": ")
    for arrow, answers in ((" -> ", False), (" --> ", True)):
        first, found, second = ends.partition(arrow)
        if colon and found:
            return participants.index(first), participants.index(second), words, answers
    return (step,)


def _lifelines(participants: Sequence[str], height: float) -> Iterator[str]:
    for number, name in enumerate(participants):
        x = _LEFT + number * _COLUMN
        yield f'<line x1="{x}" y1="44" x2="{x}" y2="{height - 10}" stroke="{_LINE}" stroke-dasharray="4 3"/>'
        yield f'<rect x="{x - 70}" y="14" width="140" height="30" rx="4" fill="{_BOX}"/>'
        folder, _, leaf = name.rpartition("/")
        if folder:
            yield svg.text(x, 26, folder + "/", "middle").replace("<text ", '<text font-size="9" ')
        yield svg.text(x, 39 if folder else 33, leaf, "middle", "bold")


def _steps(steps: Sequence[tuple[str] | tuple[int, int, str, bool]], width: float) -> Iterator[str]:
    y = float(_TOP)
    for step in steps:
        if len(step) == 1:
            yield f'<rect x="10" y="{y - 4}" width="{width - 20}" height="18" rx="3" fill="#fbf6e6"/>'
            yield svg.text(18, y + 9, step[0])
            y += _NOTE
        else:
            yield from _arrow(*step, y + 14)
            y += _STEP


def _arrow(first: int, second: int, words: str, answers: bool, y: float) -> Iterator[str]:
    begin, end = _LEFT + first * _COLUMN, _LEFT + second * _COLUMN
    colour = _ANSWER if answers else _CALL
    dashes = ' stroke-dasharray="5 3"' if answers else ""
    if begin == end:
        yield f'<path d="M{begin} {y - 8} h26 v12 h-22" fill="none" stroke="{colour}"/>'
        yield _head(begin + 4, y + 4, -1, colour)
        yield svg.text(begin + 32, y + 2, words)
        return
    way = int(math.copysign(1, end - begin))
    yield f'<line x1="{begin}" y1="{y}" x2="{end - 2 * way}" y2="{y}" stroke="{colour}"{dashes}/>'
    yield _head(end, y, way, colour)
    yield svg.text((begin + end) / 2, y - 4, words, "middle")


def _head(x: float, y: float, way: int, colour: str) -> str:
    return f'<path d="M{x} {y} l{-7 * way} -4 v8 z" fill="{colour}"/>'
