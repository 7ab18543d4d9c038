"""The body of ``POST /ext/v1/availability``."""

from dataclasses import replace
from typing import Any, Final

from placement.exceptions import InvalidRequest
from placement.schemas import explanation
from placement.schemas.base import ArrayField, BooleanField, IntegerField, ObjectField
from placement.schemas.claim import MAX_CLAIMS, HostsSchema, parse_hosted, parse_time, time_field
from placement.schemas.request_form import RequestForms
from placement.schemas.reservation import MAX_MARGIN
from placement.search.claims.claim import WantedClaim
from placement.search.claims.window_search import WantedTime
from placement.store.consumers import ConsumerOwnership
from placement.store.groups import ConsumerGroup, GroupPolicy
from placement.store.reservations import TYPE
from placement.store.time_profile import WindowMargins

MAX_DURATION: Final = 10 * 366 * 86_400
"""Maximum duration of a window in seconds: ten years."""
MAX_WINDOWS: Final = 100
"""Maximum number of windows in an answer."""
# no other claims are members, so any name serves
_APART: Final = ConsumerGroup("different-hosts", GroupPolicy.ANTI_AFFINITY, 1)
"""The name of the group of claims that need different hosts."""


class _JointClaim(HostsSchema, explanation.TopologySchema):
    """One of several requests that must fit at the same time; it is repeated ``count`` times."""

    count = IntegerField(1, MAX_CLAIMS, load_default=1)


class AvailabilityBody(HostsSchema, explanation.TopologySchema):
    """One or several requests for candidates, with the duration and the possible times of a window."""

    claims = ArrayField(
        ObjectField(_JointClaim), min_items=1, max_items=MAX_CLAIMS, load_default=None, allow_none=False
    )
    different_hosts = BooleanField(load_default=False)
    duration = IntegerField(1, MAX_DURATION, required=True)
    not_before = time_field()
    deadline = time_field()
    lead_time = IntegerField(0, MAX_MARGIN, load_default=0)
    cleaning_time = IntegerField(0, MAX_MARGIN, load_default=0)
    limit = IntegerField(1, MAX_WINDOWS, load_default=5)
    explain = BooleanField(load_default=False)


def wanted_of(body: dict[str, Any], forms: RequestForms) -> list[WantedClaim]:
    """Return claims of new reservations for the requests in a body; the claims are never written.

    :param forms: the registered forms of requests, such as flavors.
    :raises InvalidRequest: a query, a flavor or a topology is wrong, or there are too many claims.
    """
    if body["claims"] is None:
        if body["different_hosts"]:
            raise InvalidRequest("different_hosts needs claims: one request is on one host anyway.")
        return [_trial_claim(body, forms)]
    alone = ("query", *forms, "allowed_hosts", "excluded_hosts", "topology")
    if given := [name for name in alone if body[name]]:
        raise InvalidRequest(f"With claims, {given[0]} is a field of each claim, and not of the body.")
    if (count := sum(each["count"] for each in body["claims"])) > MAX_CLAIMS:
        raise InvalidRequest(
            f"At most {MAX_CLAIMS} claims are searched together; the counts add up to {count}."
        )
    group = _APART if body["different_hosts"] else None
    return [
        replace(wanted, group=group)
        for each in body["claims"]
        for wanted in [_trial_claim(each, forms)] * each["count"]
    ]


def _trial_claim(asked: dict[str, Any], forms: RequestForms) -> WantedClaim:
    wanted = parse_hosted(asked, forms, "", ConsumerOwnership("", "", TYPE))
    return replace(wanted, topology=explanation.parse_topology(asked["topology"], wanted.request))


def margins_of(body: dict[str, Any]) -> WindowMargins:
    """Return the lead time and the cleaning time in a body."""
    return WindowMargins(body["lead_time"], body["cleaning_time"])


def time_of(body: dict[str, Any]) -> WantedTime:
    """Return the time of the window that a body asks for, including the lead and the cleaning time.

    :raises InvalidRequest: a date does not exist.
    """
    margins = margins_of(body)
    begin, end = (
        None if body[name] is None else parse_time(body[name], name) for name in ("not_before", "deadline")
    )
    return WantedTime(
        margins.lead + body["duration"] + margins.cleaning,
        None if begin is None else begin - margins.lead,
        None if end is None else end + margins.cleaning,
    )
