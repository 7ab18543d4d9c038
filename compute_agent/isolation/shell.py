"""Sets the masks of a host as guests demand: reads masks, saves originals, writes masks and reads them back.

The agent writes masks before it makes partitions. The reason is that the kernel removes the CPUs of
partitions from the mask of workqueues, so the agent must read the original of this mask before. For the same
reason, the agent removes partitions before it restores masks.

A host can have two agents, for example one for domains and one for processes. Each agent would mistake the
masks of the other agent for drift. So the first agent with a quiet guest keeps the right to change masks
(:class:`MaskOwnership`) until all masks have their originals.

Usually the mask of the agent's control group keeps the agent's own threads off quiet CPUs.
:class:`OwnThreads` is for hosts where guests are below that group, and for hosts without cgroup v2.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from compute_agent.files import LockedError, hold_lock, is_held
from compute_agent.isolation.control_groups import CONTROL_GROUPS
from compute_agent.isolation.decision import (
    KERNEL_MANAGED,
    HeldCpus,
    IsolationDemand,
    KernelAnswers,
    MaskPlan,
    MaskWrite,
    StuckMask,
    decide_masks,
)
from compute_agent.isolation.facts import IsolationFacts, MaskReader
from compute_agent.isolation.irqbalance import (
    BalancerError,
    BalancerGoneError,
    KeptBan,
    decide_bans,
    tell_failures,
)
from compute_agent.isolation.originals import OriginalMasks, OriginalsFile
from compute_agent.isolation.partitions import (
    PARTITION_PATH,
    PartitionPlan,
    PartitionTarget,
    decide_partitions,
    groups_above,
)
from compute_agent.isolation.surroundings import writer_warnings
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, named_cpus

LOG = logging.getLogger(__name__)

_ROUNDS: Final = 4
"""The maximum number of passes. A pass reads all masks and writes those that differ. Further passes repeat
writes that failed, for example because a CPU had no free vector; the last pass only reads.
"""

_FINAL: Final = frozenset({errno.EIO, errno.EPERM})
"""The kernel's errors for an interrupt that cannot be moved: EIO up to Linux 6.11, then EPERM."""

_PASSING: Final = frozenset({errno.EBUSY, errno.EAGAIN, errno.EINTR})


@dataclass(frozen=True, slots=True)
class IsolationStatus:
    """The quiet CPUs, and the work that stays on them.

    :ivar stuck: the masks that cannot be changed as needed.
    :ivar alone: the CPUs of valid partitions.
    :ivar refused: by uuid of the guest, messages about partitions that the guest does not have.
    :ivar balancers: messages about irqbalance processes that do not avoid the quiet CPUs.
    :ivar unlocked: the reason why another agent may write the same masks; empty if no other agent can.
    """

    quiet: CpuSet = frozenset()
    stuck: tuple[StuckMask, ...] = ()
    alone: CpuSet = frozenset()
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    balancers: tuple[str, ...] = ()
    unlocked: str = ""

    @property
    def refusal_sentences(self) -> tuple[str, ...]:
        """Messages about everything that may still disturb quiet CPUs."""
        return (*stuck_sentences(self.stuck), *self.balancers, *filter(None, [self.unlocked]))


