"""The floors of a package, drawn: the folders as the import contract has them, and who imports whom.

`python doc/_ext/floors.py` says it in words, by the contracts of this checkout; with `PYTHONPATH=OTHER` of
the packages in another one, such as that of a commit of before.
"""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import grimp

from compute_agent.drawing import svg

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("placement", "placement_extras", "compute_agent")

Floors = Sequence[Sequence[str]]
"""Folders (and modules that are in none), from the top floor to the ground."""

Imports = Mapping[tuple[str, str], int]
"""How many modules of one folder import how many of another, counted in pairs of modules."""

_WIDTH: Final = 860
_HEIGHT, _GAP = 34, 26
_BOX: Final = "#e8eef4"
_DOWN, _UP = "#9fb1c1", "#d03030"


def floors_of(pyproject: Path, package: str) -> Floors:
    """The floors that the contract of a package has."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one.get("containers") == [package])
    return [re.findall(r"\w+", layer) for layer in layers]


def imports_of(package: str) -> tuple[Mapping[str, int], Imports]:
    """How many modules each folder of a package has, and the imports between folders."""
    graph = grimp.build_graph(package, cache_dir=None)
    folder = {module: module.split(".")[1] for module in graph.modules if "." in module}
    pairs = Counter(
        (folder[one], folder[other])
        for one in folder
        for other in graph.find_modules_directly_imported_by(one)
        if other in folder and folder[one] != folder[other]
    )
    return Counter(folder.values()), pairs


def against(floors: Floors, imports: Imports) -> Imports:
    """The imports that go up, or to another folder of the same floor."""
    level = {name: depth for depth, floor in enumerate(floors) for name in floor}
    return {
        (one, other): count
        for (one, other), count in sorted(imports.items())
        if one in level and other in level and level[other] <= level[one]
    }


def summary(package: str, floors: Floors, imports: Imports) -> str:
    """The imports of a package in a sentence, with those that go against the floors."""
    wrong = against(floors, imports)
    listed = "".join(f"\n  {one} -> {other}: {count}" for (one, other), count in wrong.items())
    total = sum(imports.values())
    return f"{package}: {total} imports between folders, {sum(wrong.values())} up or sideways{listed}"


def drawing(package: str, floors: Floors, modules: Mapping[str, int], imports: Imports) -> str:
    """A package as SVG: a box for each folder, a line for who imports whom, red if it goes up."""
    boxes: dict[str, tuple[float, float, float]] = {}
    for depth, floor in enumerate(floors):
        width = min(190.0, (_WIDTH - 12 * (len(floor) - 1)) / len(floor))
        left = (_WIDTH - width * len(floor) - 12 * (len(floor) - 1)) / 2
        for index, name in enumerate(floor):
            boxes[name] = left + index * (width + 12), depth * (_HEIGHT + _GAP), width
    wrong = against(floors, imports)
    parts: list[str] = []
    for (one, other), count in sorted(imports.items(), key=lambda pair: pair[0] in wrong):
        if one in boxes and other in boxes:
            (x1, y1, w1), (x2, y2, w2) = boxes[one], boxes[other]
            colour = _UP if (one, other) in wrong else _DOWN
            line = f"M{x1 + w1 / 2:.0f} {y1 + _HEIGHT}L{x2 + w2 / 2:.0f} {y2}"
            parts.append(
                f'<path d="{line}" stroke="{colour}"'
                f' stroke-width="{0.6 + math.log(count) / 2:.1f}" stroke-opacity="0.7"/>'
            )
    for name, (x, y, width) in boxes.items():
        parts.append(
            f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{_HEIGHT}" rx="4" fill="{_BOX}"/>'
        )
        parts.append(svg.text(x + width / 2, y + 21, f"{name} ({modules.get(name, 0)})", "middle"))
    height = len(floors) * (_HEIGHT + _GAP) - _GAP
    title, description = f"Floors of {package}", summary(package, floors, imports)
    return svg.svg_document(title, description, _WIDTH + 20, height + 20, parts, -10, -10)


def page(package: str) -> str:
    """The diagram, and the sentence below it, as markdown."""
    floors, (modules, imports) = floors_of(ROOT / "pyproject.toml", package), imports_of(package)
    return f"{drawing(package, floors, modules, imports)}\n{summary(package, floors, imports)}.\n"


if __name__ == "__main__":
    for name in PACKAGES:
        print(summary(name, floors_of(ROOT / "pyproject.toml", name), imports_of(name)[1]))
