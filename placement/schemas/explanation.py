"""The body of ``POST /ext/v1/explanations``."""

from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from placement import microversion
from placement.candidates.request import CandidatesRequest
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas.base import Schema, String
from placement.schemas.query_candidates import parse_candidates

MAX_QUERY: Final = 8192
"""Characters of a query: about as many as a request line has place for."""
_MAX_PARAMETERS: Final = 1024


class Versioned(Schema):
    """A body with queries in the grammar of a microversion."""

    microversion = String(
        pattern=r"^1\.(1[0-9]|2[0-9]|3[0-9])$", load_default=microversion.text(microversion.MAX)
    )


class Explanation(Versioned):
    """What is to be explained: a query string, at a microversion."""

    query = String(required=True, min_length=1, max_length=MAX_QUERY)


def parse(body: dict[str, Any]) -> tuple[CandidatesRequest, Microversion]:
    """The request of such a body, and the microversion in whose grammar it is.

    :raises InvalidRequest: naming what is wrong with the query.
    """
    major, minor = body["microversion"].split(".")
    version = (int(major), int(minor))
    try:
        unquote_to_bytes(body["query"]).decode()
        pairs = parse_qsl(body["query"], keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError as error:
        raise InvalidRequest(f"Invalid query string parameters: {error}") from None
    return parse_candidates(pairs, version), version
