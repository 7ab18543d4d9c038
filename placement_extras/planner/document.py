"""Renders the capacity of flavors as a JSON document, as the API reference describes it.

Only :mod:`placement_extras.planner.handler` uses this module. The handler decides the content of an answer,
and this module formats it.
"""

from collections.abc import Mapping
from typing import Any

from placement.read_model.provider import Provider
from placement_extras.planner.capacity import ClassShortage, FlavorCapacity
from placement_extras.planner.cluster_simulation import HostedConsumer
from placement_extras.planner.drain_plan import DisplacedGuests
from placement_extras.planner.migration_plan import MigrationPlan, MigrationStep
from placement_extras.planner.packing import FitBounds
from placement_extras.planner.proportions import FlavorProportion


def flavor_document(
    name: str,
    capacity: FlavorCapacity,
    fallback: FlavorCapacity | None = None,
    making: MigrationPlan | None = None,
) -> dict[str, Any]:
    """Return the document about the guests of one flavor.

    :param fallback: the capacity for the fallback of the request, if it has one.
    :param making: the moves that make room for one more guest, if the request asks for moves.
    """
    worst = capacity.worst
    return {
        "name": name,
        **_fit_document(capacity.fit),
        **_hosts(capacity),
        "fallback": None if fallback is None else {**_fit_document(fallback.fit), **_hosts(fallback)},
        "worst_host_failure": None
        if worst is None
        else {**_host_document(worst), **_fit_document(capacity.without_worst)},
        "aggregates": [{"uuid": uuid, **_fit_document(fit)} for uuid, fit in capacity.by_aggregate.items()],
        "shortages": None
        if capacity.shortages is None
        else list(map(_shortage_document, capacity.shortages)),
        "moves": None if making is None else _plan_document(making),
    }


def _hosts(capacity: FlavorCapacity) -> dict[str, int]:
    return {"capable_hosts": capacity.hosts, "candidate_hosts": capacity.candidate_hosts}


def of_sets(sets: FitBounds, shares: Mapping[str, FlavorProportion]) -> dict[str, Any]:
    """Return the document about a mix of flavors, counted together in given proportions."""
    guests = {name: sets.lower_bound * share.number for name, share in shares.items()}
    return {**_fit_document(sets), "guests": guests}


def of_displaced(displaced: DisplacedGuests, ending: int, planned: int) -> dict[str, Any]:
    """Return the document about the guests of drained hosts.

    :param ending: the number of other guests there, which end before the hosts are drained.
    :param planned: the number of windows on these hosts that have not begun, and so have no allocations yet.
    """
    return {
        "consumers": displaced.guests,
        "ending_before": ending,
        "pending": planned,
        **_fit_document(displaced.fit),
        "unplaced": [
            {
                **_guest_document(each.guest),
                **_host_document(each.root),
                "resources": each.guest.total_amounts,
                "placeable_alone": each.alone,
            }
            for each in displaced.unplaced
        ],
    }


def _guest_document(guest: HostedConsumer) -> dict[str, Any]:
    return {"consumer_uuid": guest.consumer, "consumer_type": guest.consumer_type or "unknown"}


def _plan_document(making: MigrationPlan) -> dict[str, Any]:
    return {
        "lower_bound": making.lower_bound,
        **({"host": None, "host_uuid": None} if making.host is None else _host_document(making.host)),
        "steps": None if making.moves is None else [_step_document(each) for each in making.moves],
    }


def _step_document(move: MigrationStep) -> dict[str, Any]:
    return {
        **_guest_document(move.guest),
        "source": _host_document(move.source),
        "destination": _host_document(move.target),
        "allocations": {uuid: {"resources": amounts} for uuid, amounts in move.allocations.items()},
    }


def _shortage_document(shortage: ClassShortage) -> dict[str, Any]:
    return {
        "resource_classes": list(shortage.classes),
        "hosts": shortage.hosts,
        **_stranded_document(shortage.stranded, shortage.guests),
        "examples": [
            {**_host_document(each.root), **_stranded_document(each.stranded, each.guests)}
            for each in shortage.examples
        ],
    }


def _fit_document(fit: FitBounds) -> dict[str, int]:
    return {"lower_bound": fit.lower_bound, "upper_bound": fit.upper_bound}


def _host_document(root: Provider) -> dict[str, str]:
    return {"host": root.name, "host_uuid": root.uuid}


def _stranded_document(stranded: Mapping[str, int], guests: int) -> dict[str, Any]:
    return {"stranded": dict(stranded), "stranded_guests": guests}
