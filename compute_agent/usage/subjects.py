"""Guests for measurement: the places of their counters, and the amount that each may use without a limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from compute_agent.classes.guest_classes import QosClasses
from compute_agent.controllers.base import GuestTarget, KernelController, find_controller
from compute_agent.controllers.resctrl import ResctrlController, cache_demands
from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestThreads
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Guest
from compute_agent.model.resource import BLOCKIO, CACHE_WAYS, CPU_QUOTA, MEMORY_BANDWIDTH, ThrottleControl
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.resctrl.bandwidth import BYTES_PER_GB, BandwidthUnknownError
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


def build_subject(
    guest: Guest,
    classes: QosClasses,
    *,
    dedicated: bool,
    started: float = 0.0,
    cgroup: str = "",
    pids: tuple[int, ...] = (),
    caches: Mapping[ThrottleControl, GuestAllotment] | None = None,
) -> MeasuredGuest:
    """A guest as it is measured and decided about.

    A guest may use as many cores as it has CPUs, and as much I/O as its class of block I/O allows.

    - ``dedicated``: the guest holds dedicated CPUs.
    - ``started`` is in seconds on a clock that all guests share.
    - ``cgroup`` is the folder of the guest's cgroup v2 group; without one, the agent measures the main
      process, or ``pids``.
    - ``caches`` has the bandwidth and cache ways that the guest may use, by L3 domain, if these can be
      controlled.
    """
    settings = guest.settings
    facts = GuestUsage(
        uuid=guest.uuid,
        name=guest.name,
        qos_class=settings.qos_class,
        # Copied from the class, so that decisions need no classes.
        rank=classes.rank_of(settings.qos_class),
        priority=settings.priority,
        protected=settings.preserve or classes.is_protected(settings.qos_class, dedicated),
        started=started,
        allotments={
            # Every guest can use all of its CPUs and disks: these two controls are there on each host.
            ThrottleControl(CPU_QUOTA): GuestAllotment(float(settings.vcpus)),
            ThrottleControl(BLOCKIO): GuestAllotment(100.0, 1.0, per_unit=None),
            **(caches or {}),
        },
    )
    # The main process is better than nothing: of a guest without a group the driver may know no others.
    return MeasuredGuest(facts, cgroup, pids or (guest.pid,))


CacheAllotments = Callable[[GuestView], Mapping[ThrottleControl, GuestAllotment]]
"""Gives the cache ways and memory bandwidth that a guest may use, by L3 domain."""


class SubjectFactory:
    """Makes subjects of guests, and keeps when they started, which /proc tells only guest by guest."""

    def __init__(self, driver: GuestThreads, cache_allotments: CacheAllotments | None = None) -> None:
        """Without ``cache_allotments`` caches and bandwidth cannot be controlled here."""
        self._driver = driver
        self.cache_allotments = cache_allotments
        self._started: dict[tuple[str, int], float] = {}

    def build_subjects(self, views: Sequence[GuestView], classes: QosClasses) -> list[MeasuredGuest]:
        """The guests as they are measured and decided about."""
        known = self._started
        keys = [(view.guest.uuid, view.guest.pid) for view in views]
        # Only of these guests: a pid of a guest that has ended may be given to another process.
        # Rank and priority decide before age, so that 0 for an unknown start does no harm.
        started = {
            key: known[key] if key in known else procfs.seconds_at_start(key[1]) or 0.0 for key in keys
        }
        # Replaced as a whole: scrapes of several threads build subjects at once.
        self._started = started
        return [
            self._build_subject(view, classes, started[key]) for view, key in zip(views, keys, strict=True)
        ]

    def _build_subject(self, view: GuestView, classes: QosClasses, started: float) -> MeasuredGuest:
        guest = view.guest
        group = self._driver.usage_group(guest)
        return build_subject(
            guest,
            classes,
            dedicated=may_be_dedicated(view),
            started=started,
            cgroup=group,
            # A cgroup counts processes that have ended as well; without one they are read one by one.
            pids=() if group else tuple(self._driver.process_ids(guest)),
            caches=self.cache_allotments(view) if self.cache_allotments else None,
        )


def may_be_dedicated(view: GuestView) -> bool:
    """Whether a guest has CPUs of its own, or could have them, as long as its allocation is not known."""
    # Unknown counts as dedicated: a guest that must not be throttled would be, until Placement answers.
    if view.allocation is None or (view.assignment is not None and view.assignment.held_cpus):
        return True
    # By the allocation where there is no assignment yet: a guest that has just started.
    return any("PCPU" in amounts for amounts in view.allocation.values())


def open_allotments(
    controllers: Iterable[KernelController], zones: Callable[[], Sequence[ProviderNode]]
) -> CacheControlAllotments | None:
    """Allotments on the mount that a controller works on; None where none does."""
    controller = find_controller(controllers, ResctrlController)
    if controller is None:
        return None
    try:
        return CacheControlAllotments(controller.control, controller.classes, zones)
    except (ResctrlError, BadSchemataError) as error:
        # Not worth refusing a configuration for: throttling by CPU quota works without resctrl.
        LOG.error("Watermarks cannot limit cache ways and bandwidth: %s", error)
        return None


class CacheControlAllotments:
    """Allotments on one mount, by the same rule as the controller's: allocation, annotation, class.

    Exclusive ways of others are not subtracted from the open ways, because a limited guest fills all ways in
    its mask.
    """

    def __init__(
        self,
        control: ResctrlHandle,
        classes: Mapping[str, ShareSpec],
        zones: Callable[[], Sequence[ProviderNode]],
    ) -> None:
        """``classes`` are the shares of the QoS classes, ``zones`` tells the providers that allocations name.

        :raises ResctrlError:
        :raises BadSchemataError:
        """
        self._control = control
        self._classes = classes
        self._zones = zones
        self._present = read_groups(control.files)
        self._host = control.build_layout(self._present)

    def __call__(self, view: GuestView) -> dict[ThrottleControl, GuestAllotment]:
        """Allotments by L3 cache; empty for a guest without a known allocation."""
        if view.allocation is None:
            return {}
        # The controller's own function says what a guest demands: two rules would differ some day.
        target = GuestTarget(view.guest, view.assignment, frozenset(), view.allocation)
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
            # Ways that it holds for itself, else those that its class may share.
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
                continue  # this platform has no limit but 100 %
            # What it holds, else what its class may have, else all.
            full = demand.bandwidth.get(cache) or wish.percent_on(domain) or 100
            step = float(min(engine.percent_step, full))
            knob = ThrottleControl(MEMORY_BANDWIDTH, str(cache))
            found[knob] = GuestAllotment(float(full), step, self._per_percent())
        return found

    def _per_percent(self) -> float | None:
        """Bytes a second that a percent allows; None if a cap does not apply to the guest as a whole."""
        total = self._control.options.memory_bandwidth_gbps
        engine = self._host.codec
        return total * BYTES_PER_GB / 100 if total and engine and engine.shares_cap else None
