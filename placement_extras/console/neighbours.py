"""The page ``/console/neighbours``: use of caches and memory bandwidth, limited guests, broken promises.

Agents write these values into attributes of their hosts. The attributes of a host describe its L3 caches, a
few guests with the largest use of caches and bandwidth, and the limited guests. The service sends no requests
to agents or Prometheus. The page leaves out values that an agent has not renewed in time.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from flask import Blueprint, current_app, render_template, request, url_for

from placement.policies import ext, rest
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement_extras.console import page_request
from placement_extras.console.fleet import BROKEN_PROMISES, HostResults, broken_promises, natural_order
from placement_extras.console.page_request import SEE_HOSTS, ListPage, PageRequest, console_page, cut_page

blueprint = Blueprint("neighbours", __name__)
CENSUS: Final = "NEIGHBOUR_CENSUS"
"""The key, in the application's configuration, of the object that caches the values of hosts."""
SEE_NEIGHBOURS: Final = (*SEE_HOSTS, ext.ATTRIBUTES)
"""The policy rules that the REST API requires to show the same attributes."""

MEASURED_AT: Final = "neighbour.measured_at"
"""The attribute with the time of the measurement, in seconds since 1970."""
VALID_UNTIL: Final = "neighbour.valid_until"
"""The attribute with the time until which the values are current, in seconds since 1970."""
CACHE: Final = "neighbour.cache."
GUEST: Final = "neighbour.guest."
LIMIT: Final = "neighbour.limit."
"""Prefixes of the names of attributes. The id of an L3 cache follows ``CACHE``. A number, one for each guest,
follows ``GUEST`` and ``LIMIT``.
"""

_CACHES_PER_PAGE: Final = 40
_LIMITS_PER_PAGE: Final = 40
_TOP: Final = 10
"""Number of guests in each list of the largest users."""
_MAX_BROKEN: Final = 20
"""Maximum number of hosts with broken promises on this page. The page of the fleet shows all these hosts."""

_NUMBER: Final = r"(\d{1,15}(?:\.\d)?)"
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LOAD: Final = re.compile(
    rf"(?:(?P<consumer>{_UUID}) (?:(?P<class>[A-Za-z0-9_.-]{{1,64}}): )?)?"
    rf"(?:{_NUMBER} MB/s(?: of {_NUMBER})?)?(?:(?:, )?{_NUMBER} MiB(?: of {_NUMBER})?)?"
)
_LIMITED: Final = re.compile(rf"({_UUID}) (.+)")
_LEVER: Final = re.compile(
    rf"([A-Za-z0-9_.-]{{1,64}}): ([a-z][a-z ]{{0,63}}?)(?: for ({_UUID}(?: {_UUID})*))?"
)


class NeighbourOrder(StrEnum):
    """The order of the list of caches: largest bandwidth first, largest occupancy first, or by host."""

    BANDWIDTH = "bandwidth"
    CACHE = "cache"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """The use of caches: bandwidths in MB a second, occupancy and size in MiB. Unknown values are None."""

    bandwidth: float | None = None
    max_bandwidth: float | None = None
    occupancy: float | None = None
    size: float | None = None


@dataclass(frozen=True, slots=True)
class NeighbourCache:
    """The use of one L3 cache by all guests and processes of its host together."""

    root: Provider
    cache: str
    load: MeasuredLoad


@dataclass(frozen=True, slots=True)
class NeighbourGuest:
    """The sums of the cache use and the memory bandwidth of one guest over all L3 caches of its host."""

    root: Provider
    consumer: str
    qos_class: str
    load: MeasuredLoad


@dataclass(frozen=True, slots=True)
class LimitedLever:
    """One limit on a guest.

    ``lever`` is the limited resource, ``trigger`` has decided to limit the guest, and ``victims`` are the
    guests that the limit protects.
    """

    lever: str
    trigger: str
    victims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitedGuest:
    """A guest of a host, with the current limits on the guest's use of resources."""

    root: Provider
    consumer: str
    levers: tuple[LimitedLever, ...]


@dataclass(frozen=True, slots=True)
class NeighbourHost:
    """The values that the agent of one host has written, valid until a time (seconds since 1970)."""

    valid_until: float
    caches: tuple[NeighbourCache, ...]
    guests: tuple[NeighbourGuest, ...]
    limits: tuple[LimitedGuest, ...]


@dataclass(frozen=True, slots=True)
class BrokenHost:
    """A host that breaks promises to guests, with the description of its agent."""

    root: Provider
    broken: str


@dataclass(frozen=True, slots=True)
class NeighboursPage:
    """The content of the page about neighbours.

    ``hosts`` is the number of hosts with current values. ``outdated`` is the number of hosts with outdated
    values, which no other field includes. ``bandwidth`` (MB a second) and ``occupancy`` (MiB) are sums over
    all caches. ``all_broken`` is the number of hosts that break promises, and ``broken`` has the first of
    them.
    """

    hosts: int
    outdated: int
    bandwidth: float
    occupancy: float
    caches: ListPage[NeighbourCache]
    by_bandwidth: tuple[NeighbourGuest, ...]
    by_cache: tuple[NeighbourGuest, ...]
    limits: ListPage[LimitedGuest]
    broken: tuple[BrokenHost, ...]
    all_broken: int


