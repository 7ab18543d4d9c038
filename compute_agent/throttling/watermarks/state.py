"""The state of watermarks that outlives the agent: limits in force, evictions, the scheduling switch.

The state is frozen; each action returns a new one. As JSON it is a part of the state file of throttling.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from compute_agent.kept_json import text
from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.actions import (
    EvictAction,
    GuestLimits,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkAct,
)

MAX_RELAPSES: Final = 4
"""The count ends here: giving back then waits 16 times as long, about an hour for a cool-down of minutes."""


@dataclass(frozen=True, slots=True)
class ThrottledGuest:
    """A limit in force."""

    guest: str
    knob: ThrottleControl
    limit: float


@dataclass(frozen=True, slots=True)
class PendingEviction:
    """A guest that was asked to leave because of ``metric``, with an unfinished eviction.

    ``grace`` is in seconds, and None for the usual one. ``watermark`` is empty after a restart.
    """

    guest: str
    metric: str
    grace: float | None = None
    watermark: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """The state of all watermarks.

    - ``throttles`` are in the order in which they were set, and are restored in the reverse one.
    - ``scheduling_off`` None: not known, as after the loss of the state file; it is then set explicitly.

    The rest is not saved, and begins again with each agent:

    - ``relapses`` counts, by lever, how often giving back led to another breach.
    - ``giving_back`` are the levers with giving back as their last action.
    """

    throttles: tuple[ThrottledGuest, ...] = ()
    evictions: tuple[PendingEviction, ...] = ()
    scheduling_off: bool | None = None
    relapses: Mapping[str, int] = field(default_factory=dict)
    giving_back: frozenset[str] = frozenset()

    @property
    def evicting_guests(self) -> frozenset[str]:
        """The guests that are being evicted."""
        return frozenset(eviction.guest for eviction in self.evictions)

    def limit_of(self, guest: str, knob: ThrottleControl) -> float | None:
        """The limit of a guest; None where it is not throttled."""
        return next((one.limit for one in self.throttles if (one.guest, one.knob) == (guest, knob)), None)

    def guest_limits(self, foreign: Collection[str] = ()) -> GuestLimits:
        """The limits in force, by guest; without those of ``foreign`` levers, which no controller sets."""
        found: GuestLimits = {}
        for one in self.throttles:
            if one.knob.lever not in foreign:
                found.setdefault(one.guest, {})[one.knob] = one.limit
        return found

    def after_action(self, action: WatermarkAct) -> WatermarkState:
        """The state after an action."""
        match action:
            case SwitchScheduling():
                return replace(self, scheduling_off=action.off)
            case EvictAction():
                # A plan that is made again may name a guest of an eviction that has begun.
                if action.guest in self.evicting_guests:
                    return self
                pending = PendingEviction(action.guest, action.metric, action.grace, action.watermark)
                return replace(self, evictions=(*self.evictions, pending))
            case ThrottleAction():
                # At the end, though the guest was throttled before: the latest throttle is restored first.
                others = self._throttles_without(action.guest, action.knob)
                throttles = (*others, ThrottledGuest(action.guest, action.knob, action.limit))
                return replace(self._after_relapse(action.knob.lever), throttles=throttles)
            case RestoreAction():
                # Remembered until the next throttle of this lever, which is then a relapse.
                giving_back = self.giving_back | {action.knob.lever}
                return replace(self, throttles=self._throttles_after(action), giving_back=giving_back)

    def without_eviction(self, guest: str) -> WatermarkState:
        """The state after the end of an eviction, or after it has been given up."""
        return replace(self, evictions=tuple(one for one in self.evictions if one.guest != guest))

    def with_guests(self, guests: Collection[str]) -> WatermarkState:
        """The state without throttles of guests that have left."""
        # Evictions stay: a guest that is gone has still to be seen off, with its allocation.
        throttles = tuple(one for one in self.throttles if one.guest in guests)
        return self if throttles == self.throttles else replace(self, throttles=throttles)

    def without_relapses(self, levers: Collection[str]) -> WatermarkState:
        """The state without the relapses of some levers."""
        if not levers:
            return self
        relapses = {lever: count for lever, count in self.relapses.items() if lever not in levers}
        return replace(self, relapses=relapses, giving_back=self.giving_back - frozenset(levers))

    def _throttles_without(self, guest: str, knob: ThrottleControl) -> tuple[ThrottledGuest, ...]:
        return tuple(one for one in self.throttles if (one.guest, one.knob) != (guest, knob))

    def _throttles_after(self, action: RestoreAction) -> tuple[ThrottledGuest, ...]:
        """The throttles after giving back, in the old order: a guest with a step is still next."""
        if action.limit is None:
            return self._throttles_without(action.guest, action.knob)
        return tuple(
            replace(one, limit=action.limit) if (one.guest, one.knob) == (action.guest, action.knob) else one
            for one in self.throttles
        )

    def _after_relapse(self, lever: str) -> WatermarkState:
        # The first throttle, or one more of the same overload.
        if lever not in self.giving_back:
            return self
        count = min(self.relapses.get(lever, 0) + 1, MAX_RELAPSES)
        return replace(self, relapses={**self.relapses, lever: count}, giving_back=self.giving_back - {lever})


def state_to_json(state: WatermarkState) -> dict[str, Any]:
    """The state for the state file."""
    return {
        # Lists in the order of fields, as former releases wrote them: they are taken over without another
        # parser.
        "throttles": [[one.guest, *one.knob, one.limit] for one in state.throttles],
        "evictions": [_eviction_to_json(one) for one in state.evictions],
        "scheduling_off": state.scheduling_off,
    }


def state_from_json(content: Any) -> WatermarkState:
    """The state from the state file.

    :raises ValueError: the content is not such a state.
    """
    try:
        # Checked one by one: a guest would be limited, or ended, by what another program wrote here.
        throttles = tuple(
            ThrottledGuest(text(guest), ThrottleControl(text(lever), text(domain)), _positive_limit(limit))
            for guest, lever, domain, limit in content["throttles"]
        )
        evictions = tuple(_pending_eviction(*one) for one in content["evictions"])
        off = content["scheduling_off"]
        # 0 and 1 pass as well, which mean the same.
        if off not in (True, False, None):
            raise ValueError(f"scheduling_off is {off!r}")
        return WatermarkState(throttles, evictions, off)
    # A damaged file may have any JSON.
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unexpected content: {type(error).__name__} {error}") from error


def _eviction_to_json(eviction: PendingEviction) -> list[Any]:
    # Two fields where two are enough: a release without graces of sections reads these.
    grace = [] if eviction.grace is None else [eviction.grace]
    return [eviction.guest, eviction.metric, *grace]


def _pending_eviction(guest: Any, metric: Any, grace: Any = None) -> PendingEviction:
    return PendingEviction(text(guest), text(metric), None if grace is None else _parse_grace(grace))


def _parse_grace(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not a time in seconds")
    return float(value)


def _positive_limit(value: Any) -> float:
    # A limit of 0 stops a guest for good, and NaN compares with nothing: neither comes from here.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is not a limit")
    return float(value)
