"""Cases of one victim, one suspect and one control: pure functions to the next case and decisions."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.evidence import WINDOW_SECONDS
from compute_agent.throttling.interference.signals import InterferenceWatch

IMPROVEMENT: Final = 0.1
"""The part by which the victim must suffer less, in two windows in a row: one of them might be chance."""

SETTLE_SECONDS: Final = 10.0
"""Between a step and the windows: a sample of that time is of before and after."""

TRIAL_SECONDS: Final = SETTLE_SECONDS + 2 * WINDOW_SECONDS

HOLD_SECONDS: Final = 300.0
"""Most bursts of a batch job are over by then, and a longer hold would cost the suspect too much."""
RETURN_SECONDS: Final = 60.0
"""Between two steps of giving back: two windows, in which a relapse would be seen."""

WAIT_SECONDS: Final = 300.0
"""Seconds for which the removal of a limit waits for trials of other cases; afterwards it precedes new
trials."""

MAX_RELAPSES: Final = 4
"""Highest count of relapses: a limit that helps is then held 16 times as long."""


class CasePhase(enum.StrEnum):
    """The phases of a case."""

    TRIAL = "trial"
    HOLD = "hold"
    RETURN = "giving back"


class CaseVerdict(enum.StrEnum):
    """The decisions about a case."""

    TRY = "try"
    FURTHER = "try further"
    GUILTY = "guilty"
    NOT_GUILTY = "not guilty"
    RELAPSE = "relapse"
    GIVE_BACK = "give back"
    # Without a verdict, or after one: nothing is in force any more.
    CLOSE = "close"
    ESCALATE = "escalate"
    PREVIEW = "preview"


VERDICTS: Final = frozenset({CaseVerdict.GUILTY, CaseVerdict.RELAPSE})
"""The decisions that say that the suspect disturbs its victim, for the first time or again."""


@dataclass(frozen=True, slots=True)
class InterferenceCase:
    """A suspect that is limited for a victim.

    - ``watch`` is the name of the section.
    - ``before`` is the level of the victim's signal before the latest step, or before the first of giving
      back.
    - ``limits`` are the limits of all steps, and the first ``depth`` of them are in force; the last of these
      is the limit.
    - ``since`` is when the phase, or the step of it, began (monotonic seconds).
    - ``guilty``: a step has helped. ``exhausted``: no further step would help, or can be taken.
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

    def is_settled(self, time: float) -> bool:
        """Whether this suspect cannot be limited further, so that another one may be tried."""
        # As long as a further step may help, another suspect would share the blame for it.
        return self.phase is CasePhase.HOLD and self.exhausted and time - self.since >= TRIAL_SECONDS

    def is_overdue(self, time: float) -> bool:
        """Whether the removal of the limit is late, so that other trials wait for it."""
        # A trial ends by itself; only giving back can be kept waiting.
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
        """The limit in force, in the lever's unit; None without one."""
        return self.limits[self.depth - 1] if self.depth else None


@dataclass(frozen=True, slots=True)
class CaseDecision:
    """A decision, with the case after it.

    ``level`` is the level of the victim's signal, ``watch`` the watch of the case if its section still
    exists.
    """

    what: CaseVerdict
    case: InterferenceCase
    level: float | None = None
    watch: InterferenceWatch | None = None

    @property
    def limit(self) -> float | None:
        """The new limit of the suspect."""
        # These take the limit away whatever depth the case still shows.
        gone = self.what in (CaseVerdict.CLOSE, CaseVerdict.NOT_GUILTY)
        return None if gone else self.case.limit

    @property
    def changes_limit(self) -> bool:
        """Whether the decision changes a limit."""
        return self.what not in (CaseVerdict.GUILTY, CaseVerdict.ESCALATE, CaseVerdict.PREVIEW)

    @property
    def takes_away(self) -> bool:
        """Whether the decision restricts the suspect."""
        return self.what in (CaseVerdict.TRY, CaseVerdict.FURTHER, CaseVerdict.RELAPSE)


@dataclass(frozen=True, slots=True)
class VictimLevels:
    """The victim at present: levels of both windows of a trial (None: not known), and of the latest window.

    The victim ``suffers`` if the latest level is above its threshold; this ``lasts`` if it held for the whole
    window.
    """

    first: float | None = None
    second: float | None = None
    latest: float | None = None
    suffers: bool = False
    lasts: bool = False


Turn = tuple[InterferenceCase | None, tuple[CaseVerdict, ...]]
"""The next state of the case (None: it is closed), and the decision."""


