"""The resource ``/ext/v1/explanations``, which explains requests for candidates."""

from typing import Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, api_operation
from placement.api.paths import EXT
from placement.exceptions import InvalidRequest
from placement.policies import ext as rules
from placement.schemas import explanation as schemas
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.claim import WantedClaim
from placement.search.claims.refusal import explain_topology
from placement.search.diagnosis.explanation import RequestExplanation, explain_request
from placement.search.diagnosis.sentences import explanation_document
from placement.search.request import CandidatesRequest, check_names

blueprint = Blueprint("ext_explanations", __name__)

_BODY: Final = schemas.ExplanationBody()


@api_operation(blueprint, "POST", f"{EXT}/explanations", rules.EXPLAIN, reads_json=True, writes_json=True)
def explain_candidates(call: ApiRequest) -> Response:
    """Explain why a request has few candidates, or none. The operation stores nothing."""
    body = call.parse_body(_BODY)
    asked = schemas.parse(body, call.service.request_forms)
    topology = schemas.parse_topology(body["topology"], asked.request)
    deadline = call.service.conf.api.explanations_deadline
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
    shown = explanation_document(explanation, fallback)
    return call.json_answer(
        {"microversion": microversion.text(asked.version), **shown, "warnings": list(asked.warnings)}
    )
