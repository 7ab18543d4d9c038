"""The arbiter of limits combines the limits that several triggers request for one guest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from compute_agent.model.messages import GuestGoneError
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.events import LimitGuest
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.throttling.levers import GuestLimits

LOG = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
"""Seconds to wait for the worker, which can be busy with another guest or wait for libvirtd."""


class LimitArbiter:
    """Keeps the limits that each trigger requests, and passes the lowest limit to the worker.

    Only the arbiter passes limits to the worker. Several threads may use an arbiter at the same time.

    The arbiter saves nothing. After a start of the agent, each trigger requests the limits in its saved state
    again.
    """

    def __init__(self, pipeline: GuestPipeline) -> None:
        self._pipeline = pipeline
        self._wanted: dict[str, GuestLimits] = {}
        self._refused: dict[LimitGuest, str] = {}
        self._lock = threading.Lock()

    def replace_limits(self, owner: str, limits: Mapping[str, Mapping[ThrottleControl, float]]) -> None:
        """Replace all limits that the trigger ``owner`` requests, but set no limit in the kernel yet.

        The next call of repair_limits() sets the limits in the kernel. ``limits`` are by uuid of the guest
        and by ``ThrottleControl``, in the unit of the lever (cores for the CPU quota).
        """
        with self._lock:
            self._wanted[owner] = {guest: dict(of_guest) for guest, of_guest in limits.items()}

    def set_limit(self, owner: str, guest: str, knob: ThrottleControl, limit: float | None) -> None:
        """Replace the limit that the trigger ``owner`` requests, and set the lowest limit of all triggers.

        :param limit: the requested limit in the unit of ``knob``, such as cores; None withdraws the request.
        :raises GuestGoneError: the guest does not run any more.
        :raises DriverError: the kernel refuses a limit; the former limits stay in force.
        :raises TimeoutError: the worker does not answer in time; repair_limits() corrects the limit.
        """
        # The lock is held until the worker has answered. Otherwise two triggers could each compute a lowest
        # limit, and the worker could apply the older of these limits last.
        with self._lock:
            # The dictionary is a copy, so that the old dictionary can be restored after a failure.
            before = self._wanted.get(owner, {})
            of_guest = {**before.get(guest, {})}
            of_guest.pop(knob, None)
            if limit is not None:
                of_guest[knob] = limit
            self._wanted[owner] = {**before, guest: of_guest}
            try:
                lowest = lowest_of(self._wanted.values()).get(guest, {}).get(knob)
                self._pipeline.submit(LimitGuest(guest, knob, lowest)).result(ANSWER_SECONDS)
            # BaseException is caught, because an interrupt counts as a failure, too: repair_limits() must not
            # set this limit later.
            except BaseException:
                self._wanted[owner] = before
                raise

    def requested_limits(self) -> dict[str, GuestLimits]:
        """A copy of the requested limits, by trigger, uuid of the guest and ``ThrottleControl``."""
        with self._lock:
            return {owner: {**by_guest} for owner, by_guest in self._wanted.items()}

    def combined_limits(self) -> GuestLimits:
        """The limits to put in force: the lowest requested limit of each guest and ``ThrottleControl``."""
        with self._lock:
            return lowest_of(self._wanted.values())

    def repair_limits(self, views: Sequence[GuestView]) -> bool:
        """Set each limit again that differs from the requested one; return whether all limits could be set.

        A limit differs if the guest was started again without its limits, or if the worker answered too late.
        """
        refused = {}
        # These guests are needed for the log, which shows the names of guests and not only their uuids.
        guests = {view.guest.uuid: view.guest for view in views}
        with self._lock:
            for event in limit_differences(lowest_of(self._wanted.values()), views):
                try:
                    self._pipeline.submit(event).result(ANSWER_SECONDS)
                except GuestGoneError:
                    continue  # the guest ended after the views were taken
                except Exception as error:
                    # If one guest cannot be limited, the limits of other guests are still repaired.
                    refused[event] = str(error)
                    if self._refused.get(event) != str(error):
                        LOG.warning(
                            "A limit of guest %s is not in force any more, and cannot be set yet; the agent"
                            " tries again: %s",
                            guests[event.uuid],
                            error,
                        )
            # ``_refused`` has only the failures of this call, so that a failure after a success is logged
            # again.
            self._refused = refused
        return not refused


def lowest_of(wanted: Iterable[Mapping[str, Mapping[ThrottleControl, float]]]) -> GuestLimits:
    """Combine the limits of several triggers: the lowest limit of each guest and ``ThrottleControl``."""
    found: GuestLimits = {}
    for limits in wanted:
        for guest, of_guest in limits.items():
            lowest = found.setdefault(guest, {})
            for knob, limit in of_guest.items():
                # The lowest limit is enough for both triggers. The sum of both reductions would be more than
                # any trigger requests.
                lowest[knob] = min(limit, lowest.get(knob, limit))
    return found


def limit_differences(
    wanted: Mapping[str, Mapping[ThrottleControl, float]], views: Sequence[GuestView]
) -> list[LimitGuest]:
    """The events that change limits to ``wanted``; ``views`` are the guests with their limits in force."""
    found = []
    for view in views:
        uuid = view.guest.uuid
        # Limits without a request are removed, too. Such limits exist if the state file was lost.
        should = wanted.get(uuid, {})
        if should != view.limits:
            found += [
                LimitGuest(uuid, knob, should.get(knob))
                for knob in sorted({*should, *view.limits})
                if should.get(knob) != view.limits.get(knob)
            ]
    return found