class HostIsolator:
    """Sets masks, partitions and bans as guests demand.

    Only one thread uses the object, while the agent holds the lock of the state folder.
    """

    def __init__(
        self,
        reader: MaskReader,
        store: OriginalsFile,
        count_drift: Callable[[], object] = lambda: None,
        ownership: MaskOwnership | None = None,
    ) -> None:
        """Begin without quiet CPUs.

        :param count_drift: called for each mask that another program changed.
        """
        self._ownership = MaskOwnership() if ownership is None else ownership
        self._reader = reader
        self._partitions = reader.partitions
        self._balancers = reader.balancers
        self._store = store
        self._count_drift = count_drift
        #: Masks that the kernel refused to change, by path: the mask's actions at that time, and the reason.
        self._refused: dict[str, tuple[str, str]] = {}
        #: The CPUs that were written and the CPUs that the kernel stored, by path.
        self._stored: dict[str, tuple[CpuSet, CpuSet]] = {}
        #: The inputs of the last decision, and the plan that it made.
        self._decided: (
            tuple[tuple[IsolationFacts, IsolationDemand, OriginalMasks, KernelAnswers], MaskPlan] | None
        ) = None
        self.status = IsolationStatus()

    @property
    def acts_here(self) -> bool:
        """Whether the masks are those of this machine, and not of a captured tree."""
        return self._reader.root == Path("/")

    @property
    def kept_originals(self) -> OriginalMasks:
        """The originals of this boot.

        :raises OSError: the originals cannot be read.
        """
        found = self._store.kept_originals
        # The boot id is read only if there is something to restore.
        return found if found.is_empty or found.boot == self._reader.boot_id else OriginalMasks()

    def bring_about(self, demand: IsolationDemand) -> IsolationStatus:
        """Set masks, partitions and bans as the demand says; return the status, which lists all failures.

        :raises OSError: originals cannot be kept. Files without a kept original are not written.
        """
        acts = bool(demand.quiet_cpus) or not self.kept_originals.is_empty
        if acts and (objection := self._ownership.find_objection()):
            quiet = [guest.uuid for guest in demand.guests if guest.quiet]
            self._show_status(IsolationStatus(refused=dict.fromkeys(quiet, (objection,)), unlocked=objection))
            return self.status
        # Bans are set before masks are written, because irqbalance would change the masks back.
        balancers = self._set_bans(demand.quiet_cpus)
        targets, refused = self._list_targets(demand)
        kept = self.kept_originals
        former = [each for each in targets if each.path in kept.groups]
        plan, has_returned = self._decide_partitions(former, kept), False
        if plan.writes:
            self._keep_originals(demand)
        if plan.writes or plan.originals != kept.groups:
            plan, has_returned = self._set_partitions(former)
        if has_returned:
            self._reader.renew_threads()
        stuck = self._set_masks(demand, plan.valid)
        # A round without changes does not set partitions again, because each call reads all groups.
        if has_returned or former != targets:
            plan, has_changed = self._set_partitions(targets)
            if has_changed:
                self._reader.renew_threads()
                stuck = self._set_masks(demand, plan.valid)
        refused = {
            uuid: (*refused.get(uuid, ()), *plan.refused.get(uuid, ())) for uuid in (*refused, *plan.refused)
        }
        unlocked = self._ownership.problem if demand.quiet_cpus else ""
        self._show_status(IsolationStatus(demand.quiet_cpus, stuck, plan.valid, refused, balancers, unlocked))
        if not demand.quiet_cpus and self.kept_originals.is_empty:
            self._ownership.give_up()
        return self.status

    def _set_bans(self, quiet: CpuSet) -> tuple[str, ...]:
        """Make each irqbalance ban the quiet CPUs, too; return messages about processes that do not.

        :raises OSError: bans cannot be kept, so nothing is written.
        """
        if not quiet and not self.kept_originals.bans:
            return ()
        seen, failures = self._balancers.read_bans()
        plan = decide_bans(seen, failures.keys(), quiet, self.kept_originals.bans)
        self._keep_bans(plan.kept)
        kept = dict(plan.kept)
        for key, cpus in plan.writes.items():
            try:
                self._balancers.write_ban(key, cpus)
            except BalancerGoneError:
                continue
            except BalancerError as error:
                failures[key] = str(error)
                continue
            LOG.info(
                "irqbalance now keeps interrupts off these CPUs: %s",
                cpuset.format(cpus) or "those that its environment names",
            )
            if not cpus:
                kept[key] = replace(kept[key], written=cpus)
        self._keep_bans(kept)
        return tell_failures(failures)

    def _keep_bans(self, bans: Mapping[str, KeptBan]) -> None:
        """Save the bans together with the originals.

        :raises OSError: the bans cannot be kept.
        """
        if bans != self.kept_originals.bans:
            kept = replace(self.kept_originals, boot=self._reader.boot_id, bans=dict(bans))
            self._store.keep_originals(kept)

    def _set_masks(self, demand: IsolationDemand, partitioned: CpuSet) -> tuple[StuckMask, ...]:
        """Set the masks; return the masks that cannot be set."""
        failures: dict[str, str] = {}
        full: CpuSet = frozenset()
        plan = MaskPlan(OriginalMasks())
        for number in range(_ROUNDS):
            originals = self.kept_originals
            if not demand.quiet_cpus and not originals.masks:
                break
            facts, plan = self._decide_masks(demand, originals, full, partitioned)
            self._store.keep_originals(plan.originals)
            if number == 0:
                self._tell_changed(plan)
            if not plan.writes or number == _ROUNDS - 1:
                break
            failures, full = self._write_masks(plan.writes, facts, full)
        return (*plan.stuck, *_unfinished_masks(plan, demand.quiet_cpus, failures))

    def _keep_originals(self, demand: IsolationDemand) -> None:
        """Save the originals of new kernel threads before the kernel moves them because of a partition.

        :raises OSError: the originals cannot be kept.
        """
        originals = self.kept_originals
        held = replace(demand, kept=demand.kept | originals.quiet)
        plan = self._decide_masks(held, originals, frozenset(), originals.partitioned)[1]
        self._store.keep_originals(replace(plan.originals, partitioned=originals.partitioned))

    def _list_targets(
        self, demand: IsolationDemand
    ) -> tuple[list[PartitionTarget], dict[str, tuple[str, ...]]]:
        """The groups that should be partitions, and the reasons why other guests get no partitions."""
        targets: list[PartitionTarget] = []
        refused: dict[str, tuple[str, ...]] = {}
        for guest in demand.guests:
            if guest.alone and guest.cpus:
                found, reason = self._partitions.list_targets(
                    guest.uuid, self._group_of(guest), guest.cpus, guest.vcpu_cpus
                )
                targets += found
                if reason:
                    refused[guest.uuid] = (reason,)
        return targets, refused

    def _group_of(self, guest: HeldCpus) -> str:
        return guest.group or (self._reader.groups.find_group(guest.pid) if guest.pid else "")

    def _set_partitions(self, targets: Sequence[PartitionTarget]) -> tuple[PartitionPlan, bool]:
        """Make the wanted partitions and remove all others; return the plan, and whether a file was written.

        :raises OSError: originals cannot be kept, so nothing is written.
        """
        failures: dict[str, str] = {}
        has_changed = False
        plan = PartitionPlan({})
        for number in range(_ROUNDS):
            originals = self.kept_originals
            if not targets and not originals.groups:
                break
            plan = self._decide_partitions(targets, originals)
            kept = replace(originals, boot=self._reader.boot_id, groups=plan.originals)
            self._store.keep_originals(kept)
            if not plan.writes or number == _ROUNDS - 1:
                break
            failures = {}
            for path, text in plan.writes:
                try:
                    self._partitions.write_text(path, text)
                    has_changed = True
                except FileNotFoundError:
                    continue  # the group was removed
                except OSError as error:
                    failures[path] = os.strerror(error.errno or 0)
        return _with_failures(plan, targets, failures), has_changed

    def _decide_partitions(
        self, targets: Sequence[PartitionTarget], originals: OriginalMasks
    ) -> PartitionPlan:
        matches = map(PARTITION_PATH.fullmatch, originals.groups)
        groups = {target.group for target in targets} | {match["group"] for match in matches if match}
        return decide_partitions(self._partitions.read_facts(groups), targets, originals.groups)

    def plan_changes(self, demand: IsolationDemand) -> tuple[MaskWrite, ...]:
        """The writes to masks that a demand would cause; nothing is written.

        :raises OSError: originals cannot be read.
        """
        originals = self.kept_originals
        if not demand.quiet_cpus and not originals.masks:
            return ()
        return self._decide_masks(demand, originals, frozenset(), originals.partitioned)[1].writes

    def plan_bans(self, demand: IsolationDemand) -> tuple[CpuSet, ...]:
        """For each ban that would change, the CPUs that irqbalance would have to avoid; empty to lift a ban.

        :raises OSError: originals cannot be read.
        """
        kept = self.kept_originals.bans
        if not demand.quiet_cpus and not kept:
            return ()
        seen, failures = self._balancers.read_bans()
        return tuple(decide_bans(seen, failures.keys(), demand.quiet_cpus, kept).writes.values())

    def plan_partitions(self, demand: IsolationDemand) -> tuple[tuple[str, str], ...]:
        """The writes to files of partitions that a demand would cause, as pairs of path and text.

        :raises OSError: originals cannot be read.
        """
        return self._decide_partitions(self._list_targets(demand)[0], self.kept_originals).writes

    def _decide_masks(
        self, demand: IsolationDemand, originals: OriginalMasks, full: CpuSet, partitioned: CpuSet
    ) -> tuple[IsolationFacts, MaskPlan]:
        groups = {self._group_of(guest) for guest in demand.guests} - {""}
        facts = self._reader.read_facts(
            demand.quiet_cpus, originals.masks.keys(), demand.main_processes, groups
        )
        facts = replace(facts, partitioned=partitioned)
        self._refused = {
            path: refusal
            for path, refusal in self._refused.items()
            if path in facts.masks and facts.masks[path].names == refusal[0]
        }
        refused = {path: reason for path, (_, reason) in self._refused.items()}
        self._stored = {path: pair for path, pair in self._stored.items() if path in facts.masks}
        inputs = facts, demand, originals, KernelAnswers(refused, full, dict(self._stored))
        # In most rounds the inputs are unchanged, and comparing them takes a fifth of the time of a decision.
        if self._decided is None or self._decided[0] != inputs:
            self._decided = inputs, decide_masks(*inputs)
        return facts, self._decided[1]

    def _write_masks(
        self, writes: Iterable[MaskWrite], facts: IsolationFacts, full: CpuSet
    ) -> tuple[dict[str, str], CpuSet]:
        """Write masks; return the reasons of failed writes by path, and the CPUs without a free vector."""
        failures: dict[str, str] = {}
        for write in writes:
            path = write.mask.path
            try:
                self._reader.write_mask(path, write.text, write.mask.names)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the device was removed, or the thread has ended
            except OSError as error:
                if error.errno in _FINAL:
                    self._refused[path] = write.mask.names, KERNEL_MANAGED
                elif error.errno == errno.ENOSPC:
                    full |= write.cpus
                    failures[path] = f"{named_cpus(write.cpus)} has no free vector"
                else:
                    failures[path] = os.strerror(error.errno or 0)
                    if error.errno not in _PASSING:
                        LOG.debug("The kernel refuses the new mask of %s: %s", path, error)
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
                " repairs them",
                len(plan.changed),
                plan.changed[0].in_words,
                cpuset.format(plan.changed[0].cpus),
            )
            for sentence in writer_warnings(self._reader.root):
                LOG.warning("Another program can undo the isolation of quiet CPUs again: %s", sentence)

    def _show_status(self, status: IsolationStatus) -> None:
        if status.quiet != self.status.quiet:
            LOG.info(
                "The CPUs without interrupts and kernel work (quiet CPUs) are now: %s",
                cpuset.format(status.quiet) or "none",
            )
        if status.alone != self.status.alone:
            LOG.info(
                "CPUs without interrupts and kernel work, in cpuset partitions of their own: %s",
                cpuset.format(status.alone) or "none",
            )
        if status.balancers != self.status.balancers:
            for sentence in status.balancers:
                LOG.warning("Quiet CPUs may get interrupts: %s", sentence)
        self.status = status


