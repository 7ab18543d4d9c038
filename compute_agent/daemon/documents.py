"""What the agent knows, as documents of JSON for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from compute_agent.inventory.provider_tree import FIELDS
from compute_agent.model import cpuset
from compute_agent.model.guest import CpuAssignment
from compute_agent.pipeline.view import GuestView
from compute_agent.report.history import AllocationLoss
from compute_agent.report.plan import SettledInventory, to_api
from compute_agent.report.reshape import ReshapePlan


def guest_document(view: GuestView, claim_expires: float | None = None) -> dict[str, Any]:
    """A guest as the command line shows it. CPUs are strings such as ``0-3,8``.

    :param claim_expires: when its claim is gone by itself, in seconds since the epoch.
    """
    assignment = view.assignment
    return {
        "uuid": view.guest.uuid,
        "name": view.guest.name,
        "pid": view.guest.pid,
        "vcpus": view.guest.settings.vcpus,
        "kind": _kind(view),
        "cpus": "" if assignment is None else cpuset.format(assignment.cpus),
        "vcpu_cpus": [] if assignment is None else [cpuset.format(cpus) for cpus in assignment.vcpu_cpus],
        "emulator_cpus": "" if assignment is None else cpuset.format(assignment.emulator_cpus),
        "dedicated_cpus": "" if assignment is None else cpuset.format(assignment.held),
        "withheld_cpus": "" if assignment is None else cpuset.format(assignment.withheld),
        "numa_nodes": "" if assignment is None else cpuset.format(assignment.mems),
        "cpu_numa_nodes": cpuset.format(view.cpu_nodes),
        "allocation": view.allocation,
        "claim_expires": "" if claim_expires is None else _time(claim_expires),
        "migration": "" if view.migration is None else view.migration.consumer,
        "thread_policy": view.guest.settings.thread_policy.value,
        "emulator_policy": view.guest.settings.emulator_policy.value,
        "qos_class": view.guest.settings.qos_class,
        "priority": view.guest.settings.priority,
        "resctrl": view.guest.settings.resctrl,
        "blockio_class": view.guest.settings.blockio_class,
        "memory_type": view.guest.settings.memory_type.value,
        "limits": {str(knob): round(limit, 3) for knob, limit in sorted(view.limits.items())},
        "pending": list(view.pending),
        "reason": guest_reason(view),
        "refusal": view.refusal,
        "stray": view.stray,
        "refused": list(view.refused),
        "cache_group_delay": view.cache_delay if view.cache_delay is None else round(view.cache_delay, 3),
        **view.guest.details,
        **({"cgroup": view.guest.cgroup} if view.guest.cgroup else {}),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat("T", "seconds")


def guests_document(views: Iterable[GuestView]) -> dict[str, Any]:
    """Which guests are not as they should be, by what is the matter with them."""
    views = tuple(views)
    return {
        "unallocated_guests": [view.guest.uuid for view in views if view.allocation == {}],
        "unknown_guests": [view.guest.uuid for view in views if view.allocation is None],
        "refused_guests": [view.guest.uuid for view in views if view.refusal],
        "migrating_guests": [view.guest.uuid for view in views if view.migration],
        "stray_guests": [view.guest.uuid for view in views if view.stray],
        "remote_memory_guests": [view.guest.uuid for view in views if view.remote_memory],
        "reasons": {view.guest.uuid: reason for view in views if (reason := guest_reason(view))},
        "pending_guests": [view.guest.uuid for view in views if view.pending],
    }


def guest_reason(view: GuestView) -> str:
    """Why a guest is not where its own allocation has it, in words; empty if it is."""
    unknown = "" if view.allocation is not None else "Placement has not said yet what it holds"
    migrating = "" if view.migration is None else str(view.migration)
    return "; ".join(filter(None, (migrating, view.refusal or unknown, view.stray)))


def move_document(view: GuestView, to: CpuAssignment | None, outcome: str) -> dict[str, Any]:
    """What became of moving a guest into the present CPU sets; ``view`` is the guest as it was before."""
    held = frozenset[int]() if view.assignment is None else view.assignment.held
    return {
        "uuid": view.guest.uuid,
        "name": view.guest.name,
        "from": cpuset.format(held),
        "to": cpuset.format(held if to is None else to.held),
        "outcome": "stays" if to is None else outcome,
        "reason": view.stray or "it holds no CPUs outside the present CPU sets",
    }


def _kind(view: GuestView) -> str:
    if view.assignment is None or not view.assignment.dedicated:
        if view.allocation is None:
            return "unknown"
        if view.refusal or view.assignment is None:
            return "unplaced"
        return "shared" if view.allocation else "unallocated"
    return "dedicated" if view.assignment.cpus <= view.assignment.held else "mixed"


def provider_document(
    name: str, parent: str | None, inventories: Mapping[str, Any], traits: Iterable[str]
) -> dict[str, Any]:
    """A provider, as derived or as reported, in the terms of the Placement API."""
    return {
        "name": name,
        "parent": parent,
        "inventories": {rc: to_api(inventory) for rc, inventory in sorted(inventories.items())},
        "traits": sorted(traits),
    }


def origin_document(settled: SettledInventory) -> dict[str, str]:
    """Who decides about the fields of an inventory that others set as well."""
    others = {one.field: f"set through the API, {one.verdict}" for one in settled.adjustments}
    return {field: others.get(field, "agent") for field in FIELDS}


def loss_document(loss: AllocationLoss, names: Mapping[str, str]) -> dict[str, Any]:
    """What a guest loses; ``names`` are those of providers by uuid."""
    return {
        "guest": loss.uuid,
        "name": loss.name,
        "held": {names.get(uuid, uuid): dict(amounts) for uuid, amounts in loss.before.items()},
        "holds": {names.get(uuid, uuid): dict(amounts) for uuid, amounts in loss.now.items()},
    }


def reshape_document(planned: ReshapePlan, names: Mapping[str, str]) -> dict[str, Any]:
    """A reshape as the command line shows it; ``names`` are those of providers by uuid."""
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
