"""Evictions: guests are asked to leave, and their allocations on this host are deleted."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Final, Protocol

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
"""Maximum number of guests that are stopped at the same time, so that evictions do not occupy all of
libvirtd."""

# The worker may be applying a configuration to many guests.
_ANSWER_SECONDS: Final = 50.0
_POLL_SECONDS: Final = 0.1

_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 60.0
"""Between two attempts to give back: an outage of Placement is seen to end within a minute."""


EVICTION_THREAD: Final = ThreadSpec(
    "evict",
    ONCE,
    "stops one guest, and gives its allocation back as soon as Placement takes it",
    f"a semaphore of {_AT_A_TIME}",
    "the driver or the operator's command; the worker; Placement",
)


class EvictionFailedError(Exception):
    """A guest stays, or keeps its allocation; the text has the reason."""


StopGuest = Callable[[str], None]
"""Makes a guest, named by its uuid, leave. The guest has left when this returns; an exception has the reason
why it has not.

May be repeated.
"""


class UsualStop(Protocol):
    """The agent's own way to make a guest leave."""

    def __call__(self, uuid: str, grace: float | None = None) -> None:
        """Make a guest leave within ``grace`` seconds; None for the usual ones."""
        ...


class GuestEvictor:
    """Evictions in progress, each in a thread of its own. For one thread.

    An agent that ends does not wait for evictions: the next agent finds them in the state file, and begins
    them again.
    """

    def __init__(self, stop: UsualStop, give_back: Callable[[str], None]) -> None:
        """``stop`` makes a guest leave within a grace in seconds, None for the usual one.

        ``give_back`` removes the guest's allocation on this host.

        The call may be repeated, and takes as long as Placement is unavailable.
        """
        self._stop = stop
        self._give_back = give_back
        self._turn = threading.BoundedSemaphore(_AT_A_TIME)
        self._running: set[str] = set()
        self._over: queue.SimpleQueue[tuple[str, Exception | None]] = queue.SimpleQueue()

    def begin_eviction(self, guest: str, stop: StopGuest | None = None, grace: float | None = None) -> None:
        """Begin the eviction of a guest, by ``stop`` if given; do nothing if it has begun already."""
        if guest not in self._running:
            self._running.add(guest)
            # Aside: an operator's command or an outage of Placement must not keep the agent from ending.
            usual = self._stop if grace is None else partial(self._stop, grace=grace)
            run_aside(EVICTION_THREAD, partial(self._see_off, guest, stop or usual), f"-{guest}")

    def finished_evictions(self) -> dict[str, Exception | None]:
        """Finished evictions since the last call: None for a guest that left, or the reason why it stays."""
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
            # Only now: an allocation given back earlier would let the next guest in beside this one. And
            # without the semaphore: eight guests that wait for Placement must not keep others from leaving.
            self._give_back(guest)
        except Exception as error:  # an operator's command or another package's code may do anything
            self._over.put((guest, error))
        else:
            self._over.put((guest, None))


class GuestEvictions:
    """Stops guests and gives back their allocations. For several threads, which may wait here for long."""

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
        #: Names for the log, which outlive the guest.
        self._called: dict[str, str] = {}

    def use_settings(self, settings: ThrottlingSettings, client: PlacementClient) -> None:
        """Use other settings from the next guest and the next attempt to give back on."""
        self._settings, self._client = settings, client

    def end_waiting(self) -> None:
        """End all waits. The next agent continues the evictions."""
        self._ended.set()

    def stop_guest(self, uuid: str, grace: float | None = None) -> None:
        """Make a guest leave, and check that it has left. A guest that has ended already is not an error.

        :param grace: seconds that the guest has to end; None for ``[qos] evict_grace``.
        :raises EvictionFailedError:
        :raises CommandFailedError:
        :raises DriverError:
        """
        # It may have ended by itself, or under the former agent.
        guest = self._running_guest(uuid)
        if guest is None:
            return
        self._called[uuid] = str(guest)
        grace = self._settings.evict_grace if grace is None else grace
        try:
            self._ask_to_leave(guest, grace)
        # A guest that ended meanwhile has left, whatever the order to leave came to.
        except (DriverError, CommandFailedError) as error:
            if self._still_runs(guest):
                raise
            # A migration, say, that ended with an error after the guest had arrived elsewhere.
            LOG.info(
                "Guest %s does not run here any more, although its eviction reported an error: %s",
                guest,
                error,
            )
        deadline = time.monotonic() + grace
        # A driver that has asked is not believed: the guest may ignore it, and its command may do nothing.
        while self._still_runs(guest):
            if time.monotonic() >= deadline:
                raise EvictionFailedError("it still runs after it was asked to stop")
            self._wait(_POLL_SECONDS)
        # The driver reports it as well, some time later; the worker must know before the allocation goes.
        with contextlib.suppress(FutureTimeoutError):
            self._pipeline.submit(GuestStopped(guest)).result(_ANSWER_SECONDS)

    def give_back(self, uuid: str) -> None:
        """Remove the part of a guest's allocation on this host.

        The guest's allocations elsewhere, such as shared disk, stay. Repeated until Placement accepts the
        change, or the agent ends.

        :raises EvictionFailedError: the agent ends, or Placement refuses.
        """
        pause, logged = _FIRST_PAUSE, ""
        name = self._called.pop(uuid, uuid)
        # A guest that was started again meanwhile needs its allocation.
        while self._running_guest(uuid) is None:
            try:
                self._remove_own_part(uuid, name)
                return
            except PlacementError as error:
                if str(error) != logged:
                    logged = str(error)
                    LOG.warning("The allocation of guest %s is not removed yet: %s", name, logged)
            self._wait(pause)
            pause = min(2 * pause, _MAX_PAUSE)
        LOG.warning("Guest %s was started again: it keeps its allocation", name)

    def _ask_to_leave(self, guest: Guest, grace: float) -> None:
        command = self._settings.evict_command
        if command is None:
            self._driver.stop(guest, grace)
        else:
            command(guest.uuid)

    def _remove_own_part(self, uuid: str, name: str) -> None:
        client = self._client
        held = client.get_allocations(uuid)
        ours = self._pipeline.host_state.own_part(held.resources)
        # Given back before, or moved away: a write would only cost a conflict.
        if not ours:
            return
        # Nova deletes it when the instance goes, and would miss it before.
        if self._pipeline.host_state.tree.beside:
            LOG.info("Guest %s keeps its allocation, because Nova owns the guest", name)
            return
        # With the generation even where nothing is left: a claim made meanwhile, on another host, must stay.
        client.set_allocations(held.without_providers(ours))
        LOG.info("The allocation of guest %s is removed: %s", name, self._pipeline.host_state.in_words(ours))

    def _wait(self, seconds: float) -> None:
        if self._ended.wait(seconds):
            raise EvictionFailedError("the agent ends")

    def _still_runs(self, guest: Guest) -> bool:
        """Whether this guest still runs, and not a later guest of the same consumer."""
        now = self._running_guest(guest.uuid)
        # A guest that was started again meanwhile is not the one that was told to leave.
        return now is not None and now.pid == guest.pid

    def _running_guest(self, uuid: str) -> Guest | None:
        return next((one for one in self._driver.guests() if one.uuid == uuid), None)
