"""The executor carries out the decisions of a trigger in each round of the trigger.

In each round, the executor first reports the actions of sections in preview, without carrying them out. After
this report, the executor asks the trigger for a plan, saves the state, and acts. If an action on a guest
fails, the executor asks for another plan without this guest. Each action that restricts a guest is on disk
before it is carried out, so that after a crash the next run of the agent knows all limits. Watermarks
reclaim memory before they limit or evict guests: the kernel moves memory that guests do not use to swap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from compute_agent.drivers.base import GuestThreads
from compute_agent.drivers.memory_limits import reclaim_memory
from compute_agent.events.event import EventOutcome
from compute_agent.host.kernel_files import read_optional
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.threads import ONCE, ThreadSpec, run_aside
from compute_agent.throttling.arbiter import LimitArbiter
from compute_agent.throttling.evictions import GuestEvictor
from compute_agent.throttling.interference.cases import CaseDecision, CaseVerdict
from compute_agent.throttling.telemetry import ThrottleTelemetry, ThrottlingAct
from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    ReclaimAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    ThrottledGuest,
)
from compute_agent.usage.rounds import parse_recent_pressure

RECLAIM_SECONDS: Final = 1.0
"""Maximum seconds for which the kernel reclaims memory for one action. The thread of watermarks waits for the
kernel.
"""

MAX_PRESSURE: Final = 10.0
"""Maximum memory pressure of a guest (PSI ``avg10``), in percent of the time. A guest with a higher pressure
needs all its memory, so nothing is reclaimed."""

_MIN_PART: Final = 0.1
"""If a reclaim frees less than this part of the requested amount, the agent reclaims nothing more of the
guest for minutes.
"""


def reclaim_from_guest(pipeline: GuestPipeline, driver: GuestThreads, uuid: str, amount: int) -> None:
    """Ask the kernel to reclaim up to ``amount`` bytes of a guest's memory; return after about a second.

    Any thread may call the function.

    :raises GuestGoneError: the guest is gone.
    :raises DriverError: the guest needs all its memory, or the kernel cannot reclaim memory of the guest.
    """
    view = next((one for one in pipeline.guest_views() if one.guest.uuid == uuid), None)
    if view is None:
        raise GuestGoneError(f"guest {uuid} has ended")
    group = driver.usage_group(view.guest)
    if not group:
        raise DriverError("the guest has no cgroup v2 group of its own")
    pressure = parse_recent_pressure(read_optional(f"{group}/memory.pressure") or "")
    if pressure is not None and pressure > MAX_PRESSURE:
        raise DriverError(f"the guest has waited for memory in {pressure:g} % of the last 10 seconds")
    try:
        done = reclaim_memory(group, amount, RECLAIM_SECONDS)
    except FileNotFoundError as error:
        raise DriverError(f"the kernel is older than Linux 5.19, or the guest has ended: {error}") from error
    except OSError as error:
        raise DriverError(f"the kernel reclaims no memory: {error}") from error
    if done < amount * _MIN_PART:
        raise DriverError(f"the kernel found less than {amount >> 20} MiB that the guest does not use")


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
    """Plans actions on guests for one reason, such as watermarks, and records the outcomes of the actions."""

    @property
    def limit_owner(self) -> str:
        """The name of this trigger, which marks its limits in the arbiter and in the log."""
        ...

    def preview_actions(self) -> Sequence[A]:
        """The actions that sections with ``preview`` would take in this round if they were in force."""
        ...

    def plan_actions(self) -> Sequence[A]:
        """The actions of this round, in order. After a failed action, a further call returns another plan."""
        ...

    def settle_action(self, action: A, succeeded: bool) -> bool:
        """Record whether an action has succeeded. Return whether this round needs another plan."""
        ...

    def save_state(self, actions: Sequence[A]) -> None:
        """Save the state that will hold after those ``actions`` that restrict guests.

        :raises OSError: the state could not be saved; the next call tries again.
        """
        ...


class ThrottleExecutor:
    """Carries out the actions of all triggers. Each trigger calls the executor from its own thread."""

    def __init__(
        self,
        registry: MetricRegistry,
        arbiter: LimitArbiter,
        evictor: GuestEvictor,
        switch_scheduling: Callable[[bool], None],
        telemetry: ThrottleTelemetry,
        reclaim_memory: Callable[[str, int], None],
    ) -> None:
        """Use the given objects to limit and evict guests, to reclaim memory and to switch scheduling.

        ``switch_scheduling`` keeps new guests away (True) or lets them in, and raises an exception on
        failure. ``reclaim_memory`` takes the uuid of a guest and a number of bytes, reclaims this memory
        once, and raises an exception on failure. ``registry`` has the levers of all metrics. For metrics of
        other packages, the registry also has the functions that evict guests.
        """
        self.telemetry = telemetry
        self._registry = registry
        self._arbiter = arbiter
        self._evictor = evictor
        self._switch_scheduling = switch_scheduling
        self._reclaim_memory = reclaim_memory
        # Previewed actions are kept by trigger, because watermarks and interference have rounds of different
        # lengths.
        self._previewed: dict[str, frozenset[Hashable]] = {}
        self._save_failure = ""

    def run_round(self, trigger: ThrottleTrigger[A]) -> tuple[A, ...]:
        """Carry out a plan, log and count failures; return the actions that succeeded."""
        # Preview comes first, because its actions are for the measured host, before the actions of this
        # round.
        self._show_preview(trigger.limit_owner, trigger.preview_actions())
        done: list[A] = []
        again = True
        while again:
            # Another plan is made only after a failure. If all actions succeed and the shortage remains, the
            # next round acts on new measurements.
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
        """Save the state that a trigger will have after those ``actions`` that restrict guests.

        A failure, such as a full disk, does not end the round. The same error is logged only once.
        """
        try:
            trigger.save_state(actions)
            self._save_failure = ""
        # The round continues, because an overloaded host needs limits even if its disk is full.
        except OSError as error:
            if str(error) != self._save_failure:
                LOG.error("The state of throttling cannot be saved: %s; the agent tries again", error)
            self._save_failure = str(error)

    def resume_state(
        self, owner: str, throttles: Iterable[ThrottledGuest], evictions: Iterable[EvictAction]
    ) -> None:
        """Set the saved limits, and continue the saved evictions; the first round corrects failed limits."""
        # The previous run of the agent saved each limit before it set the limit, and may have ended in
        # between.
        for one in throttles:
            try:
                self._set_limit(owner, one.guest, one.knob, one.limit)
            except GuestGoneError:
                pass  # the first round removes the guest from the state
            except Exception as error:  # the first round corrects or removes the limit
                subject = self.telemetry.subject_of(one.guest)
                LOG.error("The limit of guest %s cannot be set again after the restart: %s", subject, error)
        for eviction in evictions:
            LOG.info(
                "The agent continues the eviction of guest %s after the restart",
                self.telemetry.subject_of(eviction.guest),
            )
            self._begin_eviction(eviction.guest, eviction.metric, eviction.grace)

    def finished_evictions(self, pending: Iterable[EvictAction]) -> Mapping[str, Exception | None]:
        """Report and return ended evictions, by uuid: None if the guest has left, or the error.

        :param pending: the evictions in the state of the trigger.
        """
        # The evictor knows only the uuids of guests. The trigger's state has the reasons.
        actions = {one.guest: one for one in pending}
        finished = self._evictor.finished_evictions()
        for guest, error in finished.items():
            if error is None:
                self.telemetry.record_evicted(guest)
            else:
                action = actions.get(guest, EvictAction(guest, ""))
                self.telemetry.record_action(action, EventOutcome.FAILED, str(error))
        return finished

    def _carry_out(self, owner: str, action: ThrottlingAct) -> bool:
        try:
            match action:
                case SwitchScheduling():
                    self._switch_scheduling(action.off)
                case EvictAction():
                    self._begin_eviction(action.guest, action.metric, action.grace)
                case ReclaimAction():
                    self._reclaim_memory(action.guest, action.amount)
                case CaseDecision(what=CaseVerdict.ESCALATE):
                    # The command runs in its own thread, because a migration takes minutes, and the trigger's
                    # rounds have to continue. The outcome is reported later.
                    run_aside(ESCALATE_THREAD, partial(self._run_escalation, action))
                    return True
                # A verdict changes no limit, and is only reported below.
                case CaseDecision() if not action.changes_limit:
                    pass
                case CaseDecision(case=case):
                    self._set_limit(owner, case.suspect, case.knob, action.limit)
                case ThrottleAction() | RestoreAction():
                    self._set_limit(owner, action.guest, action.knob, action.limit)
        except GuestGoneError:
            return True  # a guest that has ended uses nothing, so the action is not needed any more
        except Exception as error:  # commands of operators and code of other packages can raise anything
            self.telemetry.record_action(action, EventOutcome.FAILED, f"{type(error).__name__}: {error}")
            return False
        self.telemetry.record_action(action, EventOutcome.DONE)
        return True

    def _set_limit(self, owner: str, guest: str, knob: ThrottleControl, limit: float | None) -> None:
        # A lever of another package can set limits by itself; the worker does not know these limits.
        lever = self._registry.levers.get(knob.lever)
        if lever is not None and lever.set_limit is not None:
            lever.set_limit(guest, knob.domain, limit)
        else:
            self._arbiter.set_limit(owner, guest, knob, limit)

    def _begin_eviction(self, guest: str, metric: str, grace: float | None) -> None:
        # A saved state can name a metric of a package that was removed since. The default eviction of the
        # agent then applies.
        described = self._registry.get(metric)
        self._evictor.begin_eviction(guest, described.evict if described else None, grace)

    def _run_escalation(self, decision: CaseDecision) -> None:
        assert decision.watch is not None, "a decision to escalate is one of a watch"
        assert decision.watch.escalate is not None, "without a command nothing is escalated"
        # Any exception is caught, so that each failure of the operator's program is reported.
        try:
            decision.watch.escalate(decision.case.suspect)
        except Exception as error:
            self.telemetry.record_action(decision, EventOutcome.FAILED, str(error))
        else:
            self.telemetry.record_action(decision, EventOutcome.DONE)

    def _show_preview(self, owner: str, actions: Iterable[ThrottlingAct]) -> None:
        """Report the actions of sections in preview, except those that the previous round has reported."""
        shown = {_preview_key(action): action for action in actions}
        before = self._previewed.get(owner, frozenset())
        for key, action in shown.items():
            if key not in before:
                self.telemetry.record_action(action, EventOutcome.PREVIEW)
        # Only the actions of this round are kept, so that an action that returns after a pause is reported
        # again.
        self._previewed[owner] = frozenset(shown)


def _preview_key(action: ThrottlingAct) -> Hashable:
    """The key by which the next round recognises a previewed action, and does not report it again."""
    if isinstance(action, CaseDecision):
        return action.case.guest_pair
    return type(action), "" if isinstance(action, SwitchScheduling) else action.guest
