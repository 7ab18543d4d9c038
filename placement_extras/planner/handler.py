"""``/ext/v1/capacity``."""

from collections.abc import Iterator
from time import thread_time
from typing import Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, operation
from placement.api.paths import EXT
from placement.exceptions import SEARCH_TOO_LONG, InvalidRequest
from placement.schemas.request_form import AskedCandidates
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.host_filter import named_roots
from placement.search.request import CandidatesRequest, check_names
from placement_extras.planner import body as schemas
from placement_extras.planner import rules
from placement_extras.planner.counting import CloudHosts, FlavorCapacity, count
from placement_extras.planner.document import document, of_displaced, of_sets
from placement_extras.planner.moving import fewest
from placement_extras.planner.proportions import FlavorProportion, together
from placement_extras.planner.relocating import GuestRelocator

blueprint = Blueprint("ext_capacity", __name__)

_BODY: Final = schemas.CapacityBody()


@operation(blueprint, "POST", f"{EXT}/capacity", rules.CAPACITY, reads_json=True, writes_json=True)
def create(call: ApiRequest) -> Response:
    """How many guests of some flavors fit, and what is in the way of more. Nothing is kept."""
    body = call.body(_BODY)
    asked, version = schemas.parse(body, call.service.request_forms)
    flavors = {name: each.request for name, each in asked.items()}
    fallbacks = {name: each.fallback for name, each in asked.items() if each.fallback is not None}
    deadline = call.service.conf.api.capacity_deadline
    end = thread_time() + deadline
    counted: dict[str, FlavorCapacity] = {}
    fallen_back: dict[str, FlavorCapacity] = {}
    with call.service.model.fresh() as view:
        for request in flavors.values():
            check_names(request, view.names.classes, view.names.traits)
        avoided = named_roots(view.snapshot, body["without"], "capacity is to be counted without")
        try:
            budget = SearchBudget(deadline, give_way=view.giving_way_after(call.check_awaited))
            cloud = CloudHosts(view.snapshot, budget, avoided)
            for name, request in flavors.items():
                if name in fallbacks:
                    fallen_back[name] = count(cloud, fallbacks[name])
                counted[name] = count(cloud, request)
            shares = {
                name: FlavorProportion(
                    tuple(_requests(asked[name])),
                    each["proportion"],
                    counted[name].fit.at_most + (fallen_back[name].fit.at_most if name in fallen_back else 0),
                )
                for each in body["flavors"]
                if each["proportion"] is not None
                for name in (each["name"],)
            }
            sets = together(cloud, list(shares.values())) if shares else None
        except BudgetExhausted:
            left = [name for name in flavors if name not in counted]
            what = f"flavor {left[0]!r} was being counted" if left else "all were being counted together"
            raise _too_long(deadline, f"{what}: ask for fewer flavors, or for fewer groups in one") from None
        hosts = len(cloud.hosts)
    relocator = GuestRelocator(
        call.service.model, call.service.database, end - thread_time(), call.check_awaited
    )
    try:
        displaced = relocator.displaced(body["without"]) if body["displaced"] else None
        making = {
            name: fewest(relocator.room_for(request, body["without"]) for request in _requests(each))
            for name, each in asked.items()
            if body["moves"]
        }
    except BudgetExhausted:
        raise _too_long(
            deadline, "places for guests elsewhere were being looked for: ask for fewer flavors or hosts"
        ) from None
    return call.answer(
        {
            "microversion": microversion.text(version),
            "hosts": hosts,
            "flavors": [
                document(name, each, fallen_back.get(name), making.get(name))
                | {"warnings": list(asked[name].warnings)}
                for name, each in counted.items()
            ],
            "together": None if sets is None else of_sets(sets, shares),
            "displaced": None if displaced is None else of_displaced(displaced),
        }
    )


def _requests(asked: AskedCandidates) -> Iterator[CandidatesRequest]:
    """The request, and what it falls back to."""
    yield asked.request
    if asked.fallback is not None:
        yield asked.fallback


def _too_long(deadline: float, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The capacity could not be counted in {deadline:g} seconds of work, which is the limit "
        f"([api] capacity_deadline); {what}.",
        SEARCH_TOO_LONG,
    )
