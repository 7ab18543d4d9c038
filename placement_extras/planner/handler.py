"""The operation ``POST /ext/v1/capacity``: its body, its handler, and the search for new places of guests.

The handler reads the guests of hosts from the database, and free amounts from the read model, at slightly
different times. A guest that is created, deleted or moved between these times is perhaps counted twice, or
not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import thread_time
from typing import Any, Final

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest, api_operation
from placement.api.context import EXT
from placement.db.database import ServiceDatabase
from placement.exceptions import SEARCH_TOO_LONG, InvalidRequest
from placement.policies.ext import SHOW_RESERVATION
from placement.read_model.feed import ModelView, ReadModel
from placement.read_model.provider import DISABLED, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.schemas import candidates
from placement.schemas.base import (
    ArrayField,
    BooleanField,
    IntegerField,
    ObjectField,
    StringField,
    UuidField,
    root_field,
)
from placement.schemas.request_form import AskedCandidates, RequestForms
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.split_choices import is_splittable
from placement.search.claims.topology import TopologyPolicy
from placement.search.request import CandidatesRequest, check_names, named_roots
from placement.store.holders import HeldAmount, held_beside
from placement.store.maintenances import MaintenanceGuests, read_maintenance
from placement_extras.planner import rules
from placement_extras.planner.capacity import ClassShortage, CloudHosts, FlavorCapacity, count_flavor
from placement_extras.planner.cluster_simulation import ClusterSimulation, HostedConsumer, guests_of
from placement_extras.planner.drain_plan import MAX_STEPS, DisplacedGuests, displace_guests
from placement_extras.planner.migration_plan import (
    WINDOW_HOLD,
    MigrationPlan,
    MigrationStep,
    make_room,
    nearest_hosts,
    plan_with_fewest,
)
from placement_extras.planner.packing import FitBounds
from placement_extras.planner.proportions import FlavorProportion, count_sets
from placement_extras.planner.split_count import count_split

MAX_FLAVORS: Final = 32
"""Maximum number of flavors in a body."""
MAX_EXCLUDED: Final = 1024
"""Maximum number of hosts in ``excluded_hosts``."""
MAX_PROPORTION: Final = 1_000_000
"""Maximum value of ``proportion``, the number of guests of a flavor in each set of flavors."""


class FlavorSchema(candidates.AskingSchema, candidates.TopologySchema):
    """Schema of a flavor, which is the request of one guest."""

    name = StringField(required=True, min_length=1, max_length=255)
    proportion = IntegerField(1, MAX_PROPORTION, load_default=None)


class CapacityBody(candidates.VersionedSchema):
    """The body of a request: the flavors to count, the microversion of their queries, and excluded hosts.

    ``drain`` asks whether the guests on the excluded hosts have places elsewhere. ``maintenance`` asks the
    same for the hosts of a reservation, but ignores guests that end before the reservation begins. ``moves``
    asks for the moves that make room for one more guest of each flavor.
    """

    flavors = ArrayField(ObjectField(FlavorSchema), required=True, min_items=1, max_items=MAX_FLAVORS)
    excluded_hosts = ArrayField(root_field(), unique=True, load_default=list, max_items=MAX_EXCLUDED)
    drain = BooleanField(load_default=False)
    maintenance = UuidField(load_default=None, allow_none=False)
    moves = BooleanField(load_default=False)


def parse(
    body: dict[str, Any], forms: RequestForms
) -> tuple[dict[str, AskedCandidates], dict[str, TopologyPolicy]]:
    """Return the requests and the topologies in a body, by the names of their flavors.

    :param forms: the registered fields that can replace a query, such as a flavor of Nova.
    :raises InvalidRequest: 'drain' has no hosts, or a flavor is wrong, or two flavors have the same name.
        A topology is wrong without dedicated CPUs or memory to split, with a microversion before 1.29, and
        together with 'moves' or 'proportion'. The message names the flavor.
    """
    if body["drain"] and body["maintenance"] is None and not body["excluded_hosts"]:
        raise InvalidRequest("'drain' needs hosts in 'excluded_hosts', but this list is empty.")
    asked: dict[str, AskedCandidates] = {}
    topologies: dict[str, TopologyPolicy] = {}
    for flavor in body["flavors"]:
        name = flavor["name"]
        if name in asked:
            raise InvalidRequest(f"Two flavors have the name {name!r}.")
        try:
            common = {each: body[each] for each in ("microversion", "strict")}
            asked[name] = candidates.parse_body({**flavor, **common}, forms)
            topology = candidates.parse_topology(flavor["topology"], asked[name].request)
        except InvalidRequest as error:
            # the new error has the whole text of the caught error, so the caught error is not its cause
            raise InvalidRequest(f"Flavor {name!r}: {error.plain_detail}", error.code) from None
        if topology is None:
            continue
        topologies[name] = topology
        for member, is_given in (("moves", body["moves"]), ("proportion", flavor["proportion"])):
            if is_given:
                raise InvalidRequest(
                    f"Flavor {name!r} has a 'topology', which cannot be combined with {member!r}: "
                    "leave out one of the two."
                )
    return asked, topologies


MAX_HELD: Final = 50_000
"""Maximum number of allocations that are read to find the guests of some hosts."""


class GuestRelocator:
    """Finds new places for the guests of given hosts.

    :param seconds: CPU time that all calls of the methods together can use.
    :param check_awaited: a function that is called regularly. It raises an exception if nothing awaits the
        result any more.
    """

    def __init__(
        self, model: ReadModel, database: ServiceDatabase, seconds: float, check_awaited: Callable[[], None]
    ) -> None:
        self._model = model
        self._database = database
        # the limit is CPU time, so that waiting for a lock or for the database does not count
        self._end = thread_time() + seconds
        self._check_awaited = check_awaited

    def displaced_guests(self, hosts: Collection[str], staying: Collection[str] = ()) -> DisplacedGuests:
        """Return whether the guests of some hosts have places on the other hosts.

        :param hosts: the uuids of the roots of these hosts.
        :param staying: the uuids of consumers that need no new place.
        :raises InvalidRequest: the hosts have too many guests.
        """
        # the database is read after the end of the view, because other requests wait until a view ends
        with self._model.fresh_view() as view:
            members = _tree_members(view.snapshot, _ids(view.snapshot, hosts))
        held, complete = self._held_amounts(members)
        if not complete:
            raise InvalidRequest(
                f"Consumers on the hosts to drain hold more than {MAX_HELD} allocations: name fewer hosts."
            )
        # another view is opened, because the model can have changed while the database was read
        with self._model.fresh_view() as view:
            avoided, budget = _ids(view.snapshot, hosts), self._make_budget(view)
            guests = [
                each
                for each in _guests_on(view.snapshot, avoided, held, budget)
                # a hold keeps room free at its provider, so a hold is not moved
                if each.consumer_type != WINDOW_HOLD and each.consumer not in staying
            ]
            return displace_guests(ClusterSimulation(view.snapshot, budget, avoided), guests)

    def room_for(self, request: CandidatesRequest, avoided: Collection[str]) -> MigrationPlan:
        """Find a smallest number of moves that make room for a guest, without the avoided hosts."""
        with self._model.fresh_view() as view:
            board = ClusterSimulation(view.snapshot, self._make_budget(view), _ids(view.snapshot, avoided))
            # only the guests on the nearest hosts are read, because reading all guests of a cloud takes
            # seconds
            roots = {tree.root.id for tree, _ in nearest_hosts(board, request)}
            members = _tree_members(view.snapshot, roots)
        held, complete = self._held_amounts(members)
        # another view is opened, because the guests were read after the end of the first view
        with self._model.fresh_view() as view:
            board = ClusterSimulation(view.snapshot, self._make_budget(view), _ids(view.snapshot, avoided))
            hosts = [host for host in board.hosts if host[0].root.id in roots]
            guests = _guests_on(view.snapshot, roots, held, board.budget)
            return make_room(board, request, hosts, guests, all_known=complete)

    def _held_amounts(self, provider_ids: Collection[int]) -> tuple[list[HeldAmount], bool]:
        with self._database.read() as conn:
            return held_beside(conn, provider_ids, MAX_HELD)

    def _make_budget(self, view: ModelView) -> SearchBudget:
        # all budgets have the same end, so each budget gets the time that earlier ones have not used
        return SearchBudget(self._end - thread_time(), yield_lock=view.yield_after(self._check_awaited))


def _ids(snapshot: ModelSnapshot, uuids: Collection[str]) -> set[int]:
    """Return the ids of the providers with these uuids; ignore unknown uuids."""
    return {snapshot.by_uuid[uuid] for uuid in uuids if uuid in snapshot.by_uuid}


def _tree_members(snapshot: ModelSnapshot, roots: Collection[int]) -> set[int]:
    return {member for root in roots for member in snapshot.trees.get(root, ())}


def _guests_on(
    snapshot: ModelSnapshot, roots: Collection[int], held: Sequence[HeldAmount], budget: SearchBudget
) -> list[HostedConsumer]:
    """Return the guests that have allocations from these hosts."""
    providers = snapshot.providers
    return [
        guest
        for guest in guests_of(snapshot, held, budget)
        if any(providers[provider_id].root_id in roots for provider_id, _ in guest.held)
    ]


blueprint = Blueprint("ext_capacity", __name__)

_BODY: Final = CapacityBody()

_PLACING_SHARE: Final = 0.75
"""The share of a flavor's time that is used to place guests on hosts, if a topology splits these guests."""


