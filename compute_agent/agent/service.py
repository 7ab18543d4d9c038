"""The agent: builds its parts in order, runs its loops and main thread, and ends them in reverse order."""

from __future__ import annotations

import logging
import os
import queue
import signal
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from oslo_config import cfg
from prometheus_client import ProcessCollector

from compute_agent.agent import release
from compute_agent.agent.api import ApiMethods
from compute_agent.agent.configured_host import build_controllers, configured_host
from compute_agent.agent.documents import (
    StatusSources,
    agent_document,
    group_documents,
    health_document,
    watermark_rows,
)
from compute_agent.agent.dry_run import try_configuration
from compute_agent.agent.host_access import (
    GUESTS_FOLDER,
    STATE_FILE,
    HostResctrl,
    make_state_folder,
    open_host_driver,
)
from compute_agent.agent.listeners import AgentListeners
from compute_agent.agent.maintenance import MaintenanceMode, causes_kept
from compute_agent.agent.protocol import RequestError
from compute_agent.agent.release import refuse_if_released
from compute_agent.agent.reloading import ConfigReloader, ConfLoader
from compute_agent.classes.blockio_classes import parse_blockio_classes
from compute_agent.controllers.base import KernelController
from compute_agent.controllers.cpu_class import CpuClassStatus, KernelFiles, cpu_class_status
from compute_agent.controllers.resctrl import resctrl_of
from compute_agent.drivers.base import GuestDriver
from compute_agent.drivers.processes import records
from compute_agent.events.event import EventRecorder
from compute_agent.files import remove_leftovers
from compute_agent.fleet.following import Check
from compute_agent.inventory import provider_tree
from compute_agent.loops.allocations import ClaimWatch, HistoryWatch
from compute_agent.loops.arrivals import GuestEvents, PreStartHook
from compute_agent.loops.audit import AuditOutcome, HostAuditor, by_consumer, locate
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration
from compute_agent.loops.events import EventLog, OomEvents
from compute_agent.loops.fleet import FleetGuests, FleetLoop, Set
from compute_agent.loops.host_attributes import AgentHeartbeats, PositionReporter
from compute_agent.loops.monitoring import CacheMonitoring, MonitorTargets
from compute_agent.loops.reclaimed import ReclaimLoop
from compute_agent.loops.reporting import ReportLoop, RootWatch
from compute_agent.loops.throttling import InterferenceLoop, WatermarkLoop
from compute_agent.loops.usage import CpuUse
from compute_agent.monitoring.reading import MonitorTarget
from compute_agent.pipeline.events import ReconcileGuests
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile, lock_state_folder
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.audit import HealOptions
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import Ownership
from compute_agent.report.reporter import HostReporter
from compute_agent.report.root_provider import Causes, DisableCause
from compute_agent.throttling.arbiter import LimitArbiter
from compute_agent.throttling.evictions import GuestEvictions, GuestEvictor
from compute_agent.throttling.executor import ThrottleExecutor
from compute_agent.throttling.state_file import ThrottlingFile
from compute_agent.throttling.telemetry import ThrottleTelemetry
from compute_agent.throttling.watermarks.metrics import load_registry
from compute_agent.usage.subjects import open_allotments

LOOK_SECONDS: Final = 1.0
"""How often configuration files and hardware are looked at for changes."""

PRUNE_SECONDS: Final = 600.0
"""How often it is looked for logs of ended guests that have been kept long enough."""


class MainDuties(Protocol):
    """What the main thread does of the agent."""

    @property
    def reconcile_interval(self) -> float:
        """Seconds from one :meth:`reconcile` to the next."""
        ...

    def reload(self) -> None:
        """Read configuration and host anew."""
        ...

    def look(self) -> None:
        """Look whether configuration or hardware changed since the last time, and take that up."""
        ...

    def reconcile(self) -> None:
        """Have the worker look whether all guests are as they should be."""
        ...

    def shorten_guest_logs(self) -> None:
        """Shorten the logs of running guests that are too large."""
        ...

    def prune_guest_logs(self) -> None:
        """Remove the logs of ended guests that have been kept long enough."""
        ...

    def stop(self) -> None:
        """Stop listening and working."""
        ...