def read_usage(tree: HostTree) -> NeighbourHost:
    """Return the values of a host, from its first provider with the attribute :data:`MEASURED_AT`.

    Values in an unknown format are ignored.
    """
    root = tree.root
    for each in tree.members:
        if MEASURED_AT in each.attributes:
            until = each.attributes.get(VALID_UNTIL)
            caches, guests, limits = [], [], []
            for name, value in each.attributes.items():
                # clients can write any value into any attribute
                if not isinstance(value, str):
                    continue
                if name.startswith(LIMIT) and (limited := _LIMITED.fullmatch(value)):
                    limits.append(LimitedGuest(root, limited[1], tuple(_levers_of(limited[2]))))
                elif name.startswith((CACHE, GUEST)) and (known := _LOAD.fullmatch(value)):
                    load = MeasuredLoad(*(None if one is None else float(one) for one in known.groups()[2:]))
                    if name.startswith(CACHE):
                        caches.append(NeighbourCache(root, name[len(CACHE) :], load))
                    elif known["consumer"]:
                        guests.append(NeighbourGuest(root, known["consumer"], known["class"] or "", load))
            return NeighbourHost(
                until if isinstance(until, int | float) else 0.0, tuple(caches), tuple(guests), tuple(limits)
            )
    return NeighbourHost(0.0, (), (), ())


def _levers_of(text: str) -> Iterable[LimitedLever]:
    for part in text.split("; "):
        if known := _LEVER.fullmatch(part):
            yield LimitedLever(known[1], known[2], tuple((known[3] or "").split()))


def make_page(
    snapshot: ModelSnapshot,
    census: HostResults[NeighbourHost],
    now: float,
    *,
    name: str = "",
    order: NeighbourOrder = NeighbourOrder.BANDWIDTH,
    page: int = 1,
    limits_page: int = 1,
) -> NeighboursPage:
    """Return the page. A number above the last page selects the last page.

    :param census: the results of :func:`read_usage`.
    :param now: the current time, in seconds since 1970.
    :param name: the page shows only hosts with this text in their name; upper and lower case are equal.
    """
    trees, text = snapshot.whole_trees(), name.casefold()

    def named_trees(attribute: str) -> Iterable[HostTree]:
        found = (trees[root] for root in snapshot.roots_having(snapshot.by_attribute, attribute).ids)
        return (tree for tree in found if text in tree.root.name.casefold())

    known = [census.result_of(tree) for tree in named_trees(MEASURED_AT)]
    hosts = [each for each in known if now <= each.valid_until]
    caches = [one for each in hosts for one in each.caches]
    limits = [one for each in hosts for one in each.limits]
    broken = [
        BrokenHost(tree.root, words)
        for tree in named_trees(BROKEN_PROMISES)
        if (words := broken_promises(tree.members))
    ]
    broken.sort(key=lambda one: natural_order(one.root.name))
    return NeighboursPage(
        hosts=len(hosts),
        outdated=len(known) - len(hosts),
        bandwidth=sum(one.load.bandwidth or 0.0 for one in caches),
        occupancy=sum(one.load.occupancy or 0.0 for one in caches),
        caches=cut_page(sorted(caches, key=_CACHE_ORDERS[order]), page, _CACHES_PER_PAGE),
        by_bandwidth=_largest_guests(hosts, lambda one: one.load.bandwidth or 0.0),
        by_cache=_largest_guests(hosts, lambda one: one.load.occupancy or 0.0),
        limits=cut_page(
            sorted(limits, key=lambda one: (natural_order(one.root.name), one.consumer)),
            limits_page,
            _LIMITS_PER_PAGE,
        ),
        broken=tuple(broken[:_MAX_BROKEN]),
        all_broken=len(broken),
    )


# Caches with equal amounts keep the order of the read model. A sort key that also has the host would cost
# more time than the rest of the page.
_CACHE_ORDERS: Final[Mapping[NeighbourOrder, Callable[[NeighbourCache], Any]]] = {
    NeighbourOrder.BANDWIDTH: lambda one: -(one.load.bandwidth or 0.0),
    NeighbourOrder.CACHE: lambda one: -(one.load.occupancy or 0.0),
    NeighbourOrder.HOST: lambda one: (natural_order(one.root.name), natural_order(one.cache)),
}


def _largest_guests(
    hosts: Iterable[NeighbourHost], amount: Callable[[NeighbourGuest], float]
) -> tuple[NeighbourGuest, ...]:
    """Return the guests with the largest use of a resource; leave out guests that use nothing."""
    used = (one for each in hosts for one in each.guests if amount(one) > 0)
    return tuple(heapq.nlargest(_TOP, used, key=amount))


@console_page(blueprint, "/console/neighbours", *SEE_NEIGHBOURS)
def show_neighbours(visit: PageRequest) -> str:
    """Show caches, the guests with the largest use, limited guests and broken promises."""
    name = page_request.text_of(request.args, "name")
    wanted = request.args.get("order", "")
    order = NeighbourOrder(wanted) if wanted in list(NeighbourOrder) else NeighbourOrder.BANDWIDTH
    number, limits_number = page_request.asked_page(), page_request.asked_page("limits")
    census: HostResults[NeighbourHost] = current_app.config[CENSUS]
    with visit.pinned_model() as (snapshot, _):
        shown = make_page(
            snapshot, census, time.time(), name=name, order=order, page=number, limits_page=limits_number
        )

    def page_address(**changes: int) -> str:
        values: dict[str, Any] = {"page": shown.caches.page, "limits": shown.limits.page, **changes}
        if name:
            values["name"] = name
        if order is not NeighbourOrder.BANDWIDTH:
            values["order"] = order
        return url_for("neighbours.show_neighbours", **values)

    return render_template(
        "neighbours.html",
        neighbours=shown,
        name=name,
        order=order,
        orders=NeighbourOrder,
        may_see_consumers=visit.may_use(rest.LIST_ALLOCATIONS),
        address_of_caches=lambda number: page_address(page=number),
        address_of_limits=lambda number: page_address(limits=number),
    )
