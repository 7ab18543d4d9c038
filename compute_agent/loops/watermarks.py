"""The thread that keeps the host below its watermarks.

Usage is read, decided about and acted on, round by round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from compute_agent.drivers.base import Driver
from compute_agent.loops.base import Configuration
from compute_agent.loops.cache_entitlements import open_entitlements
from compute_agent.loops.evictions import Evictions
from compute_agent.loops.subjects import CacheEntitlements, Subjects
from compute_agent.model.errors import GuestGoneError
from compute_agent.model.knob import Knob
from compute_agent.pipeline.events import LimitGuest
from compute_agent.pipeline.view import GuestView
from compute_agent.pipeline.worker import Pipeline
from compute_agent.qos.evictor import Evictor
from compute_agent.qos.executor import Executor, Save
from compute_agent.qos.rounds import CacheReader
from compute_agent.qos.rules import Rules
from compute_agent.qos.sampler import Sampler
from compute_agent.qos.settings import Settings
from compute_agent.qos.snapshot import Snapshot
from compute_agent.qos.state import QosState
from compute_agent.qos.streaks import Streaks
from compute_agent.qos.telemetry import Telemetry

LOG = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 10.0

SwitchScheduling = Callable[[bool], None]
"""Keeps new guests away (True) or lets them in again, as soon as that can be done."""

Limits = dict[str, dict[Knob, float]]


@dataclass(frozen=True, slots=True)
class Status:
    """What the watermarks know after a round; ``snapshot`` is None before the first."""

    rules: Rules
    state: QosState
    snapshot: Snapshot | None = None
    streaks: Streaks = field(default_factory=dict)


class Watermarks:
    """The loop. Its thread runs while there are watermarks, or something is still to be given back."""

    def __init__(
        self,
        settings: Settings,
        state: QosState,
        pipeline: Pipeline,
        driver: Driver,
        evictions: Evictions,
        switch_scheduling: SwitchScheduling,
        save: Save,
        telemetry: Telemetry,
        *,
        root: str = "/",
        cache: CacheReader | None = None,
        cache_entitlements: CacheEntitlements | None = None,
    ) -> None:
        """``state`` is what ``save`` was last called with. ``root`` is the folder that /proc is below."""
        self._settings = settings
        self._pipeline = pipeline
        self._evictions = evictions
        self._telemetry = telemetry
        self._root = root
        self._cache = cache
        self._subjects = Subjects(driver, cache_entitlements)
        self._sampler = Sampler(root, cache)
        self._executor = Executor(
            settings.rules,
            state,
            _Actuator(pipeline, switch_scheduling),
            Evictor(evictions.stop, evictions.give_back),
            save,
            telemetry,
        )
        self._resumed = False
        self._refused: dict[LimitGuest, str] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._latest: tuple[Snapshot | None, Streaks] = (None, {})

    # For other threads

    def start(self) -> None:
        """Begin, if there is anything to do."""
        with self._lock:
            self._start()

    def reload(self, conf: Configuration) -> None:
        """Go by another configuration from the next round on.

        It comes when it is due: rates of a shorter time would mean little.
        """
        entitlements = open_entitlements(conf.controllers, lambda: self._pipeline.world.zones)
        with self._lock:
            self._subjects.cache_entitlements = entitlements
            self._evictions.reload(conf)
            self._settings = conf.settings
            self._start()

    def stop(self, timeout: float = 2.0) -> None:
        """End the loop; limits and evictions stay, for the next agent.

        What hangs is not waited for longer than ``timeout`` seconds.
        """
        with self._lock:
            self._stopped.set()
            thread = self._thread
        self._evictions.end()
        if thread is not None:
            thread.join(timeout)

    @property
    def status(self) -> Status:
        """What is known now."""
        return Status(self._settings.rules, self._executor.state, *self._latest)

    # The loop

    def _start(self) -> None:
        if self._thread is None and not self._stopped.is_set() and self._is_needed():
            self._sampler = Sampler(self._root, self._cache)
            self._thread = threading.Thread(target=self._run, name="watermarks", daemon=True)
            self._thread.start()

    def _is_needed(self) -> bool:
        state = self._executor.state
        owed = state.throttles or state.evictions or state.scheduling_off
        return bool(self._settings.rules.watermarks or owed)

    def _run(self) -> None:
        due, failure = time.monotonic(), ""
        while self._goes_on():
            try:
                self.round()
                failure = ""
            except Exception as error:  # of a package's metric, say; the next round may be better
                if repr(error) != failure:
                    LOG.exception("A round of the watermarks failed")
                failure = repr(error)
                self._telemetry.round_failures.inc()
            due = max(due + self._settings.interval, time.monotonic())
            self._stopped.wait(max(0.0, due - time.monotonic()))

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._stopped.is_set() and self._is_needed():
                return True
            self._thread = None
            return False

    def round(self) -> None:
        """One round, here and now; nothing as long as it is not known which guests run."""
        if not self._pipeline.has_taken_over:
            return
        settings, executor = self._settings, self._executor
        executor.use(settings.rules)
        if not self._resumed:
            executor.resume()
            self._resumed = True
        views = self._pipeline.views()
        self._repair(settings.rules, views)
        subjects = self._subjects.build(views, settings.classes)
        snapshot = self._sampler.sample(settings.rules, subjects, time.monotonic())
        executor.round(snapshot)
        self._latest = (snapshot, executor.streaks)

    def _repair(self, rules: Rules, views: Sequence[GuestView]) -> None:
        """Make the pipeline's limits those of the state.

        A guest may have been rebooted, and an answer may have come too late to be heard.
        """
        refused = {}
        guests = {view.guest.uuid: view.guest for view in views}
        for event in differences(rules, self._executor.state, views):
            try:
                self._pipeline.submit(event).result(_ANSWER_SECONDS)
            except GuestGoneError:
                continue
            except Exception as error:
                refused[event] = str(error)
                if self._refused.get(event) != str(error):
                    LOG.warning("The limit of guest %s cannot be set right: %s", guests[event.uuid], error)
        self._refused = refused


class _Actuator:
    """Acts through the worker; see :class:`compute_agent.qos.executor.Actuator`."""

    def __init__(self, pipeline: Pipeline, switch_scheduling: SwitchScheduling) -> None:
        self._pipeline = pipeline
        self.switch_scheduling = switch_scheduling

    def throttle(self, guest: str, knob: Knob, limit: float) -> None:
        self._pipeline.submit(LimitGuest(guest, knob, limit)).result(_ANSWER_SECONDS)

    def restore(self, guest: str, knob: Knob) -> None:
        self._pipeline.submit(LimitGuest(guest, knob, None)).result(_ANSWER_SECONDS)


def limits(state: QosState) -> Limits:
    """The limits in force, by guest."""
    found: Limits = {}
    for one in state.throttles:
        found.setdefault(one.guest, {})[one.knob] = one.limit
    return found


def differences(rules: Rules, state: QosState, views: Sequence[GuestView]) -> list[LimitGuest]:
    """What makes the limits that the pipeline has those of the state.

    Levers that set limits by themselves are none of the pipeline's.
    """
    wanted, found = limits(state), []
    foreign = {name for name, lever in rules.registry.levers.items() if lever.set_limit is not None}
    for view in views:
        uuid = view.guest.uuid
        should = {knob: limit for knob, limit in wanted.get(uuid, {}).items() if knob.lever not in foreign}
        if should != view.limits:
            found += [
                LimitGuest(uuid, knob, should.get(knob))
                for knob in sorted({*should, *view.limits})
                if should.get(knob) != view.limits.get(knob)
            ]
    return found