def _with_failures(
    plan: PartitionPlan, targets: Iterable[PartitionTarget], failures: Mapping[str, str]
) -> PartitionPlan:
    """The plan of partitions, with the kernel's errors added to the messages of the affected guests."""
    if not failures:
        return plan
    refused = {uuid: list(reasons) for uuid, reasons in plan.refused.items()}
    for target in targets:
        for group in (*groups_above(target.group), target.group):
            for path, reason in failures.items():
                if path.startswith(f"{CONTROL_GROUPS}/{group}/cpuset"):
                    said = f"alone: {path.removeprefix(CONTROL_GROUPS)[1:]}: {reason}"
                    refused.setdefault(target.uuid, []).append(said)
    return replace(plan, refused={uuid: tuple(dict.fromkeys(each)) for uuid, each in refused.items()})


def _unfinished_masks(plan: MaskPlan, quiet: CpuSet, failures: Mapping[str, str]) -> Iterable[StuckMask]:
    """The masks that the plan changes, but that still have another content in the kernel."""
    for write in plan.writes:
        mask = write.mask
        reason = failures.get(mask.path, f"the kernel has {cpuset.format(mask.cpus)} instead")
        yield StuckMask(mask, mask.reached_cpus & quiet, reason)


def stuck_sentences(stuck: Iterable[StuckMask], cpus: CpuSet | None = None) -> tuple[str, ...]:
    """Messages, one for each reason, about stuck masks that still contain some of ``cpus``."""
    together: dict[str, list[str]] = defaultdict(list)
    for one in stuck:
        if cpus is None or one.cpus & cpus:
            together[one.reason].append(one.mask.in_words)
    return tuple(f"{', '.join(subjects)}: {reason}" for reason, subjects in sorted(together.items()))


