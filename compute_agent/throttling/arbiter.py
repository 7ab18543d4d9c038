"""The arbiter: if several triggers request limits of one guest, the lowest one is in force."""

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
from compute_agent.throttling.actions import GuestLimits

LOG = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
"""The worker may be busy with another guest, and wait for libvirtd."""


class LimitArbiter:
    """The limits that each trigger requests.

    Only the arbiter passes limits to the worker. For several threads.

    The arbiter saves nothing: after a start, each trigger requests the limits in its state again.
    """

    def __init__(self, pipeline: GuestPipeline) -> None:
        self._pipeline = pipeline
        self._wanted: dict[str, GuestLimits] = {}
        self._refused: dict[LimitGuest, str] = {}
        self._lock = threading.Lock()

    def replace_limits(self, owner: str, limits: Mapping[str, Mapping[ThrottleControl, float]]) -> None:
        """Replace all limits that ``owner`` requests.

        The limits take effect with the next repair_limits().
        """
        with self._lock:
            self._wanted[owner] = {guest: dict(of_guest) for guest, of_guest in limits.items()}

    def set_limit(self, owner: str, guest: str, knob: ThrottleControl, limit: float | None) -> None:
        """Set the limit of ``owner``, in the lever's unit, or remove it (None).

        :raises GuestGoneError:
        :raises DriverError: the kernel refuses a limit; the former limits are in force.
        :raises TimeoutError: the worker does not answer; repair_limits() corrects the limit.
        """
        # Held until the worker has answered: between a lowest limit that was computed and its event another
        # trigger must not compute its own, or the older one might be in force.
        with self._lock:
            # Replaced as a whole, so that a failure can put it back.
            before = self._wanted.get(owner, {})
            of_guest = {**before.get(guest, {})}
            of_guest.pop(knob, None)
            if limit is not None:
                of_guest[knob] = limit
            self._wanted[owner] = {**before, guest: of_guest}
            try:
                lowest = self._combine_limits().get(guest, {}).get(knob)
                self._pipeline.submit(LimitGuest(guest, knob, lowest)).result(ANSWER_SECONDS)
            except BaseException:  # an interrupt, too: a limit that nothing has set must not be repaired to
                self._wanted[owner] = before
                raise

    def requested_limits(self) -> dict[str, GuestLimits]:
        """A copy of the limits that each trigger requests."""
        with self._lock:
            return {owner: {**by_guest} for owner, by_guest in self._wanted.items()}

    def combined_limits(self) -> GuestLimits:
        """The limits that should be in force."""
        with self._lock:
            return self._combine_limits()

    def repair_limits(self, views: Sequence[GuestView]) -> bool:
        """Set the requested limits at the worker; return whether this succeeded.

        Needed after a reboot of a guest, or a late answer of the worker.
        """
        refused = {}
        # For the log, which names guests as operators do.
        guests = {view.guest.uuid: view.guest for view in views}
        with self._lock:
            for event in limit_differences(self._combine_limits(), views):
                try:
                    self._pipeline.submit(event).result(ANSWER_SECONDS)
                except GuestGoneError:
                    continue  # the next views are without it
                except Exception as error:
                    # One guest that cannot be limited must not keep the others from being repaired.
                    refused[event] = str(error)
                    if self._refused.get(event) != str(error):
                        LOG.warning(
                            "The limit of guest %s cannot be corrected: %s", guests[event.uuid], error
                        )
            # Only failures of this time: one that comes back after a success is logged again.
            self._refused = refused
        return not refused

    def _combine_limits(self) -> GuestLimits:
        return lowest_of(self._wanted.values())


def lowest_of(wanted: Iterable[Mapping[str, Mapping[ThrottleControl, float]]]) -> GuestLimits:
    """The lowest of several requested limits, by guest and control."""
    found: GuestLimits = {}
    for limits in wanted:
        for guest, of_guest in limits.items():
            lowest = found.setdefault(guest, {})
            for knob, limit in of_guest.items():
                # The lowest protects the host and the victim both; a sum would punish the guest twice.
                lowest[knob] = min(limit, lowest.get(knob, limit))
    return found


def limit_differences(
    wanted: Mapping[str, Mapping[ThrottleControl, float]], views: Sequence[GuestView]
) -> list[LimitGuest]:
    """Return the events that change the worker's limits to the ``wanted`` ones, guest by guest."""
    found = []
    for view in views:
        uuid = view.guest.uuid
        # Both ways: a limit that no trigger asks for any more is one that a lost state file knew of.
        should = wanted.get(uuid, {})
        if should != view.limits:
            found += [
                LimitGuest(uuid, knob, should.get(knob))
                for knob in sorted({*should, *view.limits})
                if should.get(knob) != view.limits.get(knob)
            ]
    return found
