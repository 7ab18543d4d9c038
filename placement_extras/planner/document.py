"""Capacity as a JSON document."""

from collections.abc import Mapping
from typing import Any

from placement.read_model.provider import Provider
from placement_extras.planner.capacity import ClassShortage, FlavorCapacity
from placement_extras.planner.cluster_simulation import HostedConsumer
from placement_extras.planner.drain_plan import DisplacedGuests
from placement_extras.planner.migration_plan import MigrationPlan, MigrationStep
from placement_extras.planner.packing import FitBounds
from placement_extras.planner.proportions import FlavorProportion


def document(
    name: str,
    capacity: FlavorCapacity,
    fallback: FlavorCapacity | None = None,
    making: MigrationPlan | None = None,
) -> dict[str, Any]:
    """What is said of a flavor; the API reference describes it.

    :param fallback: of what it falls back to.
    """
    worst = capacity.worst
    return {
        "name": name,
        **_fit(capacity.fit),
        **_hosts(capacity),
        "fallback": None if fallback is None else {**_fit(fallback.fit), **_hosts(fallback)},
        "worst_host_failure": None if worst is None else {**_host(worst), **_fit(capacity.without_worst)},
        "aggregates": [{"uuid": uuid, **_fit(fit)} for uuid, fit in capacity.by_aggregate.items()],
        "shortages": [_shortage(each) for each in capacity.shortages],
        "moves": None if making is None else _moves(making),
    }


def _hosts(capacity: FlavorCapacity) -> dict[str, int]:
    return {"capable_hosts": capacity.hosts, "candidate_hosts": capacity.candidate_hosts}


def of_sets(sets: FitBounds, shares: Mapping[str, FlavorProportion]) -> dict[str, Any]:
    """What is said of flavors in their proportions."""
    guests = {name: sets.lower_bound * share.number for name, share in shares.items()}
    return {**_fit(sets), "guests": guests}


def of_displaced(displaced: DisplacedGuests) -> dict[str, Any]:
    """What is said of those on hosts that are left aside."""
    return {
        "consumers": displaced.guests,
        **_fit(displaced.fit),
        "unplaced": [
            {
                **_guest(each.guest),
                **_host(each.root),
                "resources": each.guest.amounts,
                "placeable_alone": each.alone,
            }
            for each in displaced.unplaced
        ],
    }


def _guest(guest: HostedConsumer) -> dict[str, Any]:
    return {"consumer_uuid": guest.consumer, "consumer_type": guest.consumer_type or "unknown"}


def _moves(making: MigrationPlan) -> dict[str, Any]:
    return {
        "lower_bound": making.lower_bound,
        **({"host": None, "host_uuid": None} if making.host is None else _host(making.host)),
        "steps": None if making.moves is None else [_move(each) for each in making.moves],
    }


def _move(move: MigrationStep) -> dict[str, Any]:
    return {
        **_guest(move.guest),
        "source": _host(move.source),
        "destination": _host(move.target),
        "allocations": {uuid: {"resources": amounts} for uuid, amounts in move.allocations.items()},
    }


def _shortage(shortage: ClassShortage) -> dict[str, Any]:
    return {
        "resource_classes": list(shortage.classes),
        "hosts": shortage.hosts,
        **_stranded(shortage.stranded, shortage.guests),
        "examples": [
            {**_host(each.root), **_stranded(each.stranded, each.guests)} for each in shortage.examples
        ],
    }


def _fit(fit: FitBounds) -> dict[str, int]:
    return {"lower_bound": fit.lower_bound, "upper_bound": fit.upper_bound}


def _host(root: Provider) -> dict[str, str]:
    return {"host": root.name, "host_uuid": root.uuid}


def _stranded(stranded: Mapping[str, int], guests: int) -> dict[str, Any]:
    return {"stranded": dict(stranded), "stranded_guests": guests}
