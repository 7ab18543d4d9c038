"""The loops of the two triggers of throttling, watermarks and interference: they measure, decide and act.

Each trigger has a thread of its own, so that a metric or signal that hangs does not keep the other trigger
from removing its limits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from compute_agent.drivers.base import GuestThreads
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration
from compute_agent.monitoring.readings import MonitoredCaches
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.threads import PeriodicTask, ThreadSpec
from compute_agent.throttling.arbiter import LimitArbiter
from compute_agent.throttling.evictions import GuestEvictions
from compute_agent.throttling.executor import ThrottleExecutor
from compute_agent.throttling.interference.signals import MIN_CPU, GuestSamples
from compute_agent.throttling.samplers import GuestReader, MetricSampler
from compute_agent.throttling.settings import ThrottlingSettings
from compute_agent.throttling.state_file import ThrottlingFile
from compute_agent.throttling.triggers import InterferenceTrigger, WatermarkTrigger
from compute_agent.throttling.watermarks.breaches import Streaks, find_near_watermarks, lacks_rates
from compute_agent.throttling.watermarks.sections import WatermarkRules
from compute_agent.throttling.watermarks.state import WatermarkState
from compute_agent.throttling.watermarks.thresholds import WeekMoment, local_moment
from compute_agent.usage.rounds import OversoldReader, SourceReader
from compute_agent.usage.snapshot import GuestUsage, UsageSnapshot
from compute_agent.usage.subjects import CacheAllotments, SubjectFactory, open_allotments

LOG = logging.getLogger(__name__)

INTERVAL: Final = 10.0
"""Seconds between two samples of interference.