LOCK_FILE: Final = "isolation.lock"


class MaskOwnership:
    """The right to change masks: a lock in a folder that all agents of the host share.

    Only one thread is allowed to use this object.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Use a lock in ``folder``; None means that no lock is needed."""
        self._path = None if folder is None else folder / LOCK_FILE
        self._held: int | None = None
        #: The reason why no lock can be taken; empty if there is no problem.
        self.problem = ""

    def find_objection(self) -> str:
        """Take the right to change masks; return a text that names the agent that has it, or an empty text.

        If no lock can be taken, the result is empty and ``problem`` has the reason.
        """
        if self._path is None or (self._held is not None and is_held(self._path, self._held)):
            return ""
        self.give_up()
        problem = ""
        try:
            self._held = hold_lock(self._path, f"pid {os.getpid()}")
        except LockedError as error:
            return f"another agent has quiet CPUs on this host ({error})"
        except OSError as error:
            # Isolation goes on without a lock, because few hosts have two agents, and a container may lack
            # the folder for the lock.
            problem = f"a second agent of this host would undo the masks, as no lock can be taken: {error}"
            if problem != self.problem:
                LOG.warning(
                    "The agent changes the masks of quiet CPUs without a lock, so another agent may"
                    " change them, too: %s",
                    problem,
                )
        self.problem = problem
        return ""

    def give_up(self) -> None:
        """Release the right to change masks, so that another agent can take it."""
        if self._held is not None:
            with contextlib.suppress(OSError):
                os.close(self._held)
            self._held = None


class OwnThreads:
    """Binds the threads of this process to CPUs. A new thread has the CPUs of the thread that starts it."""

    def __init__(self) -> None:
        #: The CPUs that the main thread had before; None: the agent has not changed them.
        self._home: CpuSet | None = None

    def keep_off(self, cpus: CpuSet) -> None:
        """Bind all threads to CPUs outside ``cpus``; without ``cpus``, give them their former CPUs back."""
        present = frozenset(os.sched_getaffinity(os.getpid()))
        if self._home is None and not present & cpus:
            return
        home = present if self._home is None else self._home
        goal = (home - cpus) or home
        for name in os.listdir("/proc/self/task"):
            # Errors are ignored: the thread has ended, or the agent's control group does not allow these
            # CPUs.
            with contextlib.suppress(OSError):
                if frozenset(os.sched_getaffinity(int(name))) != goal:
                    os.sched_setaffinity(int(name), goal)
        self._home = None if goal == home else home
