"""The body of ``POST /ext/v1/availability``."""

from dataclasses import replace
from typing import Any, Final

from placement.schemas import explanation
from placement.schemas.base import IntegerField
from placement.schemas.claim import HostsSchema, parse_hosted, parse_time, time_field
from placement.schemas.request_form import RequestForms
from placement.search.claims.claim import WantedClaim
from placement.search.claims.service import WantedTime
from placement.store.consumers import ConsumerOwnership
from placement.store.reservations import TYPE

MAX_DURATION: Final = 10 * 366 * 86_400
"""Maximum duration of a window in seconds: ten years."""
MAX_WINDOWS: Final = 100
"""Maximum number of windows in one answer."""


class AvailabilityBody(HostsSchema, explanation.TopologySchema):
    """A request for candidates, with the duration and the possible times of a window."""

    duration = IntegerField(1, MAX_DURATION, required=True)
    not_before = time_field()
    deadline = time_field()
    limit = IntegerField(1, MAX_WINDOWS, load_default=5)


def wanted_of(body: dict[str, Any], forms: RequestForms) -> WantedClaim:
    """Return a trial claim of a new reservation for the request of a body.

    :param forms: the registered forms of requests, such as flavors.
    :raises InvalidRequest: the query, the flavor or the topology is wrong.
    """
    wanted = parse_hosted(body, forms, "", ConsumerOwnership("", "", TYPE))
    return replace(wanted, topology=explanation.parse_topology(body["topology"], wanted.request))


def time_of(body: dict[str, Any]) -> WantedTime:
    """Return the time that a body asks for.

    :raises InvalidRequest: a date does not exist.
    """
    times = {
        name: None if body[name] is None else parse_time(body[name], name)
        for name in ("not_before", "deadline")
    }
    return WantedTime(body["duration"], **times)
