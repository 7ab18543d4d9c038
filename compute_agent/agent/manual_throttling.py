"""Limits and evictions of guests by an operator's command.

Each command is recorded as an event. The module uses the same code as limits and evictions by watermarks.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Final, Protocol

from compute_agent.agent.protocol import RequestError
from compute_agent.events.event import EventKind, EventOutcome, EventRecorder
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.threads import ONCE, ThreadSpec, run_aside
from compute_agent.throttling.executor import LimitSetter

LOG = logging.getLogger(__name__)

OWNER: Final = "by hand"
"""The name under which the arbiter, which combines all limits of a guest, keeps the limits of operators."""


MANUAL_EVICTION_THREAD: Final = ThreadSpec(
    "evict by hand",
    ONCE,
    "stops one guest as an operator asked, and gives its allocation back as soon as Placement takes it",
    "that of the guests that are evicted by hand",
    "the driver or the operator's command; the worker; Placement",
)


class GuestLeaving(Protocol):
    """Evicts guests; :class:`compute_agent.throttling.evictions.GuestEvictions` implements this protocol."""

    def stop_guest(self, uuid: str) -> None:
        """Stop a guest, or run the operator's command that moves it; then check that the guest has left."""
        ...

    def give_back(self, uuid: str) -> None:
        """Delete the part of a guest's allocation that is on this host's providers."""
        ...


class ManualThrottling:
    """Limits and evicts guests for an operator. Any thread may call the methods."""

    def __init__(self, limits: LimitSetter, leaving: GuestLeaving, recorder: EventRecorder) -> None:
        self._limits = limits
        self._leaving = leaving
        self._recorder = recorder
        self._lock = threading.Lock()
        self._evicting: set[str] = set()

    def limit_cpus(self, guest: Guest, cores: float | None) -> None:
        """Limit the CPU use of a guest, or remove the limit that an operator set before.

        If a watermark has set a stricter limit, that limit stays in force.

        :param cores: the limit in CPUs; None removes the limit.
        :raises RequestError: the guest is preserved, or cannot be limited.
        :raises TimeoutError: the worker has not answered in time.
        """
        _check_preserved(guest)
        try:
            self._limits.set_limit(OWNER, guest.uuid, ThrottleControl(CPU_QUOTA), cores)
        except DriverError as error:
            raise RequestError(str(error)) from error
        if cores is None:
            message = "Guest %s is not limited by hand any more"
            self._recorder.record_done(LOG.info, EventKind.THROTTLE_UP, guest, message, reason=OWNER)
            return
        message = "Guest %s is limited to %g cores"
        self._recorder.record_done(LOG.info, EventKind.THROTTLE_DOWN, guest, message, cores, reason=OWNER)

    def evict_guest(self, guest: Guest) -> None:
        """Start the eviction of a guest in a thread. An event records the outcome.

        :raises RequestError: the guest is preserved, or is being evicted already.
        """
        _check_preserved(guest)
        with self._lock:
            if guest.uuid in self._evicting:
                raise RequestError(f"guest {guest} is being evicted already")
            self._evicting.add(guest.uuid)
        LOG.info("An operator evicts guest %s by a command", guest)
        # The eviction has its own thread, because it may take longer than the client waits for an answer.
        run_aside(MANUAL_EVICTION_THREAD, partial(self._see_off, guest), f"-{guest.uuid}")

    def _see_off(self, guest: Guest) -> None:
        try:
            self._leaving.stop_guest(guest.uuid)
            self._leaving.give_back(guest.uuid)
        # Every failure is caught: this is a thread's outermost function, and the event needs an outcome.
        except Exception as error:
            message, outcome = "Guest %s cannot be evicted: %s", EventOutcome.FAILED
            self._recorder.record_event(
                LOG.warning, EventKind.EVICT, guest, message, guest, error, reason=OWNER, outcome=outcome
            )
        else:
            self._recorder.record_done(LOG.info, EventKind.EVICT, guest, "Guest %s was evicted", reason=OWNER)
        finally:
            with self._lock:
                self._evicting.discard(guest.uuid)


def _check_preserved(guest: Guest) -> None:
    if guest.settings.preserve:
        raise RequestError(
            f"guest {guest} is preserved: compute-agent guest set {guest.uuid} --no-preserve lets the agent"
            " act"
        )