With shorter samples, the values would be mostly noise. A trial takes seven samples.
"""


GUEST_SECONDS: Final = 15.0
"""Seconds between two measurements of guests while the host is far below all thresholds. A measurement takes
two rounds, because a rate needs two readings.
"""

WATERMARKS_THREAD: Final = ThreadSpec(
    "watermarks",
    "``[qos] interval``, while there are watermarks or something is to be given back",
    "measures use, throttles and evicts guests, and keeps new guests away",
    "that of the arbiter of limits; that of the state file of throttling",
    "files of the host and of guests; the worker; wakes ``report``",
)

INTERFERENCE_THREAD: Final = ThreadSpec(
    "interference",
    INTERVAL,
    "samples guests while interference is watched for, and limits the guests that disturb others",
    "that of the arbiter of limits; that of the state file of throttling",
    "files of the host and of guests; the worker",
)


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """The state of the watermark loop after its latest round.

    :ivar rules: the rules with the thresholds of the present minute of the week.
    :ivar state: the limits in force, the evictions in progress, and whether new guests are kept away.
    :ivar snapshot: the measured usage; None before the first round.
    :ivar streaks: the streak of each watermark, domain and action.
    """

    rules: WatermarkRules
    state: WatermarkState
    snapshot: UsageSnapshot | None = None
    streaks: Streaks = field(default_factory=dict)


class WatermarkLoop(AgentLoop):
    """Runs rounds of watermarks while a watermark is configured or a limit of watermarks is in force."""

    def __init__(
        self,
        settings: ThrottlingSettings,
        file: ThrottlingFile,
        pipeline: GuestPipeline,
        driver: GuestThreads,
        executor: ThrottleExecutor,
        arbiter: LimitArbiter,
        evictions: GuestEvictions,
        *,
        root: str = "/",
        cache: MonitoredCaches | None = None,
        cache_allotments: CacheAllotments | None = None,
        read_source: SourceReader = lambda name: None,
        read_oversold: OversoldReader = lambda resource_class: None,
        moment: Callable[[], WeekMoment] = local_moment,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the loop, and pass the limits that the previous run of the agent saved to the arbiter.

        :param root: the folder that contains ``proc``, usually ``/``.
        :param cache: reads the counters of caches; None means that caches are not measured.
        :param cache_allotments: the allotments of caches and bandwidth; None means that caches and bandwidth
            cannot be limited.
        :param read_source: returns the last value of a metric from a source outside the kernel, by its name.
        :param read_oversold: returns the amount of a reclaimed class that guests hold beyond the present
            offers.
        :param moment: returns the present minute of the week, for thresholds that depend on it.
        :param clock: returns monotonic seconds.
        """
        self._moment = moment
        self._clock = clock
        self._settings = settings
        self._pipeline = pipeline
        self._executor = executor
        self._arbiter = arbiter
        self._evictions = evictions
        self._new_sampler = partial(MetricSampler, root, cache, read_source, read_oversold)
        self._subjects = SubjectFactory(driver, cache_allotments, root)
        self._renew_sampler()
        self._trigger = WatermarkTrigger(
            settings.rules, file.state.watermarks, executor, file.keep_watermarks
        )
        self._keep_limits()
        self._resumed = False
        self._thread = PeriodicTask(
            WATERMARKS_THREAD,
            self.run_round,
            # The interval is the time between the starts of two rounds, because rates need even intervals.
            lambda took: max(0.0, self._settings.interval - took),
            self._count_failure,
            is_needed=self.is_needed,
            begin=self._renew_sampler,
        )
        self._guests: Mapping[str, GuestUsage] = {}
        """The guests as they were in the latest round that measured all metrics of guests."""
        self._latest: tuple[UsageSnapshot | None, Streaks, Mapping[str, GuestUsage]] = (None, {}, {})

    # Methods for other threads

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration from the next round on.

        The next round does not begin earlier, because rates over a short time would be inexact.
        """
        self.use_options(conf)
        self._thread.start()

    def use_options(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration from the next round on, without starting a thread."""
        self._subjects.cache_allotments = open_allotments(
            conf.controllers, lambda: self._pipeline.host_state.all_zones
        )
        # The settings of evictions are replaced first. Otherwise a round with the new settings could evict by
        # the former command.
        self._evictions.use_settings(conf.settings, conf.client)
        self._settings = conf.settings

    def stop(self) -> None:
        """Stop the thread. Limits stay in force, and the next run of the agent continues the evictions."""
        super().stop()
        self._evictions.end_waiting()

    @property
    def status(self) -> WatermarkStatus:
        """The present state, for commands and for other loops."""
        rules = self._settings.rules.at_moment(self._moment())
        snapshot, streaks, guests = self._latest
        # Rounds measure only the metrics that decisions need. Commands show the latest values of all metrics.
        shown = None if snapshot is None else snapshot.with_earlier_usage(guests)
        return WatermarkStatus(rules, self._trigger.state, shown, streaks)

    # The loop

    def _renew_sampler(self) -> None:
        # After a pause of rounds, the sampler is replaced. Otherwise the first rates after the pause would be
        # means over the whole pause.
        self._sampler = self._new_sampler()
        self._look_due, self._rounds_due = 0.0, 0

    def is_needed(self) -> bool:
        """Whether a round is needed: there are watermarks, or something has to be undone."""
        # Limits outlive the watermarks that set them, and only rounds remove them.
        return bool(self._settings.rules.watermarks) or self._is_owed

    @property
    def _is_owed(self) -> bool:
        """Whether there is anything to undo later: a limit, an eviction, or the switch of scheduling."""
        state = self._trigger.state
        return bool(state.throttles or state.evictions or state.scheduling_off)

    def _count_failure(self, is_new: bool) -> None:
        if is_new:  # perhaps a metric of another package raised it, and works in the next round
            LOG.exception("A round of the watermarks failed")
        self._executor.telemetry.watermark_failures.inc()

    def _keep_limits(self) -> None:
        limits = self._trigger.state.guest_limits(self._settings.foreign_levers)
        self._arbiter.replace_limits(self._trigger.limit_owner, limits)

    def run_round(self) -> None:
        """Measure, decide and act once; do nothing until the running guests are known."""
        if not self._pipeline.has_taken_over:
            return
        settings, trigger = self._settings, self._trigger
        # The configuration is read once at the beginning, so that a reload during the round does not mix two
        # configurations.
        rules = settings.rules.at_moment(self._moment())
        trigger.use_rules(rules)
        # The saved actions are resumed once, when the guests are known. If this was done earlier, the limits
        # of guests that are not known yet would be dropped.
        if not self._resumed:
            trigger.resume_actions()
            self._resumed = True
        self._keep_limits()
        time = self._clock()
        near = None
        if not self._guests_due(time):
            host = self._sampler.measure_host(rules, time)
            near = find_near_watermarks(rules, host)
            if not near:
                self._finish_round(host)
                return
        views = self._pipeline.guest_views()
        # Limits are repaired before the measurement. A guest that was started again has lost its limit. Its
        # use without the limit would lead to a lower limit than necessary.
        self._arbiter.repair_limits(views)
        subjects = self._subjects.build_subjects(views, settings.classes)
        snapshot = self._sampler.take_snapshot(rules, subjects, time, near)
        rated = self._sampler.rated_metrics
        # After a jump of the usage, only the next round has the rates of guests, and decides.
        if lacks_rates(rules, snapshot, rated):
            return
        if near is None and (rated >= self._sampler.guest_metrics or not self._guests):
            self._guests = snapshot.guests
        self._finish_round(snapshot)

    def _guests_due(self, time: float) -> bool:
        """Whether this round has to measure all metrics of guests, even if usage of the host is low."""
        if time >= self._look_due:
            self._look_due, self._rounds_due = time + GUEST_SECONDS, 2
        self._rounds_due -= 1
        return self._rounds_due >= 0 or self._is_owed

    def _finish_round(self, snapshot: UsageSnapshot) -> None:
        self._trigger.run_round(snapshot)
        # The values are assigned as one tuple, so that other threads read values of the same round.
        self._latest = (snapshot, self._trigger.all_streaks, self._guests)


