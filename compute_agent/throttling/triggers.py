"""The two triggers of throttling: watermarks of the host, and interference between guests.

A trigger keeps its state between rounds, calls the pure functions that decide (``watermarks.plan`` or
``interference.decisions``), and passes the actions to the executor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

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
from compute_agent.throttling.watermarks.state import (
    ReclaimAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkAct,
    WatermarkState,
    takes_away,
)
from compute_agent.usage.snapshot import UsageSnapshot

LOG = logging.getLogger(__name__)

_BACKOFF_SECONDS: Final = 300.0
"""Seconds after a failed eviction during which the agent does not try to evict the same guest again."""

_RECLAIM_PAUSE: Final = 10.0
"""Seconds between two reclaims of a guest. After this time, the pressure of the guest shows the cost of the
first reclaim."""


class WatermarkTrigger:
    """Limits and evicts guests while usage of the host is above a watermark, and removes the limits later.

    Only one thread may use this object.
    """

    limit_owner: Final = "watermarks"

    def __init__(
        self,
        rules: WatermarkRules,
        state: WatermarkState,
        executor: ThrottleExecutor,
        save: Callable[[WatermarkState], None],
    ) -> None:
        """Begin with the state that ``save`` saved last, perhaps in an earlier run of the agent.

        :param save: writes the state to disk; raises OSError if this fails, and the next call tries again.
        """
        self.state = state
        self._rules = rules
        self._executor = executor
        self._save = save
        self._streaks: Streaks = {}
        self._preview_streaks: Streaks = {}
        self._backoff: dict[str, float] = {}
        self._resting: dict[str, float] = {}
        # Values of the present round: the measured snapshot, the snapshot that is expected after the actions
        # so far, and the guests that were acted on.
        self._snapshot = self._expected = UsageSnapshot(0.0, {})
        self._tried: set[str] = set()

    @property
    def all_streaks(self) -> Streaks:
        """The number of successive rounds above each threshold, including watermarks in preview."""
        return {**self._streaks, **self._preview_streaks}

    def use_rules(self, rules: WatermarkRules) -> None:
        """Use other watermarks from the next round on. Later rounds lift the limits of removed watermarks."""
        self._rules = rules

    def resume_actions(self) -> None:
        """After a start of the agent, set the limits in the saved state again, and continue its evictions."""
        self._executor.resume_state(self.limit_owner, self.state.throttles, self.state.evictions)

    def run_round(self, snapshot: UsageSnapshot) -> tuple[WatermarkAct, ...]:
        """Make a plan from a snapshot, carry it out, and return the actions that succeeded."""
        names = {guest.uuid: guest.name for guest in snapshot.guests.values()}
        # The names of guests that are being evicted stay known, because the snapshot lacks these guests when
        # their end is reported.
        self._executor.telemetry.name_guests(self.limit_owner, names, self.state.evicting_guests)
        # Evictions are settled before planning, so that this round can replace a failed eviction by the
        # eviction of another guest.
        gone = self._settle_evictions(snapshot.time)
        self.state = self.state.with_guests(snapshot.guests)
        self._resting = {guest: until for guest, until in self._resting.items() if guest in snapshot.guests}
        rules = self._acting_rules
        # The series of throttled guests are expected. If such a series is not measured any more, its
        # watermark has to become quiet. Otherwise the limits would never be removed.
        expected = rules.throttled_series(self.state)
        self._streaks = observe_usage(self._streaks, rules.watermarks, snapshot, expected)
        # forgive_relapses() is called after observe_usage(), because it needs the time since the latest
        # breach.
        self.state = forgive_relapses(rules, snapshot, self._streaks, self.state)
        self._snapshot = self._expected = snapshot
        self._tried = set()
        done = self._executor.run_round(self)
        # Guests that have left are removed only after the plan, because the snapshot can still have their
        # use. Until then plans subtract this use, so that it causes no other eviction.
        left_for = {one.watermark for one in self.state.evictions if one.guest in gone}
        self._streaks = restart_streaks(self._streaks, left_for & self._rules.limited_evictions)
        for guest in gone:
            self.state = self.state.without_eviction(guest)
        self._executor.save_state(self)
        self._executor.telemetry.show_watermarks(snapshot, self.state, self._rules.watermarks)
        return done

    # The methods of ThrottleTrigger, which the executor calls:

    def preview_actions(self) -> Sequence[WatermarkAct]:
        """The restricting actions that watermarks in preview would take now if they were in force."""
        rules, snapshot = self._rules.with_preview(preview=True), self._snapshot
        self._preview_streaks = observe_usage(self._preview_streaks, rules.watermarks, snapshot)
        # The plan begins with the limits that are really in force, because preview would lower these limits.
        plan = make_plan(rules, snapshot, self._preview_streaks, self.state)
        return tuple(filter(takes_away, plan))

    def plan_actions(self) -> Sequence[WatermarkAct]:
        """Plan actions on guests that had no action in this round yet."""
        plan = make_plan(
            self._acting_rules,
            self._expected,
            self._streaks,
            self.state,
            excluded=frozenset(self._tried),
            unevictable=frozenset(self._backoff),
            resting=frozenset(guest for guest, until in self._resting.items() if until > self._snapshot.time),
        )
        if self._tried:
            # The first plan of this round contained the switch of scheduling. If it has failed, the next
            # round tries again.
            plan = tuple(action for action in plan if not isinstance(action, SwitchScheduling))
        # The message explains a round without actions. It is logged at level DEBUG, and names the exceeded
        # watermarks.
        if above := [
            f"{watch.watermark} {watch.action}" for watch, one in self._streaks.items() if one.samples
        ]:
            LOG.debug(
                "Usage is above these watermarks: %s; the agent takes these actions: %s",
                ", ".join(above),
                ", ".join(map(str, plan)),
            )
        return plan

    def settle_action(self, action: WatermarkAct, succeeded: bool) -> bool:
        """Record an action's outcome; return whether it failed on a guest, so that a new plan is needed."""
        if succeeded:
            before, self.state = self.state, self.state.after_action(action)
            self._expected = _expected_snapshot(self._acting_rules, self._expected, before, action)
        # A failed switch of scheduling has no substitute. The next round tries the switch again.
        if isinstance(action, SwitchScheduling):
            return False
        # A reclaim does not keep a guest from being throttled in the same round.
        if isinstance(action, ReclaimAction):
            pause = _RECLAIM_PAUSE if succeeded else _BACKOFF_SECONDS
            self._resting[action.guest] = self._snapshot.time + pause
            return False
        # The guest is noted after a failure, too, because a guest gets at most one action in a round.
        self._tried.add(action.guest)
        return not succeeded

    def save_state(self, actions: Sequence[WatermarkAct]) -> None:
        """Save the state that will hold after the restricting actions among ``actions``.

        The saved state has the planned lower limits, but no raised limit. After a crash, the next run of the
        agent then knows each limit that is perhaps in force.
        """
        state = self.state
        for action in filter(takes_away, actions):
            state = state.after_action(action)
        self._save(state)

    @property
    def _acting_rules(self) -> WatermarkRules:
        return self._rules.with_preview(preview=False)

    def _settle_evictions(self, time: float) -> list[str]:
        """Record the evictions that have ended since the last call; return the guests that have left.

        A guest that stays is removed from the pending evictions, and not evicted again for five minutes.
        """
        # ``time`` is the time of the snapshot and not of a clock, because simulations run with times of their
        # own.
        self._backoff = {guest: until for guest, until in self._backoff.items() if until > time}
        # Guests that have ended stay in the state until the end of this round, because the snapshot can be
        # older than their end, and can still contain their usage.
        gone = []
        for guest, error in self._executor.finished_evictions(self.state.evictions).items():
            if error is None:
                gone.append(guest)
            else:
                self.state = self.state.without_eviction(guest)
                self._backoff[guest] = time + _BACKOFF_SECONDS
        return gone


