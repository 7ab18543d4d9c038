"""The agent: starts and stops its threads, serves signals in the main thread, and answers requests."""

from __future__ import annotations

import logging
import os
import queue
import signal
import time
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

from compute_agent.agent import release
from compute_agent.agent.api import ApiMethods
from compute_agent.agent.assembly import assemble_agent
from compute_agent.agent.documents import (
    StatusSources,
    agent_document,
    group_documents,
    health_document,
    rehearsal_rows,
    watermark_rows,
)
from compute_agent.agent.host_access import GUESTS_FOLDER, make_state_folder
from compute_agent.agent.listeners import AgentListeners
from compute_agent.agent.protocol import RequestError
from compute_agent.agent.release import refuse_if_released
from compute_agent.agent.reload import ConfigurationLoader
from compute_agent.conf.isolation import MOVE
from compute_agent.controllers.base import find_controller
from compute_agent.controllers.cpu_class import cpu_class_status
from compute_agent.controllers.isolation import isolation_status
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.drivers.processes import records
from compute_agent.files import remove_leftovers
from compute_agent.inventory.host_identity import keep_owner, read_identity
from compute_agent.isolation.osnoise import ORIGINAL_FILE, OsNoiseTracer, TracerError
from compute_agent.loops.audit import AuditOutcome, HostAuditor
from compute_agent.loops.devices import DeviceUse
from compute_agent.loops.noise import CpuHolder
from compute_agent.pipeline.events import ReconcileGuests
from compute_agent.pipeline.state import lock_state_folder
from compute_agent.promises.verdict import PromiseVerdict
from compute_agent.report.audit import HealOptions
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import Ownership
from compute_agent.throttling.watermarks.plan import rehearse_usage

