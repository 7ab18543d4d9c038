"""Has the bodies and the query of ``/ext/v1/claims``, and their parsers."""

import math
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from placement.db.tables import RESERVATION
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas import candidates
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
    root_field,
)
from placement.schemas.request_form import RequestForms
from placement.schemas.resource_provider import ATTRIBUTE_NAME
from placement.schemas.terms import PageLimit, Params, load_query
from placement.search.claims.claim import Order, WantedClaim
from placement.search.claims.scores import ATTRIBUTE, CRITERIA
from placement.store.claim_ends import EndChange
from placement.store.consumers import ConsumerOwnership, check_consumer_type
from placement.store.expiries import EndMarker
from placement.store.groups import ConsumerGroup, GroupPolicy
from placement.store.time_profile import AT_ONCE, MAX_AHEAD, EndAction, TimeWindow

# the limit is low, because a search perhaps tries each claim with each choice of the earlier claims
MAX_CLAIMS: Final = 64
"""The maximum number of claims that one call makes."""
MAX_ALTERNATES: Final = 100
"""The maximum number of alternative choices (alternates) of a claim."""
MAX_ROOTS: Final = 1024
"""The maximum number of allowed hosts, and of excluded hosts, of a claim."""
MAX_WEIGHT: Final = 1000.0
"""The maximum weight of a criterion; the minimum is 0, or the negative of this number for an attribute."""
# the number is limited, because the answer has a score for each criterion of each alternate of each claim
MAX_CRITERIA: Final = 32
"""The maximum number of criteria in the order of a claim."""
MAX_SECONDS: Final = 7 * 86_400.0
"""The maximum number of seconds until an unconfirmed claim expires."""
# an end is at most MAX_AHEAD after the search, so the service could never keep a minimum of MAX_AHEAD
MAX_MIN_DURATION: Final = int(MAX_AHEAD) - 86_400
"""The maximum of the minimum duration of a preemptible claim, in seconds."""
GROUP_NAME: Final = "^[A-Za-z0-9._:@+-]+$"
GROUP_MEANING: Final = "a name of letters, digits and any of . _ : @ + -"
GROUP: Final = "group"
"""The name of the criterion that a soft group policy adds."""


TIME_FORM: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$"


TIME_MEANING: Final = "a time in UTC such as 2026-12-24T18:00:00Z"


def time_field() -> StringField:
    """Return an optional field for a time in UTC."""
    return StringField(
        pattern=TIME_FORM,
        meaning=TIME_MEANING,
        load_default=None,
        allow_none=False,
    )


def end_action_field() -> StringField:
    """Return an optional field for the action at the end time of a claim."""
    return StringField(choices=[each.value for each in EndAction], load_default=None, allow_none=False)


def parse_end_action(text: str | None) -> EndAction | None:
    """Return the action at the end time of a claim; None if the body has no action."""
    return None if text is None else EndAction(text)


def parse_time(text: str, field: str) -> float:
    """Return a time as a number of seconds since 1970.

    :param field: the name of the field, for the error message.
    :raises InvalidRequest: the date does not exist.
    """
    # the pattern accepts dates that do not exist, such as 30 February
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise InvalidRequest(f"{field} is not a valid time: {error}") from None


class _GroupSchema(StrictSchema):
    """The group that a consumer joins, with its policy: one host for all members, or different hosts."""

    name = StringField(required=True, min_length=1, max_length=255, pattern=GROUP_NAME, meaning=GROUP_MEANING)
    policy = StringField(required=True, choices=[each.value for each in GroupPolicy])
    max_per_host = IntegerField(1, load_default=None)


class HostsSchema(candidates.VersionedSchema, candidates.AskingSchema):
    """A query or a flavor, with the allowed hosts and the excluded hosts."""

    allowed_hosts = ArrayField(root_field(), min_items=1, max_items=MAX_ROOTS, load_default=None)
    excluded_hosts = ArrayField(root_field(), max_items=MAX_ROOTS, load_default=list)


class OwnedSchema(HostsSchema):
    """A query or a flavor, with the owner of the allocations, possible hosts, and criteria of the choice."""

    project_id = StringField(required=True, min_length=1, max_length=255)
    user_id = StringField(required=True, min_length=1, max_length=255)
    # a key is the name of a criterion, or the prefix for attributes followed by the name of an attribute
    order = MapField(
        f"^({'|'.join(CRITERIA)}|{ATTRIBUTE}{ATTRIBUTE_NAME})$",
        NumberField(-MAX_WEIGHT, MAX_WEIGHT),
        max_properties=MAX_CRITERIA,
        meaning=f"a criterion: {', '.join(CRITERIA)}, or {ATTRIBUTE} and the name of an attribute",
        load_default=dict,
    )


