"""The actions that watermarks plan, and the state after them: limits, evictions, and the scheduling switch.

Actions are frozen values that an executor carries out. Interference between guests has decisions of another
type, ``interference.cases.CaseDecision``. The same executor carries out all actions and decisions.

The state is frozen. The state after an action is a new object. The state file of throttling has the state as
JSON, so that the state outlives the agent.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from compute_agent.kept_json import read_number, text
from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.levers import GuestLimits


@dataclass(frozen=True, slots=True)
class SwitchScheduling:
    """Keep new guests away (``off``) or let them in; ``watermarks`` names the exceeded sections."""

    off: bool
    watermarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"keep new guests away for {', '.join(self.watermarks)}" if self.off else "let new guests in"


@dataclass(frozen=True, slots=True)
class EvictAction:
    """The action to make a guest leave the host, because the host's usage of ``metric`` is too high.

    ``watermark`` is the name of the section with the exceeded threshold; empty in a state that an older
    release saved. ``grace`` is the number of seconds that the guest has to end; None means ``[qos]
    evict_grace``.
    """

    guest: str
    metric: str
    watermark: str = ""
    grace: float | None = None

    def __str__(self) -> str:
        return f"evict {self.guest} for {self.metric} ({self.watermark})"


@dataclass(frozen=True, slots=True)
class ReclaimAction:
    """The action to reclaim ``amount`` bytes of a guest's memory, because usage of ``metric`` is too high.

    The kernel writes unused memory to swap. A reclaim sets no limit, so nothing has to be undone later.
    """

    guest: str
    amount: int
    metric: str
    watermark: str

    def __str__(self) -> str:
        return f"reclaim {self.amount >> 20} MiB of {self.guest} for {self.metric} ({self.watermark})"


@dataclass(frozen=True, slots=True)
class ThrottleAction:
    """The action to set or lower the limit of a guest, because usage of ``metric`` is too high.

    ``watermark`` is the name of the section with the exceeded threshold. ``knob`` says what is limited,
    such as the CPU quota. ``limit`` is the new limit in the lever's unit, such as cores.
    """

    guest: str
    knob: ThrottleControl
    limit: float
    metric: str
    watermark: str

    def __str__(self) -> str:
        return f"throttle {self.guest} to {self.limit:g} of {self.knob} for {self.metric} ({self.watermark})"


@dataclass(frozen=True, slots=True)
class RestoreAction:
    """The action to raise the limit ``knob`` of a guest to ``limit``; None removes the limit."""

    guest: str
    knob: ThrottleControl
    limit: float | None

    def __str__(self) -> str:
        to = "everything" if self.limit is None else f"{self.limit:g}"
        return f"restore {self.guest} to {to} of {self.knob}"


WatermarkAct = SwitchScheduling | EvictAction | ReclaimAction | ThrottleAction | RestoreAction


def takes_away(action: WatermarkAct) -> bool:
    """Whether an action restricts guests: it throttles, reclaims memory, evicts, or keeps new guests away.

    The executor saves a restricting action to the state file before it carries out the action. Watermarks in
    preview report only restricting actions.
    """
    return action.off if isinstance(action, SwitchScheduling) else not isinstance(action, RestoreAction)


MAX_RELAPSES: Final = 4
"""Maximum number of relapses that count.