@api_operation(blueprint, "POST", f"{EXT}/capacity", rules.CAPACITY, reads_json=True, writes_json=True)
def count_capacity(call: ApiRequest) -> Response:
    """Count how many guests of some flavors fit, and show the resources that are short. Store nothing."""
    body = call.parse_body(_BODY)
    asked, topologies = parse(body, call.service.request_forms)
    flavors = {name: each.request for name, each in asked.items()}
    fallbacks = {name: each.fallback for name, each in asked.items() if each.fallback is not None}
    deadline = call.service.conf.api.capacity_deadline
    # the limit is CPU time, so that waiting for other threads does not count
    end = thread_time() + deadline
    excluded = body["excluded_hosts"]
    maintenance = None if body["maintenance"] is None else _find_maintenance(call, body["maintenance"])
    if maintenance is not None:
        excluded = [*maintenance.roots.union(excluded)]
    counted: dict[str, FlavorCapacity] = {}
    fallen_back: dict[str, FlavorCapacity] = {}
    with call.service.model.fresh_view() as view:
        for request in flavors.values():
            check_names(request, view.names.classes, view.names.traits)
        avoided = named_roots(view.snapshot, excluded, "excluded_hosts names")
        try:
            budget = SearchBudget(deadline, yield_lock=view.yield_after(call.check_awaited))
            cloud = CloudHosts(view.snapshot, budget, avoided)

            def count_topology(name: str, request: CandidatesRequest) -> FlavorCapacity:
                topology = topologies.get(name)
                # a topology perhaps splits no resource class of the fallback
                if topology is None or not is_splittable(request):
                    return count_flavor(cloud, request)
                # the rest of the time is for the bounds of hosts on which no guests are placed, and for the
                # other flavors
                left = len(flavors) + len(fallbacks) - len(counted) - len(fallen_back)
                seconds = max(0.0, _PLACING_SHARE * (end - thread_time()) / left)
                placing = SearchBudget(seconds, yield_lock=view.yield_after(call.check_awaited))
                return count_split(cloud, request, topology, placing)

            for name, request in flavors.items():
                if name in fallbacks:
                    fallen_back[name] = count_topology(name, fallbacks[name])
                counted[name] = count_topology(name, request)
            shares = {
                name: FlavorProportion(
                    _possible_requests(asked[name]),
                    each["proportion"],
                    # a guest that fits with the request and with the fallback is counted twice, but the sum
                    # is still an upper bound
                    counted[name].fit.upper_bound
                    + (fallen_back[name].fit.upper_bound if name in fallen_back else 0),
                )
                for each in body["flavors"]
                if each["proportion"] is not None
                for name in (each["name"],)
            }
            sets = count_sets(cloud, list(shares.values())) if shares else None
        except BudgetExhausted:
            left = [name for name in flavors if name not in counted]
            what = (
                f"the limit was reached at flavor {left[0]!r}"
                if left
                else "the limit was reached in the count of all flavors together"
            )
            raise _too_long(
                deadline, f"{what}: ask for fewer flavors, or for flavors with fewer groups"
            ) from None
        hosts = len(cloud.hosts)
        warnings = {
            name: [
                *each.warnings,
                *_disabled_warnings(view.snapshot, each.request, avoided),
                *_uncounted_warnings(hosts, (counted[name], fallen_back.get(name)), deadline),
            ]
            for name, each in asked.items()
        }
    relocator = GuestRelocator(
        call.service.model, call.service.database, end - thread_time(), call.check_awaited
    )
    try:
        displaced = None
        if maintenance is not None:
            displaced = relocator.displaced_guests(excluded, {maintenance.uuid, *maintenance.ending})
        elif body["drain"]:
            displaced = relocator.displaced_guests(excluded)
        making = {
            name: plan_with_fewest(
                relocator.room_for(request, excluded) for request in _possible_requests(each)
            )
            for name, each in asked.items()
            if body["moves"]
        }
    except BudgetExhausted:
        raise _too_long(
            deadline, "the limit was reached in the search for new places: ask for fewer flavors or hosts"
        ) from None
    return call.json_answer(
        {
            "microversion": microversion.text(candidates.version_of(body)),
            "hosts": hosts,
            "flavors": [
                flavor_document(name, each, fallen_back.get(name), making.get(name))
                | {"warnings": warnings[name]}
                for name, each in counted.items()
            ],
            "combined": None if sets is None else of_sets(sets, shares),
            "drain": None
            if displaced is None
            else of_displaced(
                displaced,
                sorted(maintenance.ending) if maintenance else (),
                len(maintenance.planned) if maintenance else 0,
            ),
        }
    )


