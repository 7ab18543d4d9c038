"""The worker: handles events in order, and keeps cache, kernel and state file in step.

event -> look up or create the guest in the cache -> policy -> pending marks -> controllers -> save
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
from compute_agent.drivers.base import GuestChange, GuestDriver, Listener, RunningGuests, StartingDriver
from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet, named_cpus
from compute_agent.model.guest import Allocation, CpuAssignment, Guest, GuestMigration
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
    LimitGuest,
    MoveGuest,
    ReconcileGuests,
    StartGuest,
    UseMeasured,
    WorldChanged,
)
from compute_agent.pipeline.guest_cache import CachedGuest, GuestCache, GuestView, UnclaimedHolding, view
from compute_agent.pipeline.guest_settings import GuestClassifier, ManualSettings, ResolutionInput
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.lifecycle import GuestLifecycle, Limits, observe
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.placer import GuestPlacer, where
from compute_agent.pipeline.state import SavedGuest
from compute_agent.policy.base import PlacementRefusal
from compute_agent.report.history import ConsumerOwner
from compute_agent.threads import PeriodicTask, ThreadSpec, log_failures, until_woken

LOG = logging.getLogger(__name__)


class GuestOverview:
    """Metrics and warnings about the guests of a cache. Used by the worker only."""

    def __init__(self, cache: GuestCache, driver: RunningGuests, metrics: AgentMetrics) -> None:
        self._cache = cache
        self._driver = driver
        self._metrics = metrics
        self._unallocated: frozenset[str] = frozenset()
        """The guests that were logged as holding nothing."""

    def show(self, topology: HostTopology) -> None:
        """Show how many guests there are of each kind, on a host with this topology."""
        metrics, entries = self._metrics, list(self._cache)
        metrics.guests.set(len(entries))
        metrics.unallocated_guests.set(sum(entry.allocation == {} for entry in entries))
        metrics.unknown_guests.set(sum(entry.allocation is None for entry in entries))
        metrics.migrating_guests.set(sum(entry.migration is not None for entry in entries))
        metrics.refused_guests.set(sum(bool(entry.refusal) for entry in entries))
        metrics.preserved_guests.set(sum(entry.guest.settings.preserve for entry in entries))
        metrics.lost_guests.set(len(self._driver.lost()))
        metrics.stray_guests.set(sum(bool(entry.stray) for entry in entries))
        remote = sum(bool(view(entry, topology).remote_memory) for entry in entries)
        metrics.remote_memory_guests.set(remote)

    def warn(self) -> None:
        """Warn of guests that are known to hold nothing, once each."""
        unallocated = {entry.guest.uuid: entry for entry in self._cache if entry.allocation == {}}
        for uuid in sorted(unallocated.keys() - self._unallocated):
            entry = unallocated[uuid]
            LOG.warning(
                "Guest %s holds nothing of this host, and runs%s: see compute-agent audit",
                entry.guest,
                where(entry),
            )
        self._unallocated = frozenset(unallocated)


_NOT_FOUND_OUT: Final = (
    StartGuest,
    AdoptGuest,
    ConfigureGuest,
    LimitGuest,
    MoveGuest,
    GuestExpected,
    GuestAppeared,
)
"""Events of which nothing is found out by itself when the guests are taken over."""


WORKER_THREAD: Final = ThreadSpec(
    "worker",
    "when there is an event",
    "handles events: decides where guests go, has controllers act, and saves the state",
    "that of the cache of guests, held for each event; views of guests take it, too",
    "the driver; the controllers; files of the state folder; never a loop",
)


class GuestRefusedError(Exception):
    """A new guest cannot be placed; the text says why."""


class GuestPipeline:
    """The queue, the cache and the worker of one agent."""

    def __init__(
        self,
        world: HostState,
        driver: GuestDriver,
        controllers: Sequence[KernelController],
        save: Callable[[Mapping[str, SavedGuest], Mapping[str, Allocation], Mapping[str, str]], None],
        metrics: AgentMetrics,
        recorder: EventRecorder | None = None,
        read_online: Callable[[], CpuSet] | None = None,
        manual: ManualSettings | None = None,
    ) -> None:
        """``read_online`` gives the CPUs that are online now.

        ``save`` keeps durably the guests, what consumers without one hold, and whose migrations these are.

        It may raise OSError. ``manual`` has the settings by hand and by the fleet; without it they do not
        outlive the process.
        """
        self._driver = driver
        self._recorder = recorder = recorder or EventRecorder()
        self._enforcer = GuestEnforcer(controllers, metrics, recorder, read_online)
        self._save = save
        self._metrics = metrics
        self._cache = self._enforcer.cache
        self._placer = GuestPlacer(world, self._cache, partial(observe, driver), recorder)
        self._classifier = GuestClassifier(manual or ManualSettings(), recorder)
        #: dedicated CPUs that were offline at the last event
        self._stopped: CpuSet = frozenset()
        self._lifecycle = GuestLifecycle(
            driver, self._placer, self._enforcer, metrics, recorder, self._classifier
        )
        self._overview = GuestOverview(self._cache, driver, metrics)
        self._applied = 0.0
        """When pending changes last went to the kernel (monotonic seconds)."""
        self._queue: queue.SimpleQueue[tuple[Event, Future[Any], float]] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._thread = PeriodicTask(
            WORKER_THREAD,
            self._handle_queued,
            until_woken,
            log_failures(LOG, "An event could not be handled"),
            keep=self._handle_queued,
        )

    # For other threads

    def submit(self, event: Event) -> Future[Any]:
        """Queue an event. The future has its answer, or what went wrong."""
        future: Future[Any] = Future()
        self._queue.put((event, future, time.monotonic()))
        self._thread.wake()
        return future

    def views(self) -> list[GuestView]:
        """All guests as they are now, by uuid."""
        with self._lock:
            views = (view(entry, self.world.topology) for entry in self._cache)
            return sorted(views, key=lambda one: one.guest.uuid)

    def guests(self) -> list[Guest]:
        """All guests, without what is known of them: a tenth of what views() costs."""
        with self._lock:
            return [entry.guest for entry in self._cache]

    def resolution_inputs(self) -> list[ResolutionInput]:
        """All guests with what their settings are resolved from."""
        with self._lock:
            resolve = self._classifier.resolution_input
            return [resolve(one.guest, one.allocation, one.owner, self.world) for one in self._cache]

    @property
    def unclaimed(self) -> dict[str, UnclaimedHolding]:
        """The allocations without a guest, by consumer, as far as they are known."""
        with self._lock:
            return dict(self._cache.unclaimed)

    @property
    def migrations(self) -> dict[str, str]:
        """The consumers that hold what a guest held here before it was moved, and that guest."""
        with self._lock:
            return dict(self._cache.migrations)

    @property
    def world(self) -> HostState:
        """The host as the worker has it in mind."""
        return self._placer.world

    @property
    def has_taken_over(self) -> bool:
        """Whether the guests that run are known: the driver has answered."""
        return self._lifecycle.is_known and self._thread.is_alive()

    def check_taken_over(self) -> None:
        """See that it is known which guests run.

        :raises DriverError: as long as it is not known which guests run: no answer would be none at all.
        """
        if not self.has_taken_over:
            reason = self._driver.outage or "the agent is about to look"
            raise DriverError(f"it is not known which guests run: {reason}")

    @property
    def is_alive(self) -> bool:
        """Whether the worker runs."""
        return self._thread.is_alive()

    def start(
        self,
        saved: Mapping[str, SavedGuest],
        listener: Listener | None = None,
        limits: Limits | None = None,
        unclaimed: Mapping[str, Allocation] | None = None,
        migrations: Mapping[str, str] | None = None,
        owners: Mapping[str, ConsumerOwner] | None = None,
    ) -> None:
        """Take over the guests that run, then handle events in a thread of its own.

        A driver that cannot say what runs is asked again before each event. ``listener`` makes events of what
        the driver says; unless given, ends of guests are all that is heard of it. ``limits`` are those of the
        watermarks, by guest, ``unclaimed`` is what consumers without a guest held when last known, and
        ``migrations`` whose migrations some of these are. ``owners`` are those of consumers, as last known.
        """
        self._driver.watch(listener or self._on_change)
        self._lifecycle.begin(saved, limits or {}, unclaimed or {}, migrations or {}, owners or {})
        with self._lock:
            try:
                self._take_over()
            except DriverError as error:
                LOG.error("The guests cannot be taken over: %s; will be tried again", error)
        self._thread.start()

    def stop(self) -> None:
        """Handle what is queued, then end the worker. Guests stay as they are."""
        self._thread.stop(timeout=None)

    # The worker

    def _handle_queued(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._answer(*self._queue.get_nowait())

    def _answer(self, event: Event, future: Future[Any], queued: float) -> None:
        name, started = type(event).__name__, time.monotonic()
        self._metrics.events.labels(name).inc()
        try:
            with self._lock:
                answer = self.handle(event)
                self.update_gauges()
            LOG.debug("Event %s took %.1f ms", name, 1000 * (time.monotonic() - started))
        except (GuestRefusedError, DriverError) as error:
            future.set_exception(error)
        except Exception as error:
            LOG.exception("Event %s could not be handled", name)
            self._metrics.event_failures.labels(name).inc()
            future.set_exception(error)
        else:
            if isinstance(event, GuestStarted | StartGuest | AdoptGuest):
                since = getattr(event, "since", 0.0) or queued
                self._metrics.pin_seconds.observe(self._applied - since)
            future.set_result(answer)

    def handle(self, event: Event) -> GuestView | CpuAssignment | None:
        """Handle one event to its end; what start() does in a thread, done here and now."""
        if isinstance(event, WorldChanged):
            self._placer.world = event.world
            if event.controllers is not None:
                self._enforcer.use(event.controllers)
        self._placer.world = self._enforcer.refresh(self.world)
        self._report_stopped()
        try:
            self._take_over()
        except DriverError:
            if isinstance(event, _NOT_FOUND_OUT):
                raise
            return None  # what it tells of is found out anyway when the guests are taken over
        match event:
            case StartGuest():
                return self._start_guest(event)
            case AdoptGuest():
                return self._adopt_guest(event)
            case GuestStarted():
                self._lifecycle.enter(event.guest, event.allocation, event.as_of, event.started, event.owner)
            case GuestExpected(guest, allocation, owner):
                guest = self._classifier.classify(guest, allocation, owner, self.world)
                self._enforcer.expect(guest, allocation, self.world)
                return None
            case GuestAppeared(guest):
                self._enforcer.begin(guest, self.world)
                return None
            case GuestStopped(guest, ending):
                self._lifecycle.leave(guest, ending)
            case AllocationsRead(allocations, as_of, held, migrations, owners):
                if held is not None:
                    self._cache.hold_for(held, as_of)
                self._read_allocations(allocations, migrations, owners, as_of)
            case WorldChanged():
                for entry in self._cache:
                    self._lifecycle.classify_again(entry)
                self._placer.place_all()
            case ConfigureGuest():
                self._configure_guest(event)
            case LimitGuest():
                self._limit_guest(event)
            case MoveGuest():
                return self._move_guest(event)
            case UseMeasured(use):
                self._placer.use = use
            case ReconcileGuests():
                self._lifecycle.reconcile()
                self._lifecycle.forget_absent()
                self._placer.rebalance()
        self._finish()
        if isinstance(event, GuestStarted) and event.started:
            self._enforcer.note_cache_delay(event.guest)
        return None

    def _on_change(self, change: GuestChange) -> None:
        self.submit(GuestStopped(change.guest, change.ending))

    def _start_guest(self, event: StartGuest) -> GuestView:
        """Place, create held, pin, release: the program's first instruction runs where it should."""
        driver, assignment = self._admit(event)
        guest = driver.create(
            event.uuid,
            event.name,
            event.settings,
            event.command,
            event.cwd,
            event.environment,
            event.declared,
        )
        entry = self._new_entry(guest, event, assignment)
        self._cache.add(entry)
        self._placer.sync()
        self._enforcer.apply(self.world, but=entry)  # whoever is in the way leaves first
        try:
            self._enforcer.apply_to(entry, self.world)
            driver.release(guest)
        except DriverError:
            self._cache.remove(guest.uuid)
            driver.discard(guest)
            raise
        self._tell_start(entry, "Guest %s (pid %d) started%s")
        self._finish()
        return view(entry, self.world.topology)

    def _adopt_guest(self, event: AdoptGuest) -> GuestView:
        driver, assignment = self._admit(event)
        guest = driver.adopt(event.uuid, event.name, event.settings, event.origin, event.declared)
        entry = self._new_entry(guest, event, assignment)
        self._cache.add(entry)
        self._tell_start(entry, "Guest %s (pid %d) adopted%s")
        self._finish()
        return view(entry, self.world.topology)

    def _new_entry(
        self, guest: Guest, event: StartGuest | AdoptGuest, assignment: CpuAssignment | None
    ) -> CachedGuest:
        guest = self._classifier.classify(guest, event.allocation, event.owner, self.world)
        self._classifier.report_problems(guest)
        return CachedGuest(guest, event.allocation, assignment, as_of=event.as_of, owner=event.owner)

    def _tell_start(self, entry: CachedGuest, message: str) -> None:
        guest, reason = entry.guest, self._placer.because(entry.allocation)
        self._recorder.record_done(
            LOG.info, EventKind.START, guest, message, guest.pid, where(entry), reason=reason
        )

    def _admit(self, event: StartGuest | AdoptGuest) -> tuple[StartingDriver, CpuAssignment | None]:
        """Who makes a new guest, and where it is to run.

        :raises GuestRefusedError: it cannot be.
        """
        driver = self._driver.starting
        if driver is None:
            raise GuestRefusedError(f"guests of driver {self._driver.name} are not started by the agent")
        declared = {name: getattr(event.settings, name) for name in event.declared}
        draft = Guest(event.uuid, driver.name, event.name, 0, event.settings, declared=declared)
        draft = self._classifier.classify(draft, event.allocation, event.owner, self.world)
        lost = self._cache.lost.get(event.uuid)
        assignment = self._placer.decide(draft, event.allocation, lost.assignment if lost else None)
        if isinstance(assignment, PlacementRefusal):
            message = "Guest %s is not started: %s"
            self._recorder.record_done(LOG.info, EventKind.REFUSE, draft, message, assignment.reason)
            raise GuestRefusedError(assignment.reason)
        return driver, assignment

    def _read_allocations(
        self,
        allocations: Mapping[str, Allocation],
        migrations: Mapping[str, GuestMigration],
        owners: Mapping[str, ConsumerOwner],
        as_of: float,
    ) -> None:
        LOG.debug("Guests that hold something else than was known: %d", len(allocations))
        for uuid, held in allocations.items():
            entry = self._cache.get(uuid)
            if entry is None or as_of < entry.as_of:
                continue  # older than what a later start of the guest has brought
            entry.as_of = as_of
            allocation = self.world.own_part(held)
            self._follow_migration(entry, migrations.get(uuid))
            entry.owner = owners.get(uuid, entry.owner)
            if allocation != entry.allocation:
                held_now = self.world.in_words(allocation)
                self._recorder.record_done(
                    LOG.info, EventKind.HOLD, entry.guest, "Guest %s holds %s now", held_now
                )
                entry.allocation = allocation
                self._lifecycle.classify_again(entry)
                self._cache.mark(entry)
                self._placer.place(entry)
            elif self._lifecycle.classify_again(entry):
                self._placer.place(entry)

    def _follow_migration(self, entry: CachedGuest, migration: GuestMigration | None) -> None:
        """Note through whom a guest holds its place, and say so when it is another one."""
        if migration is not None:
            self._cache.migrations[migration.consumer] = entry.guest.uuid
            if migration != entry.migration:
                level = logging.WARNING if migration.others else logging.INFO
                LOG.log(level, "Guest %s stays where it is, %s", entry.guest, migration)
        elif entry.migration is not None:
            LOG.info("Guest %s is not migrating any more", entry.guest)
        entry.migration = migration

    def _configure_guest(self, event: ConfigureGuest) -> None:
        """Keep settings of a guest, and have it be so.

        :raises DriverError: they cannot be kept.
        """
        entry = self._known(event.uuid)
        try:
            self._classifier.manual.change(event.uuid, event.source, event.texts, event.unset)
        except OSError as error:
            raise DriverError(f"the settings of guest {entry.guest} cannot be kept: {error}") from error
        if self._lifecycle.classify_again(entry):
            self._placer.place(entry)

    def _limit_guest(self, event: LimitGuest) -> None:
        entry = self._known(event.uuid)
        if entry.guest.settings.preserve:
            return  # it has no limits; one that is lifted late is gone already
        before = dict(entry.limits)
        if event.limit is None:
            entry.limits.pop(event.knob, None)
        else:
            entry.limits[event.knob] = event.limit
        if entry.limits == before:
            return
        self._cache.mark(entry)
        try:
            self._enforcer.apply_to(entry, self.world)
        except DriverError:
            entry.limits = before
            self._cache.mark(entry)
            raise

    def _move_guest(self, event: MoveGuest) -> CpuAssignment | None:
        """Have a guest leave CPUs outside the present sets. Where it goes; None if it has none to leave."""
        entry = self._known(event.uuid)
        place = self._placer.move(entry)
        if isinstance(place, PlacementRefusal):
            raise GuestRefusedError(place.reason)
        if place is not None and not event.dry_run:
            self._cache.assign(entry, place)
            told, reason = "Guest %s is moved, as asked: it runs%s", self._placer.because(entry.allocation)
            self._recorder.record_done(
                LOG.info, EventKind.MOVE, entry.guest, told, where(entry), reason=reason
            )
            self._finish()
        return place

    def _known(self, uuid: str) -> CachedGuest:
        if (entry := self._cache.get(uuid)) is None:
            raise GuestGoneError(f"there is no guest {uuid}")
        return entry

    def _report_stopped(self) -> None:
        """Record which dedicated CPUs went offline, and which are online again."""
        before, self._stopped = self._stopped, self.world.stopped
        sets, record = self.world.cpu_sets, self._recorder.record_event
        if gone := self._stopped - before:
            record(LOG.warning, EventKind.CPU_OFFLINE, None, "Dedicated %s went offline", named_cpus(gone))
        if back := before - self._stopped & sets.dedicated:
            record(LOG.info, EventKind.CPU_ONLINE, None, "Dedicated %s online again", named_cpus(back))

    def _take_over(self) -> None:
        """Take over the guests that run.

        :raises DriverError: the driver cannot say what runs: nothing is forgotten then.
        """
        if self._lifecycle.take_over():
            self._finish()
            self.update_gauges()

    def _finish(self) -> None:
        """The end of every event.

        Guests give way to each other, what is pending goes to the kernel, then the cache goes to the state
        file.
        """
        self._placer.sync()
        self._enforcer.apply(self.world)
        self._applied = time.monotonic()
        self._overview.warn()
        guests = {entry.guest.uuid: SavedGuest(entry.allocation, entry.assignment) for entry in self._cache}
        try:
            unclaimed = {consumer: one.allocation for consumer, one in self._cache.unclaimed.items()}
            self._save(guests | self._cache.lost, unclaimed, dict(self._cache.migrations))
        except OSError as error:
            LOG.error("The state cannot be saved: %s; will be tried again", error)
            self._metrics.state_failures.inc()

    def update_gauges(self) -> None:
        """Bring gauges up to what is true now, which the worker does after each event."""
        self._overview.show(self.world.topology)
        self._enforcer.update_gauges()
