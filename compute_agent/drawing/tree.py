"""The topology as a tree of text: boxes in boxes, and in the innermost what each CPU is for."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from compute_agent.drawing import boxes
from compute_agent.drawing.boxes import CORE, CpuBox
from compute_agent.drawing.roles import CpuRole, roles
from compute_agent.host.topology import HostTopology
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.messages import on_one_line

_WIDTH: Final = len(CpuRole.DEDICATED)

_MAX_SHARERS: Final = 12
"""Guests named at the shared CPUs of a box, which may be those of all guests."""

_NAMES_WIDTH: Final = 70
"""Characters of a line of names, so that a line fits a terminal."""

Guests = Mapping[str, frozenset[int]]


def lines(topology: HostTopology, sets: CpuSets, guests: Guests | None) -> Iterator[str]:
    """The tree, a line at a time.

    :param guests: the CPUs of each guest by its name; None where nobody knows, so that nothing is said to be
        free.
    """
    host, crossing = boxes.nest(topology)
    host.lines += _threads(topology)
    yield from _box(host, "", "", topology, sets, guests)
    if topology.offline:
        yield f"Offline CPUs: {cpuset.format(topology.offline)}"
    yield from crossing


def _threads(topology: HostTopology) -> Iterator[str]:
    """Which CPUs are threads of one core, where one rule tells it of all that have all their threads."""
    offsets = [tuple(cpu - min(core.cpus) for cpu in sorted(core.cpus)) for core in topology.cores]
    most = max(map(len, offsets), default=1)
    if most > 1 and len(whole := {each for each in offsets if len(each) == most}) == 1:
        yield "threads of a core: " + ", ".join(f"n+{each}" if each else "n" for each in whole.pop())


def _box(
    box: CpuBox, first: str, rest: str, topology: HostTopology, sets: CpuSets, guests: Guests | None
) -> Iterator[str]:
    """A box after ``first``, and all in it after ``rest``."""
    yield first + " · ".join(box.lines)
    inner = [child for child in box.children if child.kind != CORE]
    cores = frozenset(cpu for child in box.children if child.kind == CORE for cpu in child.cpus)
    below = rest + ("│  " if inner else "   ")
    for role, cpus in roles(cores, sets).items():
        yield f"{below}{_role(role, cpus, topology, guests)}".rstrip()
        if role in (CpuRole.DEDICATED, CpuRole.BOTH):
            yield from (f"{below}{'':{_WIDTH}}  {each}" for each in _holders(cpus, sets, guests or {}))
        if role in (CpuRole.SHARED, CpuRole.BOTH):
            yield from (f"{below}{'':{_WIDTH}}  {each}" for each in _sharers(cpus, sets, guests or {}))
    for child in inner:
        last = child is inner[-1]
        yield from _box(
            child,
            rest + ("└─ " if last else "├─ "),
            rest + ("   " if last else "│  "),
            topology,
            sets,
            guests,
        )


def _role(role: CpuRole, cpus: frozenset[int], topology: HostTopology, guests: Guests | None) -> str:
    cores = {topology.threads_of(cpu) for cpu in cpus}
    counted = [f"{len(cores)} core{'s' * (len(cores) != 1)}"]
    if split := sum(not threads <= cpus for threads in cores):
        counted.append(f"{split} of them shared with others" if split < len(cores) else "shared with others")
    if role is CpuRole.DEDICATED and guests is not None:
        free = cpus.difference(*guests.values())
        counted.append(f"free: {cpuset.format(free) or 'none'}")
    return f"{role:{_WIDTH}}  {cpuset.format(cpus)}  ({'; '.join(counted)})"


def _holders(cpus: frozenset[int], sets: CpuSets, guests: Guests) -> Iterator[str]:
    """Guests with CPUs of their own among these."""
    for name, held in guests.items():
        if (here := held & cpus) and not held <= sets.shared:
            yield f"{on_one_line(name)}: {cpuset.format(here)}"


def _sharers(cpus: frozenset[int], sets: CpuSets, guests: Guests) -> list[str]:
    """Lines with the names of guests on shared CPUs among these, and the number of those left out."""
    names = [on_one_line(name) for name, held in guests.items() if held & cpus and held <= sets.shared]
    more = [f"{len(names) - _MAX_SHARERS} more"] if len(names) > _MAX_SHARERS else []
    return textwrap.wrap(", ".join([*names[:_MAX_SHARERS], *more]), _NAMES_WIDTH)
