"""The topology of a host with its guests, as an SVG picture of nested boxes and as a tree of text."""

from __future__ import annotations

import colorsys
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compute_agent.drawing.svg import escape_text, svg_document, text
from compute_agent.host.topology import CpuCore, HostTopology, NumaNode
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.messages import on_one_line


class CpuRole(StrEnum):
    """The role of a CPU, by the agent's sets of CPUs that contain the CPU."""

    DEDICATED = "dedicated"
    SHARED = "shared"
    BOTH = "dedicated or shared"
    """The CPU is in the dedicated set and in the shared set, as with Nova's legacy option ``vcpu_pin_set``.
    """
    HOST = "host"
    """The CPU is neither in the dedicated set nor in the shared set, so no guest runs on it."""


def cpus_by_role(cpus: frozenset[int], sets: CpuSets) -> Mapping[CpuRole, frozenset[int]]:
    """CPUs by their role, in the order of :class:`CpuRole`, without roles that no CPU has."""
    found = {
        CpuRole.DEDICATED: cpus & sets.dedicated - sets.shared,
        CpuRole.SHARED: cpus & sets.shared - sets.dedicated,
        CpuRole.BOTH: cpus & sets.dedicated & sets.shared,
        CpuRole.HOST: cpus - sets.dedicated - sets.shared,
    }
    return {role: those for role, those in found.items() if those}


HOST, PACKAGE, DIE, NUMA, L3, CORE = range(6)
"""Kinds of boxes, from the outermost to the innermost.

Among boxes with the same CPUs, the box with the lower number is outside.
"""

_KINDS: Final = {"performance": "P", "efficiency": "E", "low-power": "LP"}


@dataclass(slots=True)
class CpuBox:
    """A rectangle for a part of the topology, such as a NUMA node. Parts with the same CPUs share one box.

    :ivar kind: one of :data:`HOST` to :data:`CORE`.
    :ivar lines: the texts in the box. The box stands for one or several parts, such as a package and its only
        node, and has a text for each.
    :ivar children: the boxes inside this box.
    :ivar devices: a line for each PCI device that is nearest to these CPUs.
    """

    kind: int
    lines: list[str]
    cpus: frozenset[int]
    children: list[CpuBox] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)

    @property
    def all_lines(self) -> list[str]:
        """All lines of text in the box: those about its parts, and those about its devices."""
        return [*self.lines, *self.devices]


DeviceLines = Mapping[int | None, Sequence[str]]
"""Lines of text about PCI devices, by NUMA node. The key None has devices without a node."""

NO_DEVICES: Final[DeviceLines] = MappingProxyType({})

Guests = Mapping[str, frozenset[int]]
"""The CPUs of each guest, by its name."""


def nest_boxes(topology: HostTopology, devices: DeviceLines = NO_DEVICES) -> tuple[CpuBox, list[str]]:
    """Nest the parts of a topology by their CPUs.

    Returns the box of the host, and a line for each part that overlaps another part only partly, and so has
    no box. If a core and another part overlap, the core gets the box, because its box has the cells of the
    CPUs. The host's own box has the devices without a node, or with a node without CPUs.
    """
    boxed = {node.id for node in topology.numa_nodes if node.cpus}
    others = [line for node, lines in devices.items() if node not in boxed for line in lines]
    host = CpuBox(HOST, [_host_line(topology)], topology.usable, devices=others)
    # The largest boxes come first, so the boxes around a smaller one exist already.
    crossing = []
    for box in sorted(_list_boxes(topology, devices), key=lambda box: (-len(box.cpus), box.kind)):
        around = _innermost_box(host, box.cpus)
        # The cells of a core are drawn in its own box, so a core shares no box.
        if around is not host and around.cpus == box.cpus and box.kind != CORE:
            around.lines += box.lines
            around.devices += box.devices
        elif not _cuts_core(box, topology) and all(
            sibling.cpus.isdisjoint(box.cpus) for sibling in around.children
        ):
            around.children.append(box)
        else:
            crossing.append(f"{(box.lines or ['Core'])[0]}: CPUs {cpuset.format(box.cpus)}")
    _sort_children(host)
    # Nodes without CPUs, such as memory expanders, come after the boxes, which are in the order of their
    # CPUs.
    host.children += [
        CpuBox(NUMA, [_node_line(node), "no CPUs"], frozenset())
        for node in topology.numa_nodes
        if not node.cpus
    ]
    return host, crossing


