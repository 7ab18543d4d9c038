"""The resource ``/ext/v1/availability``, which finds free windows."""

import math
from collections.abc import Iterable
from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, api_operation
from placement.api.context import EXT
from placement.api.ext.claims import claim_context, place_document
from placement.policies import ext as rules
from placement.schemas import reservation as schemas
from placement.search.claims.availability import FreeWindow
from placement.search.claims.claim import HostChoice
from placement.search.claims.window_search import search_windows
from placement.store.time_profile import TimeWindow, WindowMargins, iso_time

blueprint = Blueprint("ext_availability", __name__)

_BODY: Final = schemas.AvailabilityBody()


@api_operation(
    blueprint, "POST", f"{EXT}/availability", rules.FIND_WINDOWS, reads_json=True, writes_json=True
)
def find_windows(call: ApiRequest) -> Response:
    """Find the earliest windows in which there is room for all requests together. Nothing is reserved."""
    body = call.parse_body(_BODY)
    wanted, time = schemas.searched_claims(body, call.service.request_forms), schemas.searched_time(body)
    limits = call.service.booking_limits
    found = search_windows(claim_context(call), wanted, time, body["limit"], limits, explain=body["explain"])
    refusal = found.refusal
    return call.json_answer(
        {
            "windows": [
                {
                    **_times_document(each, time.duration, schemas.margins_of(body)),
                    **_choices_document(each.choices, are_claims=body["claims"] is not None),
                }
                for each in found.windows
            ],
            "is_complete": found.is_complete,
            "reason": None if refusal is None else refusal.detail,
            "explanation": None if refusal is None else refusal.explanation,
            # equal claims have equal warnings, which are shown once
            "warnings": list(dict.fromkeys(text for each in wanted for text in each.warnings)),
        }
    )


def _times_document(window: FreeWindow, duration: float, margins: WindowMargins) -> dict[str, Any]:
    usable = margins.usable_window(TimeWindow(window.starts_at, window.starts_at + duration))
    return {
        "starts_at": iso_time(usable.starts_at),
        "ends_at": iso_time(usable.ends_at),
        "free_until": None
        if math.isinf(window.free_until)
        else iso_time(window.free_until - margins.cleaning),
    }


def _choices_document(choices: Iterable[HostChoice], *, are_claims: bool) -> dict[str, Any]:
    documents = [place_document(each) for each in choices]
    return {"claims": documents} if are_claims else documents[0]