def _find_maintenance(call: ApiRequest, reservation: str) -> MaintenanceGuests:
    with call.service.database.read() as conn:
        return read_maintenance(conn, reservation, MAX_HELD, partial(call.allows_project, SHOW_RESERVATION))


def _uncounted_warnings(
    hosts: int, capacities: Iterable[FlavorCapacity | None], deadline: float
) -> Iterator[str]:
    """Yield a warning if the time ended before guests of a flavor were placed on all hosts."""
    left = max((each.uncounted_hosts for each in capacities if each is not None), default=0)
    if left:
        yield (
            f"guests were placed on {hosts - left:,} of {hosts:,} hosts, because the request has only"
            f" {deadline:g} seconds of CPU time ([api] capacity_deadline); the other hosts"
            " count as 0 in lower_bound and by their free amounts in upper_bound, and capable_hosts and"
            " candidate_hosts do not contain them"
        )


def _disabled_warnings(
    snapshot: ModelSnapshot, request: CandidatesRequest, avoided: Collection[int]
) -> Iterator[str]:
    """Yield a warning if the request does not exclude disabled hosts, and such hosts are counted."""
    if DISABLED in request.root_forbidden | request.root_required:
        return
    having = (snapshot.providers[each] for each in snapshot.by_trait.get(DISABLED, ()))
    count = sum(1 for each in having if each.parent_id is None and each.id not in avoided)
    if count:
        yield (
            f"{count:,} counted host{' has' if count == 1 else 's have'} {DISABLED} at the root; "
            f"root_required=!{DISABLED} leaves such hosts out"
        )


