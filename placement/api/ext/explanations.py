"""``/ext/v1/explanations``."""

from typing import Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, operation
from placement.api.paths import EXT
from placement.exceptions import InvalidRequest
from placement.policies import ext as rules
from placement.schemas import explanation as schemas
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.diagnosis.explanation import explain_request
from placement.search.diagnosis.sentences import explanation_document
from placement.search.request import check_names

blueprint = Blueprint("ext_explanations", __name__)

_BODY: Final = schemas.ExplanationBody()


@operation(blueprint, "POST", f"{EXT}/explanations", rules.EXPLAIN, reads_json=True, writes_json=True)
def explain_candidates(call: ApiRequest) -> Response:
    """Why a request has the candidates that it has, or none. Nothing is kept."""
    asked = schemas.parse(call.body(_BODY), call.service.request_forms)
    deadline = call.service.conf.api.explanations_deadline
    with call.service.model.fresh_view() as view:
        check_names(asked.request, view.names.classes, view.names.traits)
        budget = SearchBudget(deadline, yield_lock=view.yield_after(call.check_awaited))
        try:
            explanation = explain_request(view.snapshot, asked.request, budget)
            fallback = (
                None if asked.fallback is None else explain_request(view.snapshot, asked.fallback, budget)
            )
        except BudgetExhausted:
            raise InvalidRequest.too_long(
                "The request could not be explained",
                deadline,
                "explanations_deadline",
                ": ask for fewer groups.",
            ) from None
    shown = explanation_document(explanation, fallback)
    return call.answer(
        {"microversion": microversion.text(asked.version), **shown, "warnings": list(asked.warnings)}
    )