Each relapse doubles the cool-down, up to 16 times its length. So a cool-down of minutes can become an hour or
more.
"""

_MAX_NUMBER: Final = sys.float_info.max
"""The largest number in the state file. A larger whole number cannot be converted to a float."""


@dataclass(frozen=True, slots=True)
class ThrottledGuest:
    """A limit in force: the uuid of the guest, the limited lever and domain (``knob``), and the limit."""

    guest: str
    knob: ThrottleControl
    limit: float


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """The state of all watermarks.

    - ``throttles`` are the limits in force, in the order in which they were set. Limits are raised in the
      reverse order.
    - ``evictions`` are the evictions in progress.
    - ``scheduling_off``: whether new guests are kept away. ``scheduling_off`` is None if this is unknown, for
      example after the loss of the state file. The next round then sets the switch explicitly.

    Two fields are not saved, and are empty after a start of the agent:

    - ``relapses`` is the number of breaches that followed after a limit was raised, by lever.
    - ``giving_back`` has the levers that were last used to raise a limit, and not to lower a limit.
    """

    throttles: tuple[ThrottledGuest, ...] = ()
    evictions: tuple[EvictAction, ...] = ()
    scheduling_off: bool | None = None
    relapses: Mapping[str, int] = field(default_factory=dict)
    giving_back: frozenset[str] = frozenset()

    @property
    def evicting_guests(self) -> frozenset[str]:
        """The guests that are being evicted."""
        return frozenset(eviction.guest for eviction in self.evictions)

    def limit_of(self, guest: str, knob: ThrottleControl) -> float | None:
        """The limit of a guest for a lever and domain, in the lever's unit; None if there is no limit."""
        return next((one.limit for one in self.throttles if (one.guest, one.knob) == (guest, knob)), None)

    def guest_limits(self, foreign: Collection[str] = ()) -> GuestLimits:
        """The limits in force, by uuid of the guest and by ``ThrottleControl``.

        Limits of the ``foreign`` levers are left out, because no controller of the agent sets them.
        """
        found: GuestLimits = {}
        for one in self.throttles:
            if one.knob.lever not in foreign:
                found.setdefault(one.guest, {})[one.knob] = one.limit
        return found

    def after_action(self, action: WatermarkAct) -> WatermarkState:
        """The state after an action that has succeeded."""
        match action:
            case SwitchScheduling():
                return replace(self, scheduling_off=action.off)
            case EvictAction():
                # A second plan of the same round can evict a guest again.
                if action.guest in self.evicting_guests:
                    return self
                return replace(self, evictions=(*self.evictions, action))
            # A reclaim sets no limit, so a later run of the agent has nothing to remove.
            case ReclaimAction():
                return self
            case ThrottleAction():
                # The limit is added at the end, even if the guest had a limit before: the latest throttle is
                # the first to be raised.
                others = self._throttles_without(action.guest, action.knob)
                throttles = (*others, ThrottledGuest(action.guest, action.knob, action.limit))
                return replace(self._after_relapse(action.knob.lever), throttles=throttles)
            case RestoreAction():
                # The next throttle with this lever counts as a relapse.
                giving_back = self.giving_back | {action.knob.lever}
                return replace(self, throttles=self._throttles_after(action), giving_back=giving_back)

    def without_eviction(self, guest: str) -> WatermarkState:
        """The state after the eviction of a guest has succeeded or failed."""
        return replace(self, evictions=tuple(one for one in self.evictions if one.guest != guest))

    def with_guests(self, guests: Collection[str]) -> WatermarkState:
        """The state without limits of guests that have ended. ``guests`` are the running guests."""
        # Evictions stay, because the allocation of a guest that has left has to be deleted.
        throttles = tuple(one for one in self.throttles if one.guest in guests)
        return self if throttles == self.throttles else replace(self, throttles=throttles)

    def without_relapses(self, levers: Collection[str]) -> WatermarkState:
        """The state in which the relapses of ``levers`` are forgotten."""
        if not levers:
            return self
        relapses = {lever: count for lever, count in self.relapses.items() if lever not in levers}
        return replace(self, relapses=relapses, giving_back=self.giving_back - frozenset(levers))

    def _throttles_without(self, guest: str, knob: ThrottleControl) -> tuple[ThrottledGuest, ...]:
        return tuple(one for one in self.throttles if (one.guest, one.knob) != (guest, knob))

    def _throttles_after(self, action: RestoreAction) -> tuple[ThrottledGuest, ...]:
        """The limits after a restore. The order stays the same, so the same guest gets the next step."""
        if action.limit is None:
            return self._throttles_without(action.guest, action.knob)
        return tuple(
            replace(one, limit=action.limit) if (one.guest, one.knob) == (action.guest, action.knob) else one
            for one in self.throttles
        )

    def _after_relapse(self, lever: str) -> WatermarkState:
        # If no limit was raised since the last throttle, this throttle belongs to the same overload.
        if lever not in self.giving_back:
            return self
        count = min(self.relapses.get(lever, 0) + 1, MAX_RELAPSES)
        return replace(self, relapses={**self.relapses, lever: count}, giving_back=self.giving_back - {lever})


def state_to_json(state: WatermarkState) -> dict[str, Any]:
    """The state as JSON values for the state file."""
    evicting = {one.guest: one.watermark for one in state.evictions if one.watermark}
    content: dict[str, Any] = {
        # The values are lists in the order of fields, as in former releases, so that one parser reads both
        # formats.
        "throttles": [[one.guest, *one.knob, one.limit] for one in state.throttles],
        "evictions": [_eviction_to_json(one) for one in state.evictions],
        "scheduling_off": state.scheduling_off,
    }
    # The watermarks of evictions are a separate field, so that a former release can read the evictions.
    return content | ({"evicting_watermarks": evicting} if evicting else {})


def state_from_json(content: Any) -> WatermarkState:
    """The state from the JSON values of the state file.

    :raises ValueError: the content is not a state of watermarks.
    """
    try:
        # Each value is checked, because a wrong value could limit or end a guest.
        throttles = tuple(
            ThrottledGuest(text(guest), ThrottleControl(text(lever), text(domain)), _positive_limit(limit))
            for guest, lever, domain, limit in content["throttles"]
        )
        evicting = content.get("evicting_watermarks", {})
        evictions = tuple(
            replace(one, watermark=text(evicting.get(one.guest, "")))
            for one in (_eviction_from_json(*each) for each in content["evictions"])
        )
        off = content["scheduling_off"]
        # The numbers 0 and 1 also pass this test, and mean False and True.
        if off not in (True, False, None):
            raise ValueError(f"scheduling_off is {off!r}")
        return WatermarkState(throttles, evictions, off)
    # A damaged file can contain any JSON, which raises these errors above.
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unexpected content: {type(error).__name__} {error}") from error


def _eviction_to_json(eviction: EvictAction) -> list[Any]:
    # If there is no grace period, the third field is left out, so that an older release can read the file.
    grace = [] if eviction.grace is None else [eviction.grace]
    return [eviction.guest, eviction.metric, *grace]


def _eviction_from_json(guest: Any, metric: Any, grace: Any = None) -> EvictAction:
    return EvictAction(
        text(guest), text(metric), grace=None if grace is None else read_number(grace, _MAX_NUMBER)
    )


def _positive_limit(value: Any) -> float:
    # The agent never writes 0, which would stop a guest.
    if (limit := read_number(value, _MAX_NUMBER)) == 0:
        raise ValueError(f"{value!r} is not a limit")
    return limit
