"""Carry out plans: writes are read back, and what fails holds up its group alone. Move tasks into groups."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from compute_agent.resctrl.engine import Engine
from compute_agent.resctrl.filesystem import Filesystem, ResctrlError
from compute_agent.resctrl.plan import Create, Remove, Step, Write
from compute_agent.resctrl.reader import inside, read_schemata
from compute_agent.resctrl.schemata import BANDWIDTH_RESOURCES, CACHE_RESOURCES, BadSchemataError, Schemata

LOG = logging.getLogger(__name__)

MAX_PASSES: Final = 100
"""How often new threads of a guest are looked for: each pass catches those that the last one's made."""


def carry_out(
    files: Filesystem,
    steps: Sequence[Step],
    engine: Engine | None = None,
    exclusive: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> dict[str, ResctrlError]:
    """Do the steps in order. One that fails holds up its group alone, and those that wait for its ways.

    ``exclusive`` are the groups that have ways for themselves when all is done, with the ids of these L3
    caches: they get none that a group which was held up can still fill, and nobody gets theirs. Returns the
    groups that were held up, and why; these are as they were before the step that failed.
    """
    held_up: dict[str, ResctrlError] = {}
    for step in steps:
        if step.group in held_up:
            continue
        try:
            if not isinstance(step, Remove):
                _check_free(files, step, held_up, exclusive)
            _do(files, step, engine)
        except ResctrlError as error:
            held_up[step.group] = error
    return held_up


def _check_free(
    files: Filesystem,
    step: Create | Write,
    held_up: Iterable[str],
    exclusive: Mapping[str, Collection[int]],
) -> None:
    """See that a step gives no ways that a group which was held up has, where one of the two has them alone.

    :raises ResctrlError:
    """
    for other in held_up:
        try:
            has = _read(files, other)
        except ResctrlError:
            continue  # it is not there
        for resource, cache, mask in step.schemata:
            alone = cache in exclusive.get(step.group, ()) or cache in exclusive.get(other, ())
            if alone and resource in CACHE_RESOURCES and mask & (has.get(resource, cache) or 0):
                name = other or "(default)"
                raise ResctrlError(
                    errno.EAGAIN, str(files.root / step.group), f"its ways are held by resctrl group {name}"
                )


def _do(files: Filesystem, step: Step, engine: Engine | None) -> None:
    """Do one step as a whole or not at all.

    :raises ResctrlError: with a note for what could not be undone.
    """
    if isinstance(step, Remove):
        remove_group(files, step.group)
        return
    if isinstance(step, Create):
        files.make(step.group)
        try:
            write_schemata(files, step.group, step.schemata, engine)
        except ResctrlError:
            remove_group(files, step.group)  # never a half-made group
            raise
        return
    before = _read(files, step.group).within(step.schemata)
    try:
        write_schemata(files, step.group, step.schemata, engine)
    except ResctrlError as error:
        _put_back(files, step, before, error)
        raise


def _put_back(files: Filesystem, step: Write, before: Schemata, error: ResctrlError) -> None:
    """What the kernel took of a write that it did not take as a whole, or not as it was meant."""
    try:
        taken = before.changes_from(_read(files, step.group))
        if taken:
            files.write(inside(step.group, "schemata"), str(taken))
    except ResctrlError as failure:
        error.add_note(f"could not be undone: {failure}")
        LOG.error("A change of resctrl groups could not be undone: %s", failure)


def _read(files: Filesystem, group: str) -> Schemata:
    try:
        return read_schemata(files, group)
    except BadSchemataError as error:
        raise ResctrlError(errno.EIO, str(files.root / inside(group, "schemata")), str(error)) from error


def write_schemata(files: Filesystem, group: str, wanted: Schemata, engine: Engine | None = None) -> None:
    """Write values and read them back.

    An ``engine`` knows how far bandwidths may be rounded by the kernel.

    :raises ResctrlError: the kernel's, or EIO where it shows other values.
    """
    if not wanted:
        return
    path = inside(group, "schemata")
    files.write(path, str(wanted))
    shown = _read(files, group)
    for resource, domain, value in wanted:
        found = shown.get(resource, domain)
        if found == value:
            continue
        if (
            found is None
            or engine is None
            or resource not in BANDWIDTH_RESOURCES
            or not engine.agrees(value, found)
        ):
            part = Schemata({resource: {domain: value}})
            raise ResctrlError(
                errno.EIO, str(files.root / path), f"{str(part).strip()} was written, but it reads {found}"
            )


def remove_group(files: Filesystem, group: str) -> None:
    """Remove a group with its monitoring groups; gone already is no error.

    :raises ResctrlError:
    """
    try:
        files.remove(group)
    except ResctrlError as error:
        if error.errno != errno.ENOENT:
            raise


def read_tasks(files: Filesystem, group: str) -> frozenset[int]:
    """The thread ids in a group (or, with its path, in a monitoring group).

    :raises ResctrlError:
    """
    return frozenset(int(line) for line in files.read(inside(group, "tasks")).split())


def move_tasks(files: Filesystem, group: str, thread_ids: Callable[[], Iterable[int]]) -> int:
    """Write the threads that ``thread_ids`` tells into a group, until a pass finds none that is elsewhere.

    New threads are in the group of the one that made them, so each pass leaves fewer outside. A thread that
    ended meanwhile is no error. Returns how many were moved.

    :raises ResctrlError: the kernel's, or EAGAIN where threads are made faster than they can be moved.
    """
    moved = 0
    gone: set[int] = set()
    for _ in range(MAX_PASSES):
        outside = set(thread_ids()) - read_tasks(files, group) - gone
        outside.discard(0)  # would be ourselves
        if not outside:
            return moved
        for thread in sorted(outside):
            try:
                files.write(inside(group, "tasks"), f"{thread}\n")
                moved += 1
            except ResctrlError as error:
                if error.errno != errno.ESRCH:
                    raise
                gone.add(thread)
    raise ResctrlError(errno.EAGAIN, str(files.root / inside(group, "tasks")), "new threads keep appearing")
