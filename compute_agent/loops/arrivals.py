"""Handles guests that start: reads their allocations, and makes the cache groups of announced guests.

libvirt's hook announces the start of a guest, and waits for an answer. The agent makes the cache group of the
guest before it answers. Then the agent looks for the QEMU process every few milliseconds, and moves the
process into the group at once. So QEMU creates the threads of guest CPUs inside the group.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from compute_agent.drivers.base import ChangeKind, ExpectingDriver, GuestChange
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration, WakeReport
from compute_agent.model.guest import Allocation, ConsumerAllocations, Guest
from compute_agent.pipeline.events import Event, GuestAppeared, GuestExpected, GuestStarted, GuestStopped
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import PlacementError
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
"""Seconds between two looks into /proc for the QEMU processes of announced guests."""
_LONG_PAUSE: Final = 0.05
"""Seconds between two looks into /proc when the last announcement is more than ``_SOON`` seconds ago."""
_TROUBLED_PAUSE: Final = 1.0
"""Seconds between two looks into /proc while the driver fails."""
_MAX_ASKING: Final = 16
"""Maximum number of simultaneous requests to Placement. Without a limit, many starts of guests would pile up
requests while Placement hangs."""

_SOON: Final = 2.0
"""Seconds after the announcement within which most processes appear."""


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


class PreStartHook(AgentLoop):
    """Receives announcements of libvirt's hook, and looks for the processes of announced guests."""

    def __init__(
        self, conf: ReloadedConfiguration, pipeline: GuestPipeline, expecting: ExpectingDriver | None
    ) -> None:
        """``expecting`` is the driver if it supports announced guests, otherwise None."""
        self._conf = conf
        self._pipeline = pipeline
        self._expecting = expecting
        self._asking = threading.BoundedSemaphore(_MAX_ASKING)
        self._last = 0.0
        self._others = False
        """Whether processes of announced guests are still expected."""
        # The value is True while the driver has not answered the latest request.
        self._troubled = False
        self._thread = PeriodicTask(
            ANNOUNCEMENTS_THREAD,
            self._move_appeared,
            self._look_pause,
            log_failures(LOG, "The agent cannot look for guests that are about to start; it will try again"),
        )

    def announce_guest(self, description: str, seconds: float) -> Guest:
        """Prepare for a guest that is about to start: make its cache group, and return the guest.

        :param description: the XML definition of the guest's domain.
        :param seconds: the maximum time to wait for the cache group of the guest.
        :raises ValueError: the description is invalid, or the driver does not support announcements.
        :raises TimeoutError: the group was not made in time. The worker still makes the group later.
        """
        if self._expecting is None:
            raise ValueError("guests of this driver are not announced")
        guest = self._expecting.expect_guest(description)
        self._last = time.monotonic()
        self._thread.wake()
        # The agent waits for Placement for at most half of the time, because the group can be made without an
        # allocation.
        held, owner = self._held_by(guest.uuid, seconds / 2)
        self._pipeline.submit(GuestExpected(guest, held, owner)).result(seconds / 2)
        return guest

    def _held_by(self, uuid: str, seconds: float) -> tuple[Allocation | None, ConsumerOwner | None]:
        """Read a guest's allocation and owner within ``seconds``, or return the last known ones, or None."""
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
        """Read the allocation of a guest in a thread of its own, because the client can wait for too long."""
        # If all earlier requests hang, the start of the guest does not wait for them.
        if not self._asking.acquire(blocking=False):
            refused: Future[ConsumerAllocations] = Future()
            refused.set_exception(TimeoutError(f"{_MAX_ASKING} earlier requests to Placement still hang"))
            return refused
        client = self._conf.client

        def ask_placement() -> ConsumerAllocations:
            try:
                return client.get_allocations(uuid)
            finally:
                self._asking.release()

        return run_aside(HELD_THREAD, ask_placement)

    def _move_appeared(self) -> None:
        """Have the worker move the new processes of announced guests into the cache groups of the guests."""
        if self._expecting is None:
            return
        self._troubled = True  # the value is reset below, unless the driver raises an error
        guests, self._others = self._expecting.find_appeared()
        for guest in guests:
            self._pipeline.submit(GuestAppeared(guest)).add_done_callback(partial(_log_start, guest))
        self._troubled = False

    def _look_pause(self, took: float) -> float | None:
        if self._troubled:
            return _TROUBLED_PAUSE  # no guest is missed: the driver expects an announced guest for some time
        if not self._others:
            return None
        # The pause is short at first, because each thread that QEMU creates before the move has to be moved
        # by itself.
        return _PAUSE if time.monotonic() - self._last < _SOON else _LONG_PAUSE


