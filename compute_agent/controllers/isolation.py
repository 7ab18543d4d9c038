"""Controller ``isolation``: keeps interrupts and kernel work off the CPUs of guests that ask for it.

:mod:`compute_agent.isolation` decides and writes. The controller passes the CPUs that guests hold to that
package, and turns its results into messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge

from compute_agent.controllers.base import (
    FOREIGN_ROUNDS,
    ControllersInForce,
    GuestTarget,
    HostController,
    KernelController,
    PlannedChange,
    ReleaseItem,
    failed_item,
    find_controller,
    without_preserved,
)
from compute_agent.drivers.base import RunningGuests
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.isolation.control_groups import CONTROL_GROUPS
from compute_agent.isolation.decision import HeldCpus, IsolationDemand
from compute_agent.isolation.facts import MaskReader
from compute_agent.isolation.originals import OriginalsFile
from compute_agent.isolation.shell import (
    HostIsolator,
    IsolationStatus,
    MaskOwnership,
    OwnThreads,
    stuck_sentences,
)
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings, IsolationLevel
from compute_agent.model.messages import DriverError, named_few

_NONE_HELD = "isolation = {} is for dedicated CPUs, and the guest holds none"


@dataclass(frozen=True, slots=True)
class IsolationSettings:
    """The configuration of controller ``isolation``.

    :ivar levels: the isolation level of each class of guests that sets one.
    :ivar dedicated: the dedicated CPUs of the host.
    :ivar nodes: the CPUs of each NUMA node.
    :ivar realtime: the names of the classes of guests with a realtime priority.
    """

    levels: Mapping[str, IsolationLevel] = field(default_factory=dict)
    dedicated: CpuSet = frozenset()
    nodes: Mapping[int, CpuSet] = field(default_factory=dict)
    realtime: frozenset[str] = frozenset()

    def level_of(self, settings: GuestSettings) -> IsolationLevel:
        """The isolation level of a guest: its own setting, or the level of its class."""
        found = settings.isolation or self.levels.get(settings.qos_class, IsolationLevel.UNSET)
        return found or IsolationLevel.SHARED


NO_ISOLATION = IsolationSettings()


class IsolationController(HostController):
    """Keeps interrupts and kernel work off quiet CPUs, which a guest's isolation level asks for."""

    name = "isolation"
    # Masks are compared twice as often as other settings, because new interrupts and threads of the kernel
    # come without another program.
    compare_rounds = FOREIGN_ROUNDS // 2

    def __init__(
        self,
        driver: RunningGuests,
        settings: IsolationSettings,
        store: OriginalsFile,
        reader: MaskReader,
        count_drift: Callable[[], object] = lambda: None,
        ownership: MaskOwnership | None = None,
        own_threads: OwnThreads | None = None,
    ) -> None:
        """Begin with the configured levels.

        :param reader: reads the masks of the host.
        :param store: keeps the original masks, durably.
        :param count_drift: called for each mask that another program has changed.
        :param own_threads: the agent's own threads, which also avoid quiet CPUs.
        """
        self._driver = driver
        self.settings = settings
        self._isolator = HostIsolator(reader, store, count_drift, ownership)
        self._own_threads = own_threads or OwnThreads()
        self._demand = IsolationDemand()
        self._realtime: CpuSet = frozenset()

    @property
    def status(self) -> IsolationStatus:
        """The quiet CPUs at the last sync(), and the work that could not be moved away from them."""
        return self._isolator.status

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Correct the CPU masks that let interrupts or kernel work run on quiet CPUs.

        :raises OSError: the original masks cannot be saved, so nothing is written.
        """
        self._demand = self._make_demand(targets)
        self._realtime = self._realtime_cpus(targets)
        self._bring_about(self._demand)
        refused = dict(self.refused)
        for target in without_preserved(targets):
            placed = target.assignment is not None and not target.assignment.held_cpus
            level = self.settings.level_of(target.guest.settings)
            if placed and level.is_quiet:
                refused[target.guest.uuid] = (_NONE_HELD.format(level),)
        self.refused = refused

    def _bring_about(self, demand: IsolationDemand) -> None:
        status = self._isolator.bring_about(demand)
        # Usually the control groups already keep the agent's threads off quiet CPUs. So the threads are
        # checked after the groups are set.
        self._move_own_threads()
        self.refused = {
            guest.uuid: sentences
            for guest in demand.guests
            if guest.quiet
            and (
                sentences := (
                    *stuck_sentences(status.stuck, guest.cpus),
                    *status.refused.get(guest.uuid, ()),
                )
            )
        }

    def _move_own_threads(self) -> None:
        # On the CPU of a busy realtime guest, a thread of the agent would never run.
        if self._isolator.acts_here:
            self._own_threads.keep_off(self.status.quiet | self._realtime)

    def _realtime_cpus(self, targets: Iterable[GuestTarget]) -> CpuSet:
        held = (
            target.assignment.held_cpus
            for target in targets
            if target.assignment and target.guest.settings.qos_class in self.settings.realtime
        )
        return frozenset().union(*held)

    def apply(self, target: GuestTarget) -> bool:
        """Turn the CPUs of a pinned guest into a cpuset partition, if its level is ``alone``.

        The method sync() sets all masks.
        """
        if not (realtime := self._realtime_cpus([target])) <= self._realtime:
            self._realtime |= realtime
            self._move_own_threads()
        if self.settings.level_of(target.guest.settings) is not IsolationLevel.ALONE:
            return False
        held = self._demand_of(target, frozenset())
        if not held.alone or held.cpus <= self.status.alone:
            return False
        before = self.status.alone
        self._bring_about(self._demand)
        return self.status.alone != before

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The changes that sync() would make. Equal changes of several masks are combined to one item."""
        together: dict[str, list[str]] = defaultdict(list)
        demand = self._make_demand(targets)
        for write in self._isolator.plan_changes(demand):
            change = f"{cpuset.format(write.mask.cpus)} -> {cpuset.format(write.cpus)}"
            together[change].append(write.mask.in_words)
        for path, text in self._isolator.plan_partitions(demand):
            together[text or "empty"].append(path)
        for cpus in self._isolator.plan_bans(demand):
            together[cpuset.format(cpus) or "those of its environment"].append("bans of irqbalance")
        for change, subjects in sorted(together.items()):
            yield PlannedChange(self.name, named_few(subjects, 1), change)

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """One item for all masks that the agent wrote."""
        try:
            changed = self._count_changes()
        except OSError as error:
            yield failed_item("isolation", "host", error)
            return
        if changed:
            detail = f"{changed} masks of interrupts, of the kernel's work and of control groups"
            if self._isolator.kept_originals.bans:
                detail += ", with bans of irqbalance"
            yield ReleaseItem("isolation", "host", detail, self._give_back)

    def _give_back(self) -> None:
        """Write all original masks back."""
        status = self._isolator.bring_about(IsolationDemand())
        if left := self._count_changes():
            raise DriverError("; ".join(status.refusal_sentences) or f"{left} masks")

    def _count_changes(self) -> int:
        kept = self._isolator.kept_originals
        bans = sum(bool(ban.written) for ban in kept.bans.values())
        return sum(bool(mask.written) for mask in kept.masks.values()) + len(kept.groups) + bans

    def _make_demand(self, targets: Sequence[GuestTarget]) -> IsolationDemand:
        preserved = {target.guest.uuid for target in targets if target.guest.settings.preserve}
        guests = tuple(self._demand_of(target, preserved) for target in targets)
        # A lost guest perhaps still runs, so CPUs that were quiet stay quiet until the guest is known to have
        # ended.
        unknown = self._driver.lost_guests() or self._driver.awaited_drivers
        kept = self._isolator.kept_originals.quiet if unknown else frozenset()
        return IsolationDemand(guests, self.settings.dedicated, self.settings.nodes, kept)

    def _demand_of(self, target: GuestTarget, preserved: Collection[str]) -> HeldCpus:
        guest, assignment = target.guest, target.assignment
        group = guest.cgroup.rpartition(f"/{CONTROL_GROUPS}/")[2].strip("/")
        if assignment is None:
            # The group of an unplaced guest must be known, so that it is not taken for a group of the host's
            # processes.
            return HeldCpus(guest.uuid, frozenset(), pid=guest.pid, group=group)
        held = assignment.held_cpus if guest.uuid not in preserved else frozenset()
        level = self.settings.level_of(guest.settings)
        return HeldCpus(
            guest.uuid,
            assignment.held_cpus,
            level.is_quiet and bool(held),
            guest.pid,
            level is IsolationLevel.ALONE and bool(held),
            group,
            assignment.vcpu_cpus,
        )


