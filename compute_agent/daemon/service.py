"""The agent: its parts, wired, and the life of its process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg
from prometheus_client import ProcessCollector

from compute_agent.controllers.base import Controller
from compute_agent.controllers.cpu_class import Files, cpu_class_status
from compute_agent.controllers.resctrl import resctrl_of
from compute_agent.daemon import logs, release
from compute_agent.daemon.api import Methods
from compute_agent.daemon.cache_control import Resctrl, open_resctrl
from compute_agent.daemon.config_warnings import config_warnings
from compute_agent.daemon.controllers import build_controllers
from compute_agent.daemon.host_driver import open_host_driver
from compute_agent.daemon.listeners import Listeners
from compute_agent.daemon.main_loop import MainLoop
from compute_agent.daemon.maintenance import MaintenanceMode, causes_kept
from compute_agent.daemon.protocol import RequestError
from compute_agent.daemon.release import refuse_if_released
from compute_agent.daemon.resctrl_groups import group_documents
from compute_agent.daemon.signature import host_signature
from compute_agent.daemon.state_folder import GUESTS_FOLDER, STATE_FILE, make_state_folder
from compute_agent.daemon.status import Shown, agent_document, health_document
from compute_agent.daemon.trial import try_configuration
from compute_agent.daemon.watermark_list import watermark_rows
from compute_agent.daemon.world import build_world
from compute_agent.drivers import guest_logs
from compute_agent.events.recorder import Recorder
from compute_agent.host.reader import read_topology
from compute_agent.interference.watch import parse_watches
from compute_agent.inventory import identity
from compute_agent.inventory.identity import IdentityError
from compute_agent.loops.announcements import Announcements
from compute_agent.loops.arrivals import Arrivals
from compute_agent.loops.audit import Auditor, Outcome
from compute_agent.loops.base import Configuration, Loop
from compute_agent.loops.cache_entitlements import open_entitlements
from compute_agent.loops.cpu_locations import by_consumer, locate
from compute_agent.loops.cpu_use import CpuUse
from compute_agent.loops.event_log import EventLog
from compute_agent.loops.evictions import Evictions
from compute_agent.loops.fleet import FleetLoop
from compute_agent.loops.fleet_guests import FleetGuests
from compute_agent.loops.interference import Interference
from compute_agent.loops.limits import LimitBook
from compute_agent.loops.monitored import monitor_targets
from compute_agent.loops.monitoring import Monitoring
from compute_agent.loops.oom import OomEvents
from compute_agent.loops.reclaimed import Reclaimed
from compute_agent.loops.reporting import ReportLoop
from compute_agent.loops.root_watch import RootWatch
from compute_agent.loops.watermarks import Watermarks
from compute_agent.model.errors import ConfigError
from compute_agent.monitoring.targets import MonitorTarget
from compute_agent.pipeline.events import Reconcile, WorldChanged
from compute_agent.pipeline.metrics import Metrics
from compute_agent.pipeline.state import StateFile, lock_state_folder
from compute_agent.pipeline.worker import Pipeline
from compute_agent.pipeline.world import World
from compute_agent.qos.blockio import parse_blockio_classes
from compute_agent.qos.metrics import load_registry
from compute_agent.qos.settings import read_settings
from compute_agent.qos.telemetry import Telemetry
from compute_agent.report.audit import Options
from compute_agent.report.client import PlacementClient
from compute_agent.report.errors import PlacementError
from compute_agent.report.nova_root import RootOwner
from compute_agent.report.plan import Ownership
from compute_agent.report.reporter import Reporter
from compute_agent.report.scheduling import Cause

LOG = logging.getLogger(__name__)

ConfLoader = Callable[[], cfg.ConfigOpts]

_BEFORE_LISTENING: Final = 4
"""Loops that begin before anybody can ask: events, monitoring, arrivals, announcements."""

WORKER_SECONDS: Final = 60.0
"""How long the worker is waited for."""


class Agent:
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
        self._config_error = ""
        self._taking_up = threading.Lock()
        self._folder = folder = make_state_folder(options)
        self._lock = lock_state_folder(folder)  # first: whoever is refused must not have changed anything
        try:
            refuse_if_released(folder)
            self._assemble(folder, options)
        except BaseException:
            os.close(self._lock)
            raise

    def _assemble(self, folder: Path, options: cfg.ConfigOpts) -> None:
        """Make the parts; under the lock of the state folder."""
        self._resctrl = open_resctrl(options, acting=True)
        self._state = StateFile(folder / STATE_FILE)
        saved = self._state.state
        own = identity.load_or_create(folder)
        self._root = RootWatch(
            options, own, saved.nova_root, bool(saved.owned), self._state.keep_nova_root, self._use_root
        )
        world = build_world(options, control=self._resctrl.control, root=self._root.owner)
        self._registry = load_registry()
        settings = read_settings(options, self._registry)
        watches = parse_watches(options, settings.classes)
        self.metrics = Metrics()
        self._events = EventLog(options, self.metrics.registry)
        self._recorder = Recorder(self._events.add)
        ProcessCollector(registry=self.metrics.registry)  # what the agent itself costs
        holder = f"pid {os.getpid()}, agent of {world.tree.root.name}, state folder {folder}"
        self._host_driver = open_host_driver(
            options, self._state, folder / GUESTS_FOLDER, holder, self.metrics
        )
        self.driver = self._host_driver.driver
        self._config_warnings = config_warnings(options, settings.rules, self._resctrl, self.driver.name)
        for warning in self._config_warnings:
            LOG.warning("%s", warning)
        controllers = self._build_controllers(options, self._resctrl, world)
        self.pipeline = Pipeline(
            world, self.driver, controllers, self._state.keep_guests, self.metrics, self._recorder
        )
        client = PlacementClient.from_conf(options)
        self._conf = Configuration(options, client, settings, controllers, self._resctrl.control, watches)
        self._reclaimed = Reclaimed(self._conf, self.pipeline, self.driver, self._recorder, self.metrics)
        self.reports = ReportLoop(
            Reporter(client, self._state.state.owned, self._state.keep_owned),
            client,
            self.pipeline,
            self.metrics,
            options.compute.update_resources_interval,
            options.placement.report_retry_maximum,
            lambda: by_consumer(locate(self.driver, self.pipeline.world), self.pipeline.views()),
            causes_kept(self._state.state, bool(settings.rules.watermarks)),
            self._root,
            lambda tree: self._fleet.offering(self._reclaimed.offering(tree)),
        )
        self._reclaimed.changed = self.reports.wake
        self._fleet: FleetLoop = FleetLoop(
            options,
            lambda wanted: try_configuration(wanted, self._root.owner, self._build_controllers),
            self.metrics.registry,
            self.reports.wake,
            FleetGuests(self.pipeline, self._set_guest).bring_about,
        )
        self.maintenance = MaintenanceMode(
            self._state.state.maintenance, self._state.keep_maintenance, self.reports
        )
        self.metrics.cpu_class_refusals.set_function(
            lambda: len(cpu_class_status(self._conf.controllers).refusals)
        )
        self.metrics.host_disabled.set_function(lambda: self.maintenance.is_on)
        self._monitoring = Monitoring(self._conf, self._monitored, self.metrics.registry)
        self._limits = LimitBook(self.pipeline)
        self._watermarks = Watermarks(
            settings,
            self._state.state.qos,
            self.pipeline,
            self.driver,
            Evictions(settings, self.pipeline, self.driver, client),
            partial(self.reports.switch_scheduling, Cause.WATERMARK),
            self._state.keep_qos,
            Telemetry(self.metrics.registry, self._recorder, self._reclaimed.blame),
            book=self._limits,
            root=options.host.root,
            cache=self._monitoring.reader,
            cache_entitlements=open_entitlements(controllers, lambda: self.pipeline.world.zones),
        )
        self._interference = Interference(
            self._conf,
            self.pipeline,
            self.driver,
            self._limits,
            self._recorder,
            self.metrics.registry,
            self._monitoring.reader,
        )
        self._oom = OomEvents(self.driver, self._recorder, self.metrics.registry)
        use = CpuUse(self._conf, self.pipeline, self.driver)
        self._arrivals = Arrivals(self.pipeline, client, self.reports.wake)
        self.announcements = Announcements(self.pipeline, self.driver.expecting, client)
        first = (self._events, self._monitoring, self._arrivals, self.announcements)
        last = (self._watermarks, self._interference, self._oom, self._reclaimed, use, self._fleet)
        self._loops: tuple[Loop, ...] = (*first, self.reports, *last)
        self.main_loop = MainLoop(self)
        self._signature = host_signature(options)
        self._listeners: Listeners | None = None

    @property
    def options(self) -> cfg.ConfigOpts:
        """The configuration that the agent works by."""
        return self._conf.options

    @property
    def client(self) -> PlacementClient:
        """The way to Placement, as the configuration has it now."""
        return self._conf.client

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
            saved.guests, self._arrivals.report, self._limits.combined(), saved.unclaimed, saved.migrations
        )
        if self._resctrl.off:
            LOG.info("Cache and bandwidth control is off: %s", self._resctrl.off)
        for loop in self._loops[:_BEFORE_LISTENING]:
            loop.start()
        self._listeners = Listeners(self.options, Methods(self), self.metrics.registry, self.health)
        for loop in self._loops[_BEFORE_LISTENING:]:
            loop.start()
        LOG.info("The agent of %s is up", self.pipeline.world.tree.root.name)

    def stop(self) -> None:
        """Stop listening and working; guests stay as they are."""
        if self._listeners is not None:
            self._listeners.close()
        for loop in reversed(self._loops[1:]):  # not that of events
            loop.stop()
        self.pipeline.stop()
        self._events.stop()
        self._host_driver.close()
        os.close(self._lock)
        LOG.info("The agent stopped; its guests go on")

    def look(self) -> None:
        """Look whether configuration or hardware changed since the last time, and take that up."""
        signature = host_signature(self.options)
        if signature != self._signature:
            self._signature = signature
            self.reload()

    def reload(self) -> None:
        """Read configuration and host anew. A configuration to refuse changes nothing but is reported."""
        self._config_error = self._take_up()
        self.metrics.configuration_refused.set(bool(self._config_error))
        if self._config_error:
            LOG.error("The old configuration stays: %s", self._config_error)
        else:
            LOG.info("Configuration and host read anew")

    def _take_up(self) -> str:
        """Work by the configuration and the host as they are now. Returns why that cannot be."""
        try:
            options = self._load_conf()
            topology = read_topology(Path(options.host.root))
            client = PlacementClient.from_conf(options)
        except (cfg.Error, ConfigError, PlacementError, OSError) as error:
            return str(error)
        try:
            resctrl = open_resctrl(options, acting=True)
            self._root.reload(options)
            world = build_world(options, topology, control=resctrl.control, root=self._root.owner)
            settings = read_settings(options, self._registry)
            watches = parse_watches(options, settings.classes)
            controllers = self._build_controllers(options, resctrl, world)
            warnings = config_warnings(options, settings.rules, resctrl, self.driver.name)
        except (ConfigError, IdentityError, cfg.Error, OSError) as error:
            # Guests keep running on what there is; the report stays as it was until somebody decides.
            self.pipeline.submit(WorldChanged(replace(self.pipeline.world, topology=topology)))
            return str(error)
        with self._taking_up:
            self._conf = Configuration(options, client, settings, controllers, resctrl.control, watches)
            self._config_warnings = warnings
            logs.set_level(options)
            for warning in self._warnings():
                LOG.warning("%s", warning)
            if resctrl.off != self._resctrl.off:
                LOG.info("Cache and bandwidth control is %s", f"off: {resctrl.off}" if resctrl.off else "on")
            self._resctrl = resctrl
            self.pipeline.submit(WorldChanged(world, controllers)).result()
            for loop in self._loops:
                loop.reload(self._conf)
        return ""

    def status(self) -> dict[str, Any]:
        """The agent's state, for the command line."""
        return agent_document(self._shown())

    def resctrl_groups(self) -> list[dict[str, Any]]:
        """All resctrl groups of this host; see ``resctrl_groups``.

        :raises RequestError: where there are none.
        :raises ResctrlError:
        :raises BadSchemataError:
        """
        controller = resctrl_of(self._conf.controllers)
        if controller is None:
            raise RequestError(f"cache and bandwidth control is off: {self._resctrl.off}")
        return group_documents(controller, self.pipeline.views())

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the worker works, and what else is wrong."""
        return health_document(self._shown())

    def _shown(self) -> Shown:
        return Shown(
            self.options,
            self.pipeline,
            self.reports,
            self.maintenance,
            self._host_driver,
            self._resctrl,
            self._monitoring,
            self._oom,
            self._events,
            cpu_class_status(self._conf.controllers),
            self._config_error,
            [*self._warnings(), *self.pipeline.world.warnings, *self._reclaimed.troubles],
            self._fleet.document(),
        )

    def watermarks(self) -> list[dict[str, Any]]:
        """The watermarks, and how usage stands to them; see ``watermark_list``."""
        return watermark_rows(self._watermarks.status)

    def capacity(self) -> list[dict[str, Any]]:
        """What others leave unused of the shared CPUs, and what is stolen of them, term by term."""
        return self._reclaimed.document(self.reports.status.not_offered.withheld)

    def interference(self) -> list[dict[str, Any]]:
        """Who is limited for whom, and what is remembered of others."""
        return self._interference.document()

    def _monitored(self) -> list[MonitorTarget] | None:
        snapshot = self._watermarks.status.snapshot
        return monitor_targets(self._conf.controllers, self.pipeline.guests(), self.driver, snapshot)

    def audit(self, options: Options) -> list[Outcome]:
        """Compare guests with allocations, and mend what is asked for.

        :raises PlacementError:
        :raises DriverError:
        """
        return Auditor(self.pipeline, self.driver, self.client, self.reports.wake, self._recorder).audit(
            options
        )

    def survey_release(self, options: release.Options) -> list[release.Row]:
        """What there is to give back when this host is left."""
        files, control = Files(Path(self.options.host.root)), self._resctrl.control
        world = self.pipeline.world
        return release.survey(world, self.driver, control, self.client, self._state, options, files)

    def _use_root(self, owner: RootOwner) -> None:
        """Work with another root provider, and with the controllers that go with its owner.

        For the thread of reports.

        :raises TimeoutError: the worker has no time.
        """
        with self._taking_up:
            options = self.options
            world = build_world(options, control=self._resctrl.control, root=owner)
            if owner.beside == self.pipeline.world.tree.beside:
                self.pipeline.submit(WorldChanged(world)).result(WORKER_SECONDS)
                return
            controllers = self._build_controllers(options, self._resctrl, world)
            self._conf = replace(self._conf, controllers=controllers)
            self.pipeline.submit(WorldChanged(world, controllers)).result(WORKER_SECONDS)
            for loop in self._loops:
                loop.reload(self._conf)

    def _set_guest(self, guest: str, values: Mapping[str, Any]) -> str:
        try:
            Methods(self).guest_set({"guest": guest, **values})
        except (RequestError, TimeoutError) as error:
            return str(error) or "the agent is busy"
        return ""

    def retire(self) -> None:
        """End, as at SIGTERM."""
        self.main_loop.end()

    def reconcile(self) -> None:
        """Have the worker look whether all guests are as they should be."""
        self.pipeline.submit(Reconcile())

    @property
    def reconcile_interval(self) -> float:
        """Seconds from one such look to the next."""
        return float(self.options.guests.reconcile_interval)

    def prune_guest_logs(self) -> None:
        """Remove the logs of ended guests that have been kept long enough."""
        guest_logs.try_prune(self._folder / GUESTS_FOLDER, self.options.guests)

    def _warnings(self) -> list[str]:
        """How the driver was chosen, what waits for a restart, what of the configuration has no effect."""
        return [*self._host_driver.warnings(self.options), *self._config_warnings]

    def qos_classes(self) -> Collection[str]:
        """The names of the classes that guests may have."""
        return self._conf.settings.classes.classes.keys()

    def blockio_classes(self) -> Collection[str]:
        """The names of the classes of block I/O that guests may have."""
        return parse_blockio_classes(self.options).keys()

    def _build_controllers(
        self, options: cfg.ConfigOpts, resctrl: Resctrl, world: World
    ) -> tuple[Controller, ...]:
        return build_controllers(options, self.driver, resctrl, world, self._state, self.metrics)
