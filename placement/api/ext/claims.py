"""``/ext/v1/claims`` and ``/ext/v1/claims/{consumer_uuid}``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, operation
from placement.api.paths import EXT
from placement.policies import ext as rules
from placement.schemas import claim as schemas
from placement.schemas.base import canonical_uuid
from placement.search.claims.claim import HostChoice
from placement.search.claims.placement import PlacedClaim
from placement.search.claims.service import ClaimLimits, ClaimService
from placement.store import expiries

_LAST: Final = 253_402_300_799.0
"""The last second of 9999. A time within it may be after it as a float, where no date is."""


def shown(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601, UTC, to the millisecond."""
    time = datetime.fromtimestamp(min(seconds, _LAST), UTC).replace(tzinfo=None)
    return f"{time.isoformat(timespec='milliseconds')}Z"


blueprint = Blueprint("ext_claims", __name__)

_BODY: Final = schemas.ClaimsBody()
_CONFIRMATION: Final = schemas.ConfirmationBody()


@operation(blueprint, "POST", f"{EXT}/claims", rules.CLAIM, reads_json=True, writes_json=True)
def create(call: ApiRequest) -> Response:
    """Find what each consumer wants, and have it hold that: all of them, or none."""
    body = call.body(_BODY)
    wanted, dry_run = schemas.parse(body, call.service.request_forms), body["dry_run"]
    placed = claimer(call).claim_places(wanted, dry_run=dry_run, reservation=body["reservation"])
    return call.answer({"claims": [_claim(each) for each in placed]}, status=200 if dry_run else 201)


@operation(blueprint, "GET", f"{EXT}/claims/<consumer_uuid>", rules.SHOW_CLAIM)
def show(call: ApiRequest, consumer_uuid: str) -> Response:
    """When a claim is gone by itself; of one that stays there is nothing to show."""
    consumer = canonical_uuid(consumer_uuid)
    if consumer is None:
        raise expiries.no_expiry(consumer_uuid)
    with call.service.database.read() as conn:
        found = expiries.find_expiry(conn, consumer)
    shown = {
        "consumer_uuid": consumer,
        "consumer_generation": found.generation,
        **_end(found.expires_at),
        "expires_in": round(found.seconds, 3),
    }
    return call.answer({"claim": shown})


@operation(
    blueprint, "PUT", f"{EXT}/claims/<consumer_uuid>", rules.CONFIRM, reads_json=True, writes_json=True
)
def confirm(call: ApiRequest, consumer_uuid: str) -> Response:
    """Have a claim stay that would be gone by itself, or have it last longer."""
    consumer = canonical_uuid(consumer_uuid)
    if consumer is None:
        raise expiries.no_expiry(consumer_uuid)
    body = call.body(_CONFIRMATION)
    generation, seconds = body["consumer_generation"], body["expires_in"]
    expires_at = call.service.database.write(
        lambda tx: expiries.confirm_claim(tx, consumer, generation, seconds)
    )
    shown = {"consumer_uuid": consumer, "consumer_generation": generation + 1, **_end(expires_at)}
    return call.answer({"claim": shown})


def _end(expires_at: float | None) -> dict[str, Any]:
    return {"expires_at": None if expires_at is None else shown(expires_at)}


def claimer(call: ApiRequest) -> ClaimService:
    """Who claims for a call, within the limits that the options set."""
    conf = call.service.conf
    limits = ClaimLimits(
        searching=conf.api.candidates_deadline,
        explaining=conf.api.explanations_deadline,
        retries=conf.placement.allocation_conflict_retry_count,
    )
    return ClaimService(call.service.model, call.service.database, limits, call.check_awaited)


def _claim(placed: PlacedClaim) -> dict[str, Any]:
    known = placed.wanted.generation
    return {
        "consumer_uuid": placed.wanted.consumer,
        "consumer_generation": 1 if known is None else known + 1,
        **_end(placed.expires_at),
        **_choice(placed.choice),
        "warnings": list(placed.wanted.warnings),
        "alternates": [_choice(each) for each in placed.alternates],
    }


def _choice(choice: HostChoice) -> dict[str, Any]:
    score = choice.score
    return {
        "root_provider_uuid": choice.root.uuid,
        "allocations": {
            provider.uuid: {"resources": dict(amounts)} for provider, amounts in choice.resources
        },
        "mappings": {suffix: [each.uuid for each in served] for suffix, served in choice.mappings.items()},
        "score": score and {"total": score.total, "criteria": dict(score.criteria)},
    }
