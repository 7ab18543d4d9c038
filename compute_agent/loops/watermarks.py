"""The watermark loop: measures use, decides, and throttles guests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from compute_agent.drivers.base import GuestThreads
from compute_agent.loops.base import ReloadedConfiguration
from compute_agent.loops.cache_entitlements import open_entitlements
from compute_agent.loops.evictions import GuestEvictions
from compute_agent.loops.limits import LimitBook, Limits
from compute_agent.loops.usage import CacheEntitlements, SubjectFactory
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.qos.evictor import GuestEvictor
from compute_agent.qos.executor import Save, ThrottleExecutor
from compute_agent.qos.rounds import CacheReader
from compute_agent.qos.rules import QosRules
from compute_agent.qos.sampler import MetricSampler
from compute_agent.qos.settings import QosSettings
from compute_agent.qos.snapshot import UsageSnapshot
from compute_agent.qos.state import QosState
from compute_agent.qos.streaks import Streaks
from compute_agent.qos.telemetry import ThrottleTelemetry
from compute_agent.threads import PeriodicTask, ThreadSpec

LOG = logging.getLogger(__name__)

SwitchScheduling = Callable[[bool], None]
"""Keeps new guests away (True) or lets them in again, as soon as that can be done."""

OWNER: Final = "watermarks"
"""In the book of limits."""

WATERMARKS_THREAD: Final = ThreadSpec(
    "watermarks",
    "``[qos] interval``, while there are watermarks or something is to be given back",
    "measures use, throttles and evicts guests, and keeps new guests away",
    "that of the book of limits",
    "files of the host and of guests; the worker; wakes ``report``",
)


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """What the watermarks know after a round; ``snapshot`` is None before the first."""

    rules: QosRules
    state: QosState
    snapshot: UsageSnapshot | None = None
    streaks: Streaks = field(default_factory=dict)


class WatermarkLoop:
    """The loop. Its thread runs while there are watermarks, or something is still to be given back."""

    def __init__(
        self,
        settings: QosSettings,
        state: QosState,
        pipeline: GuestPipeline,
        driver: GuestThreads,
        evictions: GuestEvictions,
        switch_scheduling: SwitchScheduling,
        save: Save,
        telemetry: ThrottleTelemetry,
        *,
        book: LimitBook | None = None,
        root: str = "/",
        cache: CacheReader | None = None,
        cache_entitlements: CacheEntitlements | None = None,
    ) -> None:
        """``state`` is what ``save`` was last called with. ``root`` is the folder that /proc is below.

        Who else limits guests has the same ``book``.
        """
        self._settings = settings
        self._book = book or LimitBook(pipeline)
        self._book.keep(OWNER, limits(settings.rules, state))
        self._pipeline = pipeline
        self._evictions = evictions
        self._telemetry = telemetry
        self._root = root
        self._cache = cache
        self._subjects = SubjectFactory(driver, cache_entitlements)
        self._sampler = MetricSampler(root, cache)
        self._executor = ThrottleExecutor(
            settings.rules,
            state,
            _WorkerActuator(self._book, switch_scheduling),
            GuestEvictor(evictions.stop, evictions.give_back),
            save,
            telemetry,
        )
        self._resumed = False
        self._thread = PeriodicTask(
            WATERMARKS_THREAD,
            self.round,
            lambda took: max(0.0, self._settings.interval - took),
            self._failed,
            is_needed=self._is_needed,
            begin=self._sample_anew,
        )
        self._latest: tuple[UsageSnapshot | None, Streaks] = (None, {})

    # For other threads

    def start(self) -> None:
        """Begin, if there is anything to do."""
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go by another configuration from the next round on.

        It comes when it is due: rates of a shorter time would mean little.
        """
        self._subjects.cache_entitlements = open_entitlements(
            conf.controllers, lambda: self._pipeline.world.zones
        )
        self._evictions.reload(conf)
        self._settings = conf.settings
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End the loop; limits and evictions stay, for the next agent.

        What hangs is not waited for longer than ``timeout`` seconds.
        """
        self._thread.stop(timeout)
        self._evictions.end()

    @property
    def status(self) -> WatermarkStatus:
        """What is known now."""
        return WatermarkStatus(self._settings.rules, self._executor.state, *self._latest)

    # The loop

    def _sample_anew(self) -> None:
        self._sampler = MetricSampler(self._root, self._cache)

    def _is_needed(self) -> bool:
        state = self._executor.state
        owed = state.throttles or state.evictions or state.scheduling_off
        return bool(self._settings.rules.watermarks or owed)

    def _failed(self, is_new: bool) -> None:
        if is_new:  # of a package's metric, say; the next round may be better
            LOG.exception("A round of the watermarks failed")
        self._telemetry.round_failures.inc()

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
        self._book.keep(OWNER, limits(settings.rules, executor.state))
        self._book.repair(views)
        subjects = self._subjects.build(views, settings.classes)
        snapshot = self._sampler.sample(settings.rules, subjects, time.monotonic())
        executor.round(snapshot)
        self._latest = (snapshot, executor.streaks)


class _WorkerActuator:
    """Acts through the worker; see :class:`compute_agent.qos.executor.ThrottleActuator`."""

    def __init__(self, book: LimitBook, switch_scheduling: SwitchScheduling) -> None:
        self._book = book
        self.switch_scheduling = switch_scheduling

    def throttle(self, guest: str, knob: ThrottleControl, limit: float) -> None:
        self._book.limit(OWNER, guest, knob, limit)

    def restore(self, guest: str, knob: ThrottleControl) -> None:
        self._book.limit(OWNER, guest, knob, None)


def limits(rules: QosRules, state: QosState) -> Limits:
    """The limits in force, by guest.

    Levers that set limits by themselves are none of the worker's.
    """
    found: Limits = {}
    foreign = {name for name, lever in rules.registry.levers.items() if lever.set_limit is not None}
    for one in state.throttles:
        if one.knob.lever not in foreign:
            found.setdefault(one.guest, {})[one.knob] = one.limit
    return found
