"""Several requests of one body that must fit at the same time, on different hosts if the body says so."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from placement.exceptions import InvalidRequest
from placement.schemas import explanation
from placement.schemas.base import ArrayField, BooleanField, IntegerField, ObjectField
from placement.schemas.claim import MAX_CLAIMS, HostsSchema, parse_hosted
from placement.schemas.request_form import RequestForms
from placement.search.claims.claim import WantedClaim
from placement.store.consumers import ConsumerOwnership
from placement.store.groups import ConsumerGroup, GroupPolicy
from placement.store.time_profile import TimeWindow

# no other claims are members, so any name serves
_APART: Final = ConsumerGroup("different-hosts", GroupPolicy.ANTI_AFFINITY, 1)
"""The name of the group of claims that need different hosts."""


class _JointClaim(HostsSchema, explanation.TopologySchema):
    """One of several requests that must fit at the same time; it is repeated ``count`` times."""

    count = IntegerField(1, MAX_CLAIMS, load_default=1)


class JointSchema(HostsSchema, explanation.TopologySchema):
    """One request, or several requests in ``claims``."""

    claims = ArrayField(
        ObjectField(_JointClaim), min_items=1, max_items=MAX_CLAIMS, load_default=None, allow_none=False
    )
    different_hosts = BooleanField(load_default=False)


def parse_joint(
    body: dict[str, Any],
    forms: RequestForms,
    consumer: str,
    owner: ConsumerOwnership,
    window: TimeWindow | None = None,
    alone: Sequence[str] = (),
) -> list[WantedClaim]:
    """Return the claims of one new consumer for the requests in a body; equal claims are the same object.

    :param forms: the registered forms of requests, such as flavors.
    :param window: the time of all claims.
    :param alone: further fields of the body that are not allowed beside ``claims``.
    :raises InvalidRequest: a query, a flavor or a topology is wrong, or there are too many claims.
    """
    if body["claims"] is None:
        if body["different_hosts"]:
            raise InvalidRequest("different_hosts needs claims: one request is on one host anyway.")
        return [replace(_parse_one(body, forms, consumer, owner), window=window)]
    if given := [name for name in ("query", *forms, *_OF_EACH) if body[name]]:
        raise InvalidRequest(f"With claims, {given[0]} is a field of each claim, and not of the body.")
    if given := [name for name in alone if body[name]]:
        raise InvalidRequest(f"With claims, {given[0]} is not possible.")
    if (count := sum(each["count"] for each in body["claims"])) > MAX_CLAIMS:
        raise InvalidRequest(
            f"At most {MAX_CLAIMS} claims are placed together; the counts add up to {count}."
        )
    group = _APART if body["different_hosts"] else None
    wanted: list[WantedClaim] = []
    for each in body["claims"]:
        one = replace(_parse_one(each, forms, consumer, owner), group=group, window=window)
        wanted += [one] * each["count"]
    return wanted


_OF_EACH: Final = ("allowed_hosts", "excluded_hosts", "topology")


def _parse_one(
    asked: dict[str, Any], forms: RequestForms, consumer: str, owner: ConsumerOwnership
) -> WantedClaim:
    wanted = parse_hosted(asked, forms, consumer, owner)
    return replace(wanted, topology=explanation.parse_topology(asked["topology"], wanted.request))