def format_size(kib: int) -> str:
    """A size in the largest unit in which it is at least 1, such as ``46.8 GiB`` or ``512 KiB``."""
    amount, unit = float(kib), "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"


def _list_boxes(topology: HostTopology, devices: DeviceLines) -> Iterator[CpuBox]:
    for package in topology.packages:
        yield CpuBox(PACKAGE, [f"Package {package.id}"], package.cpus)
    for die in topology.dies:
        # A package with only one die needs no box for the die.
        if sum(other.package == die.package for other in topology.dies) > 1:
            yield CpuBox(DIE, [f"Die {die.id}"], die.cpus)
    for node in topology.numa_nodes:
        if node.cpus:
            yield CpuBox(NUMA, [_node_line(node)], node.cpus, devices=list(devices.get(node.id, ())))
    for cache in topology.l3_domains:
        size_text = "" if cache.size_kib is None else f", {format_size(cache.size_kib)}"
        yield CpuBox(L3, [f"L3 {cache.id}{size_text}"], cache.cpus)
    for core in topology.cores:
        yield CpuBox(CORE, _core_lines(core), core.cpus)


def _host_line(topology: HostTopology) -> str:
    parts = [topology.model_name or topology.architecture, f"{len(topology.usable)} CPUs"]
    memory_kib = sum(node.memory_kib for node in topology.numa_nodes)
    if memory_kib:
        parts.append(format_size(memory_kib))
    return " · ".join(" ".join(part.split()) for part in parts)


def _node_line(node: NumaNode) -> str:
    return f"NUMA node {node.id}, {format_size(node.memory_kib)}"


def _core_lines(core: CpuCore) -> list[str]:
    return [] if core.kind is None else [_KINDS.get(core.kind, core.kind.removeprefix("capacity-"))]


def _innermost_box(box: CpuBox, cpus: frozenset[int]) -> CpuBox:
    inner = next((child for child in box.children if cpus <= child.cpus and child.kind != CORE), None)
    return box if inner is None else _innermost_box(inner, cpus)


def _cuts_core(box: CpuBox, topology: HostTopology) -> bool:
    """Whether the box contains only some CPUs of a core. Boxes of cores themselves do not count."""
    return box.kind != CORE and any(
        not core.cpus.isdisjoint(box.cpus) and not core.cpus <= box.cpus for core in topology.cores
    )


def _sort_children(box: CpuBox) -> None:
    box.children.sort(key=lambda child: min(child.cpus))
    for child in box.children:
        _sort_children(child)


# All lengths are in pixels.
_CELL_WIDTH, _CELL_HEIGHT = 30, 22
_GAP: Final = 6
_LINE: Final = 17
_CHARACTER: Final = 7.0
"""Upper estimate of the mean width of a character, in pixels, with a font of 12 pixels."""

# The picture gets the shape of a screen.
_SHAPE: Final = 1.7
"""The wanted ratio of the width to the height of a box."""

_FILL: Final = ("#ffffff", "#eceff1", "#e3e0ec", "#dbe7f3", "#f5ecd9", "#ffffff")
"""The colours of boxes by their kind, from :data:`HOST` to :data:`CORE`."""

_FREE: Final = dict.fromkeys(CpuRole, "#ffffff") | {CpuRole.HOST: "#cfd4d7"}
_FRAME: Final = {
    None: 'stroke="#78868f"',
    CpuRole.DEDICATED: 'stroke="#22272b" stroke-width="1.6"',
    CpuRole.SHARED: 'stroke="#22272b" stroke-width="1.6" stroke-dasharray="4 3"',
    CpuRole.BOTH: 'stroke="#22272b" stroke-width="1.6" stroke-dasharray="9 3"',
    CpuRole.HOST: 'stroke="#78868f"',
}
"""Attributes of a CPU's frame by its role. The roles differ without colours, too: solid, dashed, or a grey
filling.
"""

