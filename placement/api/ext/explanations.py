"""The resource ``/ext/v1/explanations``, which explains requests for candidates."""

import math
from dataclasses import replace
from time import thread_time
from typing import Any, Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, api_operation
from placement.api.context import EXT
from placement.api.ext.claims import claim_context, time_or_null
from placement.exceptions import InvalidRequest
from placement.policies import ext as rules
from placement.schemas import candidates as schemas
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.claim import WantedClaim
from placement.search.claims.refusal import NamedWindow, WindowsInWay, explain_topology, find_windows_in_way
from placement.search.claims.window_search import find_shifts
from placement.search.diagnosis.explanation import RequestExplanation, explain_request
from placement.search.diagnosis.sentences import explanation_document
from placement.search.request import CandidatesRequest, check_names
from placement.store.claims import TimeShifts
from placement.store.time_profile import iso_time

blueprint = Blueprint("ext_explanations", __name__)

_BODY: Final = schemas.ExplanationBody()


@api_operation(blueprint, "POST", f"{EXT}/explanations", rules.EXPLAIN, reads_json=True, writes_json=True)
def explain_candidates(call: ApiRequest) -> Response:
    """Explain why a request has few candidates, or none. The operation stores nothing."""
    body = call.parse_body(_BODY)
    asked = schemas.parse_body(body, call.service.request_forms)
    topology = schemas.parse_topology(body["topology"], asked.request)
    deadline = call.service.conf.api.explanations_deadline
    end = thread_time() + deadline
    with call.service.model.fresh_view() as view:
        check_names(asked.request, view.names.classes, view.names.traits)
        # the request and its fallback share one budget, because the client waits for the sum of their times
        budget = SearchBudget(deadline, yield_lock=view.yield_after(call.check_awaited))

        def explain_one(request: CandidatesRequest) -> RequestExplanation:
            if topology is None:
                return explain_request(view.snapshot, request, budget)
            wanted = WantedClaim.without_consumer(request, asked.version, topology)
            return explain_topology(view.snapshot, wanted, budget)

        try:
            explanation = explain_one(asked.request)
            fallback = None if asked.fallback is None else explain_one(asked.fallback)
        except BudgetExhausted:
            raise InvalidRequest.too_long(
                "The request could not be explained",
                deadline,
                "explanations_deadline",
                ": ask for fewer groups.",
            ) from None
        # a cloud without windows needs no query to find none
        may_have_windows = math.isfinite(view.next_expiry)
    shown = explanation_document(explanation, fallback)
    found: WindowsInWay | None = WindowsInWay()
    shifts = TimeShifts()
    if may_have_windows and not any(each.may_fit for each in (explanation, fallback) if each is not None):
        wanted = WantedClaim.without_consumer(asked.request, asked.version, topology)
        wanted, context = replace(wanted, fallback=asked.fallback), claim_context(call)
        # the searches get the rest of the time of the explanation
        found = find_windows_in_way(context, wanted, end - thread_time())
        if found is not None and found.windows:
            shifts = find_shifts(context, [wanted], {}, end - thread_time())
    if found is None:
        shown["incomplete"].append("windows")
    elif found.windows:
        shown["summary"] += f"; windows and claims with an end time are in the way: {found.text}"
        if shifts.text:
            shown["summary"] += f"; the request fits {shifts.text}"
    return call.json_answer(
        {
            "microversion": microversion.text(asked.version),
            **shown,
            **shifts.shown_times,
            "windows": [_window_document(each) for each in ([] if found is None else found.windows)],
            "warnings": list(asked.warnings),
        }
    )


def _window_document(window: NamedWindow) -> dict[str, Any]:
    return {
        "uuid": window.consumer,
        "starts_at": time_or_null(window.starts_at),
        "ends_at": iso_time(window.ends_at),
        "root_provider_uuids": list(window.roots),
        "allocations": {provider: {"resources": held} for provider, held in window.amounts.items()},
    }
