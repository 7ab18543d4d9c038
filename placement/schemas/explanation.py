"""Has the body of ``POST /ext/v1/explanations``, and parts of other bodies with a request."""

from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from oslo_config import cfg

from placement import extensions, microversion
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas.base import MAX_INT, BooleanField, ObjectField, StrictSchema, StringField
from placement.schemas.query_candidates import parse_candidates
from placement.schemas.request_form import AskedCandidates, RequestForms
from placement.search.claims.split_choices import is_splittable
from placement.search.claims.topology import SPLIT, TopologyPolicy
from placement.search.request import CandidatesRequest

# the limit is about the maximum length of the request line of a GET
MAX_QUERY: Final = 8192
"""The maximum number of characters in a query."""
_MAX_PARAMETERS: Final = 1024
"""The maximum number of parameters in a query."""


class VersionedSchema(StrictSchema):
    """The base class of bodies with a flavor, or with a query in the grammar of a microversion.

    If the field ``strict`` is true, parts of the flavor that the service would otherwise ignore are errors.
    """

    # the lowest value is 1.10, because this microversion introduced requests for candidates
    microversion = StringField(
        pattern=r"^1\.(1[0-9]|2[0-9]|3[0-9])$",
        meaning=f"a microversion from 1.10 to {microversion.text(microversion.MAX)}",
        load_default=microversion.text(microversion.MAX),
    )
    strict = BooleanField(load_default=False)


# The class is made at import, because it has a field for each registered form, and the forms are known only
# at import.
_Forms: Any = StrictSchema.from_dict(
    {
        name: ObjectField(form.schema, load_default=None)
        for name, form in extensions.registered_objects("request_forms").items()
    }
)


class AskingSchema(_Forms):  # type: ignore[misc]  # its base is made, as above
    """The base class of bodies with a request for candidates: a query string or a registered form."""

    query = StringField(min_length=1, max_length=MAX_QUERY, load_default=None)


class TopologySchema(StrictSchema):
    """A topology policy, which splits requested dedicated CPUs and memory over NUMA nodes."""

    topology = StringField(choices=[each.value for each in TopologyPolicy], load_default=None)


class ExplanationBody(VersionedSchema, AskingSchema, TopologySchema):
    """The body: the request to explain, and its microversion."""


def parse(body: dict[str, Any], forms: RequestForms) -> AskedCandidates:
    """Convert a body to its request for candidates.

    :param forms: the registered forms of requests, such as flavors.
    :raises InvalidRequest: the query or the form is wrong; the message has the reason.
    """
    asked = _asked_candidates(body, forms)
    _check_amounts(asked.request)
    return asked


def parse_topology(given: str | None, request: CandidatesRequest) -> TopologyPolicy | None:
    """Return the topology policy of a body; None if the body has no topology policy.

    :raises InvalidRequest: the request has no resource class that the policy can split, or has a microversion
        before 1.29.
    """
    if given is None:
        return None
    if not request.nested:
        raise InvalidRequest("topology needs a query in the grammar of microversion 1.29 or later.")
    if not is_splittable(request):
        raise InvalidRequest(
            f"topology splits {' and '.join(SPLIT)} of the group without a suffix, but this group "
            f"requests neither."
        )
    return TopologyPolicy(given)


def request_forms(conf: cfg.ConfigOpts) -> RequestForms:
    """Make all registered forms of requests with this configuration."""
    return {name: form(conf) for name, form in extensions.registered_objects("request_forms").items()}


def _asked_candidates(body: dict[str, Any], forms: RequestForms) -> AskedCandidates:
    names = ("query", *forms)
    given = [name for name in names if body.get(name) is not None]
    if len(given) != 1:
        what = " or ".join(f"a '{name}'" for name in names)
        raise InvalidRequest(
            f"Either {what} is needed, and not both." if forms else f"{what.capitalize()} is needed."
        )
    if given[0] in forms:
        return forms[given[0]].translate(body[given[0]], strict=body["strict"])
    version = version_of(body)
    try:
        # the encoding is checked here, because parse_qsl() would silently replace bytes that are not UTF-8
        unquote_to_bytes(body["query"]).decode()
        pairs = parse_qsl(body["query"], keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError as error:
        raise InvalidRequest(f"Invalid query string parameters: {error}") from None
    return AskedCandidates(parse_candidates(pairs, version), version)


def _check_amounts(request: CandidatesRequest) -> None:
    """Refuse amounts that do not fit into the database column for allocations, which has 32 bits."""
    for group in request.groups:
        for name, amount in group.resources.items():
            if amount > MAX_INT:
                raise InvalidRequest(
                    f"Requested resource {name} requires amount <= {MAX_INT}. Got: {amount}."
                )


def version_of(body: dict[str, Any]) -> Microversion:
    """Return the microversion that determines the grammar of the query in a body."""
    major, minor = body["microversion"].split(".")
    return int(major), int(minor)