LOG = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""The seconds between two checks of the main thread for changed configuration files and hardware."""

PRUNE_SECONDS: Final = 600.0
"""The seconds between two removals of the logs of ended guests."""


class ReceivedSignals:
    """A queue of signals: handlers and all threads may call put(), the main thread calls get()."""

    def __init__(self) -> None:
        # SimpleQueue.put() is reentrant, unlike Queue.put(): a handler can interrupt a put of the main
        # thread.
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()

    def put(self, number: int) -> None:
        """Queue a signal number; the main thread acts as if the process had received the signal."""
        self._queue.put(number)

    def get(self, timeout: float) -> int | None:
        """Wait at most ``timeout`` seconds for the next signal; None means that no signal came."""
        try:
            return self._queue.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None


class HostAgent:
    """One agent on one state folder.

    Its threads and listeners run from the call of start() until the call of stop().
    """

    def __init__(self, load_conf: ConfigurationLoader) -> None:
        """Read the configuration, the host and the state folder, and make all objects of the agent.

        The constructor writes only into the state folder, and mounts resctrl if configured.

        :raises ConfigError: the configuration does not fit this host, or contradicts itself.
        :raises cfg.Error: a configuration file cannot be read or parsed.
        :raises IdentityError: the state folder belongs to another host, or the uuid or the name of the root
            provider cannot be determined.
        :raises LockedError: another agent works on the state folder, or on the guests.
        :raises DriverError: the driver of guests cannot be used.
        :raises OSError: a file of the host or of the state folder cannot be read or written.
        """
        options = load_conf()
        self._folder = folder = make_state_folder(options)
        # The lock is taken first: a second agent on the folder must fail before it changes anything.
        self._lock = lock_state_folder(folder)
        try:
            refuse_if_released(folder)
            for part in (folder, folder / GUESTS_FOLDER):
                # A crash during a write leaves a temporary file that should have replaced the real file.
                remove_leftovers(part)
            keep_owner(folder, read_identity(Path(options.host.root)))
            self._parts = parts = assemble_agent(load_conf, options, folder)
        except BaseException:
            os.close(self._lock)
            raise
        self._signals = ReceivedSignals()
        self._listeners: AgentListeners | None = None
        self._guest_logs = records.GuestLogs(folder / GUESTS_FOLDER)
        self.driver = parts.host_driver.driver
        self.pipeline, self.metrics = parts.pipeline, parts.metrics
        self.reports, self.announcements = parts.reports, parts.announcements
        self.configurator, self.maintenance = parts.configurator, parts.maintenance
        self.manual_throttling = parts.manual_throttling

    @property
    def options(self) -> cfg.ConfigOpts:
        """The options of the configuration in force."""
        return self._parts.in_force.current.options

    @property
    def client(self) -> PlacementClient:
        """The Placement client that the configuration in force describes."""
        return self._parts.in_force.current.client

    @property
    def owned(self) -> Ownership:
        """The resource classes, traits and values that belong to the agent, by the uuid of the provider."""
        return self._parts.state.state.owned

    # Start and end

    def start(self) -> None:
        """Start the worker with the known guests, then the loops and the listeners.

        :raises OSError: the agent cannot listen on the UNIX socket or on the HTTP address.
        """
        parts = self._parts
        # The worker gets the remembered limits when it starts; otherwise the controllers would remove these
        # limits.
        limits = parts.limits.combined_limits()
        self.pipeline.start(parts.state.state, parts.arrivals.report_change, limits)
        if parts.reloader.resctrl.off:
            LOG.info("Cache and bandwidth control is off: %s", parts.reloader.resctrl.off)
        self._stop_tracer()
        for loop in parts.early:
            loop.start()
        self._listeners = AgentListeners(
            self.options, ApiMethods(self), self.metrics.registry, self.check_health
        )
        for loop in parts.late:
            loop.start()
        LOG.info("The agent of host %s has started", self.pipeline.host_state.tree.root.name)

    def _stop_tracer(self) -> None:
        """End a tracer that a killed ``cpu noise`` left running, as it would disturb the CPUs of guests."""
        tracer = OsNoiseTracer(Path(self.options.host.root), self._folder / ORIGINAL_FILE)
        try:
            tracer.stop_leftover()
        except TracerError as error:
            LOG.warning(
                "The tracer that an earlier `compute-agent cpu noise` has left cannot be removed: %s", error
            )

    def stop(self) -> None:
        """Stop the listeners, all threads and the driver. Guests continue to run with their settings."""
        parts = self._parts
        # The listeners close first, because requests need the objects that end below.
        if self._listeners is not None:
            self._listeners.close()
        # The loops stop in reverse order of their start, because a loop uses loops that started earlier.
        for loop in reversed((*parts.early, *parts.late)):
            if loop is not parts.events:
                loop.stop()
        self.pipeline.stop()
        parts.events.stop()  # the loop of events stops after the worker, which records events
        parts.host_driver.close()
        parts.reloader.close()
        # The lock is released last: from here on, another agent can work on the state folder.
        os.close(self._lock)
        LOG.info("The agent stopped; its guests continue to run")

    # For the main thread

    def catch_signals(self) -> None:
        """Queue SIGTERM, SIGINT and SIGHUP for serve_signals(); called in the main thread before start()."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # The handler only queues: it interrupts the main thread, which can hold a lock at that moment.
            signal.signal(number, lambda number, frame: self._signals.put(number))

    def serve_signals(self) -> None:
        """Run the periodic tasks of the main thread until SIGTERM or SIGINT, and then stop.

        SIGHUP reloads.
        """
        due = time.monotonic() + self.reconcile_interval
        prune_due = time.monotonic()
        try:
            while True:
                received = self._signals.get(min(due - time.monotonic(), LOOK_SECONDS))
                if received == signal.SIGHUP:
                    self.reload()
                elif received is not None:
                    return
                else:
                    self.reload_changes()
                    self.shorten_guest_logs()
                    if time.monotonic() >= due:
                        self.reconcile()
                        due = time.monotonic() + self.reconcile_interval
                if time.monotonic() >= prune_due:
                    self.prune_guest_logs()
                    prune_due = time.monotonic() + PRUNE_SECONDS
        finally:
            self.stop()

    def reload_changes(self) -> None:
        """Reload if configuration files or hardware have changed since the last call."""
        self._parts.reloader.reload_changes()

    def reload(self) -> None:
        """Read the configuration and the host, and apply them.

        If the configuration is refused, report the reason; the old configuration stays in force.
        """
        self._parts.reloader.reload()

    def reconcile(self) -> None:
        """Queue a check of all guests for the worker, which compares the kernel with the targets."""
        self.pipeline.submit(ReconcileGuests())

    @property
    def reconcile_interval(self) -> float:
        """The seconds between two calls of reconcile(): ``[guests] reconcile_interval``."""
        return float(self.options.guests.reconcile_interval)

    def shorten_guest_logs(self) -> None:
        """Shorten each log file of a guest that is larger than ``[guests] log_guest_mb``."""
        self._guest_logs.shorten_logs(self.options.guests.log_guest_mb * 10**6)

    def prune_guest_logs(self) -> None:
        """Remove logs of ended guests that are beyond the maximum age or total size in ``[guests]``."""
        records.try_prune(self._folder / GUESTS_FOLDER, self.options.guests)

    # For the socket and HTTP

    def status(self) -> dict[str, Any]:
        """The JSON document of ``compute-agent status``."""
        return agent_document(self._status_sources())

    def check_health(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the worker is alive, and the JSON document of ``/healthz``."""
        return health_document(self._status_sources())

    def _status_sources(self) -> StatusSources:
        parts = self._parts
        reloader = parts.reloader
        return StatusSources(
            self.options,
            self.pipeline,
            self.reports,
            self.maintenance,
            parts.host_driver,
            reloader.resctrl,
            parts.monitoring,
            parts.oom,
            parts.events,
            cpu_class_status(parts.in_force.controllers),
            isolation_status(parts.in_force.controllers),
            reloader.error,
            [
                *reloader.all_warnings,
                *self.pipeline.host_state.warnings,
                *parts.reclaimed.failure_texts,
                *parts.sources.failure_texts,
            ],
            parts.fleet.status_fields(),
        )

    def resctrl_groups(self) -> list[dict[str, Any]]:
        """The JSON documents of all resctrl groups of this host; see :func:`group_documents`.

        :raises RequestError: cache and bandwidth control is off.
        :raises ResctrlError: resctrl cannot be read.
        :raises BadSchemataError: the kernel shows a schemata file that the agent cannot parse.
        """
        controller = find_controller(self._parts.in_force.controllers, ResctrlController)
        if controller is None:
            raise RequestError(f"cache and bandwidth control is off: {self._parts.reloader.resctrl.off}")
        return group_documents(controller, self.pipeline.guest_views())

    def list_watermarks(self) -> list[dict[str, Any]]:
        """The rows of all watermarks with the measured usage; see :func:`watermark_rows`."""
        return watermark_rows(self._parts.watermarks.status)

    def rehearse_watermarks(self, metric: str, usage: str) -> list[dict[str, Any]]:
        """The actions that the watermarks of a metric would take at an assumed usage.

        :raises ValueError: the metric does not exist, the usage is impossible, or nothing was measured yet.
        """
        status = self._parts.watermarks.status
        if status.snapshot is None:
            raise ValueError("nothing was measured so far: try again in a second")
        names = {view.guest.uuid: view.guest.name for view in self.pipeline.guest_views()}
        return rehearsal_rows(
            rehearse_usage(status.rules, status.snapshot, status.state, metric, usage), names
        )

    def capacity(self) -> list[dict[str, Any]]:
        """Rows that show how reclaimed capacity and stolen CPUs are computed: one row for each summand."""
        return self._parts.reclaimed.list_rows(self.reports.status.not_offered.withheld)

    def list_interference(self) -> list[dict[str, Any]]:
        """One row for each guest that is limited because it disturbs others, and for each past verdict."""
        return self._parts.interference.list_rows()

    def audit(self, options: HealOptions) -> list[AuditOutcome]:
        """Compare the guests of this host with allocations, and repair the differences that ``options`` name.

        :raises PlacementError: Placement cannot be read.
        :raises DriverError: it is not known which guests run.
        """
        holders, recorder = self.reports.history.known_owners, self._parts.recorder
        moves = self.options.isolation.emulator == MOVE
        root = Path(self.options.host.root)
        auditor = HostAuditor(
            self.pipeline,
            self.driver,
            self.client,
            self.reports.wake,
            recorder,
            holders,
            moves,
            root,
            self.reports.claimed_guests,
        )
        return auditor.run_audit(options)

    def list_holders(self) -> list[CpuHolder]:
        """The guests with dedicated CPUs."""
        return self._parts.noise.list_holders()

    def list_devices(self) -> list[DeviceUse]:
        """The PCI devices that the host offers, with the guests that hold them."""
        return self._parts.devices.list_uses()

    def verify_promises(self) -> list[PromiseVerdict]:
        """Check in the kernel whether guests have what they were promised; return a verdict per promise."""
        return self._parts.verifier.verify_all()

    def survey_release(self, options: release.ReleaseOptions) -> list[release.ReleaseRow]:
        """List all settings that a release of this host would undo, without changing anything."""
        root, control = Path(self.options.host.root), self._parts.reloader.resctrl.control
        host_state, state, throttling = self.pipeline.host_state, self._parts.state, self._parts.throttling
        return release.survey_host(
            host_state, self.driver, control, self.client, state, throttling, options, root
        )

    def end_agent(self) -> None:
        """Queue a SIGTERM, so that the main thread ends the agent."""
        # The agent is not stopped here, because this thread belongs to a listener and still has to answer its
        # client.
        self._signals.put(signal.SIGTERM)
