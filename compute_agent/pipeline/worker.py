"""The worker: handles events in order, and keeps the cache, the kernel and the state file consistent.

The worker handles an event in these steps: it updates the guest in the cache, places guests by the policy,
marks controllers as pending, runs them, and saves the state.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from compute_agent.controllers.base import KernelController
from compute_agent.drivers.base import GuestChange, GuestDriver, Listener, StartingDriver
from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.host.topology import HostTopology
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model.cpuset import CpuSet, named_cpus
from compute_agent.model.guest import Allocation, CpuAssignment, Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.pipeline.enforcer import GuestEnforcer
from compute_agent.pipeline.events import (
    AdoptGuest,
    AllocationsRead,
    ConfigureGuest,
    Event,
    GuestAppeared,
    GuestExpected,
    GuestStarted,
    GuestStopped,
    HostStateChanged,
    LimitGuest,
    MoveGuest,
    ReconcileGuests,
    RoomRefused,
    StartGuest,
    UseMeasured,
)
from compute_agent.pipeline.guest_cache import (
    CachedGuest,
    ConsumerFacts,
    GuestView,
    UnclaimedHolding,
    renew_view,
    view_guest,
)
from compute_agent.pipeline.guest_settings import GuestClassifier, ManualSettings, ResolutionInput
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.lifecycle import GuestLifecycle, Limits, observe_guest
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.placer import GuestPlacer
from compute_agent.pipeline.state import AgentState, SavedGuest
from compute_agent.policy.base import PlacementRefusal
from compute_agent.threads import PeriodicTask, ThreadSpec, log_failures, until_woken

LOG = logging.getLogger(__name__)


_NOT_FOUND_OUT: Final = (
    StartGuest,
    AdoptGuest,
    ConfigureGuest,
    LimitGuest,
    MoveGuest,
    GuestExpected,
    GuestAppeared,
)
"""Events that fail until the agent has taken over the running guests.

