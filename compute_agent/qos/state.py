"""What must outlive the agent: who is throttled and how far, who is being evicted, the scheduling switch.

Frozen; another one comes of each action. In JSON it is a part of the agent's state file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from compute_agent.model.resource import ThrottleControl
from compute_agent.qos.actions import Act, EvictAction, RestoreAction, SwitchScheduling, ThrottleAction

MAX_RELAPSES: Final = 4
"""Counted up to this; what is given back then waits 16 times as long."""


@dataclass(frozen=True, slots=True)
class ThrottledGuest:
    """A limit in force."""

    guest: str
    knob: ThrottleControl
    limit: float


@dataclass(frozen=True, slots=True)
class PendingEviction:
    """A guest that was told to leave and has not been seen off yet. ``metric`` is why."""

    guest: str
    metric: str


@dataclass(frozen=True, slots=True)
class QosState:
    """``throttles`` are in the order in which they were set, and are restored in the reverse one.

    ``scheduling_off`` None: not known, as after the loss of the state file; it is then set explicitly.

    The rest is not saved, and begins anew with each agent: ``relapses`` counts, by lever, how often giving
    back led to another breach, and ``giving_back`` are the levers whose last action was to give something
    back.
    """

    throttles: tuple[ThrottledGuest, ...] = ()
    evictions: tuple[PendingEviction, ...] = ()
    scheduling_off: bool | None = None
    relapses: Mapping[str, int] = field(default_factory=dict)
    giving_back: frozenset[str] = frozenset()

    @property
    def evicting(self) -> frozenset[str]:
        """The guests that are being evicted."""
        return frozenset(eviction.guest for eviction in self.evictions)

    def limit(self, guest: str, knob: ThrottleControl) -> float | None:
        """The limit of a guest; None where it is not throttled."""
        return next((one.limit for one in self.throttles if (one.guest, one.knob) == (guest, knob)), None)

    def after(self, action: Act) -> QosState:
        """The state once an action has been taken."""
        match action:
            case SwitchScheduling():
                return replace(self, scheduling_off=action.off)
            case EvictAction():
                if action.guest in self.evicting:
                    return self
                return replace(
                    self, evictions=(*self.evictions, PendingEviction(action.guest, action.metric))
                )
            case ThrottleAction():
                others = self._throttles_without(action.guest, action.knob)
                throttles = (*others, ThrottledGuest(action.guest, action.knob, action.limit))
                return replace(self._relapsed(action.knob.lever), throttles=throttles)
            case RestoreAction():
                giving_back = self.giving_back | {action.knob.lever}
                return replace(self, throttles=self._restored(action), giving_back=giving_back)

    def left(self, guest: str) -> QosState:
        """The state once an evicted guest has been seen off, or its eviction given up."""
        return replace(self, evictions=tuple(one for one in self.evictions if one.guest != guest))

    def only(self, guests: Collection[str]) -> QosState:
        """The state without throttles of guests that are not there any more."""
        throttles = tuple(one for one in self.throttles if one.guest in guests)
        return self if throttles == self.throttles else replace(self, throttles=throttles)

    def forgiven(self, levers: Collection[str]) -> QosState:
        """The state without the relapses of some levers."""
        if not levers:
            return self
        relapses = {lever: count for lever, count in self.relapses.items() if lever not in levers}
        return replace(self, relapses=relapses, giving_back=self.giving_back - frozenset(levers))

    def _throttles_without(self, guest: str, knob: ThrottleControl) -> tuple[ThrottledGuest, ...]:
        return tuple(one for one in self.throttles if (one.guest, one.knob) != (guest, knob))

    def _restored(self, action: RestoreAction) -> tuple[ThrottledGuest, ...]:
        """In the old order, as a guest that got a step back is still next in the row."""
        if action.limit is None:
            return self._throttles_without(action.guest, action.knob)
        return tuple(
            replace(one, limit=action.limit) if (one.guest, one.knob) == (action.guest, action.knob) else one
            for one in self.throttles
        )

    def _relapsed(self, lever: str) -> QosState:
        if lever not in self.giving_back:
            return self
        count = min(self.relapses.get(lever, 0) + 1, MAX_RELAPSES)
        return replace(self, relapses={**self.relapses, lever: count}, giving_back=self.giving_back - {lever})


def to_json(state: QosState) -> dict[str, Any]:
    """The state for the state file."""
    return {
        "throttles": [[one.guest, *one.knob, one.limit] for one in state.throttles],
        "evictions": [[one.guest, one.metric] for one in state.evictions],
        "scheduling_off": state.scheduling_off,
    }


def from_json(content: Any) -> QosState:
    """The state from the state file.

    :raises ValueError: it is not one.
    """
    try:
        throttles = tuple(
            ThrottledGuest(_text(guest), ThrottleControl(_text(lever), _text(domain)), _limit(limit))
            for guest, lever, domain, limit in content["throttles"]
        )
        evictions = tuple(
            PendingEviction(_text(guest), _text(metric)) for guest, metric in content["evictions"]
        )
        off = content["scheduling_off"]
        if off not in (True, False, None):
            raise ValueError(f"scheduling_off is {off!r}")
        return QosState(throttles, evictions, off)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unexpected content: {type(error).__name__} {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _limit(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no limit")
    return float(value)
