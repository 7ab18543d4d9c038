"""Carrying plans out: a thin shell around ``make_plan``, one round at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from compute_agent.events.event import EventOutcome
from compute_agent.model.messages import GuestGoneError, called
from compute_agent.model.resource import ThrottleControl
from compute_agent.qos.actions import Act, EvictAction, RestoreAction, SwitchScheduling, ThrottleAction, takes
from compute_agent.qos.evictor import GuestEvictor
from compute_agent.qos.plan import make_plan
from compute_agent.qos.restore import forgiven
from compute_agent.qos.rules import QosRules
from compute_agent.qos.snapshot import UsageSnapshot
from compute_agent.qos.state import QosState
from compute_agent.qos.streaks import Streaks, observe
from compute_agent.qos.telemetry import ThrottleTelemetry

LOG = logging.getLogger(__name__)

_BACKOFF_SECONDS: Final = 300.0
"""A guest that could not be evicted is left alone for so long; the next one is taken meanwhile."""


class ThrottleActuator(Protocol):
    """Whoever acts on host and guests. Every method raises an exception if it fails, and may be repeated."""

    def throttle(self, guest: str, knob: ThrottleControl, limit: float) -> None:
        """Limit a guest, in the lever's unit.

        :raises GuestGoneError: it is gone.
        """
        ...

    def restore(self, guest: str, knob: ThrottleControl) -> None:
        """Take a limit away.

        :raises GuestGoneError: it is gone.
        """
        ...

    def switch_scheduling(self, off: bool) -> None:
        """Keep new guests away from the host, or let them in again."""
        ...


Save = Callable[[QosState], None]
"""Keeps the state; durable when it returns. Raises OSError, and the next call tries again."""


class ThrottleExecutor:
    """Plans and acts. One thread calls it."""

    def __init__(
        self,
        rules: QosRules,
        state: QosState,
        actuator: ThrottleActuator,
        evictor: GuestEvictor,
        save: Save,
        telemetry: ThrottleTelemetry,
    ) -> None:
        self.state = state
        self._rules = rules
        self._actuator = actuator
        self._evictor = evictor
        self._save = save
        self._telemetry = telemetry
        self._streaks: Streaks = {}
        self._preview_streaks: Streaks = {}
        self._previewed: frozenset[tuple[type[Act], str]] = frozenset()
        self._backoff: dict[str, float] = {}
        self._names: dict[str, str] = {}
        """Of the guests of the latest snapshot, and of those that have been evicted since."""

    @property
    def streaks(self) -> Streaks:
        """How long usage has been above each watermark, those in preview included."""
        return {**self._streaks, **self._preview_streaks}

    def use(self, rules: QosRules) -> None:
        """Go by other rules from now on.

        What the old ones did is taken back where the new ones do not ask for it.
        """
        self._rules = rules

    def resume(self) -> None:
        """After a start: put what the state says into effect again, and finish what was begun."""
        for one in self.state.throttles:
            try:
                self._set_limit(one.guest, one.knob, one.limit)
            except GuestGoneError:
                pass  # forgotten in the first round
            except Exception as error:
                LOG.error("Guest %s cannot be throttled again: %s", self._called(one.guest), error)
        for eviction in self.state.evictions:
            LOG.info("The eviction of guest %s goes on", self._called(eviction.guest))
            self._begin_eviction(eviction.guest, eviction.metric)

    def round(self, snapshot: UsageSnapshot) -> tuple[Act, ...]:
        """Take one snapshot, act, and return what was done.

        An action that fails on one guest is told and counted, and the plan is made anew without that guest.
        """
        leaving = {guest: self._names.get(guest, "") for guest in self.state.evicting}
        self._names = leaving | {guest.uuid: guest.name for guest in snapshot.guests.values()}
        gone = self._collect_evictions(snapshot.time)
        self.state = self.state.only(snapshot.guests)
        rules = self._rules.only(preview=False)
        self._streaks = observe(self._streaks, rules.watermarks, snapshot, rules.expected(self.state))
        self._preview(snapshot)
        self.state = forgiven(rules, snapshot, self._streaks, self.state)
        done: list[Act] = []
        tried: set[str] = set()
        expected, failed = snapshot, True
        while failed:
            plan = make_plan(
                rules,
                expected,
                self._streaks,
                self.state,
                excluded=frozenset(tried),
                unevictable=frozenset(self._backoff),
            )
            if tried:
                plan = tuple(action for action in plan if not isinstance(action, SwitchScheduling))
            if above := [
                f"{watch.watermark} {watch.action}" for watch, one in self._streaks.items() if one.samples
            ]:
                LOG.debug(
                    "Above their watermarks: %s; to be done: %s", ", ".join(above), ", ".join(map(str, plan))
                )
            failed = False
            self._keep(_intended(self.state, plan))
            for action in plan:
                succeeded, before = self._do(action), self.state
                if succeeded:
                    done.append(action)
                    self.state = self.state.after(action)
                    expected = _expected(rules, expected, before, action)
                if not isinstance(action, SwitchScheduling):
                    tried.add(action.guest)
                    failed = failed or not succeeded
        for guest in gone:
            self.state = self.state.left(guest)
        self._keep(self.state)
        self._telemetry.show(snapshot, self.state)
        return tuple(done)

    def _do(self, action: Act) -> bool:
        try:
            match action:
                case SwitchScheduling():
                    self._actuator.switch_scheduling(action.off)
                case EvictAction():
                    self._begin_eviction(action.guest, action.metric)
                case ThrottleAction() | RestoreAction():
                    self._set_limit(action.guest, action.knob, action.limit)
        except GuestGoneError:
            return True  # it uses nothing any more, which is more than was asked for
        except Exception as error:  # whatever it is, the next guest may be luckier
            self._record(action, EventOutcome.FAILED, f"{type(error).__name__}: {error}")
            return False
        self._record(action, EventOutcome.DONE)
        return True

    def _record(self, action: Act, outcome: EventOutcome, reason: str = "") -> None:
        name = "" if isinstance(action, SwitchScheduling) else self._names.get(action.guest, "")
        self._telemetry.record(action, outcome, reason, name)

    def _called(self, guest: str) -> str:
        return called(self._names.get(guest, ""), guest)

    def _set_limit(self, guest: str, knob: ThrottleControl, limit: float | None) -> None:
        lever = self._rules.registry.levers.get(knob.lever)
        if lever is not None and lever.set_limit is not None:
            lever.set_limit(guest, knob.domain, limit)
        elif limit is None:
            self._actuator.restore(guest, knob)
        else:
            self._actuator.throttle(guest, knob, limit)

    def _begin_eviction(self, guest: str, metric: str) -> None:
        described = self._rules.registry.get(metric)
        self._evictor.begin(guest, described.evict if described else None)

    def _collect_evictions(self, time: float) -> list[str]:
        """See which evictions ended.

        Returns the guests that have left: the snapshot may still have them, so that they count as being
        evicted in this round.
        """
        self._backoff = {guest: until for guest, until in self._backoff.items() if until > time}
        gone = []
        for guest, error in self._evictor.finished().items():
            if error is None:
                self._telemetry.evicted(guest, self._names.get(guest, ""))
                gone.append(guest)
                continue
            metric = next((one.metric for one in self.state.evictions if one.guest == guest), "")
            self.state = self.state.left(guest)
            self._backoff[guest] = time + _BACKOFF_SECONDS
            self._record(EvictAction(guest, metric, ""), EventOutcome.FAILED, str(error))
        return gone

    def _preview(self, snapshot: UsageSnapshot) -> None:
        """Log what the watermarks in preview would do, when that is something else than last time."""
        rules = self._rules.only(preview=True)
        self._preview_streaks = observe(self._preview_streaks, rules.watermarks, snapshot)
        plan = filter(takes, make_plan(rules, snapshot, self._preview_streaks, self.state))
        shown = {(type(action), getattr(action, "guest", "")): action for action in plan}
        for key, action in shown.items():
            if key not in self._previewed:
                self._record(action, EventOutcome.PREVIEW)
        self._previewed = frozenset(shown)

    def _keep(self, state: QosState) -> None:
        try:
            self._save(state)
        except OSError as error:
            LOG.error("The state of the watermarks cannot be saved: %s; will be tried again", error)


def _intended(state: QosState, plan: Iterable[Act]) -> QosState:
    """The state that is saved before acting: a crash meanwhile must leave no limit that nobody knows of."""
    for action in plan:
        if takes(action):
            state = state.after(action)
    return state


def _expected(rules: QosRules, snapshot: UsageSnapshot, before: QosState, action: Act) -> UsageSnapshot:
    """The snapshot once an action has been taken; evictions are in the state, and counted from there."""
    if isinstance(action, ThrottleAction):
        limit = before.limit(action.guest, action.knob)
        return rules.throttled(snapshot, action.guest, action.knob, limit, action.limit)
    if isinstance(action, RestoreAction):
        limit = before.limit(action.guest, action.knob)
        assert limit is not None, "only what is throttled is restored"
        return rules.restored(snapshot, action.guest, action.knob, limit, action.limit)
    return snapshot