def _possible_requests(asked: AskedCandidates) -> tuple[CandidatesRequest, ...]:
    """Return the request of a flavor and, if it has one, its fallback."""
    return (asked.request,) if asked.fallback is None else (asked.request, asked.fallback)


def _too_long(deadline: float, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The capacity could not be counted in {deadline:g} seconds of CPU time, which is the limit "
        f"([api] capacity_deadline); {what}.",
        SEARCH_TOO_LONG,
    )


def flavor_document(
    name: str,
    capacity: FlavorCapacity,
    fallback: FlavorCapacity | None = None,
    making: MigrationPlan | None = None,
) -> dict[str, Any]:
    """Return the document about the guests of one flavor.

    :param fallback: the capacity for the fallback of the flavor; None if the flavor has no fallback.
    :param making: the moves that make room for one more guest; None if the client has not asked for moves.
    """
    worst = capacity.worst
    return {
        "name": name,
        **_fit_document(capacity.fit),
        **_hosts(capacity),
        "fallback": None if fallback is None else {**_fit_document(fallback.fit), **_hosts(fallback)},
        "worst_host_failure": None
        if worst is None
        else {**_host_document(worst), **_fit_document(capacity.without_worst)},
        "aggregates": [{"uuid": uuid, **_fit_document(fit)} for uuid, fit in capacity.by_aggregate.items()],
        "shortages": None
        if capacity.shortages is None
        else list(map(_shortage_document, capacity.shortages)),
        "moves": None if making is None else _plan_document(making),
    }


