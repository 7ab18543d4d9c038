"""The body of ``POST /ext/v1/claims``."""

from dataclasses import replace
from typing import Any, Final

from placement.exceptions import InvalidRequest
from placement.schemas import explanation
from placement.schemas.base import (
    ArrayField,
    BooleanField,
    IntegerField,
    MapField,
    NumberField,
    ObjectField,
    StrictSchema,
    StringField,
    UuidField,
)
from placement.schemas.request_form import RequestForms
from placement.schemas.resource_provider import ATTRIBUTE_NAME
from placement.search.claims.claim import Order, WantedClaim
from placement.search.claims.scores import ATTRIBUTE, CRITERIA
from placement.store import reservations
from placement.store.consumers import ConsumerOwnership
from placement.store.groups import ConsumerGroup, GroupPolicy

MAX_CLAIMS: Final = 64
"""In one call: each may have to be tried with each choice of those before."""
MAX_ALTERNATES: Final = 100
MAX_ROOTS: Final = 1024
"""To choose among, or to avoid."""
MAX_WEIGHT: Final = 1000.0
MAX_CRITERIA: Final = 32
"""Of an order: each alternate of each claim is answered with what it scores by each of them."""
MAX_SECONDS: Final = 7 * 86_400.0
"""For a claim that nobody has confirmed."""
GROUP_NAME: Final = "^[A-Za-z0-9._:@+-]+$"
GROUP_MEANING: Final = "a name of letters, digits and any of . _ : @ + -"
GROUP: Final = "group"
"""The criterion by which soft policies order."""


class _GroupSchema(StrictSchema):
    """The group that the consumer is to be in, and what is asked of its place beside the other members."""

    name = StringField(required=True, min_length=1, max_length=255, pattern=GROUP_NAME, meaning=GROUP_MEANING)
    policy = StringField(required=True, choices=[each.value for each in GroupPolicy])
    max_per_host = IntegerField(1, load_default=None)


class OwnedSchema(explanation.VersionedSchema, explanation.AskingSchema):
    """What somebody wants: a query or a flavor, and whose what is found shall be."""

    project_id = StringField(required=True, min_length=1, max_length=255)
    user_id = StringField(required=True, min_length=1, max_length=255)
    allowed_hosts = ArrayField(UuidField(), min_items=1, max_items=MAX_ROOTS, load_default=None)
    excluded_hosts = ArrayField(UuidField(), max_items=MAX_ROOTS, load_default=list)
    order = MapField(
        f"^({'|'.join(CRITERIA)}|{ATTRIBUTE}{ATTRIBUTE_NAME})$",
        NumberField(-MAX_WEIGHT, MAX_WEIGHT),
        max_properties=MAX_CRITERIA,
        meaning=f"a criterion: {', '.join(CRITERIA)}, or {ATTRIBUTE} and the name of an attribute",
        load_default=dict,
    )


class _ClaimSchema(OwnedSchema, explanation.TopologySchema):
    """What one consumer wants, and who it is, as in ``PUT /allocations/{consumer_uuid}``."""

    consumer_uuid = UuidField(required=True)
    consumer_generation = IntegerField(required=True, allow_none=True)
    consumer_type = StringField(required=True, min_length=1, max_length=255, pattern="^[A-Z0-9_]+$")
    alternates = IntegerField(0, MAX_ALTERNATES, load_default=0)
    group = ObjectField(_GroupSchema, load_default=None)
    expires_in = NumberField(1, MAX_SECONDS, load_default=None, allow_none=False)


class ClaimsBody(StrictSchema):
    """Claims of which all are put into effect, or none."""

    claims = ArrayField(ObjectField(_ClaimSchema), min_items=1, max_items=MAX_CLAIMS, required=True)
    dry_run = BooleanField(load_default=False)
    reservation = UuidField(load_default=None, allow_none=False)


class ConfirmationBody(StrictSchema):
    """``PUT /ext/v1/claims/{consumer_uuid}``: that it stays, or expires in so many seconds."""

    consumer_generation = IntegerField(0, required=True)
    expires_in = NumberField(1, MAX_SECONDS, load_default=None)


def parse(body: dict[str, Any], forms: RequestForms) -> list[WantedClaim]:
    """What such a body wants.

    :param forms: translate what is asked for otherwise than by a query.
    :raises InvalidRequest: a query or a flavor is none, a consumer is named twice or of the type of
        reservations, or a group or an order makes no sense.
    """
    consumers = [each["consumer_uuid"] for each in body["claims"]]
    for number, each in enumerate(consumers, start=1):
        if (first := consumers.index(each) + 1) < number:
            raise InvalidRequest(f"The consumer {each} is named by claim {first} and claim {number}.")
    if body["reservation"] in consumers:
        raise InvalidRequest("A reservation cannot claim what it holds itself.")
    for each in body["claims"]:
        if each["consumer_type"] == reservations.TYPE:
            raise InvalidRequest(
                f"The consumer {each['consumer_uuid']} would look like a reservation, which only POST"
                " /ext/v1/reservations makes."
            )
    return [_wanted(each, forms) for each in body["claims"]]


def _wanted(claim: dict[str, Any], forms: RequestForms) -> WantedClaim:
    group = _group(claim["group"])
    wanted = owned(claim, forms, claim["consumer_uuid"], claim["consumer_type"], group)
    return replace(
        wanted,
        generation=claim["consumer_generation"],
        alternates=claim["alternates"],
        topology=explanation.parse_topology(claim["topology"], wanted.request),
        expires_in=claim["expires_in"],
    )


def owned(
    claim: dict[str, Any],
    forms: RequestForms,
    consumer: str,
    consumer_type: str,
    group: ConsumerGroup | None = None,
) -> WantedClaim:
    """What a new consumer of this uuid and type shall hold.

    :raises InvalidRequest: the query or the flavor is none, or the order makes no sense.
    """
    asked = explanation.parse(claim, forms)
    return WantedClaim(
        consumer=consumer,
        generation=None,
        owner=ConsumerOwnership(claim["project_id"], claim["user_id"], consumer_type),
        request=asked.request,
        version=asked.version,
        fallback=asked.fallback,
        warnings=asked.warnings,
        only=None if claim["allowed_hosts"] is None else frozenset(claim["allowed_hosts"]),
        avoid=frozenset(claim["excluded_hosts"]),
        order=_order(claim["order"], group),
        group=group,
    )


def _group(given: dict[str, Any] | None) -> ConsumerGroup | None:
    if given is None:
        return None
    policy, limit = GroupPolicy(given["policy"]), given["max_per_host"]
    if limit is not None and policy is not GroupPolicy.ANTI_AFFINITY:
        raise InvalidRequest("max_per_host goes with the policy anti-affinity only.")
    return ConsumerGroup(given["name"], policy, 1 if limit is None else limit)


def _order(given: dict[str, float], group: ConsumerGroup | None) -> Order:
    """The order that is given; where a soft policy is to decide, it weighs 1 if nothing else is said."""
    for name, weight in given.items():
        if weight < 0 and not name.startswith(ATTRIBUTE):
            raise InvalidRequest(f"The weight of {name} is below zero, which is for attributes alone.")
    if group is None and GROUP in given:
        raise InvalidRequest("The order names group, and the claim has none.")
    if group is not None and group.policy.is_soft:
        given = {GROUP: 1.0, **given}
    return tuple(given.items())
