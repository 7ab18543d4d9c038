"""JSON documents for the command line: status, health, guests, watermarks and resctrl groups."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final

from compute_agent import installed_version
from compute_agent.agent.assembly import AssembledAgent
from compute_agent.agent.configured_host import policy_of
from compute_agent.controllers.cpu_class import cpu_class_status
from compute_agent.controllers.cpu_class_plan import in_words
from compute_agent.controllers.isolation import isolation_status
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.drivers.base import split_names
from compute_agent.drivers.factory import limits_fault
from compute_agent.drivers.processes.driver import ProcessDriver
from compute_agent.host.cpus import read_online
from compute_agent.inventory.provider_tree import FIELDS
from compute_agent.loops.holders import CpuHolder, DeviceUse
from compute_agent.loops.reports import status_document
from compute_agent.loops.triggers import WatermarkStatus
from compute_agent.model import cpuset
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import SETTING_NAMES
from compute_agent.model.messages import full_name, printable_text
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.policy import place_nowhere
from compute_agent.policy.base import Policy
from compute_agent.report.adjustments import SettledInventory
from compute_agent.report.history import AllocationLoss
from compute_agent.report.plan import to_api
from compute_agent.report.reshape import ReshapePlan
from compute_agent.report.root_provider import root_keeper
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import DEFAULT_GROUP, ControlGroup, read_groups, read_tasks
from compute_agent.resctrl.layout import ResctrlLayout, cache_mask
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.throttling.watermarks.breaches import WatermarkWatch, is_quiet
from compute_agent.throttling.watermarks.metrics import WatermarkMetric
from compute_agent.throttling.watermarks.sections import WatermarkAction, WatermarkSection
from compute_agent.throttling.watermarks.state import SwitchScheduling, WatermarkAct
from compute_agent.usage.snapshot import MetricSeries

# The version is read at the start: after an upgrade of the package, a running agent still has the old
# version.
_VERSION: Final = installed_version()


def guest_document(view: GuestView, policy: Policy, claim_expires: float | None = None) -> dict[str, Any]:
    """The JSON document of a guest for the command line. CPU sets are strings such as ``0-3,8``.

    :param policy: the placement policy in force.
    :param claim_expires: the time, in seconds since the epoch, at which the guest's claim expires; None means
        that the claim does not expire.
    """
    assignment = view.assignment
    return {
        "uuid": view.guest.uuid,
        "name": view.guest.name,
        "pid": view.guest.pid,
        "driver": view.guest.driver,
        "vcpus": view.guest.settings.vcpus,
        "kind": _guest_kind(view),
        "cpus": "" if assignment is None else cpuset.format(assignment.cpus),
        "vcpu_cpus": [] if assignment is None else [cpuset.format(cpus) for cpus in assignment.vcpu_cpus],
        "emulator_cpus": "" if assignment is None else cpuset.format(assignment.emulator_cpus),
        "dedicated_cpus": "" if assignment is None else cpuset.format(assignment.held_cpus),
        "withheld_cpus": "" if assignment is None else cpuset.format(assignment.withheld),
        "numa_nodes": "" if assignment is None else cpuset.format(assignment.mems),
        "cpu_numa_nodes": cpuset.format(view.cpu_nodes),
        "allocation": view.allocation,
        "claim_expires": "" if claim_expires is None else _iso_time(claim_expires),
        "migration": "" if view.migration is None else view.migration.consumer,
        **{name: _json_value(getattr(view.guest.settings, name)) for name in SETTING_NAMES},
        "deferred_class": view.guest.deferred_class,
        "rule": view.guest.rule,
        "setting_sources": dict(view.guest.setting_sources),
        "setting_problems": list(view.guest.setting_problems),
        "limits": {str(knob): round(limit, 3) for knob, limit in sorted(view.limits.items())},
        "pending": list(view.pending),
        "reason": guest_reason(view, policy),
        "refusal": view.refusal,
        "stray": view.stray,
        "refused": list(view.refused),
        "cache_group_delay": view.cache_delay if view.cache_delay is None else round(view.cache_delay, 3),
        # If the value is None, the driver does not know the devices of the guest. For example, a guest that
        # is a plain process can open all devices that its user can open.
        "devices": None if view.guest.devices is None else sorted(view.guest.devices),
        **view.guest.details,
        **({"cgroup": view.guest.cgroup} if view.guest.cgroup else {}),
    }


def holder_document(holder: CpuHolder) -> dict[str, Any]:
    """The JSON document of a guest with dedicated CPUs."""
    return {
        "uuid": holder.uuid,
        "name": holder.name,
        "cpus": cpuset.format(holder.cpus),
        "level": holder.level.value,
        "threads": sorted(holder.threads),
    }


def device_document(use: DeviceUse) -> dict[str, Any]:
    """The JSON document of a PCI device with the guests that hold it."""
    device = use.device
    return {
        "address": use.address,
        "resource_class": use.resource_class,
        "total": use.total,
        "held": use.held_amount,
        "numa_node": use.node,
        "path": use.path,
        "driver": "" if device is None else device.driver,
        "link": "" if device is None else str(device.link),
        "model": "" if device is None else device.model,
        "mdev_types": [] if device is None else [f"{one.name}: {one.available}" for one in device.mdev_types],
        "guests": dict(use.holders),
        "text": use.in_words,
    }


def _json_value(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat("T", "seconds")


def guests_document(views: Iterable[GuestView], policy: Policy) -> dict[str, Any]:
    """The uuids of the guests with problems, by kind of problem.

    :param policy: the placement policy in force.
    """
    views = tuple(views)
    return {
        # An empty allocation means that Placement has no allocation for the guest, and None means that
        # Placement has not answered yet.
        "unallocated_guests": [view.guest.uuid for view in views if view.allocation == {}],
        "unknown_guests": [view.guest.uuid for view in views if view.allocation is None],
        "refused_guests": [view.guest.uuid for view in views if view.refusal],
        "migrating_guests": [view.guest.uuid for view in views if view.migration],
        "stray_guests": [view.guest.uuid for view in views if view.stray],
        "remote_memory_guests": [view.guest.uuid for view in views if view.remote_memory],
        "reasons": {view.guest.uuid: reason for view in views if (reason := guest_reason(view, policy))},
        "pending_guests": [view.guest.uuid for view in views if view.pending],
    }


def guest_reason(view: GuestView, policy: Policy) -> str:
    """The reason why a guest does not run on the CPUs of its allocation; empty if it runs on them.

    :param policy: the placement policy in force.
    """
    missing = ""
    if view.allocation is None:
        missing = "the allocation is not known yet from Placement"
    elif not view.allocation:
        missing = "it has no allocation on this host: see compute-agent audit"
    is_left = policy is place_nowhere and view.assignment is None
    left = "[policy] name = none places no guests" if is_left else ""
    migrating = "" if view.migration is None else str(view.migration)
    waiting = (
        f"this host has no room for its claim: it has class {view.guest.settings.qos_class} now, and gets"
        f" class {view.guest.deferred_class} with the claim; free resources of this host, or let the guest"
        " claim fewer"
        if view.guest.deferred_class
        else ""
    )
    return "; ".join(filter(None, (migrating, view.refusal or missing, left, view.stray, waiting)))


def move_document(view: GuestView, to: CpuAssignment | None, outcome: str) -> dict[str, Any]:
    """The JSON document of the move of a guest into the present CPU sets.

    :param view: the guest before the move.
    :param to: the CPUs after the move; None if the guest stays on its CPUs.
    :param outcome: a text about the outcome of the move; unused if the guest stays.
    """
    held = frozenset[int]() if view.assignment is None else view.assignment.held_cpus
    return {
        "uuid": view.guest.uuid,
        "name": view.guest.name,
        "from": cpuset.format(held),
        "to": cpuset.format(held if to is None else to.held_cpus),
        "outcome": "stays" if to is None else outcome,
        "reason": view.stray or "it holds no CPUs outside the current CPU sets",
    }


def _guest_kind(view: GuestView) -> str:
    if view.assignment is None or not view.assignment.dedicated:
        if view.allocation is None:
            return "unknown"
        if view.refusal or view.assignment is None:
            return "unplaced"
        return "shared" if view.allocation else "unallocated"
    return "dedicated" if view.assignment.cpus <= view.assignment.held_cpus else "mixed"


def provider_document(
    name: str, parent: str | None, inventories: Mapping[str, Any], traits: Iterable[str]
) -> dict[str, Any]:
    """The JSON document of a provider, with inventories in the fields of the Placement API."""
    return {
        "name": name,
        "parent": parent,
        "inventories": {rc: to_api(inventory) for rc, inventory in sorted(inventories.items())},
        "traits": sorted(traits),
    }


def origin_document(settled: SettledInventory) -> dict[str, str]:
    """The origin of each field of an inventory: the agent, or another client of Placement."""
    others = {one.field: f"set through the API, {one.verdict}" for one in settled.adjustments}
    return {field: others.get(field, "agent") for field in FIELDS}


def loss_document(loss: AllocationLoss, names: Mapping[str, str]) -> dict[str, Any]:
    """The JSON document of a guest's allocation before and after a part of the allocation was lost.

    :param names: the names of providers by uuid.
    """
    return {
        "guest": loss.uuid,
        "name": loss.name,
        "held": {names.get(uuid, uuid): dict(amounts) for uuid, amounts in loss.before.items()},
        "holds": {names.get(uuid, uuid): dict(amounts) for uuid, amounts in loss.now.items()},
    }


def reshape_document(planned: ReshapePlan, names: Mapping[str, str]) -> dict[str, Any]:
    """The JSON document of a reshape: the moved amounts, and the totals before and after.

    :param names: the names of providers by uuid.
    """
    return {
        "moves": [
            {
                "guest": move.consumer,
                "from": [names.get(move.source, move.source), move.source_class, move.source_amount],
                "to": [names.get(move.target, move.target), move.target_class, move.target_amount],
            }
            for move in planned.moves
        ],
        "inventories": [
            {
                "provider": names.get(change.uuid, change.uuid),
                "resource_class": name,
                "before": change.before[name].total if name in change.before else None,
                "after": change.after[name].total if name in change.after else None,
            }
            for change in planned.inventories
            for name in sorted({*change.before, *change.after})
            if change.before.get(name) != change.after.get(name)
        ],
    }


def group_documents(controller: ResctrlController, views: Iterable[GuestView]) -> list[dict[str, Any]]:
    """The JSON documents of all resctrl groups, read from the kernel; the default group is the first.

    :raises ResctrlError: resctrl cannot be read.
    :raises BadSchemataError: the kernel shows a schemata file that the agent cannot parse.
    """
    guests = defaultdict(list)
    for view in views:
        group = controller.membership.get(view.guest.uuid)
        if group is not None:
            guests[group].append(view.guest.name)
    control = controller.control
    present = read_groups(control.files)
    host = control.build_layout(present)
    classes: dict[str, list[str]] = {}
    for name, group in (controller.class_groups or {}).items():
        classes.setdefault(group, []).append(name)
    return [
        {
            "group": printable_text(group.name) or "(default)",
            "kind": _group_kind(host, group, classes),
            "qos_class": ", ".join(classes.get(group.name, ())),
            "guests": sorted(guests[group.name]),
            "threads": _thread_count(control, group),
            "schemata": str(group.schemata).splitlines(),
            "ways": {cache: len(cache_mask(host.platform, group.schemata, cache)) for cache in _l3_ids(host)},
            "llc_kib": _llc_kib(host, group),
            "bandwidth_percent": _bandwidth_percents(host, group),
            "mode": printable_text(group.mode),
            "monitoring_groups": len(group.monitoring_groups),
            "refused": list(controller.refused.get(group.name, ())),
        }
        for group in present.groups.values()
    ]


def _group_kind(host: ResctrlLayout, group: ControlGroup, classes: Iterable[str]) -> str:
    if group.name == DEFAULT_GROUP:
        return "default"
    if not host.is_ours(group.name):
        return "foreign"
    return "class" if group.name in classes else "guest"


def _thread_count(control: ResctrlHandle, group: ControlGroup) -> int | None:
    try:
        return len(read_tasks(control.files, group.name))
    except ResctrlError:  # another program has locked or removed the group
        return None


def _l3_ids(host: ResctrlLayout) -> tuple[int, ...]:
    return host.platform.l3.ids if host.platform.l3 else ()


def _llc_kib(host: ResctrlLayout, group: ControlGroup) -> dict[int, int]:
    sizes = host.platform.l3.way_bytes if host.platform.l3 else {}
    return {
        cache: len(cache_mask(host.platform, group.schemata, cache)) * sizes[cache] // 1024
        for cache in _l3_ids(host)
        if cache in sizes
    }


def _bandwidth_percents(host: ResctrlLayout, group: ControlGroup) -> dict[int, int]:
    """The limit of a group's memory bandwidth, in percent of the full bandwidth, by MB domain."""
    engine, values = host.codec, group.schemata.lines.get("MB", {})
    return (
        {} if engine is None else {domain: engine.decode_value(domain, values[domain]) for domain in values}
    )


