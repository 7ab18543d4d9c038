"""The executor: carries out decisions of triggers, one round of one trigger at a time.

A round reports the actions of sections in preview. Then the executor plans, saves and acts, and plans again
without guests with a failed action. An action that limits a guest is saved durably before it happens. So the
next agent knows all limits after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from compute_agent.events.event import EventOutcome
from compute_agent.model.messages import GuestGoneError
from compute_agent.model.resource import ThrottleControl
from compute_agent.threads import ONCE, ThreadSpec, run_aside
from compute_agent.throttling.actions import EvictAction, RestoreAction, SwitchScheduling, ThrottleAction
from compute_agent.throttling.evictions import StopGuest
from compute_agent.throttling.interference.cases import CaseDecision, CaseVerdict
from compute_agent.throttling.telemetry import ThrottleTelemetry, ThrottlingAct
from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.state import PendingEviction, ThrottledGuest

LOG = logging.getLogger(__name__)

A = TypeVar("A", bound=ThrottlingAct)

ESCALATE_THREAD: Final = ThreadSpec(
    "escalate",
    ONCE,
    "runs the command of ``escalate_command``",
    "none",
    "the operator's command",
)


class ThrottleTrigger(Protocol[A]):
    """Decides on actions, and receives their outcomes. Everything except its state is a pure function."""

    @property
    def limit_owner(self) -> str:
        """The name of the trigger for the arbiter of limits and for logs."""
        ...

    def preview_actions(self) -> Sequence[A]:
        """The actions that sections in preview would take in this round."""
        ...

    def plan_actions(self) -> Sequence[A]:
        """The actions of this round, in order; called again after an action has failed."""
        ...

    def settle_action(self, action: A, succeeded: bool) -> bool:
        """Note the outcome of an action; return whether this round needs another plan."""
        ...

    def save_state(self, actions: Sequence[A]) -> None:
        """Save the state that will hold after those of ``actions`` that restrict guests.

        :raises OSError: the next call tries again.
        """
        ...


class LimitSetter(Protocol):
    """Sets limits of guests; see :class:`compute_agent.throttling.arbiter.LimitArbiter`."""

    def set_limit(self, owner: str, guest: str, knob: ThrottleControl, limit: float | None) -> None:
        """Set the limit of an owner, such as a trigger, or remove it (None).

        :raises GuestGoneError: the guest is gone.
        :raises DriverError: the kernel refuses it.
        :raises TimeoutError: the worker does not answer in time.
        """
        ...


class EvictionStarter(Protocol):
    """Starts evictions; see :class:`compute_agent.throttling.evictions.GuestEvictor`."""

    def begin_eviction(self, guest: str, stop: StopGuest | None = None, grace: float | None = None) -> None:
        """Begin the eviction of a guest; do nothing if it has begun already."""
        ...

    def finished_evictions(self) -> Mapping[str, Exception | None]:
        """Finished evictions since the last call: None for a guest that left, or the reason why it stays."""
        ...


class ThrottleExecutor:
    """Acts on host and guests for all triggers. Each trigger has a thread of its own."""

    def __init__(
        self,
        registry: MetricRegistry,
        arbiter: LimitSetter,
        evictor: EvictionStarter,
        switch_scheduling: Callable[[bool], None],
        telemetry: ThrottleTelemetry,
    ) -> None:
        """``switch_scheduling`` keeps new guests away (True) or lets them in, or raises an exception.

        ``registry`` has the levers and evictions that metrics of other packages bring with them.
        """
        self.telemetry = telemetry
        self._registry = registry
        self._arbiter = arbiter
        self._evictor = evictor
        self._switch_scheduling = switch_scheduling
        # By trigger: each has rounds of its own.
        self._previewed: dict[str, frozenset[Hashable]] = {}
        self._save_failure = ""

    def run_round(self, trigger: ThrottleTrigger[A]) -> tuple[A, ...]:
        """Carry out the plan of a trigger; return the completed actions.

        A failed action is reported and counted, and does not stop the others.
        """
        # First: a preview shows what would be done of this host, not of what this round leaves of it.
        self._show_preview(trigger.limit_owner, trigger.preview_actions())
        done: list[A] = []
        again = True
        while again:
            # Again only after a failure: what a success leaves to be done is for the next round, which
            # measures.
            actions = trigger.plan_actions()
            self.save_state(trigger, actions)
            again = False
            for action in actions:
                succeeded = self._carry_out(trigger.limit_owner, action)
                if succeeded:
                    done.append(action)
                again = trigger.settle_action(action, succeeded) or again
        return tuple(done)

    def save_state(self, trigger: ThrottleTrigger[A], actions: Sequence[A] = ()) -> None:
        """Save the state of a trigger. A full disk is reported once, and does not end the round."""
        # A host that is overloaded while its disk is full needs its limits all the same.
        try:
            trigger.save_state(actions)
            self._save_failure = ""
        # The round goes on: a full disk must not keep guests from being limited or restored.
        except OSError as error:
            if str(error) != self._save_failure:
                LOG.error("The state of throttling cannot be saved: %s; the agent tries again", error)
            self._save_failure = str(error)

    def resume_state(
        self, owner: str, throttles: Iterable[ThrottledGuest], evictions: Iterable[PendingEviction]
    ) -> None:
        """Apply the limits of a former agent again, and continue its evictions."""
        # In the state and perhaps not in the kernel: the former agent may have died between the two.
        for one in throttles:
            try:
                self._set_limit(owner, one.guest, one.knob, one.limit)
            except GuestGoneError:
                pass  # forgotten in the first round
            except Exception as error:  # the first round sets it right, or gives it up
                subject = self.telemetry.subject_of(one.guest)
                LOG.error("Guest %s cannot be throttled again: %s", subject, error)
        for eviction in evictions:
            LOG.info("The eviction of guest %s continues", self.telemetry.subject_of(eviction.guest))
            self._begin_eviction(eviction.guest, eviction.metric, eviction.grace)

    def finished_evictions(self, pending: Iterable[PendingEviction]) -> Mapping[str, Exception | None]:
        """Finished evictions since the last call: None for a guest that left, or the reason why it stays."""
        # The evictor knows guests; the state knows for what they were to leave.
        metrics = {one.guest: one.metric for one in pending}
        finished = self._evictor.finished_evictions()
        for guest, error in finished.items():
            if error is None:
                self.telemetry.record_evicted(guest)
            else:
                action = EvictAction(guest, metrics.get(guest, ""), "")
                self.telemetry.record_action(action, EventOutcome.FAILED, str(error))
        return finished

    def _carry_out(self, owner: str, action: ThrottlingAct) -> bool:
        try:
            match action:
                case SwitchScheduling():
                    self._switch_scheduling(action.off)
                case EvictAction():
                    self._begin_eviction(action.guest, action.metric, action.grace)
                case CaseDecision(what=CaseVerdict.ESCALATE):
                    self._begin_escalation(action)
                    return True  # reported when the command has ended
                # A verdict is reported, and no more.
                case CaseDecision() if not action.changes_limit:
                    pass
                case CaseDecision(case=case):
                    self._set_limit(owner, case.suspect, case.knob, action.limit)
                case ThrottleAction() | RestoreAction():
                    self._set_limit(owner, action.guest, action.knob, action.limit)
        except GuestGoneError:
            return True  # it uses nothing any more, which is more than was asked for
        except Exception as error:  # whatever it is, the next guest may be luckier
            self.telemetry.record_action(action, EventOutcome.FAILED, f"{type(error).__name__}: {error}")
            return False
        self.telemetry.record_action(action, EventOutcome.DONE)
        return True

    def _set_limit(self, owner: str, guest: str, knob: ThrottleControl, limit: float | None) -> None:
        # A lever of another package has hands of its own; the worker knows none of its limits.
        lever = self._registry.levers.get(knob.lever)
        if lever is not None and lever.set_limit is not None:
            lever.set_limit(guest, knob.domain, limit)
        else:
            self._arbiter.set_limit(owner, guest, knob, limit)

    def _begin_eviction(self, guest: str, metric: str, grace: float | None) -> None:
        # A state may name a metric of a package that is not installed any more: its guest leaves the usual
        # way.
        described = self._registry.get(metric)
        self._evictor.begin_eviction(guest, described.evict if described else None, grace)

    def _begin_escalation(self, decision: CaseDecision) -> None:
        # In a thread: a migration takes minutes, and the host is watched meanwhile.
        run_aside(ESCALATE_THREAD, partial(self._run_escalation, decision))

    def _run_escalation(self, decision: CaseDecision) -> None:
        assert decision.watch is not None, "a decision to escalate is one of a watch"
        assert decision.watch.escalate is not None, "without a command nothing is escalated"
        # An operator's program may do anything; its failure is an event, and never one of the agent.
        try:
            decision.watch.escalate(decision.case.suspect)
        except Exception as error:
            self.telemetry.record_action(decision, EventOutcome.FAILED, str(error))
        else:
            self.telemetry.record_action(decision, EventOutcome.DONE)

    def _show_preview(self, owner: str, actions: Iterable[ThrottlingAct]) -> None:
        """Report actions of sections in preview that are new since the last round."""
        shown = {_preview_key(action): action for action in actions}
        before = self._previewed.get(owner, frozenset())
        for key, action in shown.items():
            if key not in before:
                self.telemetry.record_action(action, EventOutcome.PREVIEW)
        # Only of the latest round: what stops and begins again is reported again.
        self._previewed[owner] = frozenset(shown)


def _preview_key(action: ThrottlingAct) -> Hashable:
    """The key of equivalent actions; their amounts may differ from round to round."""
    if isinstance(action, CaseDecision):
        return action.case.watch, action.case.victim, action.case.suspect
    return type(action), "" if isinstance(action, SwitchScheduling) else action.guest