class _ClaimSchema(OwnedSchema, candidates.TopologySchema):
    """The claim of one consumer, with the fields of ``PUT /allocations/{consumer_uuid}``."""

    consumer_uuid = UuidField(required=True)
    consumer_generation = IntegerField(required=True, allow_none=True)
    consumer_type = StringField(required=True, min_length=1, max_length=255, pattern="^[A-Z0-9_]+$")
    alternates = IntegerField(0, MAX_ALTERNATES, load_default=0)
    group = ObjectField(_GroupSchema, load_default=None)
    expires_in = NumberField(1, MAX_SECONDS, load_default=None, allow_none=False)


class _PreemptibleSchema(StrictSchema):
    """The minimum duration of a preemptible claim, in seconds; no later booking shortens this duration."""

    min_duration = IntegerField(1, MAX_MIN_DURATION, required=True)


class ClaimsBody(StrictSchema):
    """A body with one or several claims; the service writes either all of them or none."""

    claims = ArrayField(ObjectField(_ClaimSchema), min_items=1, max_items=MAX_CLAIMS, required=True)
    dry_run = BooleanField(load_default=False)
    ends_at = time_field()
    preemptible = ObjectField(_PreemptibleSchema, load_default=None)
    on_end = end_action_field()
    reservation = UuidField(load_default=None, allow_none=False)


class _EndingQuery(StrictSchema):
    """The parameters of ``GET /ext/v1/claims``."""

    root = root_field()
    reservation = UuidField()
    preemptible = StringField(choices=["true", "false"])
    limit = PageLimit()
    marker = StringField(
        pattern=r"^[0-9]{1,12}(\.[0-9]{1,17})?_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        meaning="the marker of a link to the next page",
    )


@dataclass(frozen=True, slots=True)
class EndingPage:
    """A requested page of claims with an end time.

    The page has at most ``limit`` claims at the host with the uuid ``root``, or at all hosts if ``root`` is
    None. ``after`` has the end time and the consumer of the last claim before the page. ``reservation`` is
    the uuid of the reservation from which the claims have taken their amounts; None means all claims.
    """

    root: str | None
    after: EndMarker
    limit: int
    only_preemptible: bool
    reservation: str | None


def parse_ending(params: Params, version: Microversion) -> EndingPage:
    """Parse the query string of ``GET /ext/v1/claims``; raise InvalidRequest if it is invalid."""
    values = load_query(_EndingQuery, params, version)
    time, _, consumer = values.get("marker", "0_").partition("_")
    only_preemptible = values.get("preemptible") == "true"
    return EndingPage(
        values.get("root"),
        (float(time), consumer),
        values["limit"],
        only_preemptible,
        values.get("reservation"),
    )


class ConfirmationBody(StrictSchema):
    """The body of ``PUT .../claims/{consumer_uuid}``, which confirms a claim or changes its end or expiry."""

    consumer_generation = IntegerField(0, required=True)
    expires_in = NumberField(1, MAX_SECONDS, load_default=None)
    ends_at = time_field()
    on_end = end_action_field()


def parse_end_change(body: dict[str, Any]) -> EndChange | None:
    """Return the change of a fixed end time that a body asks for; None if the body confirms a claim.

    :raises InvalidRequest: the body also has an expiry, or the date does not exist.
    """
    if body["ends_at"] is None and body["on_end"] is None:
        return None
    if body["expires_in"] is not None:
        raise InvalidRequest("A claim may have either expires_in or ends_at with on_end, but not both.")
    ends_at = None if body["ends_at"] is None else parse_time(body["ends_at"], "ends_at")
    return EndChange(ends_at, parse_end_action(body["on_end"]))


