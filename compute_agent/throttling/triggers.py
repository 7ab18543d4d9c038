"""The triggers of throttling: watermarks of the host, and interference between guests.

Each keeps the state of its pure decisions (``watermarks.plan``, ``interference.decisions``) between rounds,
and passes actions to the executor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from compute_agent.throttling.actions import (
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkAct,
    takes_away,
)
from compute_agent.throttling.executor import ThrottleExecutor
from compute_agent.throttling.interference.cases import CaseDecision, CaseVerdict
from compute_agent.throttling.interference.decisions import advance_state
from compute_agent.throttling.interference.evidence import CORRELATION_SECONDS
from compute_agent.throttling.interference.signals import GuestSamples, InterferenceWatch
from compute_agent.throttling.interference.state import InterferenceState
from compute_agent.throttling.levers import ThrottleSteps
from compute_agent.throttling.watermarks.breaches import Streaks, observe_usage, restart_streaks
from compute_agent.throttling.watermarks.plan import forgive_relapses, make_plan
from compute_agent.throttling.watermarks.sections import WatermarkRules
from compute_agent.throttling.watermarks.state import WatermarkState
from compute_agent.usage.snapshot import UsageSnapshot

LOG = logging.getLogger(__name__)

_BACKOFF_SECONDS: Final = 300.0
"""The time for which a guest that could not be evicted is left alone; the agent chooses the next guest
meanwhile."""

SaveWatermarks = Callable[[WatermarkState], None]
"""Keeps the state; durable when it returns. Raises OSError, and the next call tries again."""

SaveInterference = Callable[[InterferenceState], None]
"""Likewise."""


class WatermarkTrigger:
    """Acts when usage of the host exceeds a watermark, and removes limits later. For one thread."""

    limit_owner: Final = "watermarks"

    def __init__(
        self,
        rules: WatermarkRules,
        state: WatermarkState,
        executor: ThrottleExecutor,
        save: SaveWatermarks,
    ) -> None:
        """``state`` is the argument of the last call of ``save``."""
        self.state = state
        self._rules = rules
        self._executor = executor
        self._save = save
        self._streaks: Streaks = {}
        self._preview_streaks: Streaks = {}
        self._backoff: dict[str, float] = {}
        # Of the present round
        self._snapshot = self._expected = UsageSnapshot(0.0, {})
        self._tried: set[str] = set()

    @property
    def all_streaks(self) -> Streaks:
        """The number of rounds that usage has been above each watermark, those in preview included."""
        return {**self._streaks, **self._preview_streaks}

    def use_rules(self, rules: WatermarkRules) -> None:
        """Use other rules from the next round on. Limits that only the old rules request are removed."""
        self._rules = rules

    def resume_actions(self) -> None:
        """Apply the limits of the state again after a start, and finish its evictions."""
        self._executor.resume_state(self.limit_owner, self.state.throttles, self.state.evictions)

    def run_round(self, snapshot: UsageSnapshot) -> tuple[WatermarkAct, ...]:
        """Take one snapshot, act, and return the actions that were done."""
        names = {guest.uuid: guest.name for guest in snapshot.guests.values()}
        # Guests that are leaving are not in the snapshot any more when their end is reported.
        self._executor.telemetry.name_guests(self.limit_owner, names, self.state.evicting_guests)
        # Before planning: a guest that stays is left alone, and another one taken in this round.
        gone = self._settle_evictions(snapshot.time)
        self.state = self.state.with_guests(snapshot.guests)
        rules = self._acting_rules
        # A series that vanished while guests are throttled for it must be seen as missing, or nothing would
        # give back.
        expected = rules.throttled_series(self.state)
        self._streaks = observe_usage(self._streaks, rules.watermarks, snapshot, expected)
        # After the streaks, which say how long it has been quiet.
        self.state = forgive_relapses(rules, snapshot, self._streaks, self.state)
        self._snapshot = self._expected = snapshot
        self._tried = set()
        done = self._executor.run_round(self)
        # Only now: while it counts as being evicted, no other guest is evicted for what it still seems to
        # use.
        left_for = {one.watermark for one in self.state.evictions if one.guest in gone}
        self._streaks = restart_streaks(self._streaks, left_for & self._rules.limited_evictions)
        for guest in gone:
            self.state = self.state.without_eviction(guest)
        self._executor.save_state(self)
        self._executor.telemetry.show_watermarks(snapshot, self.state, self._rules.watermarks)
        return done

    # For the executor

    def preview_actions(self) -> Sequence[WatermarkAct]:
        """The actions that watermarks in preview would take now."""
        rules, snapshot = self._rules.with_preview(preview=True), self._snapshot
        self._preview_streaks = observe_usage(self._preview_streaks, rules.watermarks, snapshot)
        # By the real state: a guest that is throttled already would not be throttled by as much.
        plan = make_plan(rules, snapshot, self._preview_streaks, self.state)
        return tuple(filter(takes_away, plan))

    def plan_actions(self) -> Sequence[WatermarkAct]:
        """The actions of this round that have not been tried yet."""
        plan = make_plan(
            self._acting_rules,
            self._expected,
            self._streaks,
            self.state,
            excluded=frozenset(self._tried),
            unevictable=frozenset(self._backoff),
        )
        if self._tried:
            # The switch was in the first plan of this round, whether it succeeded or not.
            plan = tuple(action for action in plan if not isinstance(action, SwitchScheduling))
        # For an operator that wonders why nothing happens: at DEBUG each round says what is above, and for
        # how long.
        if above := [
            f"{watch.watermark} {watch.action}" for watch, one in self._streaks.items() if one.samples
        ]:
            LOG.debug("Above their watermarks: %s; actions: %s", ", ".join(above), ", ".join(map(str, plan)))
        return plan

    def settle_action(self, action: WatermarkAct, succeeded: bool) -> bool:
        """Note the outcome of an action. After a failure the round needs another plan, for another guest."""
        if succeeded:
            before, self.state = self.state, self.state.after_action(action)
            self._expected = _expected_snapshot(self._acting_rules, self._expected, before, action)
        # No other guest can be taken in its place; the next round tries it again.
        if isinstance(action, SwitchScheduling):
            return False
        # Succeeded or not: a guest is acted on once in a round.
        self._tried.add(action.guest)
        return not succeeded

    def save_state(self, actions: Sequence[WatermarkAct]) -> None:
        """Keep the state that will be true after ``actions``."""
        self._save(_intended_state(self.state, actions))

    @property
    def _acting_rules(self) -> WatermarkRules:
        return self._rules.with_preview(preview=False)

    def _settle_evictions(self, time: float) -> list[str]:
        """Record the ended evictions; return the guests that have left."""
        # By the clock of snapshots, which simulations turn as well.
        self._backoff = {guest: until for guest, until in self._backoff.items() if until > time}
        # The snapshot may still have these guests, so they count as being evicted in this round.
        gone = []
        for guest, error in self._executor.finished_evictions(self.state.evictions).items():
            if error is None:
                gone.append(guest)
            else:
                self.state = self.state.without_eviction(guest)
                self._backoff[guest] = time + _BACKOFF_SECONDS
        return gone


class InterferenceTrigger:
    """Limits guests that disturb others, as long as the limit helps. For one thread."""

    limit_owner: Final = "interference"

    def __init__(
        self,
        watches: Sequence[InterferenceWatch],
        steps: ThrottleSteps,
        state: InterferenceState,
        executor: ThrottleExecutor,
        save: SaveInterference,
    ) -> None:
        """``state`` is the argument of the last call of ``save``."""
        self.state = state
        #: Whether something could not be given back yet.
        self.owes = False
        self._watches = watches
        self._steps = steps
        self._executor = executor
        self._save = save
        self._samples: tuple[GuestSamples, ...] = ()
        self._decisions: tuple[CaseDecision, ...] = ()

    def use_watches(self, watches: Sequence[InterferenceWatch], steps: ThrottleSteps) -> None:
        """Use other watches from the next round on."""
        self._watches, self._steps = watches, steps

    def run_round(self, sample: GuestSamples) -> None:
        """Take one sample, decide, and act."""
        names = {guest: one.facts.name for guest, one in sample.readings.items()}
        # A victim that has gone is named when its case is closed.
        in_cases = {guest for case in self.state.cases for guest in (case.victim, case.suspect)}
        self._executor.telemetry.name_guests(self.limit_owner, names, in_cases)
        # Correlations need no more, and memory is that of the agent.
        recent = (one for one in self._samples if one.time > sample.time - CORRELATION_SECONDS)
        self._samples = (*recent, sample)
        self.state, self._decisions = advance_state(self._watches, self._steps, self.state, self._samples)
        self._executor.run_round(self)
        self._executor.save_state(self)
        self._executor.telemetry.show_interference(self.state, self._watches, sample.time)

    def forget_all(self) -> None:
        """Drop the learnt values: without watches they would be outdated when there are watches again."""
        self._samples, self._decisions, self.state = (), (), InterferenceState()

    # For the executor

    def preview_actions(self) -> Sequence[CaseDecision]:
        """The trials that watches in preview would begin now."""
        return [one for one in self._decisions if one.what is CaseVerdict.PREVIEW]

    def plan_actions(self) -> Sequence[CaseDecision]:
        """The decisions of this round."""
        return [one for one in self._decisions if one.what is not CaseVerdict.PREVIEW]

    def settle_action(self, action: CaseDecision, succeeded: bool) -> bool:
        """Note the outcome of a decision. No other plan is needed: a round begins at most one trial."""
        if not succeeded:
            self.owes = True  # a limit that could not be given back is repaired in every round
            if action.takes_away:
                self.state = self.state.without_case(action.case)
        return False

    def save_state(self, actions: Sequence[CaseDecision]) -> None:
        """Save the state, which already includes all decisions."""
        self._save(self.state)


def _intended_state(state: WatermarkState, plan: Iterable[WatermarkAct]) -> WatermarkState:
    """The state that is saved before acting."""
    for action in plan:
        if takes_away(action):  # a limit that is given back is in force until it is not
            state = state.after_action(action)
    return state


def _expected_snapshot(
    rules: WatermarkRules, snapshot: UsageSnapshot, before: WatermarkState, action: WatermarkAct
) -> UsageSnapshot:
    """The expected snapshot after an action. Evictions are counted from the state."""
    if isinstance(action, ThrottleAction):
        limit = before.limit_of(action.guest, action.knob)
        return rules.after_throttle(snapshot, action.guest, action.knob, limit, action.limit)
    if isinstance(action, RestoreAction):
        limit = before.limit_of(action.guest, action.knob)
        assert limit is not None, "only what is throttled is restored"
        return rules.after_restore(snapshot, action.guest, action.knob, limit, action.limit)
    return snapshot
