"""Carry out the steps of a plan. Each write is read back, and a failure stops only its own group."""

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
    """Carry out the steps in order.

    A failed step stops the later steps of its group, and the steps of groups that need its ways.

    :param codec: recognises bandwidths that the kernel rounds.
    :param exclusive: the L3 cache ids on which each group has exclusive ways once all steps are done. A group
        with exclusive ways gets no way that a stopped group can still fill, and no other group gets its ways.
    :returns: the error of each stopped group. A stopped group is as it was before the failed step.
    """
    stopped: dict[str, ResctrlError] = {}
    for step in steps:
        if step.group in stopped:
            continue
        try:
            # Removal needs no ways. Others were planned as if no step failed, so each looks again.
            if not isinstance(step, RemoveGroup):
                _check_free(files, step, stopped, exclusive)
            _apply_step(files, step, codec)
        # A group that fails costs neither the groups before it nor those after it that take nothing of its
        # ways.
        except ResctrlError as error:
            stopped[step.group] = error
    return stopped


def _check_free(
    files: ResctrlFilesystem,
    step: CreateGroup | WriteSchemata,
    stopped: Iterable[str],
    exclusive: Mapping[str, Collection[int]],
) -> None:
    """Check that no way of a step still belongs to a stopped group, where either needs it exclusively.

    :raises ResctrlError: EAGAIN. The message names the stopped group.
    """
    for other in stopped:
        try:
            has = read_group_schemata(files, other)
        except ResctrlError:
            continue  # the group was not made, or is removed: it has no ways
        for resource, cache, mask in step.schemata:
            alone = cache in exclusive.get(step.group, ()) or cache in exclusive.get(other, ())
            if alone and resource in CACHE_RESOURCES and mask & (has.get_value(resource, cache) or 0):
                name = other or "(default)"
                raise ResctrlError(
                    errno.EAGAIN, str(files.root / step.group), f"its ways are held by resctrl group {name}"
                )


def _apply_step(files: ResctrlFilesystem, step: PlanStep, codec: BandwidthCodec | None) -> None:
    """Carry out one step completely or not at all.

    :raises ResctrlError: with a note about anything that could not be undone.
    """
    if isinstance(step, RemoveGroup):
        remove_group(files, step.group)
        return
    if isinstance(step, CreateGroup):
        files.make_folder(step.group)
        try:
            write_schemata(files, step.group, step.schemata, codec)
        except ResctrlError:
            # The kernel gives a new group all shareable ways and full bandwidth, beyond its plan.
            remove_group(files, step.group)
            raise
        return
    # Only the values of this step are put back: another program may change others meanwhile.
    before = read_group_schemata(files, step.group).restricted_to(step.schemata)
    try:
        write_schemata(files, step.group, step.schemata, codec)
    # Each resource is a line of its own: the kernel may have taken some of them before it refused one.
    except ResctrlError as error:
        _restore_schemata(files, step, before, error)
        raise


def _restore_schemata(
    files: ResctrlFilesystem, step: WriteSchemata, before: Schemata, error: ResctrlError
) -> None:
    """Write back the values from before a failed write that the kernel applied in part.

    :param error: gets a note about a failure.
    """
    try:
        # Only the differences: an unchanged line could be refused for a reason of its own.
        taken = before.changes_from(read_group_schemata(files, step.group))
        # Usually there is nothing to undo: the kernel parses all lines before it applies any.
        if taken:
            files.write_file(group_path(step.group, "schemata"), str(taken))
    except ResctrlError as failure:
        # As a note, so that the error still has the reason of the first failure.
        error.add_note(f"could not be undone: {failure}")
        LOG.error("Group %s has neither its old nor its new schemata: %s", step.group or "(default)", failure)
