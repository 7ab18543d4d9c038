"""The resource ``/allocation_candidates``."""

import logging
import time
from typing import Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, api_operation
from placement.policies import rest as rules
from placement.schemas.candidates import parse_candidates
from placement.search.budget import SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.candidates import topology_first
from placement.search.rendering import render_pieces
from placement.search.request import check_names

LOG = logging.getLogger(__name__)

blueprint = Blueprint("allocation_candidates", __name__)

INCOMPLETE: Final = "Placement-Ext-Incomplete"
"""Header of an answer that lacks some candidates. Its value is the limit at which the search ended."""

_MIB: Final = 1024 * 1024


@api_operation(
    blueprint,
    "GET",
    "/allocation_candidates",
    rules.LIST_CANDIDATES,
    since=microversion.CANDIDATES,
    writes_json=True,
)
def list_all(call: ApiRequest) -> Response:
    """List allocation candidates: sets of providers and amounts that satisfy the request."""
    wanted = parse_candidates(call.query_parameters, call.version)
    options, bounds = call.service.conf.placement, call.service.conf.api
    with call.service.model.fresh_view() as view:
        check_names(wanted, view.names.classes, view.names.traits)
        yield_lock = view.yield_after(call.check_awaited)
        budget = SearchBudget(bounds.candidates_deadline, bounds.candidates_size * _MIB, yield_lock)
        try:
            found = find_candidates(
                view.snapshot,
                wanted,
                strategy=options.allocation_candidates_generation_strategy,
                max_candidates=options.max_allocation_candidates,
                randomize=options.randomize_allocation_candidates,
                budget=budget,
            )
        finally:
            # the limit is logged even if the request is then refused, because perhaps the operator has set
            # the limit too low
            if budget.ended:
                LOG.warning(
                    "A search for allocation candidates ended before it found all candidates,"
                    " because it reached [api] candidates_%s.",
                    budget.ended,
                )
        # if the operator has chosen a random order, candidates are not sorted by topology
        if options.candidate_order == "topology" and not options.randomize_allocation_candidates:
            found = topology_first(found, budget)
        # the JSON is made before the view is released, because summaries of providers are read from its
        # snapshot, and are kept for later answers
        body = render_pieces(view.snapshot, found, call.version, call.service.summaries, budget)
        answer = call.answer_pieces(body, time.time())
    # the explanation begins after the view is released, so that no other request waits for the explanation
    if not found:
        call.explain_empty(wanted)
    if budget.ended:
        answer.headers[INCOMPLETE] = budget.ended
    return answer
