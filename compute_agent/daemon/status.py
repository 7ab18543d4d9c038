"""What is told of the whole agent: its status for the command line, its health for whoever watches it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from compute_agent.controllers.cpu_class import CpuClassStatus, in_words
from compute_agent.daemon.cache_control import HostResctrl
from compute_agent.daemon.documents import guests_document
from compute_agent.daemon.host_driver import HostDriver
from compute_agent.daemon.maintenance import MaintenanceMode
from compute_agent.daemon.world import policy_of
from compute_agent.loops.event_log import EventLog
from compute_agent.loops.monitoring import CacheMonitoring
from compute_agent.loops.oom import OomEvents
from compute_agent.loops.reporting import ReportLoop, status_document
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.root_provider import whose


@dataclass(frozen=True, slots=True)
class StatusSources:
    """The parts of an agent that are told of, as they are now."""

    options: cfg.ConfigOpts
    pipeline: GuestPipeline
    reports: ReportLoop
    maintenance: MaintenanceMode
    host_driver: HostDriver
    resctrl: HostResctrl
    monitoring: CacheMonitoring
    oom: OomEvents
    events: EventLog
    cpu_classes: CpuClassStatus
    config_error: str
    warnings: Sequence[str]
    fleet: Mapping[str, Any]


def agent_document(shown: StatusSources) -> dict[str, Any]:
    """The agent's state, for the command line."""
    pipeline, driver = shown.pipeline, shown.host_driver.driver
    world, views = pipeline.world, pipeline.views()
    return {
        "pid": os.getpid(),
        "provider": world.tree.root.name,
        "provider_uuid": world.tree.root.uuid,
        "provider_is": whose(world.tree.beside),
        **status_document(shown.reports.status),
        **shown.reports.history.document(),
        **shown.maintenance.document(),
        "config_error": shown.config_error,
        **shown.fleet,
        "warnings": list(shown.warnings),
        "policy": policy_of(shown.options, world.tree.beside),
        "driver": driver.name,
        "driver_status": shown.host_driver.status,
        "cache_control": f"off: {shown.resctrl.off}" if shown.resctrl.off else "on",
        "cache_monitoring": f"off: {shown.monitoring.off}" if shown.monitoring.off else "on",
        "cpu_classes": in_words(shown.cpu_classes.classes),
        "cpu_class_refusals": list(shown.cpu_classes.refusals),
        "guests": len(views) if pipeline.has_taken_over else None,
        **guests_document(views),
        "events": f"not kept: {shown.events.trouble}" if shown.events.trouble else "kept",
        "oom_kills": shown.oom.document(),
        "lost_guests": list(driver.lost().values()),
    }


def health_document(shown: StatusSources) -> tuple[bool, dict[str, Any]]:
    """Whether the worker works, and what else is wrong. Placement being away is no illness of ours."""
    alive = shown.pipeline.is_alive
    reports = status_document(shown.reports.status)
    document = {
        "status": "ok" if alive else "the worker is dead",
        "placement": reports["placement"],
        "last_report_seconds_ago": reports["last_report_seconds_ago"],
        "driver": shown.host_driver.driver.name,
        "driver_status": shown.host_driver.status,
        "config_error": shown.config_error,
    }
    return alive, document
