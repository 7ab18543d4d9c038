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
"""Concurrent requests to Placement, which may all hang."""

_SOON: Final = 2.0
"""Most processes appear within these seconds; afterwards they are looked for less often."""


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
    """Takes announcements of libvirt's hook, and looks for the processes of announced guests."""

    def __init__(
        self, pipeline: GuestPipeline, expecting: ExpectingDriver | None, client: PlacementClient
    ) -> None:
        """``expecting`` is the driver's part for announced guests; without it nothing is announced."""
        self._pipeline = pipeline
        self._expecting = expecting
        self._client = client
        self._asking = threading.BoundedSemaphore(_MAX_ASKING)
        self._last = 0.0
        self._others = False
        """Whether processes of announced guests are still missing."""
        self._troubled = False
        self._thread = PeriodicTask(
            ANNOUNCEMENTS_THREAD,
            self._move_appeared,
            self._look_pause,
            log_failures(LOG, "The agent cannot look for guests that are about to start; it will try again"),
        )

    def start(self) -> None:
        """Start the thread, which waits for an announcement."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another client for the next guest."""
        self._client = conf.client

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop(2.0)

    def announce_guest(self, description: str, seconds: float) -> Guest:
        """Take a guest that is about to start, and make its cache group.

        :param description: the domain in XML.
        :param seconds: the longest wait for the group.
        :raises ValueError: the description is invalid, or the driver has no announced guests.
        :raises TimeoutError: the group is not made yet, and will be.
        """
        if self._expecting is None:
            raise ValueError("guests of this driver are not announced")
        guest = self._expecting.expect_guest(description)
        self._last = time.monotonic()
        self._thread.wake()
        # Half of the time is for Placement, half for the worker: the group can be made without an allocation.
        held, owner = self._held_by(guest.uuid, seconds / 2)
        self._pipeline.submit(GuestExpected(guest, held, owner)).result(seconds / 2)
        return guest

    def _held_by(self, uuid: str, seconds: float) -> tuple[Allocation | None, ConsumerOwner | None]:
        """Read the allocation of a guest on this host, and its owner.

        Without an answer of Placement the last known allocation counts, or None.
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
        host_state = self._pipeline.host_state
        return (host_state.own_part(held) if held is not None and host_state.root_known else None), owner

    def _ask_placement(self, uuid: str) -> Future[ConsumerAllocations]:
        """Read the allocation of a guest in another thread: the client may wait longer than a start may."""
        # All of these may hang, and an announced start must not wait for them.
        if not self._asking.acquire(blocking=False):
            refused: Future[ConsumerAllocations] = Future()
            refused.set_exception(TimeoutError(f"{_MAX_ASKING} earlier requests to Placement still hang"))
            return refused
        client = self._client

        def ask_placement() -> ConsumerAllocations:
            try:
                return client.get_allocations(uuid)
            finally:
                self._asking.release()

        return run_aside(HELD_THREAD, ask_placement)

    def _move_appeared(self) -> None:
        """Put the processes of announced guests into their groups as they appear."""
        if self._expecting is None:
            return
        self._troubled = True  # until the driver has answered
        guests, self._others = self._expecting.find_appeared()
        for guest in guests:
            self._pipeline.submit(GuestAppeared(guest)).add_done_callback(partial(_log_start, guest))
        self._troubled = False

    def _look_pause(self, took: float) -> float | None:
        if self._troubled:
            return _TROUBLED_PAUSE  # the driver keeps an announced guest until its time is over
        if not self._others:
            return None
        # Short at first: each thread that the process creates meanwhile has to be moved one by one.
        return _PAUSE if time.monotonic() - self._last < _SOON else _LONG_PAUSE


def _log_start(guest: Guest, done: Future[Any]) -> None:
    """Log the outcome of a guest's start."""
    if (error := done.exception()) is not None:
        LOG.warning("Guest %s starts without its cache group: %s; the agent tries again", guest, error)
    else:
        LOG.info("Guest %s (pid %d) starts in its cache group", guest, guest.pid)


