"""Cases: one guest (the suspect) is limited to protect another (the victim), step by step over time.

All functions are pure: they compute the next state of a case and decisions, and change nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.evidence import WINDOW_SECONDS
from compute_agent.throttling.interference.signals import InterferenceWatch

IMPROVEMENT: Final = 0.1
"""A suspect is found guilty if its limit lowers the victim's signal by at least this part of the earlier
value.

The signal must fall in two successive windows, because a fall in a single one can be chance.
"""

SETTLE_SECONDS: Final = 10.0
"""Seconds between a new limit and the first window in which its effect is measured.

An earlier sample would contain some time before the limit.
"""

TRIAL_SECONDS: Final = SETTLE_SECONDS + 2 * WINDOW_SECONDS
"""Length of a trial in seconds."""

HOLD_SECONDS: Final = 300.0
"""Seconds for which a limit that helps is kept before it is raised.

Most bursts of a batch job are over by then, and a longer hold would cost the suspect too much.
"""

RETURN_SECONDS: Final = 60.0
"""Seconds between two steps that raise a limit: two windows of measurement, enough to see that the victim
suffers again."""

WAIT_SECONDS: Final = 300.0
"""Maximum seconds for which the raising of a limit waits for trials of other cases. After this time, new
trials wait until the limit is raised.
"""

MAX_RELAPSES: Final = 4
"""Maximum number of relapses that count. After a relapse (the victim suffers again when the limit is raised)
the limit is held twice as long, up to 16 times HOLD_SECONDS."""


class CasePhase(enum.StrEnum):
    """The phases of a case: its limit is on trial, is kept, or is raised step by step."""

    TRIAL = "trial"
    HOLD = "hold"
    RETURN = "giving back"


class CaseVerdict(enum.StrEnum):
    """The decisions about the limit of a suspect."""

    TRY = "try"
    FURTHER = "try further"
    GUILTY = "guilty"
    NOT_GUILTY = "not guilty"
    RELAPSE = "relapse"
    GIVE_BACK = "give back"
    # The case ends for a reason other than the verdict not guilty, and its limit is removed.
    CLOSE = "close"
    ESCALATE = "escalate"
    PREVIEW = "preview"


VERDICTS: Final = frozenset({CaseVerdict.GUILTY, CaseVerdict.RELAPSE})
"""The decisions that find a suspect to be the cause of the disturbance, for the first time or again."""


class SuspectPair(NamedTuple):
    """The key of a record: the name of a watch, and the uuids of a victim and a suspect."""

    watch: str
    victim: str
    suspect: str


@dataclass(frozen=True, slots=True)
class InterferenceCase:
    """A suspect that is limited to protect a victim.

    - ``watch`` is the name of the section; ``victim`` and ``suspect`` are uuids.
    - ``knob`` says what is limited: a lever, on one domain of the host.
    - ``correlation`` is the correlation of the suspect's use with the victim's signal, from -1 to 1.
    - ``before`` is the level of the victim's signal before the last step down. When phase ``HOLD`` ends and
      the limit is raised, ``before`` becomes the level of that moment.
    - ``limits`` has the limit after each step down, in the lever's unit. ``depth`` is the number of steps in
      force, so ``limits[depth - 1]`` is the current limit. With a ``depth`` of 0 the suspect has no limit.
    - ``since`` is the time at which the phase or its latest step began (monotonic seconds).
    - ``relapses`` is the number of times that a raised limit had to be lowered again.
    - ``guilty``: a step has helped the victim.
    - ``exhausted``: the last step has not helped, or a lower limit is not possible.
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

    @property
    def guest_pair(self) -> SuspectPair:
        """The watch, the victim and the suspect, which other cases can have as well."""
        return SuspectPair(self.watch, self.victim, self.suspect)

    def is_settled(self, time: float) -> bool:
        """Whether this suspect cannot be limited further. A trial can then limit another suspect."""
        # As long as a further step can help, no other suspect is tried: the effects of both could not be
        # distinguished.
        return self.phase is CasePhase.HOLD and self.exhausted and time - self.since >= TRIAL_SECONDS

    def is_overdue(self, time: float) -> bool:
        """Whether the limit should have been raised WAIT_SECONDS ago. New trials then have to wait."""
        # A case on trial is never overdue, because only steps that raise a limit wait for trials of other
        # cases.
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
        """The limit in force, in the lever's unit; None if the case has no limit."""
        return self.limits[self.depth - 1] if self.depth else None


@dataclass(frozen=True, slots=True)
class CaseDecision:
    """A decision about a case, together with the case as it is after the decision.

    - ``what`` is the decision.
    - ``level`` is the mean of the victim's signal over the latest window; None if it is not known.
    - ``watch`` is the watch of the case; None if its section was removed.
    """

    what: CaseVerdict
    case: InterferenceCase
    level: float | None = None
    watch: InterferenceWatch | None = None

    @property
    def limit(self) -> float | None:
        """The limit of the suspect after the decision, in the lever's unit; None for no limit."""
        # The decisions CLOSE and NOT_GUILTY remove the limit, although ``depth`` of the case can be above 0.
        gone = self.what in (CaseVerdict.CLOSE, CaseVerdict.NOT_GUILTY)
        return None if gone else self.case.limit

    @property
    def changes_limit(self) -> bool:
        """Whether the decision changes the limit of the suspect, or only reports a verdict."""
        return self.what not in (CaseVerdict.GUILTY, CaseVerdict.ESCALATE, CaseVerdict.PREVIEW)

    @property
    def takes_away(self) -> bool:
        """Whether the decision lowers the limit of the suspect."""
        return self.what in (CaseVerdict.TRY, CaseVerdict.FURTHER, CaseVerdict.RELAPSE)


