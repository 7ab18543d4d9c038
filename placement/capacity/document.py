"""Capacity as a JSON document."""

from collections.abc import Mapping
from typing import Any

from placement.capacity.counting import Capacity
from placement.capacity.packing import Fit
from placement.capacity.proportions import Share
from placement.capacity.stranding import Short
from placement.model.provider import Provider


def document(name: str, capacity: Capacity) -> dict[str, Any]:
    """What is said of a flavor; the API reference describes it."""
    worst = capacity.worst
    return {
        "name": name,
        **_fit(capacity.fit),
        "hosts": capacity.hosts,
        "open_hosts": capacity.open_hosts,
        "worst_host": None if worst is None else {**_host(worst), **_fit(capacity.without_worst)},
        "aggregates": [{"uuid": uuid, **_fit(fit)} for uuid, fit in capacity.by_aggregate.items()],
        "short": [_short(each) for each in capacity.short],
    }


def of_sets(sets: Fit, shares: Mapping[str, Share]) -> dict[str, Any]:
    """What is said of flavors in their proportions."""
    guests = {name: sets.fits * share.number for name, share in shares.items()}
    return {**_fit(sets), "guests": guests}


def _short(short: Short) -> dict[str, Any]:
    return {
        "resource_classes": list(short.classes),
        "hosts": short.hosts,
        **_stranded(short.stranded, short.guests),
        "examples": [
            {**_host(each.root), **_stranded(each.stranded, each.guests)} for each in short.examples
        ],
    }


def _fit(fit: Fit) -> dict[str, int]:
    return {"fits": fit.fits, "at_most": fit.at_most}


def _host(root: Provider) -> dict[str, str]:
    return {"host": root.name, "host_uuid": root.uuid}


def _stranded(stranded: Mapping[str, int], guests: int) -> dict[str, Any]:
    return {"stranded": dict(stranded), "stranded_guests": guests}