_STRIPES: Final = 4
"""Maximum number of guests on one CPU with a stripe each. Further guests have no stripe."""


@dataclass(slots=True)
class _PlacedBox:
    """A box with its size in pixels.

    :ivar children: the boxes inside, each with the x and y of its corner relative to the corner of this box.
    """

    box: CpuBox
    width: float
    height: float
    children: list[tuple[float, float, _PlacedBox]]


@dataclass(frozen=True, slots=True)
class CpuConditions:
    """The conditions of single CPUs.

    :ivar levels: the isolation level of each CPU, such as ``quiet``.
    :ivar noise: the interruptions a second of each CPU, without the scheduler tick.
    """

    levels: Mapping[int, str] = field(default_factory=dict)
    noise: Mapping[int, float] = field(default_factory=dict)

    def words_of(self, cpu: int) -> list[str]:
        """The conditions of a CPU in words, such as ``quiet`` and ``12.5 interruptions a second``."""
        level = [self.levels[cpu]] if cpu in self.levels else []
        return [*level, f"{self.noise[cpu]:.1f} interruptions a second"] if cpu in self.noise else level

    def by_level(self, cpus: frozenset[int]) -> dict[str, frozenset[int]]:
        """The given CPUs by their level of isolation. CPUs without a level are left out."""
        found: dict[str, set[int]] = {}
        for cpu in cpus & self.levels.keys():
            found.setdefault(self.levels[cpu], set()).add(cpu)
        return {level: frozenset(some) for level, some in sorted(found.items())}


NO_CONDITIONS: Final = CpuConditions()


@dataclass(frozen=True, slots=True)
class _DrawingScene:
    """The common input of all cells (CPUs) of a picture.

    :ivar role_of: the role of each CPU.
    :ivar colours: the colour of each guest, by its name.
    """

    topology: HostTopology
    role_of: Mapping[int, CpuRole]
    guests: Guests
    colours: Mapping[str, str]
    conditions: CpuConditions


def draw_host(
    topology: HostTopology,
    sets: CpuSets,
    guests: Guests | None = None,
    conditions: CpuConditions = NO_CONDITIONS,
    devices: DeviceLines = NO_DEVICES,
) -> str:
    """Draw a host with its guests as an SVG document.

    The frame of a CPU shows its role, and the filling shows its guests. A CPU with several guests is striped.
    The title of a CPU (its tooltip) has its number, core, role, guests and conditions. A bar at the left edge
    of a CPU grows with its noise.

    :param sets: the CPUs of the host for dedicated and for shared use.
    :param guests: the CPUs of each guest, by its name.
    :param conditions: the level of isolation and the noise of single CPUs.
    :param devices: lines of text about PCI devices, by NUMA node.
    """
    guests = guests or {}
    colours = {name: _guest_colour(index) for index, name in enumerate(guests)}
    by_role = cpus_by_role(topology.usable, sets)
    scene = _DrawingScene(
        topology, {cpu: role for role, cpus in by_role.items() for cpu in cpus}, guests, colours, conditions
    )
    host, notes = nest_boxes(topology, devices)
    notes = [*_offline_notes(topology), *notes, *_condition_lines(topology.usable, conditions)]
    placed = _place_box(host)
    body = [*_draw_box(placed, 0, 0, scene)]
    entries: list[tuple[str, CpuRole | None, str]] = []
    entries += [(_FREE[role], role, f"{role}: {cpuset.format(cpus)}") for role, cpus in by_role.items()]
    entries += [
        (colours[name], None, f"{name}: {cpuset.format(cpus) or 'no CPU'}") for name, cpus in guests.items()
    ]
    legend, legend_width, legend_height = _draw_legend(entries, notes, placed.width, placed.height + 2 * _GAP)
    width = max(placed.width, legend_width) + 2 * _GAP
    height = placed.height + legend_height + 3 * _GAP
    description = " ".join(f"{words}." for *_, words in entries) or "No CPUs."
    parts = [*body, *legend]
    return svg_document(
        host.lines[0], description, width, height, parts, left=-_GAP, top=-_GAP, ink="#000000"
    )


