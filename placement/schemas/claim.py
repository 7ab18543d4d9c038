"""The body of ``POST /ext/v1/claims``."""

from typing import Any, Final

from placement.claims.scoring import CRITERIA
from placement.claims.wanted import Wanted
from placement.exceptions import InvalidRequest
from placement.schemas import explanation
from placement.schemas.base import Array, Boolean, Integer, Map, Number, Object, Schema, String, Uuid
from placement.store.consumers import Owner

MAX_CLAIMS: Final = 64
"""In one call: each may have to be tried with each choice of those before."""
MAX_ALTERNATES: Final = 100
MAX_WEIGHT: Final = 1000.0


class _Claim(explanation.Explanation):
    """What one consumer wants: a query, and who it is, as in ``PUT /allocations/{consumer_uuid}``."""

    consumer_uuid = Uuid(required=True)
    consumer_generation = Integer(required=True, allow_none=True)
    consumer_type = String(required=True, min_length=1, max_length=255, pattern="^[A-Z0-9_]+$")
    project_id = String(required=True, min_length=1, max_length=255)
    user_id = String(required=True, min_length=1, max_length=255)
    hosts = Array(Uuid(), min_items=1, load_default=None, data_key="only")
    avoid = Array(Uuid(), load_default=list)
    alternates = Integer(0, MAX_ALTERNATES, load_default=0)
    order = Map(f"^({'|'.join(CRITERIA)})$", Number(0, MAX_WEIGHT), load_default=dict)


class Claims(Schema):
    """Claims of which all are put into effect, or none."""

    claims = Array(Object(_Claim), min_items=1, max_items=MAX_CLAIMS, required=True)
    dry_run = Boolean(load_default=False)


def parse(body: dict[str, Any]) -> list[Wanted]:
    """What such a body wants.

    :raises InvalidRequest: a query is none, or a consumer is named twice.
    """
    consumers = [each["consumer_uuid"] for each in body["claims"]]
    if len(set(consumers)) < len(consumers):
        raise InvalidRequest("A consumer is named by more than one of the claims.")
    return [_wanted(each) for each in body["claims"]]


def _wanted(claim: dict[str, Any]) -> Wanted:
    request, version = explanation.parse(claim)
    return Wanted(
        consumer=claim["consumer_uuid"],
        generation=claim["consumer_generation"],
        owner=Owner(claim["project_id"], claim["user_id"], claim["consumer_type"]),
        request=request,
        version=version,
        only=None if claim["hosts"] is None else frozenset(claim["hosts"]),
        avoid=frozenset(claim["avoid"]),
        alternates=claim["alternates"],
        order=tuple(claim["order"].items()),
    )
