"""Draws the floors of a package, that is, the layers of its import contract, and imports between folders.

`python doc/_ext/floors.py` prints the number of imports, and the imports that break the contracts of this
checkout. With `PYTHONPATH=OTHER` it reads the packages of another checkout, such as that of an older commit.
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
"""The floors of a package, from the top to the bottom. A floor is a list of folders, and of modules that are
in no folder.
"""

Imports = Mapping[tuple[str, str], int]
"""The number of imports from one folder to another; each pair of an importing and an imported module counts
once.
"""

_WIDTH: Final = 860
_HEIGHT, _GAP = 34, 26
_BOX: Final = "#e8eef4"
_DOWN, _UP = "#9fb1c1", "#d03030"


def floors_of(pyproject: Path, package: str) -> Floors:
    """Return the floors of a package, which its import contract in ``pyproject.toml`` lists."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one.get("containers") == [package])
    return [re.findall(r"\w+", layer) for layer in layers]


def imports_of(package: str) -> tuple[Mapping[str, int], Imports]:
    """Return the number of modules in each folder of a package, and the imports between folders."""
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
    """Return the imports that break the contract: from a lower floor to a higher one, or within a floor."""
    level = {name: depth for depth, floor in enumerate(floors) for name in floor}
    return {
        (one, other): count
        for (one, other), count in sorted(imports.items())
        if one in level and other in level and level[other] <= level[one]
    }


def summary(package: str, floors: Floors, imports: Imports) -> str:
    """Return a sentence about the imports of a package, and a list of the imports that break its contract."""
    wrong = against(floors, imports)
    listed = "".join(f"\n  {one} -> {other}: {count}" for (one, other), count in wrong.items())
    total = sum(imports.values())
    return f"{package}: {total} imports between folders, {sum(wrong.values())} up or sideways{listed}"


def drawing(package: str, floors: Floors, modules: Mapping[str, int], imports: Imports) -> str:
    """Return a drawing of a package as SVG: boxes for folders, and lines for imports.

    An import that breaks the contract has a red line.
    """
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
    """Return the drawing and the sentence below it, as markdown."""
    floors, (modules, imports) = floors_of(ROOT / "pyproject.toml", package), imports_of(package)
    return f"{drawing(package, floors, modules, imports)}\n{summary(package, floors, imports)}.\n"


if __name__ == "__main__":
    for name in PACKAGES:
        print(summary(name, floors_of(ROOT / "pyproject.toml", name), imports_of(name)[1]))
