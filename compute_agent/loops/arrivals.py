"""Starting guests: reads their allocations, and makes cache groups of announced ones in time.

libvirt's hook announces a start and waits for the answer. The cache group is made before the answer. The
QEMU process is then looked for every few milliseconds and moved into the group at once, so that the threads
of guest CPUs are created in it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from compute_agent.drivers.base import ChangeKind, ExpectingDriver, GuestChange
from compute_agent.loops.base import ReloadedConfiguration, WakeReport
from compute_agent.model.guest import Allocation, ConsumerAllocations, Guest
from compute_agent.pipeline.events import Event, GuestAppeared, GuestExpected, GuestStarted, GuestStopped
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient
from compute_agent.report.history import ConsumerOwner, holder_of
from compute_agent.threads import (
    NO_LOCK,
    ONCE,
    PeriodicTask,
    ThreadSpec,
    log_failures,
    run_aside,
    until_woken,
)

LOG = logging.getLogger(__name__)

_PAUSE: Final = 0.005
_LONG_PAUSE: Final = 0.05
_TROUBLED_PAUSE: Final = 1.0
_MAX_ASKING: Final = 16
"""Questions to Placement at a time, which may all hang."""

_SOON: Final = 2.0
"""Seconds in which a process is there mostly; afterwards it is looked for less often."""


ANNOUNCEMENTS_THREAD: Final = ThreadSpec(
    "announcements",
    "when a guest is announced, then each 5 to 50 ms until its process is there",
    "moves the process of an announced guest into its cache group",
    NO_LOCK,
    "the driver; the queue of the worker",
)

HELD_THREAD: Final = ThreadSpec(
    "held by an announced guest",
    ONCE,
    "reads the allocation of an announced guest: the client waits for longer than a start may",
    f"a semaphore of {_MAX_ASKING}",
    "Placement",
)

ARRIVALS_THREAD: Final = ThreadSpec(
    "arrivals",
    "when the driver reports a change",
    "reads the allocations of guests that start, and hands changes of guests over to the worker",
    NO_LOCK,
    "Placement; the queue of the worker",
)


class PreStartHook:
    """Takes announcements, and looks for the processes."""

    def __init__(
        self, pipeline: GuestPipeline, expecting: ExpectingDriver | None, client: PlacementClient
    ) -> None:
        """``expecting`` is the driver's; without it nothing is ever announced."""
        self._pipeline = pipeline
        self._expecting = expecting
        self._client = client
        self._asking = threading.BoundedSemaphore(_MAX_ASKING)
        self._last = 0.0
        self._others = False
        """Whether processes of announced guests are not there yet."""
        self._troubled = False
        self._thread = PeriodicTask(
            ANNOUNCEMENTS_THREAD,
            self._move_appeared,
            self._look_pause,
            log_failures(LOG, "The agent cannot look for guests that are about to start; it will try again"),
        )

    def start(self) -> None:
        """Begin to look, as soon as a guest is announced."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Ask with another client about the next guest."""
        self._client = conf.client

    def stop(self) -> None:
        """End."""
        self._thread.stop(2.0)

    def announce(self, description: str, seconds: float) -> Guest:
        """Take a guest that is about to start; its cache group is made within so many seconds.

        :raises ValueError: the description is none, or nobody can be expected here.
        :raises TimeoutError: it is not made yet, and will be.
        """
        if self._expecting is None:
            raise ValueError("guests of this driver are not announced")
        guest = self._expecting.expect_guest(description)
        self._last = time.monotonic()
        self._thread.wake()
        held, owner = self._held_by(guest.uuid, seconds / 2)
        self._pipeline.submit(GuestExpected(guest, held, owner)).result(seconds / 2)
        return guest

    def _held_by(self, uuid: str, seconds: float) -> tuple[Allocation | None, ConsumerOwner | None]:
        """What a guest holds here, and whose it is.

        Where Placement is away: what it held when last heard of, or None.
        """
        held: Allocation | None
        owner = None
        try:
            record = self._ask_placement(uuid).result(seconds)
            held, owner = record.resources, holder_of(record)
        except (PlacementError, TimeoutError) as error:
            LOG.warning(
                "The allocation of guest %s, which is about to start, is not known: %s",
                uuid,
                str(error) or f"no answer of Placement in {seconds:g} s",
            )
            known = self._pipeline.unclaimed_holdings.get(uuid)
            held = None if known is None else known.allocation
        world = self._pipeline.host_state
        return (world.own_part(held) if held is not None and world.root_known else None), owner

    def _ask_placement(self, uuid: str) -> Future[ConsumerAllocations]:
        """What a guest holds, asked in a thread of its own: the client waits for longer than a start may."""
        if not self._asking.acquire(blocking=False):
            refused: Future[ConsumerAllocations] = Future()
            refused.set_exception(TimeoutError("Placement does not answer others"))
            return refused
        client = self._client

        def ask() -> ConsumerAllocations:
            try:
                return client.get_allocations(uuid)
            finally:
                self._asking.release()

        return run_aside(HELD_THREAD, ask)

    def _move_appeared(self) -> None:
        """Put the guests whose processes have appeared into their groups."""
        if self._expecting is None:
            return
        self._troubled = True  # until the driver has answered
        guests, self._others = self._expecting.find_appeared()
        for guest in guests:
            self._pipeline.submit(GuestAppeared(guest)).add_done_callback(partial(_log_start, guest))
        self._troubled = False

    def _look_pause(self, took: float) -> float | None:
        if self._troubled:
            return _TROUBLED_PAUSE  # an expected guest stays expected, until it takes too long
        if not self._others:
            return None
        # Short at first: each thread that the process makes meanwhile has to be moved afterwards.
        return _PAUSE if time.monotonic() - self._last < _SOON else _LONG_PAUSE


