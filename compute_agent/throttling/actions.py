"""The actions that watermarks plan, as frozen values that an executor carries out.

A watermark is a threshold for usage of the host. Interference between guests has decisions of another type,
``interference.cases.CaseDecision``. The same executor carries out all actions and decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

from compute_agent.model.resource import ThrottleControl

# Limits are nested by guest and then by ThrottleControl, because all limits of a guest are compared with the
# worker's limits at once.
GuestLimits = dict[str, dict[ThrottleControl, float]]
"""The limits of all guests, by uuid of the guest and by ``ThrottleControl``, such as the CPU quota.

A limit is in the lever's unit, such as cores.
"""


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
