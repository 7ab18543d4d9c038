"""Decides which CPUs each mask should have: a pure function of facts, demand, originals and kernel answers.

A mask keeps its original as long as the original contains no quiet CPU. Otherwise the mask gets those CPUs of
the original that are among the best sinks. If the original contains no best sink, an interrupt gets the sink
with the fewest interrupts since boot, and any other mask gets all of the best sinks. The best sinks are CPUs
outside the dedicated set. If there is no such CPU, the best sinks are dedicated CPUs that no guest holds. In
both cases, CPUs in the NUMA node of the mask's device come first. CPUs that guests hold are never sinks. The
interrupts of a guest's own passthrough device go to the CPUs of that guest. Processes of the host are kept
off quiet CPUs in the same way: the files ``cpuset.cpus`` of their control groups are masks, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.isolation.control_groups import CONTROL_GROUPS
from compute_agent.isolation.facts import DEFAULT_MASK, IsolationFacts, KernelMask, MaskKind
from compute_agent.isolation.originals import OriginalMask, OriginalMasks
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet

MAX_VECTORS: Final = 150
"""Maximum number of interrupts that a sink gets. An x86 CPU has about 200 interrupt vectors, and new devices
need some of them.
"""

NO_SINK: Final = "no CPU is left for it that no guest holds"
KERNEL_MANAGED: Final = "the kernel does not let it move"
NO_GROUPS: Final = "the host has no control groups of version 2 with the controller cpuset"
LOOSE: Final = "they are in the root of the control groups, which cannot have a mask"


@dataclass(frozen=True, slots=True)
class HeldCpus:
    """The dedicated CPUs that a guest holds, and the isolation that the guest asks for.

    :ivar quiet: whether the host's own work must avoid the CPUs.
    :ivar pid: the process id of the guest's main process.
    :ivar alone: whether the CPUs must also be a cpuset partition.
    :ivar group: the guest's control group, relative to the root of all control groups; empty for the group of
        its main process.
    :ivar vcpu_cpus: the host CPUs that each guest CPU may use.
    """

    uuid: str
    cpus: CpuSet
    quiet: bool = False
    pid: int = 0
    alone: bool = False
    group: str = ""
    vcpu_cpus: tuple[CpuSet, ...] = ()


@dataclass(frozen=True, slots=True)
class IsolationDemand:
    """The isolation that all guests of a host demand together.

    :ivar dedicated: the CPUs of the host that guests can hold (the dedicated set).
    :ivar nodes: the CPUs of each NUMA node, by number of the node.
    :ivar kept: CPUs that stay quiet although no known guest holds them, for example while a guest is lost.
    """

    guests: tuple[HeldCpus, ...] = ()
    dedicated: CpuSet = frozenset()
    nodes: Mapping[int, CpuSet] = field(default_factory=dict)
    kept: CpuSet = frozenset()

    @property
    def quiet_cpus(self) -> CpuSet:
        """The CPUs that should be quiet."""
        return self.kept.union(*(guest.cpus for guest in self.guests if guest.quiet))

    @property
    def held_cpus(self) -> CpuSet:
        """The CPUs that guests hold."""
        return self.kept.union(*(guest.cpus for guest in self.guests))

    @property
    def main_processes(self) -> dict[str, int]:
        """The main processes of the guests that hold CPUs."""
        return {guest.uuid: guest.pid for guest in self.guests if guest.pid and guest.cpus}


@dataclass(frozen=True, slots=True)
class KernelAnswers:
    """The kernel's answers to the agent's writes of masks.

    :ivar refused: by the path of a mask: the reason why the agent does not try to change the mask.
    :ivar full: the CPUs without a free interrupt vector.
    :ivar stored: by the path of a mask: the CPUs that the agent wrote, and the CPUs that the kernel stored.
    """

    refused: Mapping[str, str] = field(default_factory=dict)
    full: CpuSet = frozenset()
    stored: Mapping[str, tuple[CpuSet, CpuSet]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MaskWrite:
    """A mask that has to change, and its new text."""

    mask: KernelMask
    cpus: CpuSet
    text: str


@dataclass(frozen=True, slots=True)
class StuckMask:
    """A mask that cannot be changed, the reason, and the quiet CPUs on which its work may still run."""

    mask: KernelMask
    cpus: CpuSet
    reason: str


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """The originals to save first, and the writes to make after that.

    :ivar stuck: the masks that cannot be changed.
    :ivar changed: the masks that other programs have changed.
    """

    originals: OriginalMasks
    writes: tuple[MaskWrite, ...] = ()
    stuck: tuple[StuckMask, ...] = ()
    changed: tuple[KernelMask, ...] = ()


def decide_masks(
    facts: IsolationFacts, demand: IsolationDemand, originals: OriginalMasks, answers: KernelAnswers
) -> MaskPlan:
    """Plan the writes to the masks of a host. Originals from before the last boot are ignored."""
    if originals.boot != facts.boot:
        originals = OriginalMasks(facts.boot)
    return _MaskPlanner(facts, demand, originals, answers).plan_masks()


class _MaskPlanner:
    """Decides about the masks one by one, and spreads interrupts that need a single CPU over the sinks."""

    def __init__(
        self,
        facts: IsolationFacts,
        demand: IsolationDemand,
        originals: OriginalMasks,
        answers: KernelAnswers,
    ) -> None:
        self._facts, self._demand, self._originals, self._answers = facts, demand, originals, answers
        self._quiet = demand.quiet_cpus
        self._guests = {guest.uuid: guest for guest in demand.guests}
        free = facts.online - demand.held_cpus
        self._tiers = (free - demand.dedicated, free & demand.dedicated)
        default = originals.masks.get(DEFAULT_MASK)
        self._default = None if default is None or not default.written else default
        # The masks that the kernel gives to threads in the root group when a partition is made or removed.
        self._replaced = {
            facts.online,
            facts.online - facts.partitioned,
            facts.online - originals.partitioned,
        }
        self._vectors: Counter[int] = Counter()
        self._load: Counter[int] = Counter()
        for mask in facts.masks.values():
            if mask.kind is MaskKind.INTERRUPT:
                self._count_vector(mask, mask.reached_cpus)

    def plan_masks(self) -> MaskPlan:
        """Decide the new value of each mask; the stored original of a mask that cannot be read stays."""
        kept = {
            path: original
            for path, original in self._originals.masks.items()
            if path not in self._facts.masks and path not in self._facts.gone
        }
        writes, stuck, changed = [], [], []
        for path, mask in self._facts.masks.items():
            if is_group(mask):
                mask = replace(mask, cpus=self._group_cpus(mask.cpus))
            original, is_changed = self._original_of(mask)
            if is_changed:
                changed.append(mask)
            cpus = self._wanted_cpus(mask, original)
            reason = "" if cpus is not None else NO_SINK
            if cpus is not None and cpus != mask.cpus:
                if not (cpus & self._facts.online or is_group(mask)):
                    reason, cpus = f"{cpuset.named_cpus(cpus)} is offline", None
                elif not self._is_movable(mask):
                    reason, cpus = self._answers.refused.get(path, KERNEL_MANAGED), None
            # A mask without quiet CPUs counts as stuck, too, if its original cannot be restored.
            reached = self._reached_cpus(mask) & self._quiet
            if reason and (reached or original.written):
                stuck.append(StuckMask(mask, reached, reason))
            if cpus is None:
                kept |= self._kept_entry(path, mask, original)
                continue
            if cpus != mask.cpus:
                before = (mask.cpus,) if mask.cpus in original.written else ()
                original = replace(original, written=tuple(dict.fromkeys((*before, cpus))))
                writes.append(MaskWrite(mask, cpus, self._new_text(mask, original, cpus)))
                kept[path] = original
            else:
                # After a write of the agent, the first set is not the present one.
                is_inferred = original.is_inferred and original.written[:1] == (cpus,)
                written = () if cpus == original.cpus else (cpus,)
                original = replace(original, written=written, is_inferred=is_inferred)
                kept |= self._kept_entry(path, mask, original)
        partitioned = self._facts.partitioned
        if writes:
            # Until the writes are done, threads have the CPUs that the kernel gave them when it removed these
            # partitions.
            partitioned |= self._originals.partitioned
        found = replace(self._originals, quiet=self._quiet, masks=kept, partitioned=partitioned)
        return MaskPlan(found, tuple(writes), (*stuck, *self._list_loose()), tuple(changed))

    def _is_movable(self, mask: KernelMask) -> bool:
        return mask.movable and mask.path not in self._answers.refused

    def _reached_cpus(self, mask: KernelMask) -> CpuSet:
        # A group with an empty set uses the CPUs of its parent, which are not known here. So all online CPUs
        # are assumed.
        return mask.reached_cpus or (self._facts.online if is_group(mask) else mask.cpus)

    def _group_cpus(self, cpus: CpuSet) -> CpuSet:
        """The CPUs of a group; empty if the group has all CPUs, because this limits nothing."""
        return frozenset() if self._facts.possible and cpus >= self._facts.possible else cpus

    def _list_loose(self) -> Iterator[StuckMask]:
        """Yield an entry about processes in the root control group, which no mask can keep off quiet CPUs."""
        number = self._facts.loose_processes
        if self._quiet and number != 0:
            names, reason = ("all", NO_GROUPS) if number is None else (str(number), LOOSE)
            mask = KernelMask(f"{CONTROL_GROUPS}/cgroup.procs", MaskKind.PROCESSES, self._quiet, "", names)
            yield StuckMask(mask, self._quiet, reason)

    def _kept_entry(self, path: str, mask: KernelMask, original: OriginalMask) -> dict[str, OriginalMask]:
        """The saved original of a mask.

        While CPUs are quiet, the original of each mask is saved. Otherwise the agent saves the original only
        in two cases. The mask differs from its original, or the next round could mistake the mask for the
        agent's default mask.
        """
        is_saved = self._quiet or mask.cpus != original.cpus or self._takes_default(mask)
        return {path: original} if is_saved else {}

    def _original_of(self, mask: KernelMask) -> tuple[OriginalMask, bool]:
        """The original of a mask, and whether another program has overwritten the agent's value."""
        known = self._originals.masks.get(mask.path)
        if known is not None and is_group(mask):
            known = replace(known, cpus=self._group_cpus(known.cpus))
        if known is not None and mask.names and known.names != mask.names:
            known = None  # the interrupt number belongs to another device now
        if known is not None and known.is_inferred and not self._is_movable(mask):
            # The kernel itself has given the interrupt a mask that equals the agent's default mask.
            return OriginalMask(mask.cpus, mask.text, mask.names), False
        if known is not None and self._is_ours(mask, known):
            return known, False
        if self._default is not None and self._takes_default(mask):
            # Without the agent, the interrupt would have the original default mask.
            base = self._default.cpus
            written = (mask.cpus,)
            return OriginalMask(base, mask.format_cpus(base), mask.names, written, is_inferred=True), False
        is_changed = known is not None and bool(mask.cpus & self._quiet)
        return OriginalMask(mask.cpus, mask.text, mask.names), is_changed

    def _is_ours(self, mask: KernelMask, known: OriginalMask) -> bool:
        """Whether the present mask is the original, or results from the agent's writes."""
        stored = self._answers.stored.get(mask.path)
        return (
            mask.cpus == known.cpus
            or mask.cpus in known.written
            or (stored is not None and stored[0] in known.written and mask.cpus == stored[1])
            # The kernel itself moves an interrupt when its last CPU goes offline.
            or (bool(known.written) and not known.written[-1] & self._facts.online and not is_group(mask))
            # The kernel places its threads again when the CPUs of partitions change.
            or (
                mask.kind is MaskKind.THREAD
                and bool(known.cpus & self._facts.online)
                and bool(self._facts.partitioned | self._originals.partitioned)
                and mask.cpus & self._facts.online in self._replaced
            )
        )

    def _takes_default(self, mask: KernelMask) -> bool:
        """Whether an interrupt has the agent's default mask, because the interrupt is new or was reset."""
        return (
            mask.kind is MaskKind.INTERRUPT
            and self._default is not None
            and mask.cpus in self._default.written
            and mask.cpus != self._default.cpus
        )

    def _new_text(self, mask: KernelMask, original: OriginalMask, cpus: CpuSet) -> str:
        return original.text if cpus == original.cpus else mask.format_cpus(cpus)

    def _wanted_cpus(self, mask: KernelMask, original: OriginalMask) -> CpuSet | None:
        """The CPUs that a mask should have; None if no CPU can be used for its work."""
        base = original.cpus
        if mask.kind is MaskKind.PARENT:
            return base
        if mask.kind is MaskKind.GROUP and not base:
            base = self._facts.online
        owner = self._guests.get(self._facts.owners.get(mask.pci_address, "")) if mask.pci_address else None
        if owner is not None and (owner.quiet or base & self._quiet) and owner.cpus & self._facts.online:
            return (base & owner.cpus) or owner.cpus
        if not base & self._quiet:
            return original.cpus
        is_interrupt = mask.kind is MaskKind.INTERRUPT
        sinks = [cpus - self._answers.full if is_interrupt else cpus for cpus in self._list_sinks(mask)]
        for cpus in sinks:
            if base & cpus:
                return self._as_stored(mask, base & cpus)
        for cpus in sinks:
            if not is_interrupt and cpus:
                return self._as_stored(mask, cpus)
            if is_interrupt and (cpu := self._choose_sink(mask, original, cpus)) is not None:
                return frozenset({cpu})
        return None

    def _as_stored(self, mask: KernelMask, cpus: CpuSet) -> CpuSet:
        """The CPUs that the kernel stores if ``cpus`` are written; ``cpus`` itself if that is not known."""
        written, stored = self._answers.stored.get(mask.path, (frozenset(), frozenset()))
        return stored if written == cpus and stored and not stored & self._quiet else cpus

    def _list_sinks(self, mask: KernelMask) -> Iterator[CpuSet]:
        near = self._demand.nodes.get(-1 if mask.node is None else mask.node, frozenset())
        for tier in self._tiers:
            if near:
                yield tier & near
            yield tier

    def _choose_sink(self, mask: KernelMask, original: OriginalMask, sinks: CpuSet) -> int | None:
        """One sink for an interrupt: its present sink, or the sink with the fewest interrupts."""
        if len(mask.cpus) == 1 and mask.cpus <= sinks and mask.cpus in original.written:
            return min(mask.cpus)
        room = [cpu for cpu in sinks if self._vectors[cpu] < MAX_VECTORS]
        if not room:
            return None
        chosen = min(room, key=lambda cpu: (self._load[cpu], self._vectors[cpu], cpu))
        self._count_vector(mask, frozenset({chosen}))
        return chosen

    def _count_vector(self, mask: KernelMask, cpus: CpuSet) -> None:
        # Interrupts with several CPUs are not counted: the kernel chooses one of the CPUs, and only the
        # effective mask shows which one.
        if len(cpus) == 1:
            self._vectors.update(cpus)
            self._load[min(cpus)] += self._facts.counts.get(mask.irq_number, 0)


def is_group(mask: KernelMask) -> bool:
    """Whether a mask belongs to a control group. Only a mask of a control group can be empty."""
    return mask.kind in (MaskKind.GROUP, MaskKind.PARENT)