def rehearsal_rows(actions: Iterable[WatermarkAct], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of a rehearsal: one row for each action that the watermarks would take.

    :param names: the names of guests by uuid.
    """
    rows = []
    for action in actions:
        guest = "" if isinstance(action, SwitchScheduling) else action.guest
        rows.append({"action": str(action), "guest": guest, "name": names.get(guest, "")})
    return rows


def watermark_rows(status: WatermarkStatus) -> list[dict[str, Any]]:
    """The rows of all thresholds: one row for each watermark section, domain and action, by section.

    ``usage``, ``amount`` (the threshold) and ``gap`` (the excess) are in the metric's unit. A value of None
    is unknown. ``gap`` is also None while the threshold is not exceeded. For ``throttle_up``, ``gap`` is the
    difference by which usage is below the threshold. ``streak`` counts the consecutive rounds with usage
    above the threshold; the agent acts when ``streak`` reaches ``for_samples``. In rows of ``throttle_down``,
    ``in_force`` describes the present limits of the metric's lever. In rows of ``evict``, it describes the
    evictions in progress because of the metric.

    While watermarks keep new guests away, ``in_force`` says so in the rows of all watermarks with an exceeded
    threshold. If no threshold is exceeded, the rows of all watermarks within their cool-down say so.
    """
    rows: list[dict[str, Any]] = []
    for watermark in sorted(status.rules.watermarks, key=lambda one: one.name):
        measured = {} if status.snapshot is None else status.snapshot.host
        domains = sorted(series.domain for series in measured if series.metric == watermark.metric)
        for domain in domains or [""]:
            for action in WatermarkAction:
                if watermark.threshold_for(action) is not None:
                    rows.append(_watermark_row(status, watermark, action, domain))
    return rows


def _watermark_row(
    status: WatermarkStatus, watermark: WatermarkSection, action: WatermarkAction, domain: str
) -> dict[str, Any]:
    snapshot = status.snapshot
    usage = None if snapshot is None else snapshot.host.get(MetricSeries(watermark.metric, domain))
    amount = None if snapshot is None else watermark.threshold_amount(action, snapshot, domain)
    gap = None
    if usage is not None and amount is not None:
        gap = amount - usage if action is WatermarkAction.THROTTLE_UP else usage - amount
    watched = status.streaks.get(WatermarkWatch(watermark.name, action, domain))
    metric = status.rules.registry[watermark.metric]
    return {
        "section": watermark.name,
        "metric": watermark.metric,
        "unit": metric.unit.value,
        "domain": domain,
        "mode": "preview" if watermark.preview else "act",
        "action": action.value,
        "line": str(watermark.threshold_for(action)),
        "amount": _rounded_amount(amount),
        "usage": _rounded_amount(usage),
        "gap": _rounded_amount(gap) if gap is not None and gap > 0 else None,
        "streak": 0 if watched is None else watched.samples,
        "for_samples": watermark.for_samples,
        "in_force": [] if watermark.preview else list(_in_force(status, watermark, metric, action, domain)),
    }


def _in_force(
    status: WatermarkStatus,
    watermark: WatermarkSection,
    metric: WatermarkMetric,
    action: WatermarkAction,
    domain: str,
) -> Iterator[str]:
    state = status.state
    match action:
        case WatermarkAction.DISABLE_SCHEDULING if state.scheduling_off:
            yield from _kept_away(status, watermark, domain)
        case WatermarkAction.EVICT:
            yield from (f"{one.guest} leaves" for one in state.evictions if one.metric == metric.name)
        case WatermarkAction.THROTTLE_DOWN if metric.lever is not None:
            for one in state.throttles:
                if one.knob == (metric.lever.name, domain):
                    yield f"{one.guest} has {one.limit:g} {metric.lever.unit}"


def _kept_away(status: WatermarkStatus, watermark: WatermarkSection, domain: str) -> Iterator[str]:
    """Yield a text if the agent keeps new guests away because of this watermark.

    The causes are the watermarks with an exceeded threshold. If no threshold is exceeded, the causes are the
    watermarks within their cool-down. Before the first measurement, each watermark counts as a cause.
    """
    switch = WatermarkAction.DISABLE_SCHEDULING
    streak = status.streaks.get(WatermarkWatch(watermark.name, switch, domain))
    in_breach = any(one.samples for watch, one in status.streaks.items() if watch.action is switch)
    if status.snapshot is None or streak is None or streak.samples:
        yield "new guests are kept away"
    elif not in_breach and not is_quiet(streak, watermark, status.snapshot.time, watermark.cool_down):
        left = watermark.cool_down - (status.snapshot.time - streak.quiet_since)
        yield f"new guests are kept away for {max(left, 0):.0f} s more"


def _rounded_amount(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 3)


def agent_document(agent: AssembledAgent) -> dict[str, Any]:
    """The JSON document of ``status``: the agent's state, and what needs an operator's attention."""
    pipeline, driver, reports, reloader = agent.pipeline, agent.driver, agent.reports, agent.reloader
    host_state, views = pipeline.host_state, pipeline.guest_views()
    controllers = agent.in_force.controllers
    cpu_classes, isolation = cpu_class_status(controllers), isolation_status(controllers)
    # The CPUs that the agent has parked, and other offline CPUs that count as present.
    online = read_online(Path(agent.options.host.root))
    parked = cpu_classes.parked | host_state.with_online(online).topology.parked
    names = {view.guest.uuid: view.guest.name for view in views}
    return {
        "pid": os.getpid(),
        "version": _VERSION,
        "provider": host_state.tree.root.name,
        "provider_uuid": host_state.tree.root.uuid,
        "provider_is": root_keeper(host_state.tree.beside),
        **status_document(reports.status),
        **reports.history.status_fields(),
        **agent.maintenance.status_fields(),
        "config_error": reloader.error,
        **agent.fleet.status_fields(),
        "warnings": [
            *reloader.all_warnings,
            *host_state.warnings,
            *agent.reclaimed.failure_texts,
            *agent.sources.failure_texts,
        ],
        "policy": policy_of(agent.options, host_state.tree.beside),
        "driver": driver.name,
        "driver_status": agent.host_driver.status,
        "drivers_away": dict(driver.outage_reasons()),
        "cache_control": f"off: {off}" if (off := reloader.resctrl.off) else "on",
        "process_limits": _process_limits(agent),
        "cache_monitoring": f"off: {off}" if (off := agent.monitoring.reason_off) else "on",
        "cpu_classes": in_words(cpu_classes.classes),
        "cpu_class_refusals": list(cpu_classes.refusals),
        "parked_cpus": cpuset.format(parked),
        "quiet_cpus": cpuset.format(isolation.quiet),
        "alone_cpus": cpuset.format(isolation.alone),
        "isolation_refusals": list(isolation.refusal_sentences),
        "guests": len(views) if pipeline.has_taken_over_some else None,
        **guests_document(views, host_state.policy),
        "events": f"not kept: {trouble}" if (trouble := agent.events.trouble) else "kept",
        "oom_kills": agent.oom.list_rows(),
        "lost_guests": list(driver.lost_guests().values()),
        "excluded_guests": list(driver.excluded_guests().values()),
        "unclaimed_guests": _guest_sentences(agent.guest_claims.refusal_reasons(), names),
        "claims_of_another_host": agent.guest_claims.foreign_claims(),
        "overdue_guests": _guest_sentences(agent.claim_ends.overdue_guests(), names),
    }


def _process_limits(agent: AssembledAgent) -> str:
    """Whether the agent can give weights and CPU limits to guests that are processes; if not, the reason."""
    if ProcessDriver.name not in split_names(agent.driver.name):
        return f"off: the driver {ProcessDriver.name} is not used"
    return f"off: {fault}" if (fault := limits_fault(agent.options)) else "on"


def _guest_sentences(reasons: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    return [f"{full_name(names.get(uuid, ''), uuid)}: {reason}" for uuid, reason in reasons.items()]


def health_document(agent: AssembledAgent) -> tuple[bool, dict[str, Any]]:
    """Return whether the worker is alive, and the JSON document of ``/healthz``.

    An agent is also healthy while Placement does not answer, because a restart of the agent would not help.
    """
    alive = agent.pipeline.is_alive
    reports = status_document(agent.reports.status)
    document = {
        "status": "ok" if alive else "the worker is dead",
        "placement": reports["placement"],
        "last_report_seconds_ago": reports["last_report_seconds_ago"],
        "driver": agent.driver.name,
        "driver_status": agent.host_driver.status,
        "config_error": agent.reloader.error,
    }
    return alive, document
