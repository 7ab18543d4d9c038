"""Control groups: read them, write their schemata, move threads into them."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.resctrl.bandwidth import BandwidthCodec
from compute_agent.resctrl.filesystem import ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.schemata import BANDWIDTH_RESOURCES, BadSchemataError, Schemata, parse_schemata

LOG = logging.getLogger(__name__)

DEFAULT_GROUP: Final = ""
"""Name of the default group, which is the root of the mount."""

NOT_GROUPS: Final = frozenset({"info", "mon_data", "mon_groups"})
"""Folders of the mount that are not control groups."""

MAX_PASSES: Final = 100
"""Passes over the threads of a guest. Each pass catches the threads that those of the last pass created."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A control group of the kernel. ``mode`` is ``shareable`` where the kernel has no such file."""

    name: str
    schemata: Schemata
    mode: str = "shareable"  # the file exists since Linux 4.19
    monitoring_groups: tuple[str, ...] = ()

    @property
    def is_locked(self) -> bool:
        """Whether the kernel keeps all other groups out of its cache ways."""
        return self.mode in ("exclusive", "pseudo-locked")


@dataclass(frozen=True, slots=True)
class ResctrlGroups:
    """The control groups that exist, by name. The default group has the name ``DEFAULT_GROUP``."""

    groups: Mapping[str, ControlGroup] = field(default_factory=dict)

    @property
    def default_group(self) -> ControlGroup:
        """The group of all tasks that are in no other group."""
        return self.groups[DEFAULT_GROUP]


def read_groups(files: ResctrlFilesystem) -> ResctrlGroups:
    """All control groups. A group that disappears meanwhile is left out.

    :raises ResctrlError: the mount cannot be read.
    """
    groups = {DEFAULT_GROUP: _read_group(files, DEFAULT_GROUP)}
    for name in files.list_folders():
        if name in NOT_GROUPS:
            continue
        try:
            groups[name] = _read_group(files, name)
        # Any program may remove a group between the listing and the read.
        except ResctrlError as error:
            LOG.debug("Group %s cannot be read and counts as removed: %s", name, error)
        except BadSchemataError as error:
            # An empty schemata keeps a foreign group in the count of CLOSIDs without any claim on ways.
            LOG.warning("Group %s stays unchanged, because its schemata cannot be parsed: %s", name, error)
            groups[name] = ControlGroup(name, Schemata())
    return ResctrlGroups(groups)


def read_schemata(files: ResctrlFilesystem, group: str) -> Schemata:
    """The current schemata of a group.

    :raises ResctrlError: the group cannot be read.
    :raises BadSchemataError: the text cannot be parsed.
    """
    return parse_schemata(files.read_file(group_path(group, "schemata")))


def read_group_schemata(files: ResctrlFilesystem, group: str) -> Schemata:
    """The current schemata of a group, with one kind of error.

    :raises ResctrlError: the kernel's, or EIO where the text cannot be parsed.
    """
    try:
        return read_schemata(files, group)
    except BadSchemataError as error:
        raise ResctrlError(errno.EIO, str(files.root / group_path(group, "schemata")), str(error)) from error


def group_path(group: str, name: str) -> str:
    """The path of a file or folder of a group."""
    return f"{group}/{name}" if group else name


def _read_group(files: ResctrlFilesystem, name: str) -> ControlGroup:
    return ControlGroup(
        name,
        read_schemata(files, name),
        files.read_optional(group_path(name, "mode")) or "shareable",
        files.list_folders(group_path(name, "mon_groups")),
    )


def write_schemata(
    files: ResctrlFilesystem, group: str, wanted: Schemata, codec: BandwidthCodec | None = None
) -> None:
    """Write values and read them back.

    :param codec: recognises bandwidths that the kernel rounds.
    :raises ResctrlError: the kernel's, or EIO where the file shows other values afterwards.
    """
    if not wanted:
        return
    path = group_path(group, "schemata")
    # All lines in one write: the kernel parses every line before it applies any.
    files.write_file(path, str(wanted))
    shown = read_group_schemata(files, group)
    for resource, domain, value in wanted:
        found = shown.get_value(resource, domain)
        if found == value:
            continue
        if (
            found is None
            or codec is None
            or resource not in BANDWIDTH_RESOURCES
            or not codec.is_same_value(value, found)
        ):
            part = Schemata({resource: {domain: value}})
            raise ResctrlError(
                errno.EIO, str(files.root / path), f"{str(part).strip()} was written, but it reads {found}"
            )


def remove_group(files: ResctrlFilesystem, group: str) -> None:
    """Remove a group with its monitoring groups. A missing group is not an error.

    :raises ResctrlError: the kernel refused it.
    """
    try:
        # The kernel removes the monitoring groups inside, and its tasks go to the default group.
        files.remove_folder(group)
    except ResctrlError as error:
        # Another program has removed it meanwhile.
        if error.errno != errno.ENOENT:
            raise


def read_tasks(files: ResctrlFilesystem, group: str) -> frozenset[int]:
    """The thread ids in a group.

    :param group: the name of a control group, or the path of a monitoring group.
    :raises ResctrlError: the group cannot be read.
    """
    return frozenset(int(line) for line in files.read_file(group_path(group, "tasks")).split())


def move_tasks(files: ResctrlFilesystem, group: str, thread_ids: Callable[[], Iterable[int]]) -> int:
    """Move threads into a group, in passes, until a pass finds no thread outside.

    A new thread starts in the group of its creator, so each pass leaves fewer outside. A thread that ended
    meanwhile is not an error.

    :param thread_ids: lists the current threads; called once a pass.
    :returns: the number of threads moved.
    :raises ResctrlError: the kernel's, or EAGAIN where threads are created faster than they can be moved.
    """
    moved = 0
    gone: set[int] = set()
    for _ in range(MAX_PASSES):
        outside = set(thread_ids()) - read_tasks(files, group) - gone
        outside.discard(0)  # to the kernel 0 is the thread that writes, which is the agent's
        if not outside:
            return moved
        for thread in sorted(outside):
            try:  # one write a thread: Linux before 6.7 takes no list, and an error would end it
                files.write_file(group_path(group, "tasks"), f"{thread}\n")
                moved += 1
            except ResctrlError as error:
                # The thread has ended since it was listed.
                if error.errno != errno.ESRCH:
                    raise
                gone.add(thread)  # a list may show an ended thread for a while, in each pass again
    raise ResctrlError(
        errno.EAGAIN, str(files.root / group_path(group, "tasks")), "new threads keep appearing"
    )
