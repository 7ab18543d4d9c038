"""``/allocation_candidates``."""

import time

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import Call, operation
from placement.candidates.render import render
from placement.candidates.request import check_names
from placement.candidates.search import search
from placement.policies import allocation_candidate as rules
from placement.schemas.query import parse_candidates

blueprint = Blueprint("allocation_candidates", __name__)


@operation(
    blueprint, "GET", "/allocation_candidates", rules.LIST, since=microversion.CANDIDATES, writes_json=True
)
def list_all(call: Call) -> Response:
    """Sets of providers and amounts that would satisfy the request, each ready to be claimed."""
    wanted = parse_candidates(call.parameters, call.version)
    options = call.service.conf.placement
    with call.service.model.fresh() as view:
        check_names(wanted, view.names.classes, view.names.traits)
        found = search(
            view.world,
            wanted,
            strategy=options.allocation_candidates_generation_strategy,
            max_candidates=options.max_allocation_candidates,
            randomize=options.randomize_allocation_candidates,
        )
        return call.answer(render(view.world, found, call.version), time.time())
