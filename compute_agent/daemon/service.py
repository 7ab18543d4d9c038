"""The agent: its parts, wired, and the life of its process."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from oslo_config import cfg
from prometheus_client import ProcessCollector

from compute_agent.controllers.base import KernelController
from compute_agent.controllers.cpu_class import CpuClassStatus, KernelFiles, cpu_class_status
from compute_agent.controllers.resctrl import resctrl_of
from compute_agent.daemon import release
from compute_agent.daemon.agent_loops import AgentLoops
from compute_agent.daemon.api import ApiMethods
from compute_agent.daemon.cache_control import HostResctrl
from compute_agent.daemon.configured_host import configured_host
from compute_agent.daemon.controllers import build_controllers
from compute_agent.daemon.host_driver import open_host_driver
from compute_agent.daemon.listeners import AgentListeners
from compute_agent.daemon.main_loop import MainLoop
from compute_agent.daemon.maintenance import MaintenanceMode, causes_kept
from compute_agent.daemon.protocol import RequestError
from compute_agent.daemon.release import refuse_if_released
from compute_agent.daemon.reloading import ConfigReloader, ConfLoader
from compute_agent.daemon.resctrl_groups import group_documents
from compute_agent.daemon.state_folder import GUESTS_FOLDER, STATE_FILE, make_state_folder
from compute_agent.daemon.status import StatusSources, agent_document, health_document
from compute_agent.daemon.trial import try_configuration
from compute_agent.daemon.watermark_list import watermark_rows
from compute_agent.drivers.processes import records
from compute_agent.events.event import EventRecorder
from compute_agent.files import remove_leftovers
from compute_agent.inventory import provider_tree
from compute_agent.loops.audit import AuditOutcome, HostAuditor
from compute_agent.loops.event_log import EventLog
from compute_agent.loops.root_watch import RootWatch
from compute_agent.pipeline.events import ReconcileGuests
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile, lock_state_folder
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.pipeline.world import HostState
from compute_agent.qos.blockio import parse_blockio_classes
from compute_agent.qos.metrics import load_registry
from compute_agent.report.audit import HealOptions
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import Ownership

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
            self.metrics,
            self._events,
            self._recorder,
            root,
            causes_kept(saved, bool(host.settings.rules.watermarks)),
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
            self._loops.limits.combined(),
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
        return release.survey(world, self.driver, control, self.client, self._state, options, files)

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
