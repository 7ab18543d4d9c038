"""Compares promises to guests with the kernel, and reports broken promises as metrics and events.

A promise is, for example, dedicated CPUs or cache ways.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from compute_agent.controllers.base import GuestTarget, KernelController, find_controller
from compute_agent.controllers.core_cookies import CoreCookieController
from compute_agent.controllers.isolation import isolation_level, isolation_status
from compute_agent.controllers.realtime import RealtimeController
from compute_agent.controllers.resctrl import ResctrlController, cache_demands
from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestDriver
from compute_agent.events.event import EventKind, EventRecorder, NamedSubject
from compute_agent.host.pci_devices import read_pci_devices
from compute_agent.inventory.attributes import promise_attributes
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.isolation.decision import KERNEL_MANAGED
from compute_agent.isolation.facts import MaskReader
from compute_agent.loops.base import AgentLoop, ConfigurationInForce, ReloadedConfiguration, WakeReport
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import IsolationLevel
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.promises.facts import TaskReader, cards_of, group_facts, held_devices, read_node_memory
from compute_agent.promises.verdict import (
    CachePromise,
    GroupFacts,
    GuestPromises,
    HostFacts,
    ObservedGuest,
    PromiseKind,
    PromiseState,
    PromiseVerdict,
    broken_text,
    count_broken,
    judge_promises,
)
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import DEFAULT_GROUP, ResctrlGroups, read_groups, read_tasks
from compute_agent.resctrl.layout import ResctrlLayout
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.resctrl.resolution import GuestDemand
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.schedules.cookies import CookieError, KernelCookies, NoSiblingsError
from compute_agent.schedules.realtime import KernelSchedules, read_schedules
from compute_agent.threads import NO_LOCK, PeriodicTask, ThreadSpec, log_failures

_NO_NODE: Final = frozenset({-1})
"""A set of NUMA nodes that no guest is bound to.