def parse(body: dict[str, Any], forms: RequestForms) -> list[WantedClaim]:
    """Convert a body to claims.

    :param forms: the registered forms of requests, such as flavors.
    :raises InvalidRequest: a query, a flavor, a group or an order is wrong, or two fields exclude each other.
        Two claims have the same consumer, or a consumer has the type of reservations or of holds.
    """
    # a search in the list is fast enough, because the list is short
    consumers = [each["consumer_uuid"] for each in body["claims"]]
    for number, each in enumerate(consumers, start=1):
        if (first := consumers.index(each) + 1) < number:
            raise InvalidRequest(f"Claim {first} and claim {number} both name the consumer {each}.")
    if body["reservation"] in consumers:
        raise InvalidRequest("A reservation cannot claim from itself.")
    for each in body["claims"]:
        check_consumer_type(each["consumer_uuid"], each["consumer_type"])
        if each["consumer_type"] == RESERVATION:
            raise InvalidRequest(
                f"The consumer {each['consumer_uuid']} cannot have the type of reservations: only POST"
                " /ext/v1/reservations creates consumers of this type."
            )
    on_end, preemptible = parse_end_action(body["on_end"]), body["preemptible"]
    if preemptible is not None and body["reservation"] is not None:
        raise InvalidRequest(
            "A claim from a reservation cannot be preemptible: its room is not promised to others."
        )
    given = next((name for name in ("ends_at", "preemptible") if body[name] is not None), None)
    if given is None:
        if on_end not in (None, EndAction.NONE):
            raise InvalidRequest(
                f"on_end: {on_end} needs ends_at or preemptible, because other claims have no end. Give one"
                " of them, or leave on_end out."
            )
        return [_wanted_claim(each, forms) for each in body["claims"]]
    if any(each["expires_in"] is not None for each in body["claims"]):
        raise InvalidRequest(f"A claim may have either expires_in or {given}, but not both.")
    # the claims begin when they are written
    ends_at = math.inf if body["ends_at"] is None else parse_time(body["ends_at"], "ends_at")
    window, min_duration = TimeWindow(AT_ONCE, ends_at), None
    if preemptible is not None:
        # at the end of a preemptible claim, other consumers need the amounts, so the default is eviction
        min_duration, on_end = preemptible["min_duration"], on_end or EndAction.EVICT
    return [
        replace(_wanted_claim(each, forms), window=window, min_duration=min_duration, on_end=on_end)
        for each in body["claims"]
    ]


def _wanted_claim(claim: dict[str, Any], forms: RequestForms) -> WantedClaim:
    group = _parse_group(claim["group"])
    owner = ConsumerOwnership(claim["project_id"], claim["user_id"], claim["consumer_type"])
    wanted = parse_hosted(claim, forms, claim["consumer_uuid"], owner)
    return replace(
        wanted,
        order=parse_order(claim["order"], group),
        group=group,
        generation=claim["consumer_generation"],
        alternates=claim["alternates"],
        topology=candidates.parse_topology(claim["topology"], wanted.request),
        expires_in=claim["expires_in"],
    )


def parse_hosted(
    body: dict[str, Any], forms: RequestForms, consumer: str, owner: ConsumerOwnership
) -> WantedClaim:
    """Convert the request and the hosts of a body to the claim of a new consumer.

    :raises InvalidRequest: the field ``query`` or ``flavor`` of the body is wrong.
    """
    asked = candidates.parse_body(body, forms)
    return WantedClaim(
        consumer=consumer,
        # the generation is None, because a reservation is a new consumer; for claims, _wanted_claim() sets
        # the generation in the body
        generation=None,
        owner=owner,
        request=asked.request,
        version=asked.version,
        fallback=asked.fallback,
        warnings=asked.warnings,
        only=None if body["allowed_hosts"] is None else frozenset(body["allowed_hosts"]),
        avoid=frozenset(body["excluded_hosts"]),
    )


def _parse_group(given: dict[str, Any] | None) -> ConsumerGroup | None:
    if given is None:
        return None
    policy, limit = GroupPolicy(given["policy"]), given["max_per_host"]
    if limit is not None and policy is not GroupPolicy.ANTI_AFFINITY:
        raise InvalidRequest("max_per_host is allowed with the policy anti-affinity only.")
    return ConsumerGroup(given["name"], policy, 1 if limit is None else limit)


def parse_order(given: dict[str, float], group: ConsumerGroup | None = None) -> Order:
    """Return the order in a body; a soft group policy adds its criterion, by default with the weight 1.

    :raises InvalidRequest: a weight is wrong, or the order has the criterion ``group``, but the claim has no
        group.
    """
    for name, weight in given.items():
        # a negative weight prefers low numbers, but a preference of low numbers is useful only for attributes
        if weight < 0 and not name.startswith(ATTRIBUTE):
            raise InvalidRequest(
                f"The weight of {name} is below zero; only attributes may have negative weights."
            )
    if group is None and GROUP in given:
        raise InvalidRequest("The order contains 'group', but the claim has no group.")
    if group is not None and group.policy.is_soft:
        # the default weight comes first, so that a weight in the body replaces the default
        given = {GROUP: 1.0, **given}
    return tuple(given.items())
