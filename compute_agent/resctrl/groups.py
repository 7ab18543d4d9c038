"""Reads control groups of resctrl, writes their schemata, and moves threads into them."""

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
"""The name of the default group, which is the root folder of the mount."""

NOT_GROUPS: Final = frozenset({"info", "mon_data", "mon_groups"})
"""The folders of the mount that are no control groups."""

MAX_PASSES: Final = 100
"""Maximum number of passes over the threads of a guest. Each pass moves the threads that were created during
the previous pass.
"""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A control group with its present values in the kernel.

    :ivar mode: the content of the file ``mode``; ``shareable`` if the kernel has no such file.
    """

    name: str
    schemata: Schemata
    mode: str = "shareable"  # The kernel has the file since Linux 4.19.
    monitoring_groups: tuple[str, ...] = ()

    @property
    def is_locked(self) -> bool:
        """Whether the kernel reserves the cache ways of this group for the group alone."""
        return self.mode in ("exclusive", "pseudo-locked")


@dataclass(frozen=True, slots=True)
class ResctrlGroups:
    """The control groups in the kernel by name, including the default group."""

    groups: Mapping[str, ControlGroup] = field(default_factory=dict)

    @property
    def default_group(self) -> ControlGroup:
        """The default group, which contains all tasks that are in no other group."""
        return self.groups[DEFAULT_GROUP]


def read_groups(files: ResctrlFilesystem) -> ResctrlGroups:
    """Read all control groups. The function leaves out a group that disappears meanwhile."""
    groups = {DEFAULT_GROUP: _read_group(files, DEFAULT_GROUP)}
    for name in files.list_folders():
        if name in NOT_GROUPS:
            continue
        try:
            groups[name] = _read_group(files, name)
        # Any program can remove a group between the listing and the reading.
        except ResctrlError as error:
            LOG.debug("The resctrl group %s cannot be read and counts as removed: %s", name, error)
        except BadSchemataError as error:
            # The schemata of the group are empty then. The group still counts as a CLOSID, but has no ways.
            LOG.warning(
                "The resctrl group %s stays unchanged, because its schemata cannot be parsed: %s", name, error
            )
            groups[name] = ControlGroup(name, Schemata())
    return ResctrlGroups(groups)


def read_schemata(files: ResctrlFilesystem, group: str) -> Schemata:
    """The schemata that a group has at present.

    :raises BadSchemataError: the text cannot be parsed.
    """
    return parse_schemata(files.read_file(group_path(group, "schemata")))


def read_group_schemata(files: ResctrlFilesystem, group: str) -> Schemata:
    """Read the schemata of a group, and raise ResctrlError for any failure.

    :raises ResctrlError: the group cannot be read. EIO means that the text cannot be parsed.
    """
    try:
        return read_schemata(files, group)
    except BadSchemataError as error:
        raise ResctrlError(errno.EIO, str(files.root / group_path(group, "schemata")), str(error)) from error


def group_path(group: str, name: str) -> str:
    """The path of a file or folder of a group, relative to the root of the mount."""
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
    """Write bandwidths and masks to the schemata of a group, and read the schemata back.

    :param codec: recognises bandwidths that the kernel rounds; None means that bandwidth cannot be
        controlled.
    :raises ResctrlError: the kernel refuses a value. EIO means that the file shows other values afterwards.
    """
    if not wanted:
        return
    path = group_path(group, "schemata")
    # All lines are written with one call, because the kernel parses all lines of a call before it applies
    # any.
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
    """Remove a group and its monitoring groups. The function ignores a missing group."""
    try:
        # The kernel removes the monitoring groups inside, and moves the tasks to the default group.
        files.remove_folder(group)
    except ResctrlError as error:
        # A missing group is no error: another program has removed the group meanwhile.
        if error.errno != errno.ENOENT:
            raise


def read_tasks(files: ResctrlFilesystem, group: str) -> frozenset[int]:
    """The ids of the threads in a group.

    :param group: the name of a control group, or the path of a monitoring group.
    """
    return frozenset(int(line) for line in files.read_file(group_path(group, "tasks")).split())


def move_tasks(files: ResctrlFilesystem, group: str, thread_ids: Callable[[], Iterable[int]]) -> int:
    """Move threads into a group, in passes, until a pass finds no thread outside the group.

    A new thread starts in the group of its creator, so each pass leaves fewer threads outside. The function
    ignores a thread that ends meanwhile.

    :param thread_ids: returns the ids of the present threads; called once in each pass.
    :return: the number of moved threads.
    :raises ResctrlError: the kernel refuses a thread. EAGAIN means that threads are created faster than they
        can be moved.
    """
    moved = 0
    gone: set[int] = set()
    for _ in range(MAX_PASSES):
        outside = set(thread_ids()) - read_tasks(files, group) - gone
        # The kernel takes the id 0 for the writing thread, which belongs to the agent.
        outside.discard(0)
        if not outside:
            return moved
        for thread in sorted(outside):
            # The code uses one write for each thread: Linux before 6.7 accepts no list, and an error in a
            # list skips the rest of it.
            try:
                files.write_file(group_path(group, "tasks"), f"{thread}\n")
                moved += 1
            except ResctrlError as error:
                # The thread has ended since it was listed.
                if error.errno != errno.ESRCH:
                    raise
                # Some lists show an ended thread for a while; it must not be tried in each pass.
                gone.add(thread)
    raise ResctrlError(
        errno.EAGAIN, str(files.root / group_path(group, "tasks")), "new threads keep appearing"
    )
