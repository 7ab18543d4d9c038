"""Actions: plans of watermarks as frozen values, which an executor carries out.

Interference decides about cases (see ``interference.decisions``). A case also has a guest, a control and a
limit, so one executor carries out both.
"""

from __future__ import annotations

from dataclasses import dataclass

from compute_agent.model.resource import ThrottleControl

# Nested, not by pair: the worker is asked guest by guest.
GuestLimits = dict[str, dict[ThrottleControl, float]]
"""Limits by guest and control, in the unit of the control's lever."""


@dataclass(frozen=True, slots=True)
class SwitchScheduling:
    """Keep new guests away (``off``) because of ``watermarks``, or let them in again."""

    off: bool
    watermarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"keep new guests away for {', '.join(self.watermarks)}" if self.off else "let new guests in"


@dataclass(frozen=True, slots=True)
class EvictAction:
    """Make a guest leave because of a watermark of a metric; ``grace`` in seconds, None for the usual one."""

    guest: str
    metric: str
    watermark: str
    grace: float | None = None

    def __str__(self) -> str:
        return f"evict {self.guest} for {self.metric} ({self.watermark})"


@dataclass(frozen=True, slots=True)
class ThrottleAction:
    """Set a lower limit because of a watermark of a metric; ``limit`` is in the lever's unit."""

    guest: str
    knob: ThrottleControl
    limit: float
    metric: str
    watermark: str

    def __str__(self) -> str:
        return f"throttle {self.guest} to {self.limit:g} of {self.knob} for {self.metric} ({self.watermark})"


@dataclass(frozen=True, slots=True)
class RestoreAction:
    """Set a higher limit, or none."""

    guest: str
    knob: ThrottleControl
    limit: float | None

    def __str__(self) -> str:
        to = "everything" if self.limit is None else f"{self.limit:g}"
        return f"restore {self.guest} to {to} of {self.knob}"


WatermarkAct = SwitchScheduling | EvictAction | ThrottleAction | RestoreAction


def takes_away(action: WatermarkAct) -> bool:
    """Whether an action restricts guests.

    A restricting action is in the state file before it is carried out. A preview shows only these actions.
    """
    # Letting new guests in takes nothing from any.
    return action.off if isinstance(action, SwitchScheduling) else not isinstance(action, RestoreAction)
