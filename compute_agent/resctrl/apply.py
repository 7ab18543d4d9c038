"""Carries out the steps of a plan for resctrl groups, and reads each write back."""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from compute_agent.resctrl.bandwidth import BandwidthCodec
from compute_agent.resctrl.filesystem import ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.groups import group_path, read_group_schemata, remove_group, write_schemata
from compute_agent.resctrl.plan import CreateGroup, PlanStep, RemoveGroup, WriteSchemata
from compute_agent.resctrl.schemata import CACHE_RESOURCES, Schemata

LOG = logging.getLogger(__name__)


def apply_plan(
    files: ResctrlFilesystem,
    steps: Sequence[PlanStep],
    codec: BandwidthCodec | None = None,
    exclusive: Mapping[str, Collection[int]] = MappingProxyType({}),
) -> dict[str, ResctrlError]:
    """Carry out the steps of a plan in their order.

    A failed step stops the later steps of its group, and the steps of groups that need ways of its group.

    :param codec: recognises bandwidths that the kernel rounds; None means that bandwidth cannot be
        controlled.
    :param exclusive: the L3 cache ids on which each group will have exclusive ways after all steps. A way
        that a stopped group can still fill goes to no other group if one of the two groups has exclusive ways
        on the cache.
    :return: the error of each stopped group. The group is as it was before the failed step, unless a note on
        the error says that the former values could not be restored.
    """
    stopped: dict[str, ResctrlError] = {}
    for step in steps:
        if step.group in stopped:
            continue
        try:
            # A removal needs no ways. All other steps were planned under the assumption that no step fails,
            # so each one is checked again.
            if not isinstance(step, RemoveGroup):
                _check_free(files, step, stopped, exclusive)
            _apply_step(files, step, codec)
        # A failed group does not affect the groups before it, nor later groups that need none of its ways.
        except ResctrlError as error:
            stopped[step.group] = error
    return stopped


def _check_free(
    files: ResctrlFilesystem,
    step: CreateGroup | WriteSchemata,
    stopped: Iterable[str],
    exclusive: Mapping[str, Collection[int]],
) -> None:
    """Check that a step takes no way that a stopped group still has, if either group needs the way alone.

    :raises ResctrlError: EAGAIN: a stopped group still has a way that the step takes, and one of the two
        groups needs the way exclusively. The message names the stopped group.
    """
    for other in stopped:
        try:
            has = read_group_schemata(files, other)
        except ResctrlError:
            continue  # This group was not made, or another program has removed it. So it has no ways.
        for resource, cache, mask in step.schemata:
            alone = cache in exclusive.get(step.group, ()) or cache in exclusive.get(other, ())
            if alone and resource in CACHE_RESOURCES and mask & (has.get_value(resource, cache) or 0):
                name = other or "(default)"
                raise ResctrlError(
                    errno.EAGAIN, str(files.root / step.group), f"its ways are held by resctrl group {name}"
                )


def _apply_step(files: ResctrlFilesystem, step: PlanStep, codec: BandwidthCodec | None) -> None:
    """Carry out one step completely or not at all.

    :raises ResctrlError: the kernel refused the step. A note on the error names the values that could not be
        restored.
    """
    if isinstance(step, RemoveGroup):
        remove_group(files, step.group)
        return
    if isinstance(step, CreateGroup):
        files.make_folder(step.group)
        try:
            write_schemata(files, step.group, step.schemata, codec)
        except ResctrlError:
            # The kernel gives a new group all shareable ways and full bandwidth, which the plan does not
            # allow.
            remove_group(files, step.group)
            raise
        return
    # Only the values of this step are restored, because another program can change other values meanwhile.
    before = read_group_schemata(files, step.group).restricted_to(step.schemata)
    try:
        write_schemata(files, step.group, step.schemata, codec)
    # Each resource has a line of its own, and the kernel may have applied some lines before it refused a
    # line.
    except ResctrlError as error:
        _restore_schemata(files, step, before, error)
        raise


def _restore_schemata(
    files: ResctrlFilesystem, step: WriteSchemata, before: Schemata, error: ResctrlError
) -> None:
    """After a failed write, restore the values that the kernel has already changed.

    :param error: the error of the write. The function adds a note to the error if the values cannot be
        restored.
    """
    try:
        # Only values that differ are written, because the kernel could refuse an unchanged line for another
        # reason.
        taken = before.changes_from(read_group_schemata(files, step.group))
        # After most failures no value differs, because the kernel parses all lines before it applies the
        # first line.
        if taken:
            files.write_file(group_path(step.group, "schemata"), str(taken))
    except ResctrlError as failure:
        # The failure becomes a note, so that the error keeps the reason of the first failure.
        error.add_note(f"could not be undone: {failure}")
        LOG.error(
            "The resctrl group %s has neither its old nor its new schemata: %s",
            step.group or "(default)",
            failure,
        )