def _hosts(capacity: FlavorCapacity) -> dict[str, int]:
    return {"capable_hosts": capacity.hosts, "candidate_hosts": capacity.candidate_hosts}


def of_sets(sets: FitBounds, shares: Mapping[str, FlavorProportion]) -> dict[str, Any]:
    """Return the document about flavors that are counted together, in given proportions."""
    guests = {name: sets.lower_bound * share.number for name, share in shares.items()}
    return {**_fit_document(sets), "guests": guests}


def of_displaced(displaced: DisplacedGuests, ending: Sequence[str], planned: int) -> dict[str, Any]:
    """Return the document about the guests of drained hosts.

    :param ending: the other guests on these hosts, which end before the hosts are drained.
    :param planned: the number of windows on these hosts that have not begun. Such a window has no allocations
        yet.
    """
    return {
        "consumers": displaced.guests,
        "ending_before": len(ending),
        "ending": ending[:MAX_STEPS],
        "pending": planned,
        **_fit_document(displaced.fit),
        "unplaced": [
            {
                **_guest_document(each.guest),
                **_host_document(each.root),
                "resources": each.guest.total_amounts,
                "placeable_alone": each.alone,
            }
            for each in displaced.unplaced
        ],
        "steps": [_step_document(each) for each in displaced.steps],
    }


def _guest_document(guest: HostedConsumer) -> dict[str, Any]:
    return {"consumer_uuid": guest.consumer, "consumer_type": guest.consumer_type or "unknown"}


def _plan_document(making: MigrationPlan) -> dict[str, Any]:
    return {
        "lower_bound": making.lower_bound,
        **({"host": None, "host_uuid": None} if making.host is None else _host_document(making.host)),
        "steps": None if making.moves is None else [_step_document(each) for each in making.moves],
    }


def _step_document(move: MigrationStep) -> dict[str, Any]:
    return {
        **_guest_document(move.guest),
        "source": _host_document(move.source),
        "destination": _host_document(move.target),
        "allocations": {uuid: {"resources": amounts} for uuid, amounts in move.allocations.items()},
    }


def _shortage_document(shortage: ClassShortage) -> dict[str, Any]:
    return {
        "resource_classes": list(shortage.classes),
        "hosts": shortage.hosts,
        **_stranded_document(shortage.stranded, shortage.guests),
        "examples": [
            {**_host_document(each.root), **_stranded_document(each.stranded, each.guests)}
            for each in shortage.examples
        ],
    }


def _fit_document(fit: FitBounds) -> dict[str, int]:
    return {"lower_bound": fit.lower_bound, "upper_bound": fit.upper_bound}


def _host_document(root: Provider) -> dict[str, str]:
    return {"host": root.name, "host_uuid": root.uuid}


def _stranded_document(stranded: Mapping[str, int], guests: int) -> dict[str, Any]:
    return {"stranded": dict(stranded), "stranded_guests": guests}