class GuestEvents:
    """Hands a driver's changes to the pipeline, in their order."""

    def __init__(self, pipeline: GuestPipeline, client: PlacementClient, missed: WakeReport) -> None:
        """``missed`` is called after a guest has started if its allocation has to be read again."""
        self._pipeline = pipeline
        self._client = client
        self._missed = missed
        self._changes: queue.SimpleQueue[tuple[GuestChange, float]] = queue.SimpleQueue()
        self._thread = PeriodicTask(
            ARRIVALS_THREAD,
            self._hand_over,
            until_woken,
            log_failures(LOG, "Changes of guests cannot be passed to the worker"),
            keep=self._hand_over,
        )

    def start(self) -> None:
        """Start the thread that hands changes over."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another client for the next guest."""
        self._client = conf.client

    def report_change(self, change: GuestChange) -> None:
        """Take a change; for the driver's threads."""
        # With its time: the worker compares it with reads of allocations, which may be older or newer.
        self._changes.put((change, time.monotonic()))
        self._thread.wake()

    def stop(self, timeout: float = 2.0) -> None:
        """Hand pending changes over, then stop; wait ``timeout`` seconds at most for a request that hangs."""
        self._thread.stop(timeout)

    def _hand_over(self) -> None:
        # An empty queue ends the loop.
        with contextlib.suppress(queue.Empty):
            while True:
                change, since = self._changes.get_nowait()
                try:
                    event = self._event_for(change, since)
                    handled = self._pipeline.submit(event)
                    if _is_for_reports(event):
                        handled.add_done_callback(lambda _: self._missed())
                # One change must not cost the changes behind it.
                except Exception:
                    LOG.exception("A change of guest %s could not be passed to the worker", change.guest)

    def _event_for(self, change: GuestChange, since: float) -> Event:
        guest = change.guest
        match change.kind:
            case ChangeKind.STOPPED:
                return GuestStopped(guest, change.ending)
            case ChangeKind.CHANGED:
                # The allocation stays: only settings or the main process have changed.
                return GuestStarted(guest, None, since=since)
            case ChangeKind.STARTED | ChangeKind.FOUND:
                started = change.kind is ChangeKind.STARTED
                # Before the request, since the answer may be of any moment after it.
                as_of = time.monotonic()
                try:
                    record = self._client.get_allocations(guest.uuid)
                except PlacementError as error:
                    LOG.warning("The allocation of guest %s is not known yet: %s", guest, error)
                    return GuestStarted(guest, None, as_of, since, started)
                host_state, owner = self._pipeline.host_state, holder_of(record)
                # Without the root it is not known which providers are this host's.
                if not host_state.root_known:
                    return GuestStarted(guest, None, as_of, since, started, owner)
                allocation = host_state.own_part(record.resources)
                if not allocation and self._held_something(guest.uuid):
                    # The next report decides whether Placement has an older copy of its database.
                    return GuestStarted(guest, None, as_of, since, started, owner)
                if not started and not self._is_news(guest.uuid, allocation):
                    return GuestStarted(guest, None, as_of, since, owner=owner)
                return GuestStarted(guest, allocation, as_of, since, started, owner)

    def _held_something(self, uuid: str) -> bool:
        """Tell whether a consumer had an allocation here at the last read."""
        if uuid in self._pipeline.unclaimed_holdings:
            return True
        # An empty allocation now may come from an older copy of Placement's database.
        return any(view.guest.uuid == uuid and view.allocation for view in self._pipeline.guest_views())

    def _is_news(self, uuid: str, allocation: Allocation) -> bool:
        """Tell whether the own allocation of a guest that ran before the agent is all that it may use."""
        # The allocation of a guest that had another one before may have moved to its migration, which only a
        # read of all allocations finds.
        return bool(allocation) and all(view.guest.uuid != uuid for view in self._pipeline.guest_views())


def _is_for_reports(event: Event) -> bool:
    """Tell whether an early report should follow: the allocation is unknown, or it is not empty."""
    # The report reads the generations that belong to the allocation; an older copy of the database has
    # others.
    return isinstance(event, GuestStarted) and event.as_of > 0 and event.allocation != {}
