"""Controller ``resctrl``: the cache ways and the memory bandwidth of guests.

cache_demands() translates allocations, annotations (the setting ``resctrl``) and temporary limits of guests
into demands. :mod:`compute_agent.resctrl` decides on groups and their schemata for these demands, and the
controller writes them.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from compute_agent.classes.guest_classes import parse_annotation
from compute_agent.controllers.base import (
    GuestTarget,
    KernelController,
    PlannedChange,
    ReleaseItem,
    failed_item,
    without_preserved,
)
from compute_agent.drivers.base import GuestThreads
from compute_agent.events.event import EventKind, EventOutcome, EventRecorder
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Allocation, Guest
from compute_agent.model.messages import DriverError, GuestGoneError, printable_text
from compute_agent.model.resource import (
    CACHE_WAYS,
    MEMORY_BANDWIDTH,
    RESCTRL_GROUP,
    STOCK_NAMES,
    ThrottleControl,
)
from compute_agent.resctrl import apply, groups
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import DEFAULT_GROUP, ResctrlGroups, read_groups
from compute_agent.resctrl.layout import ResctrlLayout, cache_mask
from compute_agent.resctrl.monitoring import monitoring_group
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.resctrl.plan import GroupPlan, PlanStep, RemoveGroup, make_plan
from compute_agent.resctrl.resolution import GroupResolution, GuestDemand, resolve_groups, share_groups
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.resctrl.share_spec import BadShareError, ShareSpec

_WAYS: Final = ("LLC", STOCK_NAMES["LLC"])
_BANDWIDTH: Final = ("MBA", STOCK_NAMES["MBA"])

# Each sync() parses the annotation of each guest, which rarely changes.
_parse_annotation = functools.lru_cache(maxsize=1024)(parse_annotation)


@dataclass(frozen=True, slots=True)
class CacheDemands:
    """The cache ways and the memory bandwidth that all guests demand.

    :ivar faults: by guest uuid, messages about demands that cannot be understood.
    """

    cache_demands: tuple[GuestDemand, ...] = ()
    faults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def cache_demands(
    targets: Iterable[GuestTarget], zones: Sequence[ProviderNode], host: ResctrlLayout, present: ResctrlGroups
) -> CacheDemands:
    """Return the demands of guests.

    While the allocation of a guest is unknown, its demand is the share that its group has now.

    :param zones: the providers of this host that allocations name.
    :param host: the layout of resctrl on this host.
    :param present: the groups that the kernel has now.
    """
    # The amounts at a provider with several L3 caches belong to no particular cache.
    caches = {zone.uuid: next(iter(zone.l3_ids)) for zone in zones if len(zone.l3_ids) == 1}
    domains = {caches[zone.uuid]: zone.cpus for zone in zones if zone.uuid in caches}
    found, faults = [], {}
    for target in targets:
        demand, reasons = _guest_demand(target, caches, host, present)
        # Another program has pinned this guest, perhaps to CPUs of other caches than its allocation names.
        if target.assignment is not None and target.assignment.given:
            cpus = target.assignment.cpus
            shares = {cache: len(cpus & inside) for cache, inside in domains.items() if cpus & inside}
            ways, bandwidth = (at_its_caches(one, shares) for one in (demand.ways, demand.bandwidth))
            demand = replace(demand, ways=ways, bandwidth=bandwidth)
        found.append(demand)
        if reasons:
            faults[demand.guest] = reasons
    return CacheDemands(tuple(found), faults)


def _guest_demand(
    target: GuestTarget, caches: Mapping[str, int], host: ResctrlLayout, present: ResctrlGroups
) -> tuple[GuestDemand, tuple[str, ...]]:
    uuid, settings = target.guest.uuid, target.guest.settings
    reasons: list[str] = []
    if target.allocation is None:
        ways, bandwidth = _kept_amounts(uuid, host, present)
        reserved = bool(ways or bandwidth)
    else:
        reserved = any(resources.get(RESCTRL_GROUP) for resources in target.allocation.values())
        ways = _cache_amounts(target.allocation, _WAYS, caches, reasons)
        bandwidth = _cache_amounts(target.allocation, _BANDWIDTH, caches, reasons)
    wish = ShareSpec()
    try:
        wish = _parse_annotation(settings.resctrl)
    except BadShareError as error:
        # A bad annotation does not affect the guest's allocation, which still counts.
        reasons.append(str(error))
    demand = GuestDemand(
        guest=uuid,
        qos_class=settings.qos_class,
        ways=ways,
        bandwidth=bandwidth,
        share=wish,
        priority=settings.priority,
        way_limits=_control_limits(target.limits, CACHE_WAYS),
        bandwidth_limits=_control_limits(target.limits, MEMORY_BANDWIDTH),
        reserved=reserved,
    )
    return demand, tuple(reasons)


def at_its_caches(amounts: Mapping[int, int], shares: Mapping[int, int]) -> dict[int, int]:
    """The amounts of a guest by L3 cache, moved to the caches on which it runs.

    Amounts of caches on which the guest runs stay there. All other amounts move to one cache: the cache with
    most of the guest's CPUs, among the caches where the guest runs but has no amount. If the guest runs on no
    known cache, nothing changes.

    :param amounts: the amounts of the allocation by cache.
    :param shares: the number of the guest's CPUs by cache, without caches where the guest has no CPU.
    """
    found = {cache: amount for cache, amount in amounts.items() if cache in shares or not shares}
    if elsewhere := sum(amounts.values()) - sum(found.values()):
        best = min(shares, key=lambda cache: (cache in found, -shares[cache], cache))
        found[best] = found.get(best, 0) + elsewhere
    return found


def _cache_amounts(
    allocation: Allocation, names: Sequence[str], caches: Mapping[str, int], reasons: list[str]
) -> dict[int, int]:
    """The amounts of a resource class in an allocation, by L3 cache id.

    :param names: the possible names of the resource class. The server uses one of these names.
    :param caches: the L3 cache of each provider.
    :param reasons: receives a message for each amount at a provider without an L3 cache.
    """
    found: dict[int, int] = {}
    for provider, resources in allocation.items():
        amount = sum(resources.get(name, 0) for name in names)
        if amount and provider in caches:
            found[caches[provider]] = found.get(caches[provider], 0) + amount
        elif amount:
            reasons.append(
                f"{amount} {names[0]} of provider {provider}, which is not the provider of an L3 cache"
            )
    return found


def _kept_amounts(
    uuid: str, host: ResctrlLayout, present: ResctrlGroups
) -> tuple[dict[int, int], dict[int, int]]:
    """The cache ways and the bandwidth (percent) of the guest's own group, by L3 cache id.

    The results are empty if the guest has no group of its own.
    """
    group = present.groups.get(host.guest_group(uuid))
    if group is None:
        return {}, {}
    platform, engine = host.platform, host.codec
    ways, bandwidth = {}, {}
    for cache in platform.cache_ids:
        mask = cache_mask(platform, group.schemata, cache)
        # Cache ways that the default group can also fill do not belong to the guest alone.
        if mask and not mask & cache_mask(platform, present.default_group.schemata, cache):
            ways[cache] = len(mask)
        domain = platform.mb_domain(cache)
        value = None if domain is None else group.schemata.get_value("MB", domain)
        if engine is not None and domain is not None and value is not None:
            percent = engine.decode_value(domain, value)
            # The kernel shows 100 % for a group without a limit.
            if percent < 100:
                bandwidth[cache] = percent
    return ways, bandwidth


def _control_limits(limits: Mapping[ThrottleControl, float], lever: str) -> dict[int, int]:
    """The temporary limits of one kind (``lever``), in percent or cache ways, by L3 cache id."""
    return {int(knob.domain): int(limit) for knob, limit in limits.items() if knob.lever == lever}


LOG = logging.getLogger(__name__)

_GROUPS_KIND: Final = "cache and bandwidth"

ATTEMPTS: Final = 4
"""Maximum number of attempts to plan groups in one sync(), in case the kernel refuses to make a group. The
next sync() tries again.
"""

# Errors of mkdir(2) when no more groups fit. EBUSY: all free RMIDs wait until their data has left the cache.
_FULL: Final = (errno.ENOSPC, errno.EBUSY)


class GroupOutcome(NamedTuple):
    """The groups after a sync.

    - ``plan`` is the plan of the last attempt.
    - ``held_up`` is, by group, the error that prevents its wanted state.
    - ``is_complete`` is whether the kernel has all groups of the first attempt.
    """

    resolution: GroupResolution
    plan: GroupPlan
    held_up: Mapping[str, ResctrlError]
    is_complete: bool


class ResctrlController(KernelController):
    """Keeps the groups of one resctrl mount, and the threads of guests in them.

    All state is in the kernel. A copy in memory saves work if nothing has changed. The copy also shows
    whether another program has changed a group.
    """

    name = "resctrl"
    acts_early = True
    awaits = True

    def __init__(
        self,
        driver: GuestThreads,
        control: ResctrlHandle,
        classes: Mapping[str, ShareSpec],
        recorder: EventRecorder | None = None,
    ) -> None:
        """Begin with the groups of one resctrl mount.

        :param control: the resctrl mount.
        :param classes: the shares of the QoS classes, by name.
        :param recorder: records changes of shares as events.
        """
        self._recorder = recorder or EventRecorder()
        self._driver = driver
        self.control = control
        self.classes = classes
        self._wanted: CacheDemands | None = None
        # The demands and the groups after the last complete sync(); None: the next sync() must not be
        # skipped.
        self._synced: tuple[CacheDemands, ResctrlGroups] | None = None
        # The inputs of the last call of cache_demands(), and its result.
        self._demanded: tuple[tuple[object, ...], CacheDemands] | None = None
        self._repaired: frozenset[str] = frozenset()
        # The group that the threads of each guest were moved to; None: the next sync() that succeeds moves
        # the threads.
        self._placed: dict[str, str | None] = {}
        # The threads of groups that were read since the last sync(). They are cached, because many guests are
        # in the same few groups.
        self._tasks: dict[str, frozenset[int]] = {}
        # Groups that several guests can share, in which a single guest cannot be limited.
        self._common: frozenset[str] = frozenset()
        self._lacking: frozenset[str] = frozenset()
        self._warned: frozenset[str] = frozenset()
        self.membership: Mapping[str, str] = {}
        """The group of each guest at the last sync(), by uuid."""
        self.class_groups: Mapping[str, str] | None = None
        """The group of each class at the last sync(); None before the first sync()."""
        # Reasons for the requests of classes are in ``refused`` by the name of the group.

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Make and change the groups of classes and guests, and remove the groups of guests that have left.

        :raises OSError: the kernel returned an error; all other changes are in effect.
        :raises DriverError: a group could not be made or changed; all other changes are in effect.
        """
        targets = without_preserved(targets)
        self._tasks.clear()
        self._repaired = frozenset()
        present = self._read_present()
        host = self.control.build_layout(present)
        of_classes = share_groups(host, self.classes, present).by_class
        self.class_groups, self._common = of_classes, frozenset((DEFAULT_GROUP, *of_classes.values()))
        wanted = self._demands_of(targets, zones, host, present)
        if self._synced == (wanted, present):
            return
        # If this sync() fails halfway, the next sync() must not be skipped. So ``_synced`` is cleared before
        # the writes.
        self._synced = None
        outcome = self._carry_out(wanted.cache_demands, present)
        resolution, plan, held_up = outcome.resolution, outcome.plan, outcome.held_up
        # The demands have not changed, yet the plan is not empty: another program changed these groups.
        if wanted == self._wanted:
            # A group that is removed belonged to a guest that has left, which is no drift.
            self._repaired = frozenset(step.group for step in plan.steps if not isinstance(step, RemoveGroup))
        self._wanted = wanted
        self.membership = resolution.membership
        errors = {name: (str(error),) for name, error in held_up.items() if name != DEFAULT_GROUP}
        of_guests = {guest: errors[group] for guest, group in self.membership.items() if group in errors}
        self.refused = _joined_reasons(wanted.faults, resolution.refused, errors | of_guests)
        self._lacking = frozenset(resolution.refused)
        self._warn_once(plan)
        self._record_changes(plan, held_up)
        # Threads are moved before ``_synced`` is set: if a thread cannot be moved, the next sync() must not
        # be skipped.
        self._move_all(targets)
        if outcome.is_complete:
            # The groups are read again after writes, because the kernel rounds bandwidths to its steps.
            self._synced = (wanted, self._read_present() if plan.steps else present)
        if held_up:
            raise DriverError("; ".join(map(str, held_up.values())))

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The changes that sync() would make to groups."""
        present = self._read_present()
        host = self.control.build_layout(present)
        wanted = cache_demands(without_preserved(targets), zones, host, present).cache_demands
        resolved = resolve_groups(host, self.classes, wanted, present, None)
        for step in make_plan(host, present, resolved).steps:
            change = f"{type(step).__name__.lower()} {getattr(step, 'schemata', '')}".strip()
            yield PlannedChange(self.name, _shown_group(step.group), change)

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """An item for each monitoring group of the default group, and one for all other groups of the agent.

        The default group gets the cache ways of these groups.
        """
        try:
            yield from self._release_groups()
        except (BadSchemataError, OSError) as error:
            yield failed_item(_GROUPS_KIND, self.name, error)

    def _release_groups(self) -> Iterator[ReleaseItem]:
        control = self.control
        present = read_groups(control.files)
        for name in present.default_group.monitoring_groups:
            if control.is_ours(name):
                path = monitoring_group(DEFAULT_GROUP, name)
                yield ReleaseItem("monitoring", name, "", partial(groups.remove_group, control.files, path))
        host = control.build_layout(present)
        # Without guests and classes, the default group gets all ways except those of other programs' groups.
        steps = make_plan(host, present, resolve_groups(host, {}, (), present)).steps
        if steps:
            ours = ", ".join(sorted(name for name in present.groups if control.is_ours(name)))
            detail = f"{len(steps)} changes of resctrl groups"
            give_back = partial(_give_back_groups, control, steps)
            yield ReleaseItem(_GROUPS_KIND, ours or "default group", detail, give_back)

    def describe_drift(self, target: GuestTarget) -> str | None:
        """A text about a change of the guest's group or threads by another program.

        The result is None if there is no such change.
        """
        group = self.membership.get(target.guest.uuid)
        if group is None:
            return None  # The last sync() failed before it chose a group; the next will choose one.
        if group in self._repaired:
            return f"its resctrl group {_shown_group(group)} was changed by another program"
        outside = self._threads_outside(target.guest, group)
        if not outside:
            return None
        return (
            f"{len(outside)} threads outside of resctrl group {_shown_group(group)}, such as {min(outside)}"
        )

    def apply(self, target: GuestTarget) -> bool:
        """Move the guest's threads into its group until no new thread appears; return whether any moved.

        :raises DriverError: the guest is to be throttled, but has no group of its own.
        """
        guest = target.guest
        group = self.membership.get(guest.uuid)
        if group is None:
            self._placed[guest.uuid] = None  # The next sync() that succeeds moves the guest.
            return False
        moved = self._move_guest(guest, group)
        # A limit on a shared group would also slow down other guests, so the limit is refused.
        limited = any(knob.lever in (CACHE_WAYS, MEMORY_BANDWIDTH) for knob in target.limits)
        if limited and guest.uuid in self._lacking and group in self._common:
            raise DriverError(f"guest {guest} cannot be limited: {'; '.join(self.refused[guest.uuid])}")
        return moved

    def _demands_of(
        self,
        targets: Sequence[GuestTarget],
        zones: Sequence[ProviderNode],
        host: ResctrlLayout,
        present: ResctrlGroups,
    ) -> CacheDemands:
        """The demands of guests.

        If guests and groups are the same as at the last call, return its result again.
        """
        # Most rounds compare guests that have not changed.
        guests = [(one.guest, one.assignment, one.allocation, one.limits) for one in targets]
        inputs = (guests, tuple(zones), present)
        if self._demanded is None or self._demanded[0] != inputs:
            self._demanded = inputs, cache_demands(targets, zones, host, present)
        return self._demanded[1]

    def _read_present(self) -> ResctrlGroups:
        try:
            return read_groups(self.control.files)
        except BadSchemataError as error:
            raise DriverError(f"resctrl cannot be understood: {error}") from error

    def _carry_out(self, wanted: Iterable[GuestDemand], present: ResctrlGroups) -> GroupOutcome:
        """Plan and write the groups for the ``wanted`` demands.

        If the kernel refuses to make a group, the groups are planned and written again without it. A guest
        that gets no group of its own gets the next suitable group.
        """
        control, max_groups = self.control, None
        barred: dict[str, str] = {}
        # Each attempt uses the results of the last attempt: how many groups fit, and which groups cannot be
        # made.
        for attempt in range(ATTEMPTS):
            host = control.build_layout(present)
            resolution = resolve_groups(host, self.classes, wanted, present, max_groups, barred)
            plan = make_plan(host, present, resolution)
            for step in plan.steps:
                LOG.debug("The agent changes resctrl groups: %s", step)
            exclusive = {name: group.exclusive.keys() for name, group in resolution.groups.items()}
            held_up = apply.apply_plan(control.files, plan.steps, control.codec, exclusive)
            present = self._read_present()
            unmade = {name: error for name, error in held_up.items() if name not in present.groups}
            if not unmade or attempt == ATTEMPTS - 1:
                break
            for name, error in unmade.items():
                if error.errno in _FULL:
                    LOG.warning(
                        "The kernel has no free resctrl group, so some guests share a group with others: %s",
                        error,
                    )
                    # The kernel has just shown that no further group fits.
                    max_groups = len(present.groups)
                else:
                    LOG.warning(
                        "A resctrl group cannot be created, so its guests use another group: %s", error
                    )
                    barred[name] = f"its resctrl group cannot be made: {error}"
        return GroupOutcome(resolution, plan, held_up, not held_up and not barred and max_groups is None)

    def _record_changes(self, plan: GroupPlan, held_up: Mapping[str, ResctrlError]) -> None:
        """Record events for changed cache ways and bandwidths of classes."""
        for step in plan.steps:
            if isinstance(step, RemoveGroup) or step.group not in self._common:
                continue
            classes = sorted(name for name, group in (self.class_groups or {}).items() if group == step.group)
            shown = ", ".join(classes) or "none"
            values = str(step.schemata).strip().replace("\n", " ")
            error = held_up.get(step.group)
            self._recorder.record_event(
                LOG.info,
                EventKind.CACHE,
                None,
                "Guests of class %s share these parts of caches and bandwidth: %s",
                shown,
                values,
                reason="" if error is None else str(error),
                outcome=EventOutcome.DONE if error is None else EventOutcome.FAILED,
            )

    def _move_all(self, targets: Iterable[GuestTarget]) -> None:
        """Move the threads of guests with a new group; raise the first error after all were tried."""
        guests = {target.guest.uuid: target.guest for target in targets}
        self._placed = {uuid: group for uuid, group in self._placed.items() if uuid in guests}
        failure: Exception | None = None
        for uuid, before in tuple(self._placed.items()):
            if before == self.membership[uuid]:
                continue
            try:
                self._move_guest(guests[uuid], self.membership[uuid])
            except GuestGoneError:
                # A guest that has ended has no threads to move.
                continue
            except (DriverError, OSError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _move_guest(self, guest: Guest, group: str) -> bool:
        # The threads are passed as a function, because they are listed again until no new thread appears.
        moved = groups.move_tasks(self.control.files, group, lambda: self._driver.thread_ids(guest))
        self._placed[guest.uuid] = group
        if moved:
            # The moved threads left other groups, so the cached lists of these groups are outdated, too.
            self._tasks.clear()
        return moved > 0

    def _threads_outside(self, guest: Guest, group: str) -> frozenset[int]:
        """The ids of the guest's threads that are not in ``group``."""
        files = self.control.files
        if group not in self._tasks:
            self._tasks[group] = groups.read_tasks(files, group)
        outside = self._driver.recent_threads(guest) - self._tasks[group]
        if outside:
            # These threads are perhaps younger than the cached list, or have ended, so both lists are read
            # again.
            self._tasks[group] = groups.read_tasks(files, group)
            outside = (outside & self._driver.thread_ids(guest)) - self._tasks[group]
        return outside

    def _warn_once(self, plan: GroupPlan) -> None:
        """Log each new conflict with another program's group, and each new refusal of a class, once."""
        texts = {
            f"resctrl group {printable_text(one.foreign)} of another program can fill ways of L3 cache"
            f" {one.cache} that only {one.group} may fill"
            for one in plan.conflicts
        }
        texts |= {
            f"{name}: {reason}"
            for name, reasons in self.refused.items()
            if self.control.is_ours(name)
            for reason in reasons
        }
        for text in sorted(texts - self._warned):
            LOG.warning("A setting of caches or bandwidth is not in effect: %s", text)
        self._warned = frozenset(texts)


def _give_back_groups(control: ResctrlHandle, steps: Sequence[PlanStep]) -> None:
    """Carry out the steps that give cache ways and bandwidth back to the default group.

    :raises ResctrlError: the error of the first group that the kernel does not release. All other groups are
        released.
    """
    for error in apply.apply_plan(control.files, steps, control.codec).values():
        raise error


def _joined_reasons(*parts: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    names = sorted({name for part in parts for name in part})
    return {name: tuple(reason for part in parts for reason in part.get(name, ())) for name in names}


def _shown_group(group: str) -> str:
    return group or "(default)"
