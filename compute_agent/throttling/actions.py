"""Actions of watermarks, as frozen values that an executor carries out.

Decisions of interference have another type, ``interference.cases.CaseDecision``. Both types have a guest, a
control and a limit, so the same executor carries out both types.
"""

from __future__ import annotations

from dataclasses import dataclass

from compute_agent.model.resource import ThrottleControl

# Limits are nested by guest and then by control, because all limits of a guest are compared with the worker's
# limits at once.
GuestLimits = dict[str, dict[ThrottleControl, float]]
"""Limits by uuid of the guest and by control, in the unit of the control's lever."""


@dataclass(frozen=True, slots=True)
class SwitchScheduling:
    """The action to keep new guests away from the host (``off``), or to let them in again.

    ``watermarks`` are the names of the sections with usage above their threshold.
    """

    off: bool
    watermarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"keep new guests away for {', '.join(self.watermarks)}" if self.off else "let new guests in"


@dataclass(frozen=True, slots=True)
class EvictAction:
    """The action to make a guest leave the host, because usage of ``metric`` exceeds ``watermark``.

    ``grace`` is the number of seconds that the guest has to end. None stands for ``[qos] evict_grace``.
    """

    guest: str
    metric: str
    watermark: str
    grace: float | None = None

    def __str__(self) -> str:
        return f"evict {self.guest} for {self.metric} ({self.watermark})"


@dataclass(frozen=True, slots=True)
class ReclaimAction:
    """The action to reclaim ``amount`` bytes of a guest, because usage of ``metric`` exceeds ``watermark``.

    After a reclaim the guest has no limit, so nothing has to be undone.
    """

    guest: str
    amount: int
    metric: str
    watermark: str

    def __str__(self) -> str:
        return f"reclaim {self.amount >> 20} MiB of {self.guest} for {self.metric} ({self.watermark})"


@dataclass(frozen=True, slots=True)
class ThrottleAction:
    """The action to lower the limit of a guest, because usage of ``metric`` exceeds ``watermark``.

    ``knob`` is the limited control, and ``limit`` the new limit in the unit of the control's lever.
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
    """The action to raise the limit of a guest for the control ``knob``; ``limit`` None removes the limit."""

    guest: str
    knob: ThrottleControl
    limit: float | None

    def __str__(self) -> str:
        to = "everything" if self.limit is None else f"{self.limit:g}"
        return f"restore {self.guest} to {to} of {self.knob}"


WatermarkAct = SwitchScheduling | EvictAction | ReclaimAction | ThrottleAction | RestoreAction


def takes_away(action: WatermarkAct) -> bool:
    """Whether an action restricts guests.

    Throttling, reclaim, eviction, and keeping new guests away are restricting.

    The executor saves a restricting action to the state file before it carries out the action. Watermarks in
    preview report only restricting actions.
    """
    return action.off if isinstance(action, SwitchScheduling) else not isinstance(action, RestoreAction)
