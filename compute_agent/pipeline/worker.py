"""The one worker: takes events in turn and brings cache, kernel and state file in line with them.

event -> look up or create the guest in the cache -> policy -> pending marks -> controllers -> save
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from compute_agent.controllers.base import Controller, Target
from compute_agent.drivers.base import (
    Change,
    Driver,
    DriverError,
    Guest,
    GuestGoneError,
    Listener,
    StartingDriver,
)
from compute_agent.host import cpuset
from compute_agent.pipeline.cache import Cache, CachedGuest
from compute_agent.pipeline.events import (
    AdoptGuest,
    AllocationsRead,
    Event,
    GuestStarted,
    GuestStopped,
    Reconcile,
    StartGuest,
    WorldChanged,
)
from compute_agent.pipeline.metrics import Metrics
from compute_agent.pipeline.state import SavedGuest
from compute_agent.pipeline.world import Allocation, World, request_for
from compute_agent.policy.base import Assignment, Refusal, refit
from compute_agent.policy.readback import read_back

LOG = logging.getLogger(__name__)


class GuestRefusedError(Exception):
    """A new guest cannot be placed; the text says why."""


@dataclass(frozen=True, slots=True)
class GuestView:
    """A guest as others see it: a copy that the worker does not change any more."""

    guest: Guest
    allocation: Allocation | None
    assignment: Assignment | None
    refusal: str
    pending: tuple[str, ...]


class Pipeline:
    """The queue, the cache and the worker of one agent."""

    def __init__(
        self,
        world: World,
        driver: Driver,
        controllers: Sequence[Controller],
        save: Callable[[Mapping[str, SavedGuest]], None],
        metrics: Metrics,
    ) -> None:
        """``save`` keeps the guests durably; it may raise OSError."""
        self._world = world
        self._driver = driver
        self._controllers = controllers
        self._save = save
        self._metrics = metrics
        self._cache = Cache(frozenset(controller.name for controller in controllers))
        self._saved: Mapping[str, SavedGuest] | None = None
        self._queue: queue.SimpleQueue[tuple[Event, Future[Any], float] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    # For other threads

    def submit(self, event: Event) -> Future[Any]:
        """Queue an event. The future has its answer, or what went wrong."""
        future: Future[Any] = Future()
        self._queue.put((event, future, time.monotonic()))
        return future

    def views(self) -> list[GuestView]:
        """All guests as they are now, by uuid."""
        with self._lock:
            return [_view(entry) for _, entry in sorted(self._cache.guests.items())]

    @property
    def world(self) -> World:
        """The host as the worker has it in mind."""
        return self._world

    @property
    def is_alive(self) -> bool:
        """Whether the worker runs."""
        return self._thread.is_alive()

    def start(self, saved: Mapping[str, SavedGuest], listener: Listener | None = None) -> None:
        """Take over the guests that run, then handle events in a thread of its own.

        A driver that cannot say what runs is asked again before each event. ``listener`` makes events of
        what the driver says; unless given, ends of guests are all that is heard of it.
        """
        self._driver.watch(listener or self._driver_says)
        self._saved = saved
        with self._lock:
            try:
                self._take_over()
            except DriverError as error:
                LOG.error("The guests cannot be taken over: %s; will be tried again", error)
        self._thread.start()

    def stop(self) -> None:
        """Handle what is queued, then end the worker. Guests stay as they are."""
        self._queue.put(None)
        self._thread.join()

    # The worker

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            event, future, queued = item
            name = type(event).__name__
            self._metrics.events.labels(name).inc()
            try:
                with self._lock:
                    answer = self.handle(event)
                    self._update_gauges()
            except (GuestRefusedError, DriverError) as error:
                future.set_exception(error)
            except Exception as error:
                LOG.exception("Event %s could not be handled", name)
                self._metrics.event_failures.labels(name).inc()
                future.set_exception(error)
            else:
                if isinstance(event, GuestStarted | StartGuest | AdoptGuest):
                    since = getattr(event, "since", 0.0) or queued
                    self._metrics.pin_seconds.observe(time.monotonic() - since)
                future.set_result(answer)

    def handle(self, event: Event) -> GuestView | None:
        """Handle one event to its end; what start() does in a thread, done here and now."""
        if isinstance(event, WorldChanged):
            self._world = event.world
        try:
            self._take_over()
        except DriverError:
            if isinstance(event, StartGuest | AdoptGuest):
                raise
            return None  # what it tells of is found out anyway when the guests are taken over
        match event:
            case StartGuest():
                return self._start_guest(event)
            case AdoptGuest():
                return self._adopt_guest(event)
            case GuestStarted(guest, allocation, as_of):
                self._enter(guest, allocation, as_of)
            case GuestStopped(guest):
                self._leave(guest)
            case AllocationsRead(allocations, as_of):
                self._read_allocations(allocations, as_of)
            case WorldChanged():
                self._place_all()
            case Reconcile():
                self._reconcile()
        self._finish()
        return None

    def _driver_says(self, change: Change) -> None:
        self.submit(GuestStopped(change.guest))

    def _start_guest(self, event: StartGuest) -> GuestView:
        """Place, create held, pin, release: the program's first instruction runs where it should."""
        driver = self._starting_driver()
        draft = Guest(event.uuid, self._driver.name, event.name, 0, event.settings)
        assignment = self._decide(draft, event.allocation, None)
        if isinstance(assignment, Refusal):
            raise GuestRefusedError(assignment.reason)
        guest = driver.create(event.uuid, event.name, event.settings, event.command, event.cwd)
        entry = CachedGuest(guest, event.allocation, as_of=event.as_of)
        self._cache.guests[guest.uuid] = entry
        self._cache.assign(entry, assignment)
        try:
            self._apply_to(entry)
            driver.release(guest)
        except DriverError:
            del self._cache.guests[guest.uuid]
            driver.discard(guest)
            raise
        LOG.info("Guest %s (pid %d) started%s", guest.uuid, guest.pid, _where(entry))
        self._finish()
        return _view(entry)

    def _adopt_guest(self, event: AdoptGuest) -> GuestView:
        driver = self._starting_driver()
        draft = Guest(event.uuid, self._driver.name, event.name, event.pid, event.settings)
        assignment = self._decide(draft, event.allocation, None)
        if isinstance(assignment, Refusal):
            raise GuestRefusedError(assignment.reason)
        guest = driver.adopt(event.uuid, event.name, event.settings, event.pid)
        entry = CachedGuest(guest, event.allocation, as_of=event.as_of)
        self._cache.guests[guest.uuid] = entry
        self._cache.assign(entry, assignment)
        LOG.info("Guest %s (pid %d) adopted%s", guest.uuid, guest.pid, _where(entry))
        self._finish()
        return _view(entry)

    def _starting_driver(self) -> StartingDriver:
        if not isinstance(self._driver, StartingDriver):
            raise GuestRefusedError(f"guests of driver {self._driver.name} are not started by the agent")
        return self._driver

    def _enter(self, guest: Guest, allocation: Allocation | None, as_of: float = 0.0) -> None:
        entry = self._cache.guests.setdefault(guest.uuid, CachedGuest(guest))
        entry.guest = guest
        if allocation is not None:
            entry.allocation, entry.as_of = allocation, as_of
        elif entry.allocation is None and entry.assignment is None:
            # Until it is known what it may use it keeps off the CPUs of others.
            place = self._decide(guest, {}, None)
            self._cache.assign(entry, None if isinstance(place, Refusal) else place)
        self._place(entry)

    def _leave(self, guest: Guest) -> None:
        entry = self._cache.guests.get(guest.uuid)
        if entry is None or entry.guest.pid != guest.pid:
            return  # told before, and the consumer may have another guest by now
        del self._cache.guests[guest.uuid]
        LOG.info("Guest %s left", guest.uuid)
        self._place_refused()

    def _place_refused(self) -> None:
        """Somebody gave CPUs back: those who were refused may find a place now."""
        for entry in self._cache.guests.values():
            if entry.refusal:
                self._place(entry)

    def _read_allocations(self, allocations: Mapping[str, Allocation], as_of: float) -> None:
        for uuid, held in allocations.items():
            entry = self._cache.guests.get(uuid)
            if entry is None or as_of < entry.as_of:
                continue  # older than what a later start of the guest has brought
            entry.as_of = as_of
            allocation = self._world.own_part(held)
            if allocation != entry.allocation:
                LOG.info("Guest %s holds %s now", uuid, allocation or "nothing")
                entry.allocation = allocation
                self._place(entry)
        self._place_refused()

    def _place_all(self) -> None:
        for entry in self._cache.guests.values():
            self._place(entry)

    def _place(self, entry: CachedGuest) -> None:
        """Decide anew where a guest goes; it stays where it is if that still serves it."""
        if entry.allocation is None:
            return  # nothing is known yet; the next answer of Placement decides
        decision = self._decide(entry.guest, entry.allocation, entry.assignment)
        if isinstance(decision, Refusal):
            if entry.refusal != decision.reason:
                LOG.warning("Guest %s stays where it is: %s", entry.guest.uuid, decision.reason)
            entry.refusal = decision.reason
            return
        entry.refusal = ""
        if decision != entry.assignment:
            self._cache.assign(entry, decision)
            LOG.info("Guest %s%s", entry.guest.uuid, _where(entry))

    def _decide(
        self, guest: Guest, allocation: Allocation, current: Assignment | None
    ) -> Assignment | Refusal | None:
        world = self._world
        supply = world.supply(self._cache.holdings())
        request = request_for(world, guest, allocation)
        if not request.demands and not world.place_unallocated:
            return None
        if not world.places:
            return None
        kept = refit(supply, request, current) if current is not None else None
        return kept or world.policy(supply, request)

    def _take_over(self) -> None:
        """Fill the cache, once, from what runs; positions from the state file, or else from the kernel.

        Raises DriverError if the driver cannot say what runs: nothing is forgotten then.
        """
        if (saved := self._saved) is None:
            return
        running = {guest.uuid: guest for guest in self._driver.guests()}
        self._saved = None
        for uuid, guest in running.items():
            if (old := saved.get(uuid)) is not None:
                assignment = old.assignment if self._world.places else None
                entry = CachedGuest(guest, old.allocation, assignment)
                self._cache.mark_all(entry)
                self._cache.guests[uuid] = entry
        for uuid in saved.keys() - running.keys():
            LOG.info("Guest %s ended while the agent was away", uuid)
        self._reconcile()
        self._finish()
        self._update_gauges()

    def _take_over_from_kernel(self, entry: CachedGuest) -> None:
        guest = entry.guest
        if not self._world.places:
            return
        try:
            observed = self._driver.observed_cpus(guest)
        except GuestGoneError:
            return
        supply = self._world.supply(self._cache.holdings())
        entry.assignment = read_back(supply, request_for(self._world, guest, {}), observed)
        LOG.info("Guest %s was not known; the kernel has it%s", guest.uuid, _where(entry))

    def _reconcile(self) -> None:
        running = {guest.uuid: guest for guest in self._driver.guests()}
        for uuid, entry in list(self._cache.guests.items()):
            if uuid not in running:
                self._leave(entry.guest)
        for uuid, guest in running.items():
            if uuid not in self._cache.guests:
                self._cache.guests[uuid] = entry = CachedGuest(guest)
                self._take_over_from_kernel(entry)
        for entry in self._cache.guests.values():
            self._compare(entry)

    def _compare(self, entry: CachedGuest) -> None:
        if entry.assignment is None:
            return
        target = self._target(entry, entry.assignment)
        for controller in self._controllers:
            if controller.name in entry.pending:
                continue
            try:
                difference = controller.drifted(target)
            except GuestGoneError:
                return
            if difference is not None:
                LOG.warning("Guest %s drifted: %s", entry.guest.uuid, difference)
                self._metrics.drift.labels(controller.name).inc()
                entry.pending.add(controller.name)

    def _target(self, entry: CachedGuest, assignment: Assignment) -> Target:
        return Target(entry.guest, assignment, self._world.topology.online)

    def _apply_to(self, entry: CachedGuest) -> None:
        """Put one guest's assignment into effect. Raises DriverError at the first controller that cannot."""
        for controller in self._controllers:
            if entry.assignment is not None and controller.name in entry.pending:
                controller.apply(self._target(entry, entry.assignment))
                entry.pending.discard(controller.name)

    def _apply_pending(self) -> None:
        for controller in self._controllers:
            for entry in self._cache.pending(controller.name):
                assert entry.assignment is not None
                try:
                    controller.apply(self._target(entry, entry.assignment))
                except GuestGoneError:
                    pass  # its stop event is on its way
                except (DriverError, OSError) as error:
                    LOG.error("%s: %s; will be tried again", controller.name, error)
                    self._metrics.controller_failures.labels(controller.name).inc()
                    continue
                entry.pending.discard(controller.name)

    def _finish(self) -> None:
        """The end of every event: what is pending goes to the kernel, then the cache goes to the state
        file.
        """
        self._apply_pending()
        guests = {
            uuid: SavedGuest(entry.allocation, entry.assignment) for uuid, entry in self._cache.guests.items()
        }
        try:
            self._save(guests)
        except OSError as error:
            LOG.error("The state cannot be saved: %s; will be tried again", error)
            self._metrics.state_failures.inc()

    def _update_gauges(self) -> None:
        entries = self._cache.guests.values()
        self._metrics.guests.set(len(entries))
        self._metrics.unallocated_guests.set(sum(entry.allocation == {} for entry in entries))
        self._metrics.refused_guests.set(sum(bool(entry.refusal) for entry in entries))
        for controller in self._controllers:
            waiting = sum(controller.name in entry.pending for entry in entries)
            self._metrics.pending.labels(controller.name).set(waiting)


def _view(entry: CachedGuest) -> GuestView:
    return GuestView(
        entry.guest, entry.allocation, entry.assignment, entry.refusal, tuple(sorted(entry.pending))
    )


def _where(entry: CachedGuest) -> str:
    if entry.assignment is None:
        return " where it likes, and it is left there"
    kind = "dedicated" if entry.assignment.dedicated else "shared"
    return f" on {kind} CPUs {cpuset.format(entry.assignment.cpus)}"