class MainLoop:
    """Lives until it is told to end. Python runs handlers of signals in the main thread only."""

    def __init__(self, agent: MainDuties) -> None:
        self._agent = agent
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def catch_signals(self) -> None:
        """Have signals wait for serve(). For the main thread, before the agent starts."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: self._signals.put(number))

    def end(self) -> None:
        """As SIGTERM does."""
        self._signals.put(signal.SIGTERM)

    def serve(self) -> None:
        """Live until SIGTERM or SIGINT, then stop the agent. SIGHUP reloads. After the agent started."""
        due = time.monotonic() + self._agent.reconcile_interval
        prune_due = time.monotonic()
        try:
            while True:
                received = self._next_signal(min(due - time.monotonic(), LOOK_SECONDS))
                if received == signal.SIGHUP:
                    self._agent.reload()
                elif received is not None:
                    return
                else:
                    self._agent.look()
                    self._agent.shorten_guest_logs()
                    if time.monotonic() >= due:
                        self._agent.reconcile()
                        due = time.monotonic() + self._agent.reconcile_interval
                if time.monotonic() >= prune_due:
                    self._agent.prune_guest_logs()
                    prune_due = time.monotonic() + PRUNE_SECONDS
        finally:
            self._agent.stop()

    def _next_signal(self, timeout: float) -> int | None:
        try:
            return self._signals.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None


class AgentLoops:
    """All loops but the main thread, in the order in which they begin; those that are asked have a name."""

    def __init__(
        self,
        current: Callable[[], ReloadedConfiguration],
        pipeline: GuestPipeline,
        driver: GuestDriver,
        state: StateFile,
        throttling: ThrottlingFile,
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
        self.limits = LimitArbiter(pipeline)
        evictions = GuestEvictions(conf.settings, pipeline, driver, conf.client)
        executor = ThrottleExecutor(
            conf.settings.rules.registry,
            self.limits,
            GuestEvictor(evictions.stop_guest, evictions.give_back),
            partial(self.reports.switch_scheduling, DisableCause.WATERMARK),
            ThrottleTelemetry(registry, recorder, self.reclaimed.blame),
        )
        self.watermarks = WatermarkLoop(
            conf.settings,
            throttling,
            pipeline,
            driver,
            executor,
            self.limits,
            evictions,
            root=conf.options.host.root,
            cache=self.monitoring.reader,
            cache_allotments=open_allotments(conf.controllers, lambda: pipeline.world.zones),
        )
        self.interference = InterferenceLoop(
            conf, throttling, pipeline, driver, executor, self.limits, self.monitoring.reader
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


LOG = logging.getLogger(__name__)


class HostAgent:
    """One agent on one state folder. Everything listens and runs after start() until stop()."""

    def __init__(self, load_conf: ConfLoader) -> None:
        """Read configuration, host and state.

        Nothing is changed but the state folder, and that resctrl is mounted if the configuration says so.

        :raises ConfigError: it is a configuration to refuse.
        :raises cfg.Error:
        :raises IdentityError:
        :raises LockedError:
        :raises DriverError:
        :raises OSError:
        """
        self._load_conf = load_conf
        options = load_conf()
        self._folder = folder = make_state_folder(options)
        self._running_logs = records.RunningLogs(folder / GUESTS_FOLDER)
        self._lock = lock_state_folder(folder)  # first: whoever is refused must not have changed anything
        try:
            refuse_if_released(folder)
            for part in (folder, folder / GUESTS_FOLDER):
                remove_leftovers(part)
            self._assemble(folder, options)
        except BaseException:
            os.close(self._lock)
            raise

    def _assemble(self, folder: Path, options: cfg.ConfigOpts) -> None:
        """Make the parts; under the lock of the state folder."""
        self._state = StateFile(folder / STATE_FILE)
        self._throttling = ThrottlingFile(folder, self._state)
        saved, registry = self._state.state, load_registry()
        root = RootWatch(
            options,
            provider_tree.load_or_create(folder),
            saved.nova_root,
            bool(saved.owned),
            self._state.keep_nova_root,
            lambda owner: self._reloading.use_root(owner),
        )
        host = configured_host(options, registry, root=root.owner, acting=True)
        self.metrics = AgentMetrics()
        self._events = EventLog(options, self.metrics.registry)
        self._recorder = EventRecorder(self._events.add)
        ProcessCollector(registry=self.metrics.registry)  # what the agent itself costs
        holder = f"pid {os.getpid()}, agent of {host.world.tree.root.name}, state folder {folder}"
        self._host_driver = open_host_driver(
            options, self._state, folder / GUESTS_FOLDER, holder, self.metrics
        )
        self.driver = self._host_driver.driver
        controllers = self._build_controllers(options, host.resctrl, host.world)
        self.pipeline = GuestPipeline(
            host.world, self.driver, controllers, self._state.keep_guests, self.metrics, self._recorder
        )
        self._reloading = ConfigReloader(
            self._load_conf,
            registry,
            self._build_controllers,
            root,
            self._host_driver,
            self.pipeline,
            self.metrics,
            host,
            host.configuration(PlacementClient.from_conf(options), controllers),
            lambda conf: self._loops.reload(conf),
        )
        self._loops = AgentLoops(
            lambda: self._reloading.conf,
            self.pipeline,
            self.driver,
            self._state,
            self._throttling,
            self.metrics,
            self._events,
            self._recorder,
            root,
            causes_kept(
                saved,
                self._throttling.state.watermarks.scheduling_off,
                bool(host.settings.rules.watermarks),
            ),
            lambda wanted: try_configuration(wanted, root.owner, self._build_controllers),
            self._set_guest,
        )
        self.reports, self.announcements = self._loops.reports, self._loops.announcements
        self.maintenance = MaintenanceMode(saved.maintenance, self._state.keep_maintenance, self.reports)
        self.metrics.host_disabled.set_function(lambda: self.maintenance.is_on)
        self.metrics.cpu_class_refusals.set_function(lambda: len(self._cpu_classes.refusals))
        self.main_loop = MainLoop(self)
        self._listeners: AgentListeners | None = None

    @property
    def options(self) -> cfg.ConfigOpts:
        """The configuration that the agent works by."""
        return self._reloading.conf.options

    @property
    def client(self) -> PlacementClient:
        """The way to Placement, as the configuration has it now."""
        return self._reloading.conf.client

    @property
    def owned(self) -> Ownership:
        """What the agent put into Placement, as far as it remembers."""
        return self._state.state.owned

    def start(self) -> None:
        """Take over the guests, listen, report.

        :raises OSError: an address or the socket cannot be had.
        """
        saved = self._state.state
        self.pipeline.start(
            saved.guests,
            self._loops.arrivals.report,
            self._loops.limits.combined_limits(),
            saved.unclaimed,
            saved.migrations,
        )
        if self._reloading.resctrl.off:
            LOG.info("Cache and bandwidth control is off: %s", self._reloading.resctrl.off)
        self._loops.start_before_listening()
        self._listeners = AgentListeners(self.options, ApiMethods(self), self.metrics.registry, self.health)
        self._loops.start_after_listening()
        LOG.info("The agent of %s is up", self.pipeline.world.tree.root.name)

    def stop(self) -> None:
        """Stop listening and working; guests stay as they are."""
        if self._listeners is not None:
            self._listeners.close()
        self._loops.stop()
        self.pipeline.stop()
        self._events.stop()
        self._host_driver.close()
        os.close(self._lock)
        LOG.info("The agent stopped; its guests go on")

    def look(self) -> None:
        """Look whether configuration or hardware changed since the last time, and take that up."""
        self._reloading.look()

    def reload(self) -> None:
        """Read configuration and host anew. A configuration to refuse changes nothing but is reported."""
        self._reloading.reload()

    def status(self) -> dict[str, Any]:
        """The agent's state, for the command line."""
        return agent_document(self._shown())

    def resctrl_groups(self) -> list[dict[str, Any]]:
        """All resctrl groups of this host; see ``resctrl_groups``.

        :raises RequestError: where there are none.
        :raises ResctrlError:
        :raises BadSchemataError:
        """
        controller = resctrl_of(self._reloading.conf.controllers)
        if controller is None:
            raise RequestError(f"cache and bandwidth control is off: {self._reloading.resctrl.off}")
        return group_documents(controller, self.pipeline.views())

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the worker works, and what else is wrong."""
        return health_document(self._shown())

    def _shown(self) -> StatusSources:
        return StatusSources(
            self.options,
            self.pipeline,
            self.reports,
            self.maintenance,
            self._host_driver,
            self._reloading.resctrl,
            self._loops.monitoring,
            self._loops.oom,
            self._events,
            self._cpu_classes,
            self._reloading.error,
            [*self._reloading.warnings, *self.pipeline.world.warnings, *self._loops.reclaimed.troubles],
            self._loops.fleet.document(),
        )

    def watermarks(self) -> list[dict[str, Any]]:
        """The watermarks, and how usage stands to them; see ``watermark_list``."""
        return watermark_rows(self._loops.watermarks.status)

    def capacity(self) -> list[dict[str, Any]]:
        """What others leave unused of the shared CPUs, and what is stolen of them, term by term."""
        return self._loops.reclaimed.document(self.reports.status.not_offered.withheld)

    def interference(self) -> list[dict[str, Any]]:
        """Who is limited for whom, and what is remembered of others."""
        return self._loops.interference.document()

    def audit(self, options: HealOptions) -> list[AuditOutcome]:
        """Compare guests with allocations, and mend what is asked for.

        :raises PlacementError:
        :raises DriverError:
        """
        holders = self.reports.history.holders
        auditor = HostAuditor(
            self.pipeline, self.driver, self.client, self.reports.wake, self._recorder, holders
        )
        return auditor.audit(options)

    def survey_release(self, options: release.ReleaseOptions) -> list[release.ReleaseRow]:
        """What there is to give back when this host is left."""
        files, control = KernelFiles(Path(self.options.host.root)), self._reloading.resctrl.control
        world = self.pipeline.world
        return release.survey(
            world, self.driver, control, self.client, self._state, self._throttling, options, files
        )

    def _set_guest(self, guest: str, values: Mapping[str, Any]) -> str:
        try:
            ApiMethods(self).guest_set({"guest": guest, **values})
        except (RequestError, TimeoutError) as error:
            return str(error) or "the agent is busy"
        return ""

    def retire(self) -> None:
        """End, as at SIGTERM."""
        self.main_loop.end()

    def reconcile(self) -> None:
        """Have the worker look whether all guests are as they should be."""
        self.pipeline.submit(ReconcileGuests())

    @property
    def reconcile_interval(self) -> float:
        """Seconds from one such look to the next."""
        return float(self.options.guests.reconcile_interval)

    def shorten_guest_logs(self) -> None:
        """Shorten the logs of running guests that are larger than one may be."""
        self._running_logs.shorten(self.options.guests.log_guest_mb * 10**6)

    def prune_guest_logs(self) -> None:
        """Remove the logs of ended guests that have been kept long enough."""
        records.try_prune(self._folder / GUESTS_FOLDER, self.options.guests)

    def qos_classes(self) -> Collection[str]:
        """The names of the classes that guests may have."""
        return self._reloading.conf.settings.classes.classes.keys()

    def blockio_classes(self) -> Collection[str]:
        """The names of the classes of block I/O that guests may have."""
        return parse_blockio_classes(self.options).keys()

    @property
    def _cpu_classes(self) -> CpuClassStatus:
        return cpu_class_status(self._reloading.conf.controllers)

    def _build_controllers(
        self, options: cfg.ConfigOpts, resctrl: HostResctrl, world: HostState
    ) -> tuple[KernelController, ...]:
        return build_controllers(options, self.driver, resctrl, world, self._state, self.metrics)
