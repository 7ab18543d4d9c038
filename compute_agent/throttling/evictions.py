"""Evictions: a guest is stopped, or a command of the operator moves it. Then its allocation is deleted."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Final

from compute_agent.drivers.base import RunningGuests
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import GuestStopped
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient
from compute_agent.threads import ONCE, ThreadSpec, run_aside
from compute_agent.throttling.guest_command import CommandFailedError
from compute_agent.throttling.settings import ThrottlingSettings

LOG = logging.getLogger(__name__)

_AT_A_TIME: Final = 8
"""Maximum number of guests that are stopped at the same time. A higher number could occupy all threads of
libvirtd, and other calls of libvirt would have to wait."""

MAX_ENDS: Final = 16
"""Maximum number of guests that are stopped at the same time at the ends of their claims. All claims of a
window end together, and each guest can need the whole grace period. The number is lower than the 20 threads
that libvirtd has by default, and a guest occupies a thread only during the request to stop the guest.
"""

# The wait is long, because the worker can be busy with a new configuration for many guests.
_ANSWER_SECONDS: Final = 50.0
_POLL_SECONDS: Final = 0.1
"""Seconds between two checks whether a guest still runs."""

_FIRST_PAUSE: Final = 0.1
"""Seconds between the first two attempts to delete an allocation; each further pause is twice as long."""

_MAX_PAUSE: Final = 60.0
"""The longest pause, in seconds. With a longer pause, the agent would notice too late that Placement answers
again.
"""


EVICTION_THREAD: Final = ThreadSpec(
    "evict",
    ONCE,
    "stops one guest, and gives its allocation back as soon as Placement takes it",
    f"a semaphore of {_AT_A_TIME}, or of {MAX_ENDS} for ends of claims",
    "the driver or the operator's command; the worker; Placement",
)


class EvictionFailedError(Exception):
    """After an eviction, the guest still runs or keeps its allocation. The text has the reason."""


class EvictionInterruptedError(EvictionFailedError):
    """The agent ends before the eviction of a guest has ended."""


StopGuest = Callable[[str], None]
"""A function that makes the guest with the given uuid leave.

