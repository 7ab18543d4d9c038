"""The loops of an agent: what each is made of, and in which order they begin and end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from compute_agent.drivers.base import GuestDriver
from compute_agent.events.event import EventRecorder
from compute_agent.fleet.following import Check
from compute_agent.loops.announcements import PreStartHook
from compute_agent.loops.arrivals import GuestEvents
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration
from compute_agent.loops.cache_entitlements import open_entitlements
from compute_agent.loops.claims import ClaimWatch
from compute_agent.loops.cpu_locations import by_consumer, locate
from compute_agent.loops.cpu_use import CpuUse
from compute_agent.loops.event_log import EventLog
from compute_agent.loops.evictions import GuestEvictions
from compute_agent.loops.fleet import FleetLoop
from compute_agent.loops.fleet_guests import FleetGuests, Set
from compute_agent.loops.heartbeats import AgentHeartbeats
from compute_agent.loops.history import HistoryWatch
from compute_agent.loops.interference import InterferenceLoop
from compute_agent.loops.limits import LimitBook
from compute_agent.loops.monitored import MonitorTargets
from compute_agent.loops.monitoring import CacheMonitoring
from compute_agent.loops.oom import OomEvents
from compute_agent.loops.positions import PositionReporter
from compute_agent.loops.reclaimed import ReclaimLoop
from compute_agent.loops.reporting import ReportLoop
from compute_agent.loops.root_watch import RootWatch
from compute_agent.loops.watermarks import WatermarkLoop
from compute_agent.monitoring.reading import MonitorTarget
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.qos.telemetry import ThrottleTelemetry
from compute_agent.report.reporter import HostReporter
from compute_agent.report.root_provider import Causes, DisableCause


class AgentLoops:
    """All loops but the main thread, in the order in which they begin; those that are asked have a name."""

    def __init__(
        self,
        current: Callable[[], ReloadedConfiguration],
        pipeline: GuestPipeline,
        driver: GuestDriver,
        state: StateFile,
        metrics: AgentMetrics,
        events: EventLog,
        recorder: EventRecorder,
        root: RootWatch,
        causes: Causes,
        check: Check,
        set_guest: Set,
    ) -> None:
        """``current`` is the configuration in force, ``recorder`` tells ``events``.

        ``causes`` are those for which new guests were kept away before, ``check`` tries a configuration of
        the fleet, and ``set_guest`` changes a guest as it wants.
        """
        conf, saved, registry = current(), state.state, metrics.registry
        self._current = current
        self._pipeline = pipeline
        self._driver = driver
        self._events = events
        self.reclaimed = ReclaimLoop(conf, pipeline, driver, recorder, metrics)
        positions, heartbeats = PositionReporter(current, pipeline.views), AgentHeartbeats(current)
        self.reports = ReportLoop(
            HostReporter(conf.client, saved.owned, state.keep_owned, saved.history.generations),
            conf.client,
            pipeline,
            metrics,
            conf.options.compute.update_resources_interval,
            conf.options.placement.report_retry_maximum,
            lambda: by_consumer(locate(driver, pipeline.world), pipeline.views()),
            causes,
            root,
            lambda tree: heartbeats.offering(
                positions.offering(self.fleet.offering(self.reclaimed.offering(tree)))
            ),
            HistoryWatch(metrics, saved.history, state.keep_history, recorder),
            ClaimWatch(lambda: bool(current().options.guests.confirm_claims), recorder),
        )
        self.reclaimed.changed = self.reports.wake
        self.fleet: FleetLoop = FleetLoop(
            conf.options,
            check,
            registry,
            self.reports.wake,
            FleetGuests(pipeline, set_guest).bring_about,
        )
        self._targets = MonitorTargets(driver)
        self.monitoring = CacheMonitoring(conf, self._monitored, registry)
        self.limits = LimitBook(pipeline)
        self.watermarks = WatermarkLoop(
            conf.settings,
            saved.qos,
            pipeline,
            driver,
            GuestEvictions(conf.settings, pipeline, driver, conf.client),
            partial(self.reports.switch_scheduling, DisableCause.WATERMARK),
            state.keep_qos,
            ThrottleTelemetry(registry, recorder, self.reclaimed.blame),
            book=self.limits,
            root=conf.options.host.root,
            cache=self.monitoring.reader,
            cache_entitlements=open_entitlements(conf.controllers, lambda: pipeline.world.zones),
        )
        self.interference = InterferenceLoop(
            conf,
            pipeline,
            driver,
            self.limits,
            recorder,
            registry,
            self.monitoring.reader,
            blame=self.reclaimed.blame,
        )
        self.oom = OomEvents(driver, recorder, registry, conf.options.host.root)
        self.arrivals = GuestEvents(pipeline, conf.client, self.reports.wake)
        self.announcements = PreStartHook(pipeline, driver.expecting, conf.client)
        self._before_listening: tuple[AgentLoop, ...] = (
            events,
            self.monitoring,
            self.arrivals,
            self.announcements,
        )
        self._after_listening: tuple[AgentLoop, ...] = (
            self.reports,
            self.watermarks,
            self.interference,
            self.oom,
            self.reclaimed,
            CpuUse(conf, pipeline, driver),
            self.fleet,
        )

    @property
    def _all(self) -> tuple[AgentLoop, ...]:
        return (*self._before_listening, *self._after_listening)

    def start_before_listening(self) -> None:
        """Begin those that are there when somebody can ask the agent, or announce a guest."""
        for loop in self._before_listening:
            loop.start()

    def start_after_listening(self) -> None:
        """Begin the others."""
        for loop in self._after_listening:
            loop.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go on by another configuration."""
        for loop in self._all:
            loop.reload(conf)

    def stop(self) -> None:
        """End all but that of events, which the worker tells to the last."""
        for loop in reversed(self._all):
            if loop is not self._events:
                loop.stop()

    def _monitored(self) -> tuple[MonitorTarget, ...] | None:
        snapshot = self.watermarks.status.snapshot
        return self._targets.build(self._current().controllers, self._pipeline.guests(), snapshot)