class InterferenceLoop(AgentLoop):
    """Runs rounds of interference while watches are configured, or limits of interference are in force.

    A stop saves the state. Limits stay in force for the next run of the agent.
    """

    def __init__(
        self,
        conf: ReloadedConfiguration,
        file: ThrottlingFile,
        pipeline: GuestPipeline,
        reader: GuestReader,
        executor: ThrottleExecutor,
        arbiter: LimitArbiter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the loop, and pass the limits that the previous run of the agent saved to the arbiter.

        :param reader: reads the measured values of guests. The loop passes the guests' cache allotments to
            the reader.
        """
        self._conf = conf
        self._file = file
        self._pipeline = pipeline
        self._executor = executor
        self._arbiter = arbiter
        self._clock = clock
        self._reader = reader
        self._renew_allotments()
        settings = conf.settings
        self._trigger = InterferenceTrigger(
            settings.watches,
            settings.rules.steps,
            file.state.interference,
            executor,
            file.keep_interference,
        )
        # Names of the signals that were missing in the last round, so that each signal is logged once.
        self._missing_signals: frozenset[str] = frozenset()
        self._thread = PeriodicTask(
            INTERFERENCE_THREAD,
            self.run_round,
            # The interval is the time between the end of a round and the next start. Each sample has its own
            # time, from which rates are computed.
            lambda took: INTERVAL,
            self._count_failure,
            is_needed=self.is_needed,
            rest=self._forget_cases,
            keep=self._keep_learnt,
        )
        self._keep_limits()

    # Methods for other threads

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use the watches of another configuration from the next round on."""
        self._conf = conf
        self._renew_allotments()
        self.start()

    def list_rows(self) -> list[dict[str, Any]]:
        """Rows with the open cases and the remembered pairs, for commands."""
        watches = self._conf.settings.watches
        return self._executor.telemetry.list_cases(self._trigger.state, watches, self._clock())

    def _renew_allotments(self) -> None:
        conf, pipeline = self._conf, self._pipeline
        # Without watches resctrl is not read, because its errors would be logged for nothing.
        watches = conf.settings.watches
        found = open_allotments(conf.controllers, lambda: pipeline.host_state.all_zones) if watches else None
        self._reader.use_allotments(found)

    # The loop

    def is_needed(self) -> bool:
        """Whether a round is needed, because of watches, open cases, or limits that have to be corrected."""
        trigger = self._trigger
        return bool(self._conf.settings.watches or trigger.state.cases or trigger.owes)

    def _forget_cases(self) -> None:
        self._trigger.forget_all()
        self._reader.cycles.read(())  # this closes the files of hardware counters
        self._keep_learnt()

    def _keep_learnt(self) -> None:
        try:
            self._file.keep_interference(self._trigger.state, learnt=True)
        except OSError as error:
            LOG.error("The state of throttling cannot be saved: %s; the agent tries again", error)

    def _count_failure(self, is_new: bool) -> None:
        self._executor.telemetry.interference_failures.inc()
        if is_new:
            LOG.exception("A round of the search for interference failed")

    def _keep_limits(self) -> None:
        self._arbiter.replace_limits(self._trigger.limit_owner, self._trigger.state.guest_limits())

    def run_round(self) -> None:
        """Take a sample, decide and act once; do nothing until the running guests are known."""
        if not self._pipeline.has_taken_over:
            return
        conf, pipeline, now = self._conf, self._pipeline, self._clock()
        views = pipeline.guest_views()
        # While a limit cannot be corrected, is_needed() keeps the thread running.
        self._trigger.owes = not self._arbiter.repair_limits(views)
        watches = conf.settings.watches
        signals = {watch.signal.name for watch in watches}
        # The topology is read in each round, because CPUs can go offline and come online.
        topology = pipeline.host_state.topology
        caches = [cache.cpus for cache in topology.l3_domains]
        sample = self._reader.read_guests(views, topology.usable, signals, now, caches)
        # The sample is None at the first read, or if the last read is too long ago.
        if sample is None:
            return
        self._warn_missing_signals(sample)
        self._trigger.use_watches(watches, conf.settings.rules.steps)
        self._trigger.run_round(sample)
        # The limits are passed to the arbiter in any case: if a suspect has ended, its case was closed
        # without an action.
        self._keep_limits()

    def _warn_missing_signals(self, sample: GuestSamples) -> None:
        """Log when a signal has no value for any guest that uses CPU time, and when it has a value again."""
        if not any((one.cpu or 0.0) >= MIN_CPU for one in sample.readings.values()):
            return  # idle guests have no values of signals, and this needs no warning
        signals = {watch.signal.name: watch.signal for watch in self._conf.settings.watches}
        missing = frozenset(
            name
            for name, signal in signals.items()
            if not any(signal.values(one) for one in sample.readings.values())
        )
        for name in sorted(missing - self._missing_signals):
            unmet = self._reader.cycles.missing_reason if name == "cpi" else ""
            LOG.warning(
                "The signal %s cannot be measured for any guest, so the agent limits no guest by it. The"
                " signal needs %s%s",
                name,
                signals[name].needs,
                unmet and f"; {unmet}",
            )
        for name in sorted((self._missing_signals - missing) & signals.keys()):
            LOG.info("The signal %s can be measured again", name)
        self._missing_signals = missing
