"""What becomes of a case: one victim, one suspect, one knob. Pure: a case in, a case out."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.interference.baseline import WINDOW_SECONDS
from compute_agent.model.resource import ThrottleControl

IMPROVEMENT: Final = 0.1
"""The part of what it suffered by which the victim must be better off, in two windows in a row."""

SETTLE_SECONDS: Final = 10.0
"""After a step before the windows begin: what was measured in that time is of both."""

TRIAL_SECONDS: Final = SETTLE_SECONDS + 2 * WINDOW_SECONDS

HOLD_SECONDS: Final = 300.0
RETURN_SECONDS: Final = 60.0
"""Between two steps of giving back."""

WAIT_SECONDS: Final = 300.0
"""How long giving back waits for trials of others; then these wait, but for one that has begun."""

MAX_RELAPSES: Final = 4
"""Counted up to this: what helps is then held 16 times as long."""


class CasePhase(enum.StrEnum):
    """Where a case is."""

    TRIAL = "trial"
    HOLD = "hold"
    RETURN = "giving back"


class CaseVerdict(enum.StrEnum):
    """What was decided."""

    TRY = "try"
    FURTHER = "try further"
    GUILTY = "guilty"
    NOT_GUILTY = "not guilty"
    RELAPSE = "relapse"
    GIVE_BACK = "give back"
    CLOSE = "close"
    ESCALATE = "escalate"
    PREVIEW = "preview"


VERDICTS: Final = frozenset({CaseVerdict.GUILTY, CaseVerdict.RELAPSE})
"""What says that the suspect disturbs its victim, for the first time or again."""


@dataclass(frozen=True, slots=True)
class InterferenceCase:
    """A suspect that is limited for a victim.

    ``watch`` is the name of the section, ``before`` the level of the victim's signal before the latest step,
    or before the first of giving back. ``limits`` are all steps that were taken, of which the first ``depth``
    are in force: the last of them is the limit. ``since`` is when the phase, or the step of it, began
    (monotonic seconds). ``guilty``: a step has helped; ``exhausted``: no further step would, or can be taken.
    """

    watch: str
    victim: str
    suspect: str
    knob: ThrottleControl
    correlation: float
    before: float
    limits: tuple[float, ...]
    depth: int = 1
    phase: CasePhase = CasePhase.TRIAL
    since: float = 0.0
    relapses: int = 0
    guilty: bool = False
    exhausted: bool = False

    def settled(self, time: float) -> bool:
        """Whether all that this suspect can give was given, a while ago: only then another one is tried."""
        return self.phase is CasePhase.HOLD and self.exhausted and time - self.since >= TRIAL_SECONDS

    def overdue(self, time: float) -> bool:
        """Whether something was to be given back so long ago that others wait for it."""
        match self.phase:
            case CasePhase.HOLD:
                due = self.since + _hold_seconds(self)
            case CasePhase.RETURN:
                due = self.since + RETURN_SECONDS
            case CasePhase.TRIAL:
                return False
        return time - due >= WAIT_SECONDS

    @property
    def limit(self) -> float | None:
        """The limit in force, in the lever's unit; None where there is none now."""
        return self.limits[self.depth - 1] if self.depth else None


@dataclass(frozen=True, slots=True)
class VictimLevels:
    """The victim now: levels of the two windows of a trial (None: not known), and that of the latest.

    It ``suffers`` if that is above its threshold, and that ``lasts`` if it was for all of the window.
    """

    first: float | None = None
    second: float | None = None
    latest: float | None = None
    suffers: bool = False
    lasts: bool = False


Turn = tuple[InterferenceCase | None, tuple[CaseVerdict, ...]]
"""The case as it goes on (None: it is closed), and what was decided."""


def proceed(
    case: InterferenceCase,
    seen: VictimLevels,
    lower: float | None,
    time: float,
    waits: bool = False,
    tries: bool = True,
) -> Turn:
    """What becomes of a case at ``time``.

    ``lower`` is the next lower limit of the suspect, None at the floor. As long as it ``waits`` for the trial
    of another case nothing is given back; unless it ``tries`` no further step is.
    """
    elapsed = time - case.since
    match case.phase:
        case CasePhase.TRIAL if elapsed >= TRIAL_SECONDS:
            return _judge(case, seen, lower, time, tries)
        case CasePhase.HOLD if (
            elapsed >= WINDOW_SECONDS and seen.lasts and not case.exhausted and not waits and tries
        ):
            return _further(case, seen.latest, lower, time)
        case CasePhase.HOLD if elapsed >= _hold_seconds(case) and not waits:
            return _give_back(replace(case, before=seen.latest or 0.0), time)
        case CasePhase.RETURN if elapsed >= RETURN_SECONDS and relapsed(case, seen):
            depth, relapses = min(case.depth + 1, len(case.limits)), min(case.relapses + 1, MAX_RELAPSES)
            held = replace(case, depth=depth, relapses=relapses, phase=CasePhase.HOLD, since=time)
            return replace(held, exhausted=False), (CaseVerdict.RELAPSE,)
        case CasePhase.RETURN if elapsed >= RETURN_SECONDS and not case.depth:
            return None, (CaseVerdict.CLOSE,)
        case CasePhase.RETURN if elapsed >= RETURN_SECONDS and not waits:
            return _give_back(case, time)
    return case, ()


def improved(case: InterferenceCase, seen: VictimLevels) -> bool:
    """Whether the victim was better off in both windows."""
    line = case.before * (1 - IMPROVEMENT)
    return all(level is not None and level <= line for level in (seen.first, seen.second))


def relapsed(case: InterferenceCase, seen: VictimLevels) -> bool:
    """Whether the victim suffers, and more than it did as long as the guilty one was held.

    Who suffers all the same does so by something else.
    """
    worse = seen.latest is not None and case.before <= seen.latest * (1 - IMPROVEMENT)
    return case.guilty and seen.suffers and worse


def _hold_seconds(case: InterferenceCase) -> float:
    return HOLD_SECONDS * 2.0 ** min(case.relapses, MAX_RELAPSES)


def _judge(case: InterferenceCase, seen: VictimLevels, lower: float | None, time: float, tries: bool) -> Turn:
    if improved(case, seen):
        first = () if case.guilty else (CaseVerdict.GUILTY,)
        case = replace(case, guilty=True, phase=CasePhase.HOLD, since=time)
        if not seen.lasts or not tries:
            return case, first
        after, whats = _further(case, seen.second, lower, time)
        return after, (*first, *whats)
    if case.depth == 1:
        return None, (CaseVerdict.NOT_GUILTY,)
    # The last step made no difference: those before it did.
    limits = case.limits[:-1]
    held = replace(case, limits=limits, depth=len(limits), phase=CasePhase.HOLD, since=time, exhausted=True)
    return held, (CaseVerdict.GIVE_BACK,)


def _further(case: InterferenceCase, level: float | None, lower: float | None, time: float) -> Turn:
    """Another step, tried as the first was, from the level of now; or none, at the floor."""
    if lower is None or level is None:
        return replace(case, exhausted=True), ()
    limits = (*case.limits[: case.depth], lower)
    after = replace(case, before=level, limits=limits, depth=len(limits), phase=CasePhase.TRIAL, since=time)
    return after, (CaseVerdict.FURTHER,)


def _give_back(case: InterferenceCase, time: float) -> Turn:
    return replace(case, depth=case.depth - 1, phase=CasePhase.RETURN, since=time), (CaseVerdict.GIVE_BACK,)
