"""Limits of guests when several parts of the agent set some: the lowest one is in force."""

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

LOG = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0

Limits = dict[str, dict[ThrottleControl, float]]
"""By guest."""


class LimitBook:
    """What watermarks and interference ask for, and the one way to the worker. For several threads.

    Nothing is kept here: each of them has its own state, and says after a start what is in it.
    """

    def __init__(self, pipeline: GuestPipeline) -> None:
        self._pipeline = pipeline
        self._wanted: dict[str, Limits] = {}
        self._refused: dict[LimitGuest, str] = {}
        self._lock = threading.Lock()

    def keep(self, owner: str, limits: Mapping[str, Mapping[ThrottleControl, float]]) -> None:
        """These are all limits that ``owner`` asks for. Takes effect with the next repair()."""
        with self._lock:
            self._wanted[owner] = {guest: dict(of_guest) for guest, of_guest in limits.items()}

    def limit(self, owner: str, guest: str, knob: ThrottleControl, limit: float | None) -> None:
        """Set a limit in the name of ``owner``, in the lever's unit, or take it away (None).

        :raises GuestGoneError:
        :raises DriverError: the kernel does not take it; all is as it was before.
        :raises TimeoutError: there is no answer; repair() sets it right.
        """
        with self._lock:
            before = self._wanted.get(owner, {})
            of_guest = {**before.get(guest, {})}
            of_guest.pop(knob, None)
            if limit is not None:
                of_guest[knob] = limit
            self._wanted[owner] = {**before, guest: of_guest}
            try:
                lowest = self._combined().get(guest, {}).get(knob)
                self._pipeline.submit(LimitGuest(guest, knob, lowest)).result(ANSWER_SECONDS)
            except BaseException:
                self._wanted[owner] = before
                raise

    def combined(self) -> Limits:
        """The limits that should be in force."""
        with self._lock:
            return self._combined()

    def repair(self, views: Sequence[GuestView]) -> bool:
        """Make the worker's limits those that are asked for; whether they are.

        A guest may have been rebooted, and an answer may have come too late to be heard.
        """
        refused = {}
        guests = {view.guest.uuid: view.guest for view in views}
        with self._lock:
            for event in differences(self._combined(), views):
                try:
                    self._pipeline.submit(event).result(ANSWER_SECONDS)
                except GuestGoneError:
                    continue
                except Exception as error:
                    refused[event] = str(error)
                    if self._refused.get(event) != str(error):
                        LOG.warning(
                            "The limit of guest %s cannot be set right: %s", guests[event.uuid], error
                        )
            self._refused = refused
        return not refused

    def _combined(self) -> Limits:
        return lowest_of(self._wanted.values())


def lowest_of(wanted: Iterable[Mapping[str, Mapping[ThrottleControl, float]]]) -> Limits:
    """What is in force where several ask for limits."""
    found: Limits = {}
    for limits in wanted:
        for guest, of_guest in limits.items():
            lowest = found.setdefault(guest, {})
            for knob, limit in of_guest.items():
                lowest[knob] = min(limit, lowest.get(knob, limit))
    return found


def differences(
    wanted: Mapping[str, Mapping[ThrottleControl, float]], views: Sequence[GuestView]
) -> list[LimitGuest]:
    """What makes the limits that the worker has those that are ``wanted``."""
    found = []
    for view in views:
        uuid = view.guest.uuid
        should = wanted.get(uuid, {})
        if should != view.limits:
            found += [
                LimitGuest(uuid, knob, should.get(knob))
                for knob in sorted({*should, *view.limits})
                if should.get(knob) != view.limits.get(knob)
            ]
    return found