class InterferenceTrigger:
    """Limits guests that disturb other guests, for as long as the limits help the disturbed guests.

    Only one thread may use this object.
    """

    limit_owner: Final = "interference"

    def __init__(
        self,
        watches: Sequence[InterferenceWatch],
        steps: ThrottleSteps,
        state: InterferenceState,
        executor: ThrottleExecutor,
        save: Callable[[InterferenceState], None],
    ) -> None:
        """Begin with the state that ``save`` saved last, perhaps in an earlier run of the agent.

        :param save: writes the state to disk; raises OSError if this fails, and the next call tries again.
        """
        self.state = state
        #: Whether an action has failed, so that limits in force can differ from those of the state.
        self.owes = False
        self._watches = watches
        self._steps = steps
        self._executor = executor
        self._save = save
        self._samples: tuple[GuestSamples, ...] = ()
        self._decisions: tuple[CaseDecision, ...] = ()

    def use_watches(self, watches: Sequence[InterferenceWatch], steps: ThrottleSteps) -> None:
        """Replace the watches and the sizes of steps from the next round on."""
        self._watches, self._steps = watches, steps

    def run_round(self, sample: GuestSamples) -> None:
        """Add a sample of all guests to the samples of the last ten minutes, decide, and act."""
        names = {guest: one.facts.name for guest, one in sample.readings.items()}
        # The names of guests of open cases stay known. When the case of a victim that has gone is closed, the
        # log needs the name of the victim.
        in_cases = {guest for case in self.state.cases for guest in (case.victim, case.suspect)}
        self._executor.telemetry.name_guests(self.limit_owner, names, in_cases)
        # Correlations use the samples of ten minutes; older ones would only take memory.
        recent = (one for one in self._samples if one.time > sample.time - CORRELATION_SECONDS)
        self._samples = (*recent, sample)
        self.state, self._decisions = advance_state(self._watches, self._steps, self.state, self._samples)
        self._executor.run_round(self)
        self._executor.save_state(self)
        self._executor.telemetry.show_interference(self.state, self._watches, sample.time)

    def forget_all(self) -> None:
        """Drop samples, decisions, cases and baselines when no watch is left, as they would be outdated."""
        self._samples, self._decisions, self.state = (), (), InterferenceState()

    # The methods of ThrottleTrigger, which the executor calls:

    def preview_actions(self) -> Sequence[CaseDecision]:
        """The trials that watches in preview would begin now."""
        return [one for one in self._decisions if one.what is CaseVerdict.PREVIEW]

    def plan_actions(self) -> Sequence[CaseDecision]:
        """The decisions of this round, except decisions of watches in preview."""
        return [one for one in self._decisions if one.what is not CaseVerdict.PREVIEW]

    def settle_action(self, action: CaseDecision, succeeded: bool) -> bool:
        """Record an action's outcome. Return False, because the next round decides again after a failure."""
        if not succeeded:
            self.owes = True  # the caller repairs limits in each round until this is False again
            if action.takes_away:
                self.state = self.state.without_case(action.case)
        return False

    def save_state(self, actions: Sequence[CaseDecision]) -> None:
        """Save the state. The state already contains all decisions of ``run_round``."""
        self._save(self.state)


def _expected_snapshot(
    rules: WatermarkRules, snapshot: UsageSnapshot, before: WatermarkState, action: WatermarkAct
) -> UsageSnapshot:
    """The snapshot that is expected after an action.

    :param before: the state before the action. Each plan itself subtracts the use of guests that are being
        evicted.
    """
    if isinstance(action, ThrottleAction):
        limit = before.limit_of(action.guest, action.knob)
        return rules.after_throttle(snapshot, action.guest, action.knob, limit, action.limit)
    if isinstance(action, RestoreAction):
        limit = before.limit_of(action.guest, action.knob)
        assert limit is not None, "only what is throttled is restored"
        return rules.after_restore(snapshot, action.guest, action.knob, limit, action.limit)
    return snapshot