def advance_case(
    case: InterferenceCase,
    seen: VictimLevels,
    lower: float | None,
    time: float,
    waits: bool = False,
    tries: bool = True,
) -> Turn:
    """The case after another sample, at ``time``, and the decisions about it.

    ``lower`` is the next lower limit of the suspect, None at the floor. While the case ``waits`` for the
    trial of another case, its limit is not raised; without ``tries``, it is not lowered further.
    """
    elapsed = time - case.since
    match case.phase:
        case CasePhase.TRIAL if elapsed >= TRIAL_SECONDS:
            return _judge_trial(case, seen, lower, time, tries)
        # A victim that suffers for a whole window in the hold needs more than was taken.
        case CasePhase.HOLD if (
            elapsed >= WINDOW_SECONDS and seen.lasts and not case.exhausted and not waits and tries
        ):
            return _try_further(case, seen.latest, lower, time)
        # The level at the end of the hold is what a relapse is compared with.
        case CasePhase.HOLD if elapsed >= _hold_seconds(case) and not waits:
            return _give_back(replace(case, before=seen.latest or 0.0), time)
        # Before giving back more; and the last step again, not another one: that one has helped before.
        case CasePhase.RETURN if elapsed >= RETURN_SECONDS and has_relapsed(case, seen):
            depth, relapses = min(case.depth + 1, len(case.limits)), min(case.relapses + 1, MAX_RELAPSES)
            held = replace(case, depth=depth, relapses=relapses, phase=CasePhase.HOLD, since=time)
            # Another step may help by now: the suspect does more than it did.
            return replace(held, exhausted=False), (CaseVerdict.RELAPSE,)
        # Only a while after the last step was given back, so that a relapse can still be seen.
        case CasePhase.RETURN if elapsed >= RETURN_SECONDS and not case.depth:
            return None, (CaseVerdict.CLOSE,)
        case CasePhase.RETURN if elapsed >= RETURN_SECONDS and not waits:
            return _give_back(case, time)
    return case, ()


def has_improved(case: InterferenceCase, seen: VictimLevels) -> bool:
    """Whether the level of the victim was lower in both windows."""
    # Relative to the level before: a trial is about this step, not about the threshold.
    line = case.before * (1 - IMPROVEMENT)
    return all(level is not None and level <= line for level in (seen.first, seen.second))


def has_relapsed(case: InterferenceCase, seen: VictimLevels) -> bool:
    """Whether the victim suffers more than during the hold of the suspect.

    Otherwise the victim's suffering has another cause.
    """
    worse = seen.latest is not None and case.before <= seen.latest * (1 - IMPROVEMENT)
    # Without a verdict there is nothing to relapse to: the limit was a trial that the agent did not see end.
    return case.guilty and seen.suffers and worse


def _hold_seconds(case: InterferenceCase) -> float:
    # A suspect that begins again and again is held longer each time, instead of being tried each time.
    return HOLD_SECONDS * 2.0 ** min(case.relapses, MAX_RELAPSES)


def _judge_trial(
    case: InterferenceCase, seen: VictimLevels, lower: float | None, time: float, tries: bool
) -> Turn:
    if has_improved(case, seen):
        # A further step that helps is no further verdict.
        first = () if case.guilty else (CaseVerdict.GUILTY,)
        case = replace(case, guilty=True, phase=CasePhase.HOLD, since=time)
        if not seen.lasts or not tries:
            return case, first
        after, whats = _try_further(case, seen.second, lower, time)
        return after, (*first, *whats)
    # Nothing helped: the limit goes at once, and the pair is left alone.
    if case.depth == 1:
        return None, (CaseVerdict.NOT_GUILTY,)
    # The last step made no difference, but those before it did: they stay, and no further one is tried.
    limits = case.limits[:-1]
    held = replace(case, limits=limits, depth=len(limits), phase=CasePhase.HOLD, since=time, exhausted=True)
    return held, (CaseVerdict.GIVE_BACK,)


def _try_further(case: InterferenceCase, level: float | None, lower: float | None, time: float) -> Turn:
    """A trial of another step from the present level; none at the lowest limit."""
    if lower is None or level is None:
        return replace(case, exhausted=True), ()
    # Steps that were given back are forgotten: the next ones go down from the present limit.
    limits = (*case.limits[: case.depth], lower)
    after = replace(case, before=level, limits=limits, depth=len(limits), phase=CasePhase.TRIAL, since=time)
    return after, (CaseVerdict.FURTHER,)


def _give_back(case: InterferenceCase, time: float) -> Turn:
    return replace(case, depth=case.depth - 1, phase=CasePhase.RETURN, since=time), (CaseVerdict.GIVE_BACK,)
