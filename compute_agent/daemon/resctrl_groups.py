"""The resctrl groups of this host, ours and those of others, as the command line shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.model.messages import printable
from compute_agent.pipeline.view import GuestView
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import DEFAULT_GROUP, ControlGroup, read_groups, read_tasks
from compute_agent.resctrl.layout import ResctrlLayout, cache_mask
from compute_agent.resctrl.mount import ResctrlHandle


def group_documents(controller: ResctrlController, views: Iterable[GuestView]) -> list[dict[str, Any]]:
    """All groups as the kernel has them, the default group first.

    :raises ResctrlError:
    :raises BadSchemataError:
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
            "group": printable(group.name) or "(default)",
            "kind": _kind(host, group, classes),
            "qos_class": ", ".join(classes.get(group.name, ())),
            "guests": sorted(guests[group.name]),
            "threads": _threads(control, group),
            "schemata": str(group.schemata).splitlines(),
            "ways": {cache: len(cache_mask(host.platform, group.schemata, cache)) for cache in _l3(host)},
            "llc_kib": _llc_kib(host, group),
            "bandwidth_percent": _percents(host, group),
            "mode": printable(group.mode),
            "monitoring_groups": len(group.monitoring_groups),
            "refused": list(controller.refused.get(group.name, ())),
        }
        for group in present.groups.values()
    ]


def _kind(host: ResctrlLayout, group: ControlGroup, classes: Iterable[str]) -> str:
    if group.name == DEFAULT_GROUP:
        return "default"
    if not host.is_ours(group.name):
        return "foreign"
    return "class" if group.name in classes else "guest"


def _threads(control: ResctrlHandle, group: ControlGroup) -> int | None:
    try:
        return len(read_tasks(control.files, group.name))
    except ResctrlError:  # pseudo-locked, or just gone
        return None


def _l3(host: ResctrlLayout) -> tuple[int, ...]:
    return host.platform.l3.ids if host.platform.l3 else ()


def _llc_kib(host: ResctrlLayout, group: ControlGroup) -> dict[int, int]:
    sizes = host.platform.l3.way_bytes if host.platform.l3 else {}
    return {
        cache: len(cache_mask(host.platform, group.schemata, cache)) * sizes[cache] // 1024
        for cache in _l3(host)
        if cache in sizes
    }


def _percents(host: ResctrlLayout, group: ControlGroup) -> dict[int, int]:
    """By MB domain."""
    engine, values = host.codec, group.schemata.lines.get("MB", {})
    return (
        {} if engine is None else {domain: engine.decode_value(domain, values[domain]) for domain in values}
    )