def _place_box(box: CpuBox) -> _PlacedBox:
    """Arrange the children of a box in rows, with the number of columns nearest to the wanted shape."""
    if box.kind == CORE:
        cells = len(box.cpus)
        columns = min(cells, 4)
        heading = _LINE if box.lines else 0
        width = max(columns * _CELL_WIDTH, *(len(line) * _CHARACTER + 4 for line in box.lines), 0)
        return _PlacedBox(box, width, heading + -(-cells // columns) * _CELL_HEIGHT, [])
    children = [_place_box(child) for child in box.children]
    heading = len(box.all_lines) * _LINE + _GAP
    # The box must be wide enough for its longest line of text.
    least = max(map(len, box.all_lines)) * _CHARACTER + 2 * _GAP
    # The number of columns is tried from one to all. Boxes have few children, so this is cheap.
    options = [_arrange_rows(children, columns, heading) for columns in range(1, len(children) + 1)]
    placed, width, height = min(options, key=_shape_error, default=([], 0.0, float(heading)))
    return _PlacedBox(box, max(width, least), height, placed)


def _arrange_rows(
    children: Sequence[_PlacedBox], columns: int, heading: float
) -> tuple[list[tuple[float, float, _PlacedBox]], float, float]:
    places = []
    width, y = 0.0, heading
    for start in range(0, len(children), columns):
        row = children[start : start + columns]
        x = float(_GAP)
        for child in row:
            places.append((x, y, child))
            x += child.width + _GAP
        width = max(width, x)
        y += max(child.height for child in row) + _GAP
    return places, width, y


def _shape_error(option: tuple[object, float, float]) -> float:
    _, width, height = option
    return max(width / height / _SHAPE, height / width * _SHAPE)


def _draw_box(placed: _PlacedBox, x: float, y: float, scene: _DrawingScene) -> list[str]:
    box = placed.box
    parts = [_draw_rectangle(x, y, placed.width, placed.height, _FILL[box.kind], radius=3)]
    parts += [text(x + _GAP, y + (n + 0.8) * _LINE, line) for n, line in enumerate(box.all_lines)]
    if box.kind == CORE:
        heading = _LINE if box.lines else 0
        for index, cpu in enumerate(sorted(box.cpus)):
            at = x + index % 4 * _CELL_WIDTH, y + heading + index // 4 * _CELL_HEIGHT
            parts.append(_draw_cell(cpu, *at, scene))
    for child_x, child_y, child in placed.children:
        parts += _draw_box(child, x + child_x, y + child_y, scene)
    return parts


def _draw_cell(cpu: int, x: float, y: float, scene: _DrawingScene) -> str:
    core, role = scene.topology.core_of(cpu), scene.role_of[cpu]
    guests = [name for name, cpus in scene.guests.items() if cpu in cpus]
    where = "" if core is None else f", core {core.id} of package {core.package}"
    free = "no guest" if role is CpuRole.HOST else "free"
    title = f"CPU {cpu}{where}, {role}: {', '.join(guests) or free}"
    title = "; ".join([title, *scene.conditions.words_of(cpu)])
    fills = [scene.colours[name] for name in guests[:_STRIPES]] or [_FREE[role]]
    stripe = _CELL_WIDTH / len(fills)
    parts = [
        f'<rect x="{x + n * stripe:.1f}" y="{y:.1f}" width="{stripe:.1f}" height="{_CELL_HEIGHT}"'
        f' fill="{fill}"/>'
        for n, fill in enumerate(fills)
    ]
    # The frame is drawn inside of the cell, so that frames of adjacent CPUs do not cover each other.
    frame = _draw_rectangle(x + 1, y + 1, _CELL_WIDTH - 2, _CELL_HEIGHT - 2, "none", role)
    if height := _noise_height(scene.conditions.noise.get(cpu, 0.0)):
        top = y + _CELL_HEIGHT - 2 - height
        parts.append(f'<rect x="{x + 2:.1f}" y="{top:.1f}" width="4" height="{height:.1f}" fill="#b3261e"/>')
    label = text(x + _CELL_WIDTH / 2, y + _CELL_HEIGHT / 2 + 4, str(cpu), "middle")
    return f"<g><title>{escape_text(title)}</title>{''.join(parts)}{frame}{label}</g>"


def _noise_height(noise: float) -> float:
    """The height of the bar that shows a CPU's noise, by the logarithm of interruptions a second.

    At 1 interruption a second, the bar is a fifth of the cell high. At 10,000 or more, the bar is as high as
    the cell. Below 1, there is no bar.
    """
    if noise < 1:
        return 0.0
    return min((math.log10(noise) + 1) / 5, 1.0) * (_CELL_HEIGHT - 4)


def _condition_lines(cpus: frozenset[int], conditions: CpuConditions) -> Iterator[str]:
    """A line for each level of isolation with its CPUs, and a line with the noisiest CPUs."""
    for level, some in conditions.by_level(cpus).items():
        yield f"{level}: {cpuset.format(some)}"
    noisy = sorted(cpus & conditions.noise.keys(), key=lambda cpu: (-conditions.noise[cpu], cpu))
    if noisy:
        shown = [f"{cpu} {conditions.noise[cpu]:.1f}" for cpu in noisy[:_MAX_NOISY]]
        more = [f"{len(noisy) - _MAX_NOISY} CPUs with less"] if len(noisy) > _MAX_NOISY else []
        yield f"interruptions a second by CPU: {', '.join([*shown, *more])}"


def _draw_legend(
    entries: Sequence[tuple[str, CpuRole | None, str]], notes: Sequence[str], width: float, top: float
) -> tuple[list[str], float, float]:
    """Draw the legend in fitting columns, and notes below; return parts, width and height."""
    column = max((len(words) for *_, words in entries), default=0) * _CHARACTER + 3 * _GAP + _LINE
    columns = max(1, int(width // column))
    parts = []
    for index, (colour, role, words) in enumerate(entries):
        x, y = index % columns * column, top + index // columns * _LINE
        parts.append(_draw_rectangle(x, y, _LINE - 4, _LINE - 4, colour, role))
        parts.append(text(x + _LINE + 2, y + _LINE - 6, words))
    rows = -(-len(entries) // columns)
    parts += [text(0, top + (rows + n + 0.7) * _LINE, note) for n, note in enumerate(notes)]
    widest = max((len(note) for note in notes), default=0) * _CHARACTER
    return parts, max(column if entries else 0, widest), (rows + len(notes)) * _LINE


def _draw_rectangle(
    x: float, y: float, width: float, height: float, fill: str, role: CpuRole | None = None, radius: int = 0
) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" fill="{fill}"'
        f" {_FRAME[role]}/>"
    )


def _guest_colour(index: int) -> str:
    """A light colour for a guest's index; successive ones are far apart on the colour circle."""
    # Multiples of the golden ratio spread evenly over the circle of hues, for any number of guests.
    red, green, blue = colorsys.hls_to_rgb(index * 0.618034 % 1, 0.75 + 0.06 * (index // 3 % 3 - 1), 0.8)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


_WIDTH: Final = len(CpuRole.DEDICATED)

_MAX_SHARERS: Final = 12
"""Maximum number of names of guests at the shared CPUs of a box, since all guests may share them."""

_MAX_NOISY: Final = 8
"""Maximum number of CPUs in the line about interruptions."""

_NAMES_WIDTH: Final = 70
"""Maximum number of characters in a line of names, which fits a terminal."""


def tree_lines(
    topology: HostTopology,
    sets: CpuSets,
    guests: Guests | None,
    conditions: CpuConditions = NO_CONDITIONS,
    devices: DeviceLines = NO_DEVICES,
) -> Iterator[str]:
    """The lines of a tree that shows the host on a terminal.

    :param sets: the CPUs of the host for dedicated and for shared use.
    :param guests: the CPUs of each guest, by its name; None means that these CPUs are unknown, so no CPU
        counts as free.
    :param conditions: the level of isolation and the noise of single CPUs.
    :param devices: lines of text about PCI devices, by NUMA node.
    """
    host, crossing = nest_boxes(topology, devices)
    host.lines += _thread_rule(topology)
    yield from _box_line(host, "", "", topology, sets, guests)
    yield from _offline_notes(topology)
    yield from crossing
    yield from _condition_lines(topology.usable, conditions)


def _offline_notes(topology: HostTopology) -> Iterator[str]:
    """A line with the offline CPUs, and a line with the offline CPUs that count as present (parked)."""
    if gone := topology.offline - topology.parked:
        yield f"Offline CPUs: {cpuset.format(gone)}"
    if topology.parked:
        yield f"Parked CPUs (offline, and counted as present): {cpuset.format(topology.parked)}"


def _thread_rule(topology: HostTopology) -> Iterator[str]:
    """A line like ``threads of a core: n, n+8``; none if complete cores follow different rules."""
    offsets = [tuple(cpu - min(core.cpus) for cpu in sorted(core.cpus)) for core in topology.cores]
    most = max(map(len, offsets), default=1)
    if most > 1 and len(whole := {each for each in offsets if len(each) == most}) == 1:
        yield "threads of a core: " + ", ".join(f"n+{each}" if each else "n" for each in whole.pop())


def _box_line(
    box: CpuBox, first: str, rest: str, topology: HostTopology, sets: CpuSets, guests: Guests | None
) -> Iterator[str]:
    """The lines of a box and its inner boxes; ``first`` indents the first line, ``rest`` all others."""
    yield first + " · ".join(box.lines)
    inner = [child for child in box.children if child.kind != CORE]
    cores = frozenset(cpu for child in box.children if child.kind == CORE for cpu in child.cpus)
    below = rest + ("│  " if inner else "   ")
    yield from (f"{below}{'PCI device':{_WIDTH}}  {line}" for line in box.devices)
    for role, cpus in cpus_by_role(cores, sets).items():
        yield f"{below}{_role_line(role, cpus, topology, guests)}".rstrip()
        if role in (CpuRole.DEDICATED, CpuRole.BOTH):
            yield from (f"{below}{'':{_WIDTH}}  {each}" for each in _holder_lines(cpus, sets, guests or {}))
        if role in (CpuRole.SHARED, CpuRole.BOTH):
            yield from (f"{below}{'':{_WIDTH}}  {each}" for each in _sharer_lines(cpus, sets, guests or {}))
    for child in inner:
        last = child is inner[-1]
        yield from _box_line(
            child,
            rest + ("└─ " if last else "├─ "),
            rest + ("   " if last else "│  "),
            topology,
            sets,
            guests,
        )


def _role_line(role: CpuRole, cpus: frozenset[int], topology: HostTopology, guests: Guests | None) -> str:
    cores = {topology.threads_of(cpu) for cpu in cpus}
    counted = [f"{len(cores)} core{'s' * (len(cores) != 1)}"]
    if split := sum(not threads <= cpus for threads in cores):
        counted.append(f"{split} of them shared with others" if split < len(cores) else "shared with others")
    if role is CpuRole.DEDICATED and guests is not None:
        free = cpus.difference(*guests.values())
        counted.append(f"free: {cpuset.format(free) or 'none'}")
    return f"{role:{_WIDTH}}  {cpuset.format(cpus)}  ({'; '.join(counted)})"


def _holder_lines(cpus: frozenset[int], sets: CpuSets, guests: Guests) -> Iterator[str]:
    """A line for each guest with dedicated CPUs among the given CPUs."""
    for name, held in guests.items():
        if (here := held & cpus) and not held <= sets.shared:
            yield f"{on_one_line(name)}: {cpuset.format(here)}"


def _sharer_lines(cpus: frozenset[int], sets: CpuSets, guests: Guests) -> list[str]:
    """Lines with the names of guests on shared CPUs among the given CPUs, and the number of omitted names."""
    names = [on_one_line(name) for name, held in guests.items() if held & cpus and held <= sets.shared]
    more = [f"{len(names) - _MAX_SHARERS} more"] if len(names) > _MAX_SHARERS else []
    return textwrap.wrap(", ".join([*names[:_MAX_SHARERS], *more]), _NAMES_WIDTH)
