"""The resources ``/ext/v1/claims`` and ``/ext/v1/claims/{consumer_uuid}``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from flask import Blueprint, Response, g

from placement.api.call import ApiRequest, api_operation, next_links
from placement.api.context import EXT
from placement.api.resource_providers import path_uuid
from placement.policies import ext as rules
from placement.schemas import claim as schemas
from placement.search.claims.claim import HostChoice
from placement.search.claims.claim_context import ClaimContext
from placement.search.claims.placement import PlacedClaim
from placement.search.claims.service import ClaimService
from placement.store import allocations, expiries
from placement.store.allocations import Allocation
from placement.store.claim_ends import change_end
from placement.store.consumers import find_roots
from placement.store.expiries import EndingClaim
from placement.store.time_profile import iso_time
from placement.store.window_promises import source_windows

blueprint = Blueprint("ext_claims", __name__)

PATH: Final = f"{EXT}/claims"
_BODY: Final = schemas.ClaimsBody()
_CONFIRMATION: Final = schemas.ConfirmationBody()


@api_operation(blueprint, "POST", PATH, rules.CLAIM, reads_json=True, writes_json=True)
def claim_candidates(call: ApiRequest) -> Response:
    """Find a candidate for each consumer. Either all candidates are claimed, or none of them."""
    body = call.parse_body(_BODY)
    wanted, dry_run = schemas.parse(body, call.service.request_forms), body["dry_run"]
    placed = ClaimService(claim_context(call), wanted, body["reservation"]).claim_places(dry_run=dry_run)
    if body["reservation"] is not None and not dry_run:
        # the metrics read this value
        g.taken_amounts = [taken for each in placed for _, taken in each.choice.resources]
    return call.json_answer(
        {"claims": [_claim_document(each) for each in placed]}, status=200 if dry_run else 201
    )


@api_operation(blueprint, "GET", PATH, rules.LIST_CLAIMS, writes_json=True)
def list_ending(call: ApiRequest) -> Response:
    """List the claims with an end time, on one host or on all hosts."""
    page = schemas.parse_ending(call.query_parameters, call.version)
    with call.service.database.read() as conn:
        # one more claim than the limit of the page is read, to find out whether there is a next page
        now, found = expiries.list_ending(
            conn,
            page.root,
            page.after,
            page.limit + 1,
            only_preemptible=page.only_preemptible,
            window=page.reservation,
        )
        shown = found[: page.limit]
        consumers = [each.consumer for each in shown]
        sources = source_windows(conn, consumers)
        # agents ask often, and most hosts have no claims that end, so allocations are only read if needed
        amounts = amounts_by_consumer(allocations.of_consumers(conn, consumers) if consumers else ())
        # a client that asks about one host, such as its agent, already knows the root
        roots = find_roots(conn, consumers) if page.root is None else None
    document: dict[str, Any] = {
        "now": iso_time(now),
        "claims": [
            {
                **_ending_document(each),
                "reservation": sources.get(each.consumer),
                "allocations": amounts_document(amounts[each.consumer]),
                **({} if roots is None else {"root_provider_uuids": roots.get(each.consumer, ())}),
            }
            for each in shown
        ],
    }
    if len(found) > page.limit:
        last = shown[-1]
        time = last.expires_at if page.root is None else last.ends_at
        # the marker has the float itself, because the text of a time is rounded
        following = {
            "limit": page.limit,
            "marker": f"{time}_{last.consumer}",
            "root": page.root,
            "preemptible": "true" if page.only_preemptible else None,
            "reservation": page.reservation,
        }
        document["links"] = next_links(PATH, following)
    return call.json_answer(document)


def _ending_document(claim: EndingClaim) -> dict[str, Any]:
    return {
        "consumer_uuid": claim.consumer,
        "consumer_generation": claim.generation,
        "project_id": claim.project_id,
        "consumer_type": claim.consumer_type,
        "ends_at": iso_time(claim.ends_at),
        "on_end": claim.on_end,
        "kept_until": time_or_null(claim.kept_until),
    }


def amounts_by_consumer(amounts: Sequence[Allocation]) -> defaultdict[str, list[Allocation]]:
    """Return these amounts, grouped by the uuid of their consumer."""
    found: defaultdict[str, list[Allocation]] = defaultdict(list)
    for each in amounts:
        found[each.consumer].append(each)
    return found


def amounts_document(amounts: Sequence[Allocation]) -> dict[str, Any]:
    """Return these amounts by resource provider, as answers show them."""
    by_provider: dict[str, Any] = {}
    for each in amounts:
        entry = by_provider.setdefault(each.provider, {"resources": {}})
        entry["resources"][each.resource_class] = each.used
    return by_provider


def time_or_null(time: float | None) -> str | None:
    """Return a time as answers show it, or None."""
    return None if time is None else iso_time(time)


@api_operation(blueprint, "GET", f"{PATH}/<consumer_uuid>", rules.SHOW_CLAIM)
def show_claim(call: ApiRequest, consumer_uuid: str) -> Response:
    """Show a claim that expires or ends, with its reservation and amounts; answer 404 for other claims."""
    consumer = path_uuid(consumer_uuid, expiries.no_expiry)
    with call.service.database.read() as conn:
        found = expiries.find_expiry(conn, consumer)
        source = source_windows(conn, [consumer]).get(consumer)
        amounts = allocations.of_consumers(conn, [consumer])
    shown = {
        "consumer_uuid": consumer,
        "consumer_generation": found.generation,
        **_expiry_document(found.expires_at),
        "expires_in": round(found.seconds, 3),
        "is_final": found.is_final,
        "ends_at": iso_time(found.expires_at - found.cleaning_time) if found.is_final else None,
        "on_end": found.on_end,
        "kept_until": time_or_null(found.kept_until),
        "reservation": source,
        "allocations": amounts_document(amounts),
    }
    return call.json_answer({"claim": shown})


@api_operation(blueprint, "PUT", f"{PATH}/<consumer_uuid>", rules.CONFIRM, reads_json=True, writes_json=True)
def confirm_claim(call: ApiRequest, consumer_uuid: str) -> Response:
    """Confirm a claim, so that it does not expire; or change its time of expiry or its end time."""
    consumer = path_uuid(consumer_uuid, expiries.no_expiry)
    body = call.parse_body(_CONFIRMATION)
    generation, seconds = body["consumer_generation"], body["expires_in"]
    # each change increases the generation by one
    shown = {"consumer_uuid": consumer, "consumer_generation": generation + 1}
    if change := schemas.parse_end_change(body):
        end = change_end(call.service.database, consumer, generation, change)
        shown |= _expiry_document(end.expires_at)
        shown |= {"ends_at": iso_time(end.expires_at - end.cleaning_time), "on_end": end.on_end}
    else:
        shown |= _expiry_document(
            call.service.database.write(lambda tx: expiries.confirm_claim(tx, consumer, generation, seconds))
        )
    return call.json_answer({"claim": shown})


def _expiry_document(expires_at: float | None) -> dict[str, Any]:
    return {"expires_at": time_or_null(expires_at)}


def claim_context(call: ApiRequest) -> ClaimContext:
    """Return the objects that the search for a claim uses, with limits from the options."""
    service = call.service
    return ClaimContext(
        service.model,
        service.database,
        service.window_timetable,
        search_seconds=service.conf.api.candidates_deadline,
        reason_seconds=service.conf.api.explanations_deadline,
        retries=service.conf.placement.allocation_conflict_retry_count,
        check_awaited=call.check_awaited,
    )


def _claim_document(placed: PlacedClaim) -> dict[str, Any]:
    # a claim gives a new consumer the generation 1, and increases the generation of an existing consumer by 1
    known = placed.wanted.generation
    return {
        "consumer_uuid": placed.wanted.consumer,
        "consumer_generation": 1 if known is None else known + 1,
        **_expiry_document(placed.expires_at),
        "ends_at": None if placed.wanted.window is None else iso_time(placed.wanted.window.ends_at),
        "on_end": placed.wanted.end_action,
        "kept_until": time_or_null(placed.wanted.kept_until),
        **choice_document(placed.choice),
        "warnings": list(placed.wanted.warnings),
        "alternates": [choice_document(each) for each in placed.alternates],
    }


def choice_document(choice: HostChoice) -> dict[str, Any]:
    """Return the host, the allocations, the mappings and the score of a choice, as answers show them."""
    score = choice.score
    return {
        **place_document(choice),
        "score": score and {"total": score.total, "criteria": dict(score.criteria)},
    }


def place_document(choice: HostChoice) -> dict[str, Any]:
    """Return the host, the allocations and the mappings of a choice, without its score."""
    return {
        "root_provider_uuid": choice.root.uuid,
        "allocations": {
            provider.uuid: {"resources": dict(amounts)} for provider, amounts in choice.resources
        },
        "mappings": {suffix: [each.uuid for each in served] for suffix, served in choice.mappings.items()},
    }