def isolation_status(controllers: Iterable[KernelController]) -> IsolationStatus:
    """The status of the controller ``isolation``; an empty status without this controller."""
    found = find_controller(controllers, IsolationController)
    return IsolationStatus() if found is None else found.status


def isolation_level(controllers: Iterable[KernelController], settings: GuestSettings) -> IsolationLevel:
    """The isolation level of a guest by controller ``isolation``; ``shared`` without the controller."""
    found = find_controller(controllers, IsolationController)
    return IsolationLevel.SHARED if found is None else found.settings.level_of(settings)


def count_isolation(registry: CollectorRegistry, controllers: ControllersInForce) -> None:
    """Register the gauges of quiet CPUs, cpuset partitions, irqbalance, and masks that cannot be set."""
    Gauge(
        "compute_agent_quiet_cpus",
        "Dedicated CPUs without interrupts and other work of the kernel, as their guests request.",
        registry=registry,
    ).set_function(lambda: len(isolation_status(controllers.controllers).quiet))
    Gauge(
        "compute_agent_alone_cpus",
        "Dedicated CPUs in cpuset partitions, as their guests request with the level `alone`.",
        registry=registry,
    ).set_function(lambda: len(isolation_status(controllers.controllers).alone))
    Gauge(
        "compute_agent_refusing_balancers",
        "Instances of irqbalance that may move interrupts to quiet CPUs; `compute-agent status` says why.",
        registry=registry,
    ).set_function(lambda: len(isolation_status(controllers.controllers).balancers))
    Gauge(
        "compute_agent_stuck_masks",
        "Interrupts and other work of the kernel that stay on quiet CPUs; `compute-agent status` says which.",
        registry=registry,
    ).set_function(lambda: len(isolation_status(controllers.controllers).stuck))
