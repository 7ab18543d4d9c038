"""Subjects: guests with the sources of their counters, and the amounts that they may use without a limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from compute_agent.classes.guest_classes import QosClasses
from compute_agent.controllers.base import GuestTarget, KernelController, find_controller
from compute_agent.controllers.resctrl import ResctrlController, cache_demands
from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestThreads
from compute_agent.host.kernel_files import read_optional
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Allocation
from compute_agent.model.resource import (
    BLOCKIO,
    CACHE_WAYS,
    CPU_QUOTA,
    MEMORY,
    MEMORY_BANDWIDTH,
    MEMORY_HIGH,
    RECLAIMED_MEMORY,
    ThrottleControl,
)
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.resctrl.bandwidth import (
    BYTES_PER_GB,
    BandwidthCodec,
    BandwidthUnknownError,
    percent_of_cap,
)
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import read_groups
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.resctrl.resolution import GuestDemand
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from compute_agent.resctrl.ways import NO_WAYS
from compute_agent.usage.rounds import MeasuredGuest
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage

LOG = logging.getLogger(__name__)

_MIB: Final = 1 << 20

_MAX_KNOWN: Final = 4096
"""Maximum number of guests for which allotments are cached. When the maximum is reached, the whole cache is
emptied.
"""


CacheAllotments = Callable[[GuestView], Mapping[ThrottleControl, GuestAllotment]]
"""Returns the cache ways and memory bandwidth that a guest may use on each L3 cache."""


class SubjectInputs(NamedTuple):
    """The facts from which the subject of a guest is built.

    - ``can_swap`` is whether the host has swap; only then, the memory of guests can be limited.
    - ``group`` is the path of the guest's cgroup v2 folder. Without a folder, the agent measures ``pids`` or,
      if these are empty, the main process.
    - ``caches`` are the guest's allotments of ways and memory bandwidth, for each L3 cache with limits.
    """

    view: GuestView
    classes: QosClasses
    can_swap: bool = False
    group: str = ""
    pids: tuple[int, ...] = ()
    caches: Mapping[ThrottleControl, GuestAllotment] = MappingProxyType({})


class SubjectFactory:
    """Builds subjects of guests, and keeps each subject until its facts change.

    The start time of a guest is read from /proc only once.
    """

    def __init__(
        self, driver: GuestThreads, cache_allotments: CacheAllotments | None = None, root: str = "/"
    ) -> None:
        """``cache_allotments`` is None on a host that can limit neither caches nor memory bandwidth.

        ``root`` is the folder that contains ``proc``.
        """
        self._driver = driver
        self._root = Path(root)
        self.cache_allotments = cache_allotments
        self._built: dict[str, tuple[SubjectInputs, MeasuredGuest]] = {}

    def build_subjects(self, views: Sequence[GuestView], classes: QosClasses) -> list[MeasuredGuest]:
        """The subjects of all guests, in the order of ``views``."""
        # Swap is looked up in each round, because it can be switched off at any time. A limit of memory would
        # then stop guests instead of freeing memory.
        can_swap = has_swap(self._root)
        before, built = self._built, dict[str, tuple[SubjectInputs, MeasuredGuest]]()
        for view in views:
            guest = view.guest
            group = self._driver.usage_group(guest)
            # Processes are needed only for a guest without a cgroup. A cgroup counts all its processes, also
            # those that have ended.
            pids = () if group else tuple(self._driver.process_ids(guest))
            caches = self.cache_allotments(view) if self.cache_allotments else {}
            inputs = SubjectInputs(view, classes, can_swap, group, pids, caches)
            last = before.get(guest.uuid)
            if last is None or last[0] != inputs:
                # The start time of a new run of the guest is read again. An unknown start counts as 0, which
                # matters only between guests of equal rank and priority.
                if last is not None and last[0].view.guest.pid == guest.pid:
                    started = last[1].facts.started
                else:
                    started = procfs.seconds_at_start(guest.pid) or 0.0
                last = inputs, build_subject(inputs, started)
            built[guest.uuid] = last
        # A new dictionary replaces the old one at once: several threads of scrapes can be in this method.
        self._built = built
        return [subject for _, subject in built.values()]


def build_subject(inputs: SubjectInputs, started: float) -> MeasuredGuest:
    """Build the subject of a guest: its facts for decisions, and the files with its counters.

    A guest may use as many cores as it has guest CPUs, and all of the I/O that its class of block I/O
    allows.

    :param started: the time of the guest's start, in seconds on a clock that all guests share.
    """
    guest, classes, settings = inputs.view.guest, inputs.classes, inputs.view.guest.settings
    facts = GuestUsage(
        uuid=guest.uuid,
        name=guest.name,
        qos_class=settings.qos_class,
        # The rank is copied from the class, so that decisions need no classes.
        rank=classes.rank_of(settings.qos_class),
        priority=settings.priority,
        protected=settings.preserve
        or classes.is_protected(settings.qos_class, may_be_dedicated(inputs.view)),
        started=started,
        allotments={
            # CPU quota and block I/O can be limited on each host; caches and bandwidth need resctrl, and
            # memory needs swap.
            ThrottleControl(CPU_QUOTA): GuestAllotment(float(settings.vcpus)),
            ThrottleControl(BLOCKIO): GuestAllotment(100.0, 1.0, per_unit=None),
            **inputs.caches,
            **(memory_allotment(inputs.view) if inputs.can_swap else {}),
        },
    )
    # A driver does not always know all processes of a guest without a cgroup, but the driver knows the main
    # process.
    return MeasuredGuest(facts, inputs.group, inputs.pids or (guest.pid,))


def has_swap(root: Path) -> bool:
    """Whether the host has a swap device or file in use (proc(5), /proc/swaps)."""
    # The first line has the names of columns.
    return (read_optional(f"{root}/proc/swaps") or "").count("\n") > 1


def memory_allotment(view: GuestView) -> dict[ThrottleControl, GuestAllotment]:
    """The allotment of memory in bytes: the memory that a guest holds; empty if this is not known."""
    held = sum(
        amounts.get(name, 0)
        for amounts in (view.allocation or {}).values()
        for name in (MEMORY, RECLAIMED_MEMORY)
    )
    return {ThrottleControl(MEMORY_HIGH): GuestAllotment(float(held * _MIB), float(_MIB))} if held else {}


def may_be_dedicated(view: GuestView) -> bool:
    """Whether a guest has dedicated CPUs, or perhaps has them, because its allocation is not known yet."""
    # An unknown allocation counts as dedicated. Otherwise a guest that must not be throttled could be
    # throttled until Placement answers.
    if view.allocation is None or (view.assignment is not None and view.assignment.held_cpus):
        return True
    # A guest that has just started has an allocation but no assignment yet.
    return any("PCPU" in amounts for amounts in view.allocation.values())


def open_allotments(
    controllers: Iterable[KernelController], zones: Callable[[], Sequence[ProviderNode]]
) -> CacheControlAllotments | None:
    """Allotments of caches and bandwidth on the resctrl mount that the agent controls.

    The result is None if no controller uses resctrl, or if the file system of resctrl cannot be read.
    """
    controller = find_controller(controllers, ResctrlController)
    if controller is None:
        return None
    try:
        return CacheControlAllotments(controller.control, controller.classes, zones)
    except (ResctrlError, BadSchemataError) as error:
        # The error is logged and not raised, because throttling by CPU quota works without resctrl.
        LOG.error("Watermarks cannot limit cache ways and bandwidth: %s", error)
        return None


class CacheControlAllotments:
    """Computes allotments of cache ways and memory bandwidth on one resctrl mount.

    The allotment comes from the first of these that has an amount: the guest's allocation in Placement, its
    annotation (the setting ``resctrl``), its QoS class. The controller of resctrl uses the same order.

    Exclusive ways of other guests are not subtracted from the shared ways, because a limited guest fills all
    ways in its mask.
    """

    def __init__(
        self,
        control: ResctrlHandle,
        classes: Mapping[str, ShareSpec],
        zones: Callable[[], Sequence[ProviderNode]],
    ) -> None:
        """``classes`` are the shares of the QoS classes; ``zones`` returns the providers of this host.

        :raises ResctrlError: a file of the mount cannot be read.
        :raises BadSchemataError: a schemata file has an unexpected content.
        """
        self._control = control
        self._classes = classes
        self._zones = zones
        self._present = read_groups(control.files)
        self._host = control.build_layout(self._present)
        #: The last view of each guest, and the zones, with its allotments.
        self._known: dict[
            str, tuple[GuestView, Sequence[ProviderNode], Mapping[ThrottleControl, GuestAllotment]]
        ] = {}

    def __call__(self, view: GuestView) -> Mapping[ThrottleControl, GuestAllotment]:
        """The allotments of a guest, by control; empty if its allocation is not known."""
        if view.allocation is None:
            return {}
        zones = self._zones()
        known = self._known.get(view.guest.uuid)
        # Views of guests that have not changed stay the same objects.
        if known is None or known[0] is not view or known[1] != zones:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = view, zones, self._compute_allotments(view, view.allocation)
            self._known[view.guest.uuid] = known
        return known[2]

    def _compute_allotments(
        self, view: GuestView, allocation: Allocation
    ) -> dict[ThrottleControl, GuestAllotment]:
        # The demand comes from the function that the controller also uses, so that both follow the same rule.
        target = GuestTarget(view.guest, view.assignment, frozenset(), allocation)
        (demand,) = cache_demands((target,), self._zones(), self._host, self._present).cache_demands
        wish = demand.share.overlaid_on(self._classes.get(demand.qos_class, ShareSpec()))
        return self._way_allotments(demand, wish) | self._bandwidth_allotments(demand, wish)

    def _way_allotments(self, demand: GuestDemand, wish: ShareSpec) -> dict[ThrottleControl, GuestAllotment]:
        control = self._host.platform.l3
        found = {}
        for cache in control.ids if control else ():
            asked = wish.range_on(cache) or WayRange(0, 100)
            division = self._host.partitions[cache]
            shared = division.open_ways(NO_WAYS).percent_range(
                asked.first, asked.last, division.rules.min_bits
            )
            # A guest without exclusive ways has the shared ways that its class may use.
            full = demand.ways.get(cache) or len(shared)
            if control and full:
                size = control.way_bytes.get(cache)
                per_way = None if size is None else float(size)
                found[ThrottleControl(CACHE_WAYS, str(cache))] = GuestAllotment(float(full), 1.0, per_way)
        return found

    def _bandwidth_allotments(
        self, demand: GuestDemand, wish: ShareSpec
    ) -> dict[ThrottleControl, GuestAllotment]:
        platform, engine = self._host.platform, self._host.codec
        found = {}
        for cache in platform.cache_ids if engine else ():
            domain = platform.mb_domain(cache)
            if engine is None or domain is None:
                continue
            try:
                engine.encode_percent(domain, engine.min_percent)
            except BandwidthUnknownError:
                continue  # this platform has no limit below 100 %
            # A guest without exclusive bandwidth has the bandwidth of its annotation or class, or else the
            # full bandwidth.
            full = demand.bandwidth.get(cache) or _shared_percent(engine, domain, wish)
            step = float(min(engine.percent_step, full))
            knob = ThrottleControl(MEMORY_BANDWIDTH, str(cache))
            found[knob] = GuestAllotment(float(full), step, self._per_percent())
        return found

    def _per_percent(self) -> float | None:
        """The bytes a second by which a bandwidth limit of one percent more is higher; None if unknown.

        The result is known if the operator has set the host's bandwidth, and if all threads of a guest
        together have one limit.
        """
        total = self._control.options.memory_bandwidth_gbps
        engine = self._host.codec
        return total * BYTES_PER_GB / 100 if total and engine and engine.shares_cap else None


def _shared_percent(codec: BandwidthCodec, domain: int, share: ShareSpec) -> int:
    try:
        return percent_of_cap(codec, domain, share.cap_on(domain) or 100)
    except BandwidthUnknownError:
        return 100  # the cap is refused, so the cap does not apply
