"""Sets the masks of a host as a demand says: reads them, saves originals, writes differences, reads back."""

from __future__ import annotations

import errno
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from compute_agent.isolation.decision import (
    KERNEL_MANAGED,
    IsolationDemand,
    KernelAnswers,
    MaskPlan,
    MaskWrite,
    StuckMask,
    decide_masks,
)
from compute_agent.isolation.facts import IsolationFacts, MaskReader
from compute_agent.isolation.originals import OriginalMasks, OriginalStore
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, named_cpus

LOG = logging.getLogger(__name__)

_ROUNDS: Final = 4
"""A write, another one where a CPU has no free vector or a device was reset meanwhile, and a last look."""

_FINAL: Final = frozenset({errno.EIO, errno.EPERM})
"""The kernel's answers for an interrupt that never moves: EIO up to Linux 6.11, then EPERM."""

_PASSING: Final = frozenset({errno.EBUSY, errno.EAGAIN, errno.EINTR})


@dataclass(frozen=True, slots=True)
class IsolationStatus:
    """The quiet CPUs, the work that stays on them, and the number of changed masks."""

    quiet: CpuSet = frozenset()
    stuck: tuple[StuckMask, ...] = ()
    changed_masks: int = 0


class HostIsolator:
    """Carries demands out. One thread calls it at a time, in the process that locks the state folder."""

    def __init__(
        self, reader: MaskReader, store: OriginalStore, count_drift: Callable[[], object] = lambda: None
    ) -> None:
        """``count_drift`` is called for each mask that another program has changed."""
        self._reader = reader
        self._store = store
        self._count_drift = count_drift
        #: Masks that the kernel does not change, by path: the actions then, and the reason.
        self._refused: dict[str, tuple[str, str]] = {}
        #: CPUs that were written, and what the kernel made of them, by path.
        self._stored: dict[str, tuple[CpuSet, CpuSet]] = {}
        self.status = IsolationStatus()

    @property
    def kept_originals(self) -> OriginalMasks:
        """The originals of this boot.

        :raises OSError: they cannot be read.
        """
        found = self._store.kept_originals
        # Nothing but the boot is read where there is nothing to give back.
        return found if not found.masks or found.boot == self._reader.boot_id else OriginalMasks()

    def bring_about(self, demand: IsolationDemand) -> IsolationStatus:
        """Set the masks as a demand says; the status lists masks that remain.

        :raises OSError: originals cannot be kept; nothing is written then.
        """
        failures: dict[str, str] = {}
        full: CpuSet = frozenset()
        plan = MaskPlan(OriginalMasks())
        for number in range(_ROUNDS):
            originals = self.kept_originals
            if not demand.quiet_cpus and not originals.masks:
                break
            facts, plan = self._decide_masks(demand, originals, full)
            self._store.keep_originals(plan.originals)
            if number == 0:
                self._tell_changed(plan)
            if not plan.writes or number == _ROUNDS - 1:
                break
            failures, full = self._write_masks(plan.writes, facts, full)
        stuck = (*plan.stuck, *_unfinished_masks(plan, demand.quiet_cpus, failures))
        changed = sum(bool(mask.written) for mask in plan.originals.masks.values())
        self._show_status(IsolationStatus(demand.quiet_cpus, stuck, changed))
        return self.status

    def plan_changes(self, demand: IsolationDemand) -> tuple[MaskWrite, ...]:
        """The writes that a demand would cause.

        :raises OSError: originals cannot be read.
        """
        originals = self.kept_originals
        if not demand.quiet_cpus and not originals.masks:
            return ()
        return self._decide_masks(demand, originals, frozenset())[1].writes

    def _decide_masks(
        self, demand: IsolationDemand, originals: OriginalMasks, full: CpuSet
    ) -> tuple[IsolationFacts, MaskPlan]:
        facts = self._reader.read_facts(demand.quiet_cpus, originals.masks.keys(), demand.main_processes)
        self._refused = {
            path: refusal
            for path, refusal in self._refused.items()
            if path in facts.masks and facts.masks[path].names == refusal[0]
        }
        refused = {path: reason for path, (_, reason) in self._refused.items()}
        self._stored = {path: pair for path, pair in self._stored.items() if path in facts.masks}
        return facts, decide_masks(facts, demand, originals, KernelAnswers(refused, full, self._stored))

    def _write_masks(
        self, writes: Iterable[MaskWrite], facts: IsolationFacts, full: CpuSet
    ) -> tuple[dict[str, str], CpuSet]:
        """Write masks. What the kernel does not take, and CPUs without a free vector."""
        failures: dict[str, str] = {}
        for write in writes:
            path = write.mask.path
            try:
                self._reader.write_mask(path, write.text, write.mask.names)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the device or the thread has gone
            except OSError as error:
                if error.errno in _FINAL:
                    self._refused[path] = write.mask.names, KERNEL_MANAGED
                elif error.errno == errno.ENOSPC:
                    full |= write.cpus
                    failures[path] = f"{named_cpus(write.cpus)} has no free vector"
                else:
                    failures[path] = os.strerror(error.errno or 0)
                    if error.errno not in _PASSING:
                        LOG.debug("%s: %s", path, error)
                continue
            stored = self._reader.read_cpus(path)
            if stored is not None and stored != write.cpus:
                self._stored[path] = write.cpus, stored
            else:
                self._stored.pop(path, None)
        return failures, full

    def _tell_changed(self, plan: MaskPlan) -> None:
        for _ in plan.changed:
            self._count_drift()
        if plan.changed:
            LOG.warning(
                "Another program changed %d masks to include quiet CPUs, such as %s = %s, and the agent"
                " repaired them. irqbalance needs IRQBALANCE_BANNED_CPULIST with the dedicated CPUs",
                len(plan.changed),
                plan.changed[0].in_words,
                cpuset.format(plan.changed[0].cpus),
            )

    def _show_status(self, status: IsolationStatus) -> None:
        if status.quiet != self.status.quiet:
            LOG.info("Quiet CPUs: %s", cpuset.format(status.quiet) or "none")
        self.status = status


def _unfinished_masks(plan: MaskPlan, quiet: CpuSet, failures: Mapping[str, str]) -> Iterable[StuckMask]:
    """The masks that should have changed, and did not."""
    for write in plan.writes:
        mask = write.mask
        reason = failures.get(mask.path, f"the kernel has {cpuset.format(mask.cpus)} instead")
        yield StuckMask(mask, mask.reached_cpus & quiet, reason)


def stuck_sentences(stuck: Iterable[StuckMask], cpus: CpuSet | None = None) -> tuple[str, ...]:
    """Sentences about masks that stay on some CPUs, or on any: one for each reason."""
    together: dict[str, list[str]] = defaultdict(list)
    for one in stuck:
        if cpus is None or one.cpus & cpus:
            together[one.reason].append(one.mask.in_words)
    return tuple(f"{', '.join(subjects)}: {reason}" for reason, subjects in sorted(together.items()))