Other events can be dropped during the takeover, because the takeover reads the same facts from the driver.
"""


WORKER_THREAD: Final = ThreadSpec(
    "worker",
    "when there is an event",
    "handles events: decides where guests go, has controllers act, and saves the state",
    "that of the cache of guests, held for each event; views of guests take it, too",
    "the driver; the controllers; files of the state folder; never a loop",
)


class GuestRefusedError(Exception):
    """A guest cannot be started, adopted or moved, because it cannot be placed; the text has the reason."""


class GuestPipeline:
    """The queue, the cache and the worker of one agent."""

    def __init__(
        self,
        host_state: HostState,
        driver: GuestDriver,
        controllers: Sequence[KernelController],
        save: Callable[[Mapping[str, SavedGuest], Mapping[str, Allocation], Mapping[str, str]], None],
        metrics: AgentMetrics,
        recorder: EventRecorder | None = None,
        read_online: Callable[[], CpuSet] | None = None,
        manual: ManualSettings | None = None,
    ) -> None:
        """Build the objects of the pipeline. start() starts the thread.

        :param save: writes the state to disk: the guests, the allocations of consumers without a guest, and
            the guests of migrations by consumer. The function can raise OSError.
        :param read_online: reads the CPUs that are online now; None means that the online CPUs do not change.
        :param manual: the settings by hand and by the fleet; None means that these settings do not outlive
            the process.
        """
        self._driver = driver
        self._recorder = recorder = recorder or EventRecorder()
        self.foreign_devices: frozenset[str] = frozenset()
        """Addresses of the PCI devices that other programs reported to Placement at the last report."""
        self._enforcer = GuestEnforcer(host_state, controllers, metrics, recorder, read_online)
        self._save = save
        self._metrics = metrics
        self._cache = self._enforcer.cache
        self._placer = GuestPlacer(self._cache, partial(observe_guest, driver), recorder)
        self._classifier = GuestClassifier(manual or ManualSettings(), recorder, self._cache)
        #: The dedicated CPUs that were offline at the last event.
        self._stopped: CpuSet = frozenset()
        self._lifecycle = GuestLifecycle(
            driver, self._placer, self._enforcer, metrics, recorder, self._classifier
        )
        self._applied = 0.0
        """The time, in monotonic seconds, at which the controllers last ran."""
        # The queue has no bound: a sender that waited for space might hold a lock that the worker needs.
        self._queue: queue.SimpleQueue[tuple[Event, Future[Any], float]] = queue.SimpleQueue()
        # The lock is reentrant, because code that runs within an event also calls guests() and guest_views().
        self._lock = threading.RLock()
        self._views: tuple[HostTopology | None, Mapping[str, GuestView]] = (None, {})
        """The last copies of all guests by uuid, and the topology at that time."""
        self._has_views = False
        """Whether no event has begun since the copies were made."""
        self._in_event = False
        self._thread = PeriodicTask(
            WORKER_THREAD,
            self._handle_queued,
            until_woken,
            log_failures(LOG, "An event could not be handled"),
            # Events that are queued at a stop are still handled, so that no sender waits in vain.
            keep=self._handle_queued,
        )

    # For other threads

    def submit(self, event: Event) -> Future[Any]:
        """Queue an event; return a future with the worker's answer or error."""
        future: Future[Any] = Future()
        # The event is queued before wake(): the worker could otherwise wake, find an empty queue, and sleep
        # again.
        self._queue.put((event, future, time.monotonic()))
        self._thread.wake()
        return future

    def guest_views(self) -> list[GuestView]:
        """Copies of all guests with their allocations and assignments, in the order of their uuids."""
        with self._lock:
            topology = self.host_state.topology
            before, known = self._views
            # Rounds of the watermarks call this method each second, and guests change only in events.
            if self._has_views and before is topology:
                return list(known.values())
            known = known if before is topology else {}
            views: dict[str, GuestView] = {}
            for entry in self._cache:
                uuid = entry.guest.uuid
                views[uuid] = renew_view(known.get(uuid), entry, topology)
            views = {uuid: views[uuid] for uuid in sorted(views)}
            self._views, self._has_views = (topology, views), not self._in_event
            return list(views.values())

    def guests(self) -> list[Guest]:
        """All guests, without allocations and assignments, at a tenth of the cost of guest_views()."""
        with self._lock:
            return [entry.guest for entry in self._cache]

    def resolution_inputs(self) -> list[ResolutionInput]:
        """The facts and the manual settings from which the settings of each guest are resolved."""
        with self._lock:
            resolve = self._classifier.resolution_input
            return [resolve(one.guest, one.consumer_facts) for one in self._cache]

    @property
    def unclaimed_holdings(self) -> dict[str, UnclaimedHolding]:
        """The last known allocations on this host of consumers without a guest, by uuid of the consumer."""
        with self._lock:
            return dict(self._cache.unclaimed)

    @property
    def guest_migrations(self) -> dict[str, str]:
        """The uuids of migrating guests, by the consumer of the migration that holds the allocation."""
        with self._lock:
            return dict(self._cache.migrations)

    @property
    def host_state(self) -> HostState:
        """The host state that the worker's decisions use."""
        return self._cache.host_state

    @property
    def reported_tree(self) -> ProviderTree:
        """The provider tree of the host, without the PCI devices that other programs report."""
        return self.host_state.tree.without_devices(self.foreign_devices)

    @property
    def has_taken_over(self) -> bool:
        """Whether the worker has taken over the running guests of all drivers."""
        return self._lifecycle.is_known and self._thread.is_alive()

    @property
    def has_taken_over_some(self) -> bool:
        """Whether the worker has taken over the running guests of at least one driver."""
        return self._lifecycle.is_known_in_part and self._thread.is_alive()

    def check_taken_over(self, in_part: bool = False) -> None:
        """Check that the worker has taken over the running guests.

        :param in_part: whether it is enough that the guests of one driver are known.
        :raises DriverError: the guests are not known yet.
        """
        if not (self.has_taken_over_some if in_part else self.has_taken_over):
            reason = self._driver.outage_reason or "the agent has not listed them yet"
            raise DriverError(f"it is not known which guests run: {reason}")

    @property
    def missing_guests_reason(self) -> str:
        """The reason why guests of a driver are not known yet; empty if all drivers' guests are known."""
        return "" if self.has_taken_over else self._driver.outage_reason or "the agent has not listed it yet"

    @property
    def is_alive(self) -> bool:
        """Whether the thread of the worker runs."""
        return self._thread.is_alive()

    def start(
        self,
        saved: AgentState | None = None,
        listener: Listener | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Take over the running guests, then handle events in a thread.

        If the driver cannot list the guests, the worker tries again before each event.

        :param saved: the state of the previous run; None means that no run has saved a state.
        :param listener: called for each change that the driver reports; None means that the worker handles
            the ends of guests, and ignores other changes.
        :param limits: the limits that throttling has set, by uuid of the guest.
        """
        # The driver watches guests before they are listed, so that no start or end is missed in between.
        self._driver.watch_guests(listener or self._on_change)
        self._lifecycle.begin_with(saved or AgentState(), limits or {})
        with self._lock:
            try:
                self._take_over()
            except DriverError as error:
                LOG.error("The agent cannot take over the running guests: %s; it tries again", error)
            self._has_views = False
        # The thread starts after a failure, too, because each event tries the takeover again.
        self._thread.start()

    def stop(self) -> None:
        """Handle the queued events, then end the thread. Guests keep their CPUs and settings."""
        self._thread.stop(timeout=None)

    # The worker

    def _handle_queued(self) -> None:
        # The loop ends when the queue is empty.
        with contextlib.suppress(queue.Empty):
            while True:
                self._answer_event(*self._queue.get_nowait())

    def _answer_event(self, event: Event, future: Future[Any], queued: float) -> None:
        name, started = type(event).__name__, time.monotonic()
        self._metrics.events.labels(name).inc()
        try:
            with self._lock:
                answer = self.handle_event(event)
                # The lock is held here, because the gauges count entries of the cache.
                self.update_gauges()
            LOG.debug("Handling event %s took %.1f ms", name, 1000 * (time.monotonic() - started))
        # These errors are answers to a request, and the sender of the event reports them.
        except (GuestRefusedError, DriverError) as error:
            future.set_exception(error)
        # An unexpected error of one event must not end the worker, which serves all guests.
        except Exception as error:
            LOG.exception("Event %s could not be handled", name)
            self._metrics.event_failures.labels(name).inc()
            future.set_exception(error)
        else:
            if isinstance(event, GuestStarted | StartGuest | AdoptGuest):
                # The time is measured from the moment when the driver saw the start, or when the request was
                # queued, so that requests to Placement are included.
                since = getattr(event, "since", 0.0) or queued
                self._metrics.pin_seconds.observe(self._applied - since)
            future.set_result(answer)

    def handle_event(self, event: Event) -> GuestView | CpuAssignment | None:
        """Handle one event completely, and return its answer.

        Only the worker's thread and tests call this method.
        """
        self._has_views, self._in_event = False, True
        try:
            return self._carry_out(event)
        finally:
            self._in_event = False

    def _carry_out(self, event: Event) -> GuestView | CpuAssignment | None:
        if isinstance(event, HostStateChanged):
            tree, self._cache.host_state = self.host_state.tree, event.host_state
            self._lifecycle.compare_devices(tree, event.host_state.tree)
            if event.controllers is not None:
                self._enforcer.use_controllers(event.controllers)
        # The online CPUs are read at each event, because no event reports that CPUs go offline or come
        # online.
        self._cache.host_state = self._enforcer.read_host_state()
        self._report_stopped()
        try:
            self._take_over()
        except DriverError:
            if isinstance(event, _NOT_FOUND_OUT):
                raise
            return None  # The event is dropped, because the later takeover finds the same facts.
        match event:
            case StartGuest():
                return self._start_guest(event)
            case AdoptGuest():
                return self._adopt_guest(event)
            case GuestStarted():
                self._lifecycle.enter_guest(event)
            case GuestExpected(guest, allocation, owner):
                guest = self._classifier.classify_guest(guest, ConsumerFacts(allocation, owner))
                self._enforcer.expect_guest(guest, allocation)
                # _finish_event() is left out: libvirt waits for the answer, and no assignment has changed.
                return None
            case GuestAppeared(guest):
                self._enforcer.begin_guest(guest)
                return None
            case GuestStopped(guest, ending):
                self._lifecycle.forget_ended(guest, ending)
            case AllocationsRead():
                self._lifecycle.read_allocations(event)
            case RoomRefused(uuid):
                self._lifecycle.note_refused_room(uuid)
            case HostStateChanged():
                # Settings are resolved first, because the policy depends on them.
                for entry in self._cache:
                    self._lifecycle.classify_again(entry)
                self._placer.place_all()
            case ConfigureGuest():
                self._configure_guest(event)
            case LimitGuest():
                self._limit_guest(event)
            case MoveGuest():
                return self._move_guest(event)
            case UseMeasured(use, recent):
                self._placer.use, self._placer.recent_use = use, recent
            case ReconcileGuests():
                self._lifecycle.reconcile_guests()
                # This comes after reconcile_guests(), which updates the set of present guests.
                self._lifecycle.forget_absent()
                self._placer.rebalance_guests()
        self._finish_event()
        # This comes after the controllers, which have put the guest into its cache group.
        if isinstance(event, GuestStarted) and event.started:
            self._enforcer.note_cache_delay(event.guest)
        return None

    def _on_change(self, change: GuestChange) -> None:
        self.submit(GuestStopped(change.guest, change.ending))

    def _start_guest(self, event: StartGuest) -> GuestView:
        """Create the process of a guest in a stopped state, pin it, and let it run on its CPUs."""
        driver, assignment = self._admit_guest(event)
        guest = driver.create_guest(
            event.uuid,
            event.name,
            event.settings,
            event.command,
            event.cwd,
            event.environment,
            event.declared,
        )
        try:
            entry = self._new_entry(guest, event, assignment)
            self._cache.add(entry)
            self._placer.sync()
            # Other guests come first, because floating guests have to leave the CPUs of the new guest.
            self._enforcer.apply(but=entry)
            self._enforcer.apply_to(entry)
            driver.release(guest)
        except Exception:
            # The program of the guest has not begun, so its removal loses no work. If the guest stayed
            # stopped after an unexpected error, it would keep its CPUs and never run.
            self._cache.remove(guest.uuid)
            driver.discard(guest)
            raise
        return self._finish_start(entry, "Guest %s (pid %d) started%s")

    def _adopt_guest(self, event: AdoptGuest) -> GuestView:
        driver, assignment = self._admit_guest(event)
        guest = driver.adopt_guest(event.uuid, event.name, event.settings, event.origin, event.declared)
        entry = self._new_entry(guest, event, assignment)
        self._cache.add(entry)
        return self._finish_start(entry, "Guest %s (pid %d) adopted%s")

    def _new_entry(
        self, guest: Guest, event: StartGuest | AdoptGuest, assignment: CpuAssignment | None
    ) -> CachedGuest:
        consumer = ConsumerFacts(event.allocation, event.owner)
        guest = self._classifier.classify_guest(guest, consumer)
        self._classifier.report_problems(guest)
        return CachedGuest(guest, event.allocation, assignment, as_of=event.as_of, owner=event.owner)

    def _finish_start(self, entry: CachedGuest, message: str) -> GuestView:
        guest, reason = entry.guest, self._placer.place_reason(entry.allocation)
        self._recorder.record_done(
            LOG.info, EventKind.START, guest, message, guest.pid, entry.place_words, reason=reason
        )
        self._finish_event()
        return view_guest(entry, self.host_state.topology)

    def _admit_guest(self, event: StartGuest | AdoptGuest) -> tuple[StartingDriver, CpuAssignment | None]:
        """Check that a new guest can be placed; return the driver that starts it and its assignment.

        :raises GuestRefusedError: the agent does not start guests of this driver, or the policy refuses the
            guest.
        """
        driver = self._driver.starting_driver
        if driver is None:
            raise GuestRefusedError(f"guests of driver {self._driver.name} are not started by the agent")
        self._check_uuid(event.uuid, driver.name)
        declared = {name: getattr(event.settings, name) for name in event.declared}
        draft = Guest(event.uuid, driver.name, event.name, 0, event.settings, declared=declared)
        consumer = ConsumerFacts(event.allocation, event.owner)
        draft = self._classifier.classify_guest(draft, consumer)
        # An adopted process is perhaps a guest that was lost before. The guest then keeps its former CPUs.
        lost = self._cache.lost.get(event.uuid)
        assignment = self._placer.decide_place(draft, event.allocation, lost.assignment if lost else None)
        if isinstance(assignment, PlacementRefusal):
            message = "Guest %s is not started: %s"
            self._recorder.record_done(LOG.info, EventKind.REFUSE, draft, message, assignment.reason)
            raise GuestRefusedError(assignment.reason)
        return driver, assignment

    def _check_uuid(self, uuid: str, driver: str) -> None:
        """Check that no guest of another driver has this uuid.

        :raises GuestRefusedError: another driver has such a guest, or perhaps has it.
        """
        entry = self._cache.get(uuid)
        if entry is not None and entry.guest.driver != driver:
            raise GuestRefusedError(f"guest {entry.guest} of driver {entry.guest.driver} has this uuid")
        lost = self._cache.lost.get(uuid)
        if self._lifecycle.may_be_awaited(uuid) or (lost is not None and lost.driver not in ("", driver)):
            reason = self._driver.outage_reason or self._driver.lost_guests().get(uuid, "it is lost")
            raise GuestRefusedError(f"a guest of another driver may have the uuid {uuid}: {reason}")

    def _configure_guest(self, event: ConfigureGuest) -> None:
        """Save settings of a guest by hand or by the fleet, and apply them.

        :raises GuestGoneError: there is no such guest.
        :raises DriverError: the settings cannot be saved.
        """
        entry = self._known_guest(event.uuid)
        try:
            self._classifier.manual.change_settings(event.uuid, event.source, event.texts, event.unset)
        except OSError as error:
            raise DriverError(f"the settings of guest {entry.guest} cannot be kept: {error}") from error
        if self._lifecycle.classify_again(entry):
            self._placer.place_guest(entry)

    def _limit_guest(self, event: LimitGuest) -> None:
        entry = self._known_guest(event.uuid)
        if entry.guest.settings.preserve:
            return  # A preserved guest has no limits: they were removed when it got this setting.
        before = dict(entry.limits)
        if event.limit is None:
            entry.limits.pop(event.knob, None)
        else:
            entry.limits[event.knob] = event.limit
        if entry.limits == before:
            return
        self._cache.mark_pending(entry)
        try:
            self._enforcer.apply_to(entry)
        except DriverError:
            # The limit is removed, because it is not in effect, and throttling reads limits from
            # guest_views().
            entry.limits = before
            self._cache.mark_pending(entry)
            raise

    def _move_guest(self, event: MoveGuest) -> CpuAssignment | None:
        """Move a guest from CPUs outside of the configured CPU sets to CPUs within them.

        :return: the new assignment; None if the guest has no CPUs outside of the sets.
        :raises GuestGoneError: there is no such guest.
        :raises GuestRefusedError: the policy finds no free CPUs within the sets.
        """
        entry = self._known_guest(event.uuid)
        place = self._placer.plan_move(entry)
        if isinstance(place, PlacementRefusal):
            raise GuestRefusedError(place.reason)
        if place is not None and not event.dry_run:
            self._cache.assign_cpus(entry, place)
            message = "Guest %s is moved, as an operator asked: it now runs%s"
            reason = self._placer.place_reason(entry.allocation)
            self._recorder.record_done(
                LOG.info, EventKind.MOVE, entry.guest, message, entry.place_words, reason=reason
            )
            self._finish_event()
        return place

    def _known_guest(self, uuid: str) -> CachedGuest:
        if (entry := self._cache.get(uuid)) is None:
            raise GuestGoneError(f"there is no guest {uuid}")
        return entry

    def _report_stopped(self) -> None:
        """Record the dedicated CPUs that went offline or came online since the last event."""
        before, self._stopped = self._stopped, self.host_state.stopped_cpus
        sets, record = self.host_state.cpu_sets, self._recorder.record_event
        if gone := self._stopped - before:
            record(LOG.warning, EventKind.CPU_OFFLINE, None, "Dedicated %s went offline", named_cpus(gone))
        # Only CPUs that are still in the dedicated set are reported.
        if back := before - self._stopped & sets.dedicated:
            record(LOG.info, EventKind.CPU_ONLINE, None, "Dedicated %s came online again", named_cpus(back))

    def _take_over(self) -> None:
        """Take over the running guests, unless an earlier call has done so.

        :raises DriverError: the driver cannot list the guests; the next call tries again.
        """
        if self._lifecycle.take_over():
            # The cache perhaps contains guests of a driver that has listed its guests late.
            self._finish_event()
            self.update_gauges()

    def _finish_event(self) -> None:
        """End an event: adapt the assignments of all guests, run the controllers, save the state."""
        self._placer.sync()
        # The kernel is written before the file: after a crash in between, the next agent reads assignments
        # back from the kernel.
        self._enforcer.apply()
        # The time is recorded before the save, because the time until a guest is pinned does not include the
        # write of the file.
        self._applied = time.monotonic()
        self._lifecycle.warn_of_unallocated()
        guests = {entry.guest.uuid: entry.saved_guest for entry in self._cache}
        try:
            unclaimed = {consumer: one.allocation for consumer, one in self._cache.unclaimed.items()}
            # Lost guests are saved, too, so that they keep their CPUs across a restart of the agent.
            self._save(guests | self._cache.lost, unclaimed, dict(self._cache.migrations))
        # The error is logged and not raised, so that guests get their CPUs even while the disk is full.
        except OSError as error:
            LOG.error("The state cannot be saved: %s; the agent tries again", error)
            self._metrics.state_failures.inc()

    def update_gauges(self) -> None:
        """Set the gauges of guests and of pending changes."""
        self._metrics.show_guests(list(self._cache), self.guest_views())
        self._metrics.lost_guests.set(len(self._driver.lost_guests()))
        self._metrics.excluded_guests.set(len(self._driver.excluded_guests()))
        self._enforcer.update_gauges()
