"""The resource ``/ext/v1/availability``, which finds free windows."""

import math
from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, api_operation
from placement.api.ext.claims import choice_document, claim_service
from placement.api.ext.reservations import booking_limits
from placement.api.paths import EXT
from placement.policies import ext as rules
from placement.schemas import availability as schemas
from placement.search.claims.availability import FreeWindow
from placement.store.time_profile import TimeWindow, WindowMargins, iso_time

blueprint = Blueprint("ext_availability", __name__)

_BODY: Final = schemas.AvailabilityBody()


@api_operation(
    blueprint, "POST", f"{EXT}/availability", rules.FIND_WINDOWS, reads_json=True, writes_json=True
)
def find_windows(call: ApiRequest) -> Response:
    """Find the earliest windows in which a request fits, without reserving anything."""
    body = call.parse_body(_BODY)
    wanted, time = schemas.wanted_of(body, call.service.request_forms), schemas.time_of(body)
    found = claim_service(call).find_windows(
        wanted, time, body["limit"], booking_limits(call), explain=body["explain"]
    )
    refusal = found.refusal
    return call.json_answer(
        {
            "windows": [
                _window_document(each, time.duration, schemas.margins_of(body)) for each in found.windows
            ],
            "is_complete": found.is_complete,
            "reason": None if refusal is None else refusal.detail,
            "explanation": None if refusal is None else refusal.explanation,
            "warnings": list(wanted.warnings),
        }
    )


def _window_document(window: FreeWindow, duration: float, margins: WindowMargins) -> dict[str, Any]:
    usable = margins.usable_window(TimeWindow(window.starts_at, window.starts_at + duration))
    shown = choice_document(window.choice)
    # windows have no order, so their choices have no scores
    del shown["score"]
    return {
        "starts_at": iso_time(usable.starts_at),
        "ends_at": iso_time(usable.ends_at),
        "free_until": None
        if math.isinf(window.free_until)
        else iso_time(window.free_until - margins.cleaning),
        **shown,
    }