A driver that is asked about a binding returns None if the memory has this binding, and otherwise the actual
binding. For this set, the driver therefore always returns the actual binding.
"""

SECOND_LOOK: Final = 0.3
"""Seconds after which a promise that seems broken is checked again, because the agent is perhaps placing
the guest at this moment.
"""


@dataclass(frozen=True, slots=True)
class CacheState:
    """The resctrl groups of the host, and the caches and bandwidth that guests should have.

    :ivar membership: the control group of each guest, by uuid.
    :ivar demands: the cache ways and the bandwidth that each guest should have, by uuid.
    :ivar present: the control groups that the kernel has now.
    :ivar layout: the layout of the mount; None if the groups cannot be read.
    :ivar problem: the reason why the groups cannot be read; empty if they were read.
    """

    control: ResctrlHandle
    membership: Mapping[str, str]
    demands: Mapping[str, GuestDemand]
    present: ResctrlGroups
    layout: ResctrlLayout | None
    problem: str = ""

    def group_of(self, uuid: str) -> str | None:
        """The control group that a guest was promised; None if the guest has no promise about caches."""
        demand, group = self.demands.get(uuid), self.membership.get(uuid, DEFAULT_GROUP)
        held = demand is not None and (demand.ways or demand.bandwidth)
        return group if held or group != DEFAULT_GROUP else None

    def promises_of(self, uuid: str) -> dict[int, CachePromise]:
        """The cache ways and the bandwidth that a guest was promised, by L3 cache id."""
        demand = self.demands.get(uuid)
        if demand is None:
            return {}
        return {
            cache: CachePromise(
                demand.ways.get(cache, 0),
                demand.bandwidth.get(cache, 0),
                demand.way_limits.get(cache),
                demand.bandwidth_limits.get(cache),
            )
            for cache in {*demand.ways, *demand.bandwidth}
        }

    def facts_of(self, group: str, threads: Mapping[int, CpuSet]) -> GroupFacts | None:
        """The ways and bandwidth that a control group has in the kernel; None if it cannot be read."""
        if self.layout is None:
            return None
        try:
            tasks = read_tasks(self.control.files, group)
        except (ResctrlError, ValueError):
            # The group was removed after read_groups().
            return None
        return group_facts(self.layout, self.present, group, tasks, threads)


def read_caches(
    controllers: Sequence[KernelController],
    views: Sequence[GuestView],
    zones: Sequence[ProviderNode],
    online: CpuSet,
) -> CacheState | None:
    """Read the resctrl groups of the host and the demands of guests; None if the agent controls no caches."""
    controller = find_controller(controllers, ResctrlController)
    if controller is None:
        return None
    control, membership = controller.control, dict(controller.membership)
    try:
        present = read_groups(control.files)
    except (ResctrlError, BadSchemataError) as error:
        return CacheState(control, membership, {}, ResctrlGroups(), None, str(error))
    layout = control.build_layout(present)
    targets = [
        GuestTarget(view.guest, view.assignment, online, view.allocation, view.limits) for view in views
    ]
    demands = cache_demands(targets, zones, layout, present).cache_demands
    return CacheState(control, membership, {one.guest: one for one in demands}, present, layout)


def make_promises(
    view: GuestView,
    controllers: Sequence[KernelController],
    caches: CacheState | None,
    devices: Mapping[str, int] = MappingProxyType({}),
) -> GuestPromises:
    """Collect the promises to a guest.

    :param controllers: the controllers, which know the isolation and the scheduling of the guest.
    :param devices: the numbers of units of PCI devices that the guest holds, by address of the device.
    """
    guest, place = view.guest, view.assignment
    level = isolation_level(controllers, guest.settings)
    realtime = find_controller(controllers, RealtimeController)
    cores = find_controller(controllers, CoreCookieController)
    group = None if caches is None else caches.group_of(guest.uuid)
    shares = {} if caches is None or group is None else caches.promises_of(guest.uuid)
    found = GuestPromises(
        guest.uuid,
        guest.name,
        group=group,
        caches=shares,
        devices=devices,
        core_group="" if cores is None else cores.group_of(guest),
    )
    if place is None:
        return found
    is_quiet = bool(place.held_cpus) and level.is_quiet
    return replace(
        found,
        vcpu_cpus=place.vcpu_cpus,
        emulator_cpus=place.emulator_cpus,
        held=place.held_cpus,
        thread_policy=guest.settings.thread_policy,
        mems=place.mems,
        quiet=is_quiet,
        alone=is_quiet and level is IsolationLevel.ALONE,
        given=place.given,
        priority=realtime.priority_of(guest) if realtime is not None and place.held_cpus else None,
    )


def _read_refusals(
    controllers: Sequence[KernelController],
) -> dict[tuple[str, PromiseKind], Sequence[str]]:
    """The reasons why controllers of scheduling could not apply promised settings to guests."""
    kinds = {RealtimeController: PromiseKind.REALTIME, CoreCookieController: PromiseKind.CORE_SCHEDULING}
    return {
        (uuid, kind): sentences
        for one in controllers
        if (kind := kinds.get(type(one)))
        for uuid, sentences in one.refused.items()
    }


class PromiseVerifier:
    """Verifies the promises to all guests. Any thread may use it; only one at a time reads the kernel."""

    def __init__(
        self,
        in_force: ConfigurationInForce,
        pipeline: GuestPipeline,
        driver: GuestDriver,
        affinity_of: Callable[[int], CpuSet | None] = procfs.thread_affinity,
        sleep: Callable[[float], object] = time.sleep,
        schedules: KernelSchedules | None = None,
        cookies: KernelCookies | None = None,
    ) -> None:
        """``affinity_of`` reads the CPUs on which a thread may run; None if the thread has ended."""
        self._in_force = in_force
        self._pipeline = pipeline
        self._driver = driver
        self._affinity_of = affinity_of
        self._sleep = sleep
        self._schedules = schedules or KernelSchedules()
        self._cookies = cookies or KernelCookies()
        self._lock = threading.Lock()
        #: The reader is kept between verifications, because it remembers kernel threads that cannot be moved.
        self._masks: MaskReader | None = None

    def verify_all(self) -> list[PromiseVerdict]:
        """Verify all promises, and return the verdicts.

        If a promise is broken, all promises are verified a second time, because a guest may have been moved
        during the first time. A promise that is broken only the second time counts as unknown.
        """
        with self._lock:
            found = self._read_verdicts()
            broken = {(one.guest, one.kind) for one in found if one.state is PromiseState.BROKEN}
            if not broken:
                return found
            self._sleep(SECOND_LOOK)
            return [
                replace(one, state=PromiseState.UNKNOWN, found=f"it has just changed: {one.found}")
                if one.state is PromiseState.BROKEN and (one.guest, one.kind) not in broken
                else one
                for one in self._read_verdicts()
            ]

    def _read_verdicts(self) -> list[PromiseVerdict]:
        conf, host_state = self._in_force.current, self._pipeline.host_state
        online = host_state.topology.online
        # The agent gives no promise to a preserved guest, which it leaves alone.
        views = [view for view in self._pipeline.guest_views() if not view.guest.settings.preserve]
        caches = read_caches(conf.controllers, views, host_state.all_zones, online)
        tree = self._pipeline.reported_tree
        promises = {
            view.guest.uuid: make_promises(
                view, conf.controllers, caches, held_devices(tree, view.allocation or {})
            )
            for view in views
        }
        # The cookies of all guests are needed, because another guest can have the same cookie.
        with_cookies = any(promise.core_group for promise in promises.values())
        # Preserved guests are read, too, because they can run on the CPUs of another guest.
        guests = self._pipeline.guests()
        found = {
            guest.uuid: self._read_guest(guest, promises.get(guest.uuid), caches, with_cookies)
            for guest in guests
        }
        cards = cards_of(tree, partial(read_pci_devices, Path(conf.options.host.root)))
        refused = _read_refusals(conf.controllers)
        facts = HostFacts(host_state.topology, found, cards=cards, refused=refused)
        facts = self._with_host(facts, promises.values(), guests)
        return judge_promises(promises.values(), facts)

    def _read_guest(
        self, guest: Guest, promise: GuestPromises | None, caches: CacheState | None, with_cookies: bool
    ) -> ObservedGuest:
        try:
            ids = self._driver.thread_ids(guest)
            threads = {tid: cpus for tid in ids if (cpus := self._affinity_of(tid)) is not None}
            helpers = self._driver.helper_affinity(guest)
            cookies = self._read_cookies(threads) if with_cookies else None
            if promise is None:
                return ObservedGuest(threads=threads, helpers=helpers, cookies=cookies)
            group = None
            if caches is not None and promise.group is not None:
                group = caches.facts_of(promise.group, threads)
            return ObservedGuest(
                self._driver.vcpu_affinity(guest),
                self._driver.emulator_affinity(guest),
                threads,
                self._driver.memory_nodes(guest, _NO_NODE) if promise.mems else None,
                read_node_memory(self._driver.usage_group(guest)) if promise.mems else {},
                group,
                helpers=helpers,
                devices=guest.devices,
                schedules={}
                if promise.priority is None
                else read_schedules(self._schedules, self._driver.vcpu_threads(guest)),
                cookies=cookies,
            )
        except GuestGoneError:
            return ObservedGuest(problem="it has ended")
        except (DriverError, OSError) as error:
            return ObservedGuest(problem=str(error))

    def _read_cookies(self, tids: Iterable[int]) -> dict[int, int] | None:
        try:
            found = {tid: self._cookies.read_cookie(tid) for tid in tids}
        except (CookieError, NoSiblingsError):
            return None
        return {tid: cookie for tid, cookie in found.items() if cookie is not None}

    def _with_host(
        self, facts: HostFacts, promises: Collection[GuestPromises], guests: Sequence[Guest]
    ) -> HostFacts:
        """Add the facts of the host that promises of isolation need, such as the CPUs of interrupts."""
        conf = self._in_force.current
        root = Path(conf.options.host.root)
        quiet = frozenset[int]().union(*(promise.held for promise in promises if promise.quiet))
        alone = frozenset[int]().union(*(promise.held for promise in promises if promise.alone))
        if quiet:
            reader = self._masks
            if reader is None or reader.root != root:
                reader = self._masks = MaskReader(root)
            pids = {guest.uuid: guest.pid for guest in guests}
            read = reader.read_facts(quiet, processes=pids)
            stuck = isolation_status(conf.controllers).stuck
            facts = replace(
                facts,
                masks=tuple(mask for mask in read.masks.values() if mask.cpus & quiet)
                if reader.has_masks
                else None,
                # Up to Linux 6.11, only the error of a write shows that an interrupt cannot be moved.
                fixed=frozenset(one.mask.path for one in stuck if one.reason == KERNEL_MANAGED),
                owners=read.owners,
            )
        if alone:
            processes = {pid for guest in guests for pid in self._process_ids(guest)}
            facts = replace(facts, tasks=tuple(TaskReader(root).list_tasks(alone, processes)))
        return facts

    def _process_ids(self, guest: Guest) -> Sequence[int]:
        try:
            return self._driver.process_ids(guest)
        # If the driver does not answer, only the main process is known.
        except (DriverError, OSError):
            return (guest.pid,)


LOG = logging.getLogger(__name__)

_OFF_PAUSE: Final = 60.0
"""Seconds between two checks whether the option is on, while verification is off; a reload also wakes the
thread.
"""

PROMISES_THREAD: Final = ThreadSpec(
    "promises",
    "``[guests] verify_interval``",
    "compares promises to guests with the kernel, for metrics, events and the page of the fleet",
    NO_LOCK,
    "files of the host and of guests; wakes ``report``",
)


class PromiseWatch(AgentLoop):
    """Verifies all promises at an interval, and reports broken promises."""

    def __init__(
        self,
        conf: ReloadedConfiguration,
        verify: Callable[[], list[PromiseVerdict]],
        recorder: EventRecorder,
        registry: CollectorRegistry,
        changed: WakeReport = lambda: None,
    ) -> None:
        """Prepare the loop.

        :param verify: verifies all promises to guests once.
        :param changed: called when the attribute of the host has changed and should be reported.
        """
        self._conf = conf
        self._verify = verify
        self._recorder = recorder
        self._changed = changed
        self._broken: dict[tuple[str, PromiseKind], str] = {}
        self._text = ""
        self._gauge = Gauge(
            "compute_agent_broken_promises",
            "Promises to guests that the kernel does not keep; `compute-agent guest verify` names them.",
            ["promise"],
            registry=registry,
        )
        for kind in PromiseKind:
            self._gauge.labels(kind.value)
        self._thread = PeriodicTask(
            PROMISES_THREAD,
            self.check_promises,
            lambda took: self._verify_interval or _OFF_PAUSE,
            log_failures(LOG, "Promises to guests cannot be verified"),
        )

    @property
    def _verify_interval(self) -> float:
        """The seconds between two verifications; 0 if verification is off."""
        return float(self._conf.options.guests.verify_interval)

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration, and verify at once."""
        super().reload(conf)
        self._thread.wake()

    def check_promises(self) -> None:
        """Verify all promises once. Record an event when a promise breaks or is kept again."""
        verdicts = self._verify() if self._verify_interval else []
        broken = {(one.guest, one.kind): one.found for one in verdicts if one.state is PromiseState.BROKEN}
        names = {one.guest: one.name for one in verdicts}
        for (guest, kind), found in broken.items():
            if (guest, kind) not in self._broken:
                self._recorder.record_done(
                    LOG.warning,
                    EventKind.VERIFY,
                    NamedSubject(guest, names[guest]),
                    "Guest %s: the promise %s is broken: %s",
                    kind.value,
                    found,
                )
        # A promise with an unknown state counts neither as broken nor as kept, and causes no event.
        kept = {(one.guest, one.kind) for one in verdicts if one.state is PromiseState.KEPT}
        for guest, kind in self._broken.keys() & kept:
            self._recorder.record_done(
                LOG.info,
                EventKind.VERIFY,
                NamedSubject(guest, names[guest]),
                "Guest %s: the promise %s is kept again",
                kind.value,
            )
        self._broken = broken
        counts = count_broken(verdicts)
        for kind, number in counts.items():
            self._gauge.labels(kind.value).set(number)
        text = broken_text(counts)
        if text != self._text:
            self._text = text
            self._changed()

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """Return the provider tree with broken promises as an attribute of the agent's first provider."""
        return tree.with_attributes(promise_attributes(self._text)) if self._text else tree
