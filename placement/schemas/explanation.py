"""The body of ``POST /ext/v1/explanations``."""

import logging
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from placement import microversion
from placement.candidates.request import CandidatesRequest
from placement.exceptions import INVALID_FLAVOR, InvalidRequest
from placement.flavors.flavor import TranslationRules
from placement.flavors.translate import translate
from placement.microversion import Microversion
from placement.schemas import flavor
from placement.schemas.base import MAX_INT, BooleanField, ObjectField, StrictSchema, StringField
from placement.schemas.flavor import FlavorAsked
from placement.schemas.query_candidates import parse_candidates

MAX_QUERY: Final = 8192
"""Characters of a query: about as many as a request line has place for."""
_MAX_PARAMETERS: Final = 1024

LOG = logging.getLogger(__name__)


class VersionedSchema(StrictSchema):
    """A body with queries in the grammar of a microversion, or with flavors: ``strict`` refuses warnings."""

    microversion = StringField(
        pattern=r"^1\.(1[0-9]|2[0-9]|3[0-9])$",
        meaning=f"a microversion from 1.10 to {microversion.text(microversion.MAX)}",
        load_default=microversion.text(microversion.MAX),
    )
    strict = BooleanField(load_default=False)


class AskingSchema(StrictSchema):
    """What asks for candidates: a query string, or a flavor."""

    query = StringField(min_length=1, max_length=MAX_QUERY, load_default=None)
    flavor = ObjectField(FlavorAsked, load_default=None)


class ExplanationBody(VersionedSchema, AskingSchema):
    """What is to be explained, a query at a microversion."""


@dataclass(frozen=True, slots=True)
class AskedCandidates:
    """What a body asks for: a request, and the microversion in whose grammar it is.

    Of a flavor there may be a request to fall back to, and warnings of what was not understood.
    """

    request: CandidatesRequest
    version: Microversion
    fallback: CandidatesRequest | None = None
    warnings: tuple[str, ...] = ()


def parse(body: dict[str, Any], rules: TranslationRules) -> AskedCandidates:
    """What such a body asks for.

    :param rules: by which flavors are translated.
    :raises InvalidRequest: naming what is wrong with the query or the flavor.
    """
    asked = _asked(body, rules)
    _check_amounts(asked.request)
    return asked


def _asked(body: dict[str, Any], rules: TranslationRules) -> AskedCandidates:
    if (body["query"] is None) == (body["flavor"] is None):
        raise InvalidRequest("Either a 'query' or a 'flavor' is needed, and not both.")
    if body["flavor"] is not None:
        return _of_flavor(body["flavor"], rules, strict=body["strict"])
    version = version_of(body)
    try:
        unquote_to_bytes(body["query"]).decode()
        pairs = parse_qsl(body["query"], keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError as error:
        raise InvalidRequest(f"Invalid query string parameters: {error}") from None
    return AskedCandidates(parse_candidates(pairs, version), version)


def _check_amounts(request: CandidatesRequest) -> None:
    """Refuse what no allocation can have, and no answer show: amounts are of 32 bits, numbers of 64."""
    for group in request.groups:
        for name, amount in group.resources.items():
            if amount > MAX_INT:
                raise InvalidRequest(
                    f"Requested resource {name} requires amount <= {MAX_INT}. Got: {amount}."
                )


def version_of(body: dict[str, Any]) -> Microversion:
    """The microversion in whose grammar the queries of a body are."""
    major, minor = body["microversion"].split(".")
    return int(major), int(minor)


def _of_flavor(body: dict[str, Any], rules: TranslationRules, *, strict: bool) -> AskedCandidates:
    translation = translate(flavor.parse(body), rules)
    if translation.warnings:
        said = "; ".join(translation.warnings)
        if strict:
            raise InvalidRequest(
                f"The flavor is not understood: {said}. Correct it, or ask without 'strict'.", INVALID_FLAVOR
            )
        LOG.warning("Of a flavor was ignored, as Nova does: %s", said)
    return AskedCandidates(translation.request, microversion.MAX, translation.fallback, translation.warnings)
