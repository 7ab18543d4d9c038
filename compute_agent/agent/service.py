"""The agent: starts and stops its parts, serves signals in the main thread, and answers for all parts."""

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
from compute_agent.loops.audit import AuditOutcome, HostAuditor
from compute_agent.loops.devices import DeviceUse
from compute_agent.loops.noise import CpuHolder
from compute_agent.noise.osnoise import ORIGINAL_FILE, OsNoiseTracer, TracerError
from compute_agent.pipeline.events import ReconcileGuests
from compute_agent.pipeline.state import lock_state_folder
from compute_agent.promises.verdict import PromiseVerdict
from compute_agent.report.audit import HealOptions
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import Ownership
from compute_agent.throttling.watermarks.rehearsal import rehearse_usage

LOG = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""How often configuration files and hardware are looked at for changes."""

PRUNE_SECONDS: Final = 600.0
"""How often logs of ended guests are looked for that have been kept long enough."""


class ReceivedSignals:
    """Signals that wait for the main thread. For any thread, and for handlers of signals."""

    def __init__(self) -> None:
        # SimpleQueue.put() may interrupt itself: a handler runs between any two steps of the main thread.
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()

    def put(self, number: int) -> None:
        """Make the main thread act as if it had received this signal."""
        self._queue.put(number)

    def get(self, timeout: float) -> int | None:
        """The next signal, waited for ``timeout`` seconds at most; None without one."""
        try:
            return self._queue.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None


class HostAgent:
    """One agent on one state folder. Everything listens and runs after start() until stop()."""

    def __init__(self, load_conf: ConfigurationLoader) -> None:
        """Read configuration, host and state.

        The constructor changes only the state folder, and mounts resctrl if configured.

        :raises ConfigError: the configuration is refused.
        :raises cfg.Error:
        :raises IdentityError:
        :raises LockedError:
        :raises DriverError:
        :raises OSError:
        """
        options = load_conf()
        self._folder = folder = make_state_folder(options)
        # First: a process that is refused the lock must not have changed anything.
        self._lock = lock_state_folder(folder)
        try:
            refuse_if_released(folder)
            for part in (folder, folder / GUESTS_FOLDER):
                # Temporary files of writes that a crash has interrupted.
                remove_leftovers(part)
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
        """The configuration that the agent works by."""
        return self._parts.in_force.current.options

    @property
    def client(self) -> PlacementClient:
        """The way to Placement, as the configuration has it now."""
        return self._parts.in_force.current.client

    @property
    def owned(self) -> Ownership:
        """The providers, inventories and traits that the agent remembers to have put into Placement."""
        return self._parts.state.state.owned

    # Start and end

    def start(self) -> None:
        """Take over the guests, listen, report.

        :raises OSError: an address or the socket cannot be had.
        """
        parts, saved = self._parts, self._parts.state.state
        # Limits of the last agent hold from the first round on; the controllers would lift unknown ones.
        limits = parts.limits.combined_limits()
        self.pipeline.start(
            saved.guests,
            parts.arrivals.report_change,
            limits,
            saved.unclaimed,
            saved.migrations,
            saved.history.holders,
        )
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
        LOG.info("The agent of %s is up", self.pipeline.host_state.tree.root.name)

    def _stop_tracer(self) -> None:
        """End a tracer that a killed command has left on CPUs that guests are about to get."""
        tracer = OsNoiseTracer(Path(self.options.host.root), self._folder / ORIGINAL_FILE)
        try:
            tracer.stop_leftover()
        except TracerError as error:
            LOG.warning(
                "The tracer that an earlier `compute-agent cpu noise` has left cannot be removed: %s", error
            )

    def stop(self) -> None:
        """Stop listening and working; guests stay as they are."""
        parts = self._parts
        # No request may come in while the parts end.
        if self._listeners is not None:
            self._listeners.close()
        # In reverse order of the start: a part is stopped before the parts that it uses.
        for loop in reversed((*parts.early, *parts.late)):
            if loop is not parts.events:
                loop.stop()
        self.pipeline.stop()
        parts.events.stop()  # last, as the worker records events to its end
        parts.host_driver.close()
        parts.reloader.close()
        # From here on another agent may work on the folder.
        os.close(self._lock)
        LOG.info("The agent stopped; its guests continue to run")

    # For the main thread

    def catch_signals(self) -> None:
        """Have signals wait for serve_signals(). For the main thread, before the agent starts."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Only queued: the handler runs between two steps of the main thread, which may hold a lock.
            signal.signal(number, lambda number, frame: self._signals.put(number))

    def serve_signals(self) -> None:
        """Work until SIGTERM or SIGINT, then stop the agent; SIGHUP reloads. Call it after the start."""
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
        """Look whether configuration or hardware changed since the last time, and apply that."""
        self._parts.reloader.reload_changes()

    def reload(self) -> None:
        """Read configuration and host again. A refused configuration changes nothing and is reported."""
        self._parts.reloader.reload()

    def reconcile(self) -> None:
        """Have the worker check all guests."""
        self.pipeline.submit(ReconcileGuests())

    @property
    def reconcile_interval(self) -> float:
        """Seconds from one such look to the next."""
        return float(self.options.guests.reconcile_interval)

    def shorten_guest_logs(self) -> None:
        """Shorten the logs of guests that are larger than one may be."""
        self._guest_logs.shorten_logs(self.options.guests.log_guest_mb * 10**6)

    def prune_guest_logs(self) -> None:
        """Remove the logs of ended guests that have been kept long enough."""
        records.try_prune(self._folder / GUESTS_FOLDER, self.options.guests)

    # For the socket and HTTP

    def status(self) -> dict[str, Any]:
        """The agent's state, for the command line."""
        return agent_document(self._status_sources())

    def check_health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the worker works, and what else is wrong."""
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
        """All resctrl groups of this host; see :func:`group_documents`.

        :raises RequestError: this host has no resctrl.
        :raises ResctrlError:
        :raises BadSchemataError:
        """
        controller = find_controller(self._parts.in_force.controllers, ResctrlController)
        if controller is None:
            raise RequestError(f"cache and bandwidth control is off: {self._parts.reloader.resctrl.off}")
        return group_documents(controller, self.pipeline.guest_views())

    def list_watermarks(self) -> list[dict[str, Any]]:
        """The watermarks, and how usage stands to them; see :func:`watermark_rows`."""
        return watermark_rows(self._parts.watermarks.status)

    def rehearse_watermarks(self, metric: str, usage: str) -> list[dict[str, Any]]:
        """The actions of the watermarks of a metric at a usage, which is not the real one.

        :raises ValueError: there is no such metric, or no such usage.
        """
        status = self._parts.watermarks.status
        if status.snapshot is None:
            raise ValueError("nothing was measured so far: try again in a second")
        names = {view.guest.uuid: view.guest.name for view in self.pipeline.guest_views()}
        return rehearsal_rows(
            rehearse_usage(status.rules, status.snapshot, status.state, metric, usage), names
        )

    def capacity(self) -> list[dict[str, Any]]:
        """Unused shared CPUs and memory, and stolen CPUs, term by term."""
        return self._parts.reclaimed.list_rows(self.reports.status.not_offered.withheld)

    def list_interference(self) -> list[dict[str, Any]]:
        """Guests that are limited for others, and what is remembered of such pairs."""
        return self._parts.interference.list_rows()

    def audit(self, options: HealOptions) -> list[AuditOutcome]:
        """Compare guests with allocations, and mend what is asked for.

        :raises PlacementError:
        :raises DriverError:
        """
        holders, recorder = self.reports.history.known_owners, self._parts.recorder
        moves = self.options.isolation.emulator == MOVE
        root = Path(self.options.host.root)
        auditor = HostAuditor(
            self.pipeline, self.driver, self.client, self.reports.wake, recorder, holders, moves, root
        )
        return auditor.run_audit(options)

    def list_holders(self) -> list[CpuHolder]:
        """The guests with dedicated CPUs."""
        return self._parts.noise.list_holders()

    def list_devices(self) -> list[DeviceUse]:
        """The PCI devices that the host offers, with their holders."""
        return self._parts.devices.list_uses()

    def verify_promises(self) -> list[PromiseVerdict]:
        """The promises to all guests, compared with the kernel."""
        return self._parts.verifier.verify_all()

    def survey_release(self, options: release.ReleaseOptions) -> list[release.ReleaseRow]:
        """Everything there is to give back when this host is left."""
        root, control = Path(self.options.host.root), self._parts.reloader.resctrl.control
        host_state, state, throttling = self.pipeline.host_state, self._parts.state, self._parts.throttling
        return release.survey_host(
            host_state, self.driver, control, self.client, state, throttling, options, root
        )

    def end_agent(self) -> None:
        """Have the main thread end the agent, as at SIGTERM."""
        # As if by systemd: the main thread stops the parts, and this thread still has to answer its client.
        self._signals.put(signal.SIGTERM)