@dataclass(frozen=True, slots=True)
class VictimLevels:
    """The levels of the victim's signal from which the next state of a case is computed.

    A level of None is unknown.

    - ``first`` and ``second`` are the means of the two windows of a trial.
    - ``latest`` is the mean of the latest window.
    - ``suffers``: the latest level is above the threshold of the victim.
    - ``lasts``: the signal has been above the threshold for a whole window.
    """

    first: float | None = None
    second: float | None = None
    latest: float | None = None
    suffers: bool = False
    lasts: bool = False


Turn = tuple[InterferenceCase | None, tuple[CaseVerdict, ...]]
"""The next state of a case, and the decisions about the case. The state is None if the case is closed."""


def advance_case(
    case: InterferenceCase,
    seen: VictimLevels,
    lower: float | None,
    time: float,
    waits: bool = False,
    tries: bool = True,
) -> Turn:
    """Compute the next state of a case after another sample, and the decisions about it.

    :param seen: the means of the victim's signal in the latest windows.
    :param lower: the next lower limit of the suspect; None if a lower limit is not possible.
    :param time: the time of the sample in monotonic seconds.
    :param waits: whether a trial of another case runs. The limit of this case must not change meanwhile.
    :param tries: whether the case can begin a trial of a lower limit now.
    """
    elapsed = time - case.since
    match case.phase:
        case CasePhase.TRIAL if elapsed >= TRIAL_SECONDS:
            return _judge_trial(case, seen, lower, time, tries)
        # The victim has suffered for a whole window in spite of the limit, so a lower limit is tried.
        case CasePhase.HOLD if (
            elapsed >= WINDOW_SECONDS and seen.lasts and not case.exhausted and not waits and tries
        ):
            return _try_further(case, seen.latest, lower, time)
        # A later relapse is recognised by comparison with the level at the end of the hold.
        case CasePhase.HOLD if elapsed >= _hold_seconds(case) and not waits:
            return _give_back(replace(case, before=seen.latest or 0.0), time)
        # A relapse is checked before the limit is raised further. The last undone step is repeated, because
        # it has helped before.
        case CasePhase.RETURN if elapsed >= RETURN_SECONDS and has_relapsed(case, seen):
            depth, relapses = min(case.depth + 1, len(case.limits)), min(case.relapses + 1, MAX_RELAPSES)
            held = replace(case, depth=depth, relapses=relapses, phase=CasePhase.HOLD, since=time)
            # Further steps are possible again, because the suspect perhaps uses more than during the former
            # hold.
            return replace(held, exhausted=False), (CaseVerdict.RELAPSE,)
        # The case is closed a minute after the limit was removed, so that a relapse can still be seen.
        case CasePhase.RETURN if elapsed >= RETURN_SECONDS and not case.depth:
            return None, (CaseVerdict.CLOSE,)
        case CasePhase.RETURN if elapsed >= RETURN_SECONDS and not waits:
            return _give_back(case, time)
    return case, ()


def has_improved(case: InterferenceCase, seen: VictimLevels) -> bool:
    """Whether the victim's signal was at least a tenth lower in both windows than before the step."""
    # The signal is compared with the level before the step, and not with the threshold, because the trial is
    # only about this step.
    line = case.before * (1 - IMPROVEMENT)
    return all(level is not None and level <= line for level in (seen.first, seen.second))


def has_relapsed(case: InterferenceCase, seen: VictimLevels) -> bool:
    """Whether the victim suffers a tenth more than at the end of the hold, because the limit was raised."""
    worse = seen.latest is not None and case.before <= seen.latest * (1 - IMPROVEMENT)
    # A case in this phase without a verdict comes from a trial that a restart of the agent interrupted.
    return case.guilty and seen.suffers and worse


def _hold_seconds(case: InterferenceCase) -> float:
    # If a suspect disturbs its victim after each hold, each hold is longer than the one before.
    return HOLD_SECONDS * 2.0 ** min(case.relapses, MAX_RELAPSES)


def _judge_trial(
    case: InterferenceCase, seen: VictimLevels, lower: float | None, time: float, tries: bool
) -> Turn:
    if has_improved(case, seen):
        # A case gets the verdict guilty only once, so a further step that helps adds no verdict.
        first = () if case.guilty else (CaseVerdict.GUILTY,)
        case = replace(case, guilty=True, phase=CasePhase.HOLD, since=time)
        if not seen.lasts or not tries:
            return case, first
        after, whats = _try_further(case, seen.second, lower, time)
        return after, (*first, *whats)
    # The first step has not helped: its limit is removed at once.
    if case.depth == 1:
        return None, (CaseVerdict.NOT_GUILTY,)
    # The last step has not helped, but the earlier steps have. So only the last step is undone.
    limits = case.limits[:-1]
    held = replace(case, limits=limits, depth=len(limits), phase=CasePhase.HOLD, since=time, exhausted=True)
    return held, (CaseVerdict.GIVE_BACK,)


def _try_further(case: InterferenceCase, level: float | None, lower: float | None, time: float) -> Turn:
    """Begin a trial of the next lower limit; mark the case as exhausted if there is no such limit."""
    if lower is None or level is None:
        return replace(case, exhausted=True), ()
    # Limits beyond ``depth`` are not in force any more. They are dropped, because the next step begins at the
    # current limit.
    limits = (*case.limits[: case.depth], lower)
    after = replace(case, before=level, limits=limits, depth=len(limits), phase=CasePhase.TRIAL, since=time)
    return after, (CaseVerdict.FURTHER,)


def _give_back(case: InterferenceCase, time: float) -> Turn:
    return replace(case, depth=case.depth - 1, phase=CasePhase.RETURN, since=time), (CaseVerdict.GIVE_BACK,)