When the call returns, the guest has left. If the guest stays, an exception has the reason. Calls can be
repeated.
"""


UsualStop = Callable[[str, float | None], None]
"""The function that makes a guest leave by default, within a number of seconds; None means
``[qos] evict_grace``. A metric of another package can have a :data:`StopGuest` of its own instead.
"""


class GuestEvictor:
    """Evicts guests, each in a thread of its own. Only one thread may call the methods."""

    def __init__(
        self, stop: UsualStop, give_back: Callable[[str], None], at_a_time: int = _AT_A_TIME
    ) -> None:
        """``stop`` makes a guest leave, unless begin_eviction() gets another function for this guest.

        ``give_back`` deletes the guest's allocation on this host. The function waits while Placement is
        unavailable, and can be called again. ``at_a_time`` is the maximum number of guests that are stopped
        at the same time.
        """
        self._stop = stop
        self._give_back = give_back
        self._turn = threading.BoundedSemaphore(at_a_time)
        self._running: set[str] = set()
        self._over: queue.SimpleQueue[tuple[str, Exception | None]] = queue.SimpleQueue()

    def begin_eviction(self, guest: str, stop: StopGuest | None = None, grace: float | None = None) -> None:
        """Begin the eviction of a guest, unless it has begun already.

        :param stop: makes the guest leave; None for the function of the constructor, called with ``grace``.
        """
        if guest not in self._running:
            self._running.add(guest)
            # The agent does not wait for this thread, because the operator's command can hang, and Placement
            # can be unavailable.
            leave = stop or (lambda uuid: self._stop(uuid, grace))
            run_aside(EVICTION_THREAD, partial(self._see_off, guest, leave), f"-{guest}")

    def finished_evictions(self) -> dict[str, Exception | None]:
        """Evictions that ended since the last call, by uuid: None if the guest has left, or the error."""
        over = {}
        while not self._over.empty():
            guest, error = self._over.get()
            self._running.discard(guest)
            over[guest] = error
        return over

    def _see_off(self, guest: str, stop: StopGuest) -> None:
        try:
            with self._turn:
                stop(guest)
            # The allocation is deleted after the guest has left, because the scheduler can then place another
            # guest here. The semaphore is released before this, so that an outage of Placement does not
            # block other evictions.
            self._give_back(guest)
        except Exception as error:  # an operator's command or another package's code can do anything
            self._over.put((guest, error))
        else:
            self._over.put((guest, None))


class GuestEvictions:
    """Stops guests and deletes their allocations. Several threads may call it; a call can take minutes."""

    def __init__(
        self,
        settings: ThrottlingSettings,
        pipeline: GuestPipeline,
        driver: RunningGuests,
        client: PlacementClient,
    ) -> None:
        self._settings = settings
        self._pipeline = pipeline
        self._driver = driver
        self._client = client
        self._ended = threading.Event()
        #: Names of stopped guests by uuid, for log lines after the guest has gone.
        self._called: dict[str, str] = {}

    def use_settings(self, settings: ThrottlingSettings, client: PlacementClient) -> None:
        """Use the settings from the next guest on, and the client from the next deletion of an allocation."""
        self._settings, self._client = settings, client

    def end_waiting(self) -> None:
        """End all waits, because this run of the agent ends. The next run continues the evictions."""
        self._ended.set()

    def stop_guest(self, uuid: str, grace: float | None = None) -> None:
        """Make a guest leave, and wait until it has left. Do nothing if the guest does not run.

        :param grace: seconds that the guest has to end; None for ``[qos] evict_grace``.
        :raises EvictionFailedError: the guest still runs after the grace period, or the agent ends.
        :raises CommandFailedError: the operator's command failed.
        :raises DriverError: the driver could not stop the guest.
        """
        # ``guest`` is None if the guest has ended by itself, or if an earlier run of the agent has stopped
        # it.
        guest = self._running_guest(uuid)
        if guest is None:
            return
        self._called[uuid] = str(guest)
        # The settings are read once, because a reload can replace them at any time.
        settings = self._settings
        grace = settings.evict_grace if grace is None else grace
        try:
            if settings.evict_command is None:
                self._driver.stop(guest, grace)
            else:
                settings.evict_command(uuid)
        # An error does not matter if the guest has ended nevertheless.
        except (DriverError, CommandFailedError) as error:
            if self._still_runs(guest):
                raise
            # For example, a migration command can fail after the guest has arrived on another host.
            LOG.info(
                "Guest %s does not run here any more, although its eviction reported an error: %s",
                guest,
                error,
            )
        deadline = time.monotonic() + grace
        # Even without an error, the guest can still run: it can ignore the request to shut down, or an
        # operator's command can do nothing.
        while self._still_runs(guest):
            if time.monotonic() >= deadline:
                raise EvictionFailedError("it still runs after it was asked to stop")
            self._wait(_POLL_SECONDS)
        # The worker is told at once that the guest has ended, because the driver reports this later. Until
        # then, the worker would see a running guest without an allocation.
        with contextlib.suppress(FutureTimeoutError):
            self._pipeline.submit(GuestStopped(guest)).result(_ANSWER_SECONDS)

    def forget_guest(self, uuid: str) -> None:
        """End the eviction of a guest that has left, and leave its allocation as it is."""
        self._called.pop(uuid, None)

    def give_back(self, uuid: str) -> None:
        """Delete the part of a guest's allocation that is on providers of this host.

        The amounts on other providers, such as a shared disk, stay. The method repeats the request until
        Placement accepts the change, or until the guest runs again.

        :raises EvictionFailedError: the agent ends.
        """
        pause, logged = _FIRST_PAUSE, ""
        name = self._called.pop(uuid, uuid)
        # A guest that runs again needs its allocation.
        while self._running_guest(uuid) is None:
            try:
                self._remove_own_part(uuid, name)
                return
            except PlacementError as error:
                if str(error) != logged:
                    logged = str(error)
                    LOG.warning(
                        "The allocation of guest %s is not removed yet, and the agent tries again: %s",
                        name,
                        logged,
                    )
            self._wait(pause)
            pause = min(2 * pause, _MAX_PAUSE)
        LOG.warning("Guest %s was started again: it keeps its allocation", name)

    def _remove_own_part(self, uuid: str, name: str) -> None:
        client = self._client
        held = client.get_allocations(uuid)
        ours = self._pipeline.host_state.own_part(held.resources)
        # If the guest has no amounts on this host, for example after a migration, a write would only cause a
        # conflict.
        if not ours:
            return
        # Nova needs the allocation of an instance until Nova itself deletes the instance.
        if self._pipeline.host_state.tree.beside:
            LOG.info("Guest %s keeps its allocation, because Nova owns the guest", name)
            return
        # The write is an update with the consumer's generation, and not a deletion, even if nothing remains.
        # So Placement refuses the write if another host has claimed resources for the guest in the meantime.
        client.set_allocations(held.without_providers(ours))
        LOG.info("The allocation of guest %s is removed: %s", name, self._pipeline.host_state.in_words(ours))

    def _wait(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise EvictionInterruptedError("the agent ends")

    def _still_runs(self, guest: Guest) -> bool:
        """Whether the same run of a guest goes on."""
        now = self._running_guest(guest.uuid)
        # In another run, the guest has ended and was started again, so the processes that had to leave have
        # left.
        return now is not None and now.is_same_run(guest)

    def _running_guest(self, uuid: str) -> Guest | None:
        return next((one for one in self._driver.listed_guests() if one.uuid == uuid), None)