def _log_start(guest: Guest, done: Future[Any]) -> None:
    """Log whether an announced guest is in its cache group."""
    if (error := done.exception()) is not None:
        LOG.warning("Guest %s starts without its cache group: %s; the agent tries again", guest, error)
    else:
        LOG.info("Guest %s (pid %d) starts in its cache group", guest, guest.pid)


class GuestEvents(AgentLoop):
    """Turns changes of guests that the driver reports into events of the worker, in the same order."""

    def __init__(
        self,
        conf: ReloadedConfiguration,
        pipeline: GuestPipeline,
        missed: WakeReport,
        is_awaited: Callable[[Guest], bool] = lambda guest: False,
    ) -> None:
        """Make an empty queue of changes.

        :param missed: called to request a report to Placement, after a guest with an allocation has started.
        :param is_awaited: tells whether the next report makes a claim for a guest without an allocation.
        """
        self._conf = conf
        self._is_awaited = is_awaited
        self._pipeline = pipeline
        self._missed = missed
        self._changes: queue.SimpleQueue[tuple[GuestChange, float]] = queue.SimpleQueue()
        self._thread = PeriodicTask(
            ARRIVALS_THREAD,
            self.hand_over_changes,
            until_woken,
            log_failures(LOG, "Changes of guests cannot be passed to the worker"),
            keep=self.hand_over_changes,
        )

    def report_change(self, change: GuestChange) -> None:
        """Queue a change that the driver reports. The threads of the driver call this method."""
        # The time of this call is queued, too: a metric measures the time from this call until the guest is
        # pinned.
        self._changes.put((change, time.monotonic()))
        self._thread.wake()

    def hand_over_changes(self) -> None:
        """Pass the queued changes to the worker."""
        # When the queue is empty, the exception ends the loop.
        with contextlib.suppress(queue.Empty):
            while True:
                change, since = self._changes.get_nowait()
                try:
                    event = self._event_for(change, since)
                    handled = self._pipeline.submit(event)
                    if _is_for_reports(event, self._is_awaited):
                        handled.add_done_callback(lambda _: self._missed())
                # An error with one change must not stop the changes after it.
                except Exception:
                    LOG.exception("A change of guest %s could not be passed to the worker", change.guest)

    def _event_for(self, change: GuestChange, since: float) -> Event:
        guest = change.guest
        match change.kind:
            case ChangeKind.STOPPED:
                return GuestStopped(guest, change.ending)
            case ChangeKind.CHANGED:
                # Only settings or the main process have changed, so that the allocation is not read again.
                return GuestStarted(guest, None, since=since)
            case ChangeKind.STARTED | ChangeKind.FOUND:
                started = change.kind is ChangeKind.STARTED
                # ``as_of`` is the time before the request, because the answer can describe any moment after
                # this time.
                as_of = time.monotonic()
                try:
                    record = self._conf.client.get_allocations(guest.uuid)
                except PlacementError as error:
                    LOG.warning("The allocation of guest %s is not known yet: %s", guest, error)
                    return GuestStarted(guest, None, as_of, since, started)
                host_state = self._pipeline.host_state
                # Without the root provider, the providers of this host are not known.
                allocation = host_state.own_part(record.resources) if host_state.root_known else None
                # The loss perhaps comes from an older copy of Placement's database, which the next report
                # examines.
                is_lost = not allocation and self._held_something(guest.uuid)
                if is_lost or not (started or self._is_news(guest.uuid, allocation)):
                    allocation = None
                return GuestStarted(guest, allocation, as_of, since, started, holder_of(record))

    def _held_something(self, uuid: str) -> bool:
        """Whether the consumer had an allocation on this host when allocations were last read."""
        if uuid in self._pipeline.unclaimed_holdings:
            return True
        # The worker has the last known allocations of guests.
        return any(view.guest.uuid == uuid and view.allocation for view in self._pipeline.guest_views())

    def _is_news(self, uuid: str, allocation: Allocation | None) -> bool:
        """Whether a read allocation is usable: it is not empty, and the guest is new, so not migrating."""
        return bool(allocation) and all(view.guest.uuid != uuid for view in self._pipeline.guest_views())


def _is_for_reports(event: Event, is_awaited: Callable[[Guest], bool]) -> bool:
    """Whether a report should follow soon, because a started guest has an allocation or can get one."""
    # The report reads allocations together with the generations of the providers. The generations show
    # whether Placement has an older copy of its database.
    if not isinstance(event, GuestStarted) or event.as_of <= 0:
        return False
    return event.allocation != {} or is_awaited(event.guest)