def _log_start(guest: Guest, done: Future[Any]) -> None:
    """Say how it went."""
    if (error := done.exception()) is not None:
        LOG.warning("Guest %s starts without its cache group: %s; that will be tried again", guest, error)
    else:
        LOG.info("Guest %s (pid %d) starts in its cache group", guest, guest.pid)


class GuestEvents:
    """Hands a driver's changes to the pipeline, in their order."""

    def __init__(self, pipeline: GuestPipeline, client: PlacementClient, missed: WakeReport) -> None:
        """``missed`` is called when the pipeline has a guest for which Placement has to be asked again."""
        self._pipeline = pipeline
        self._client = client
        self._missed = missed
        self._changes: queue.SimpleQueue[tuple[GuestChange, float]] = queue.SimpleQueue()
        self._thread = PeriodicTask(
            ARRIVALS_THREAD,
            self._hand_over,
            until_woken,
            log_failures(LOG, "Changes of guests cannot be handed over"),
            keep=self._hand_over,
        )

    def start(self) -> None:
        """Begin to hand over."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Ask with another client about the next guest."""
        self._client = conf.client

    def report(self, change: GuestChange) -> None:
        """Take a change; for the driver's threads."""
        self._changes.put((change, time.monotonic()))
        self._thread.wake()

    def stop(self, timeout: float = 2.0) -> None:
        """Hand over what there is, then end; a request that hangs is not waited for longer than that."""
        self._thread.stop(timeout)

    def _hand_over(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                change, since = self._changes.get_nowait()
                try:
                    event = self._event_for(change, since)
                    handled = self._pipeline.submit(event)
                    if _is_for_reports(event):
                        handled.add_done_callback(lambda _: self._missed())
                except Exception:
                    LOG.exception("A change of guest %s could not be handed over", change.guest)

    def _event_for(self, change: GuestChange, since: float) -> Event:
        guest = change.guest
        match change.kind:
            case ChangeKind.STOPPED:
                return GuestStopped(guest, change.ending)
            case ChangeKind.CHANGED:
                return GuestStarted(guest, None, since=since)
            case ChangeKind.STARTED | ChangeKind.FOUND:
                started = change.kind is ChangeKind.STARTED
                as_of = time.monotonic()
                try:
                    record = self._client.get_allocations(guest.uuid)
                except PlacementError as error:
                    LOG.warning("The allocation of guest %s is not known yet: %s", guest, error)
                    return GuestStarted(guest, None, as_of, since, started)
                world, owner = self._pipeline.host_state, holder_of(record)
                if not world.root_known:
                    return GuestStarted(guest, None, as_of, since, started, owner)
                allocation = world.own_part(record.resources)
                if not allocation and self._held_something(guest.uuid):
                    # The report judges whether that is so, or Placement has an older copy.
                    return GuestStarted(guest, None, as_of, since, started, owner)
                if not started and not self._is_news(guest.uuid, allocation):
                    return GuestStarted(guest, None, as_of, since, owner=owner)
                return GuestStarted(guest, allocation, as_of, since, started, owner)

    def _held_something(self, uuid: str) -> bool:
        """Whether a consumer held something here when Placement was last asked.

        That it holds nothing now may come from an older copy of Placement's database.
        """
        if uuid in self._pipeline.unclaimed_holdings:
            return True
        return any(view.guest.uuid == uuid and view.allocation for view in self._pipeline.guest_views())

    def _is_news(self, uuid: str, allocation: Allocation) -> bool:
        """Whether what a guest that ran before holds by itself tells what it may use.

        It does not if the guest held something else before: that may have gone to its migration, and who
        reads all allocations finds out.
        """
        return bool(allocation) and all(view.guest.uuid != uuid for view in self._pipeline.guest_views())


def _is_for_reports(event: Event) -> bool:
    """Whether Placement was asked, and said too little, or that something is held.

    A report that comes soon learns the generations that belong to what is held: an older copy has others.
    """
    return isinstance(event, GuestStarted) and event.as_of > 0 and event.allocation != {}
