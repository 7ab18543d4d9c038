"""Computes the page of the fleet: the hosts of the cloud with their states, and the sums of their resources.

An agent writes to Placement only if its report has changed. So the time of the last write does not show
whether the agent still runs. Agents with the option ``[compute] heartbeat_interval`` announce the time of
their next report in attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from placement.read_model.provider import DISABLED, SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE, HostTree
from placement_extras.console.page_request import ListPage, cut_page

REPORTED_AT: Final = "agent.reported_at"
"""The attribute with the time of an agent's last report, in seconds since 1970."""
REPORT_DUE: Final = "agent.report_due"
"""The attribute with the time at which an agent's next report is due, in seconds since 1970."""
BROKEN_PROMISES: Final = "agent.broken_promises"
"""The attribute in which the agent of a host describes promises to guests that the host breaks."""
_MAX_TEXT: Final = 255


@dataclass(frozen=True, slots=True)
class AgentHeartbeat:
    """The approximate time of an agent's last report, and the time at which its next report is due.

    Both times are by the clock of the agent's host.
    """

    reported_at: float
    due: float

    def is_overdue(self, now: float) -> bool:
        """Return whether the next report is overdue at a time (seconds since 1970)."""
        return now > self.due


def last_heartbeat(members: Iterable[Provider]) -> AgentHeartbeat | None:
    """Return the heartbeat in the first of these providers that has one; None if no provider has one."""
    for each in members:
        if each.attributes:
            reported_at, due = each.attributes.get(REPORTED_AT), each.attributes.get(REPORT_DUE)
            # attributes can have values of any type
            if isinstance(reported_at, int | float) and isinstance(due, int | float):
                return AgentHeartbeat(reported_at, due)
    return None


def broken_promises(members: Iterable[Provider]) -> str:
    """Return the promises to guests that a host breaks, in the words of its agent.

    If the host breaks no promise, return an empty text.
    """
    for each in members:
        if each.attributes:
            broken = each.attributes.get(BROKEN_PROMISES)
            if isinstance(broken, str) and broken:
                return broken[:_MAX_TEXT]
    return ""


Result = TypeVar("Result")


class HostResults(Generic[Result]):
    """Results of a function for hosts. A result is computed again only after its host has changed.

    Threads can share the object.
    """

    def __init__(self, compute: Callable[[HostTree], Result]) -> None:
        self._compute = compute
        # a changed tree is a new object, and the result of the old tree disappears together with the old
        # object
        self._known: WeakKeyDictionary[HostTree, Result] = WeakKeyDictionary()

    def result_of(self, tree: HostTree) -> Result:
        """Return the result for a host."""
        found = self._known.get(tree)
        if found is None:
            found = self._known[tree] = self._compute(tree)
        return found


FIRST_CLASSES: Final = ("PCPU", "VCPU", "MEMORY_MB", "DISK_GB", "LLC", "MBA")
"""The first resource classes of each list, in this order. All other classes follow in descending order of the
number of providers that have them.
"""

_CPUS: Final = ("PCPU", "VCPU")
_MEMORY: Final = "MEMORY_MB"
_MAX_TOTALS: Final = 12
"""Maximum number of classes for which the page shows totals."""
_MAX_COLUMNS: Final = 6
"""Maximum number of classes in the list of hosts."""
_MAX_CHOICES: Final = 250
"""Maximum number of classes, of traits and of aggregates that a page offers as filters."""
PER_PAGE: Final = 40
"""Number of hosts on one page."""


class HostCondition(StrEnum):
    """The state of a host; the docstring of the package defines each state."""

    OPEN = "open"
    FULL = "full"
    SILENT = "silent"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class HostFilter:
    """The filters and the order of the list of hosts.

    An empty field filters nothing, and ``page`` counts from 1.

    A host passes the filter if its tree has a provider with the class, a provider with the trait, and a
    provider in the aggregate. These three providers can be different ones. ``broken`` selects hosts that
    break promises to guests. ``order`` is ``name``, ``free`` or ``used``. ``free`` sorts hosts by the free
    amount of the class, and ``used`` by the used share of the class, the largest first.
    """

    name: str = ""
    resource_class: str = ""
    trait: str = ""
    aggregate: str = ""
    state: HostCondition | None = None
    order: str = "name"
    page: int = 1
    broken: bool = False


@dataclass(frozen=True, slots=True)
class ClassAmounts:
    """The capacity of a host for one resource class, and its usage."""

    capacity: int
    used: int

    @property
    def free(self) -> int:
        """The unused amount; 0 if usage exceeds the capacity."""
        return max(0, self.capacity - self.used)


@dataclass(frozen=True, slots=True)
class FleetHost:
    """A row of the list of hosts.

    ``providers`` is the number of providers of the host, ``zones`` the number of NUMA nodes. If ``is_shared``
    is set, guests of other hosts can use some of the amounts, too. ``broken`` has the promises to guests that
    the host breaks.
    """

    root: Provider
    providers: int
    zones: int
    is_shared: bool
    state: HostCondition
    amounts: Mapping[str, ClassAmounts]
    broken: str = ""


@dataclass(frozen=True, slots=True)
class ClassTotal:
    """The sums of one resource class over several hosts. Each unused amount is free, stranded or disabled."""

    resource_class: str
    hosts: int
    capacity: int
    used: int
    free: int
    stranded: int
    disabled: int


@dataclass(frozen=True, slots=True)
class FleetPage:
    """One page of the list of hosts.

    ``hosts`` is the number of all hosts. ``passing`` is a page of the hosts that pass the filters, and
    ``totals`` has the sums over all these hosts.
    """

    hosts: int
    passing: ListPage[FleetHost]
    totals: tuple[ClassTotal, ...]
    more_classes: int
    columns: tuple[str, ...]


def state_of(tree: HostTree, now: float = 0.0) -> HostCondition:
    """Return the state of a host.

    :param now: the current time, in seconds since 1970. A report that was due before this time is overdue.
    """
    if DISABLED in tree.root.traits:
        return HostCondition.DISABLED
    classes, most = tree.shape.classes, tree.max_free
    if _MEMORY in classes and not classes.isdisjoint(_CPUS):
        # max_free has the largest free amount at one provider; a host is full if no provider has CPUs or
        # memory left
        has_cpus = any(most.get(name, 0) > 0 for name in _CPUS)
        if not has_cpus or most.get(_MEMORY, 0) <= 0:
            return HostCondition.FULL
    beat = last_heartbeat(tree.members)
    return HostCondition.SILENT if beat is not None and beat.is_overdue(now) else HostCondition.OPEN


def make_page(snapshot: ModelSnapshot, wanted: HostFilter, now: float = 0.0) -> FleetPage:
    """Return the page of the hosts that pass the filters.

    If the wanted page does not exist, return the last page.

    :param now: the current time, in seconds since 1970. The state of a host depends on this time.
    """
    trees = snapshot.whole_trees()
    passing = _passing_roots(snapshot, trees, wanted)
    # the states of all passing hosts are needed, because the totals distinguish free amounts by state
    states = {root: state_of(trees[root], now) for root in passing}
    if wanted.broken:
        passing = [root for root in passing if broken_promises(trees[root].members)]
    if wanted.state is not None:
        passing = [root for root in passing if states[root] is wanted.state]
    classes = _shown_classes(snapshot, trees, passing, wanted.resource_class)
    totals = [_total(snapshot, name, passing, states) for name in classes[:_MAX_TOTALS]]
    columns = tuple(classes[:_MAX_COLUMNS])
    shown = cut_page(_ordered_roots(snapshot, trees, passing, wanted), wanted.page, PER_PAGE)
    return FleetPage(
        hosts=len(trees),
        passing=shown.with_rows(
            _fleet_host(snapshot, trees[root], states[root], columns) for root in shown.rows
        ),
        totals=tuple(totals),
        more_classes=max(0, len(classes) - _MAX_TOTALS),
        columns=columns,
    )


def list_roots(snapshot: ModelSnapshot, wanted: HostFilter) -> list[int]:
    """Return the roots of the hosts that pass the filters of name, class, trait and aggregate, in order."""
    trees = snapshot.whole_trees()
    return _ordered_roots(snapshot, trees, _passing_roots(snapshot, trees, wanted), wanted)


def _passing_roots(snapshot: ModelSnapshot, trees: Mapping[int, HostTree], wanted: HostFilter) -> list[int]:
    """Return the roots of the trees that pass the filters of name, class, trait and aggregate."""
    filters = (
        (snapshot.by_class, wanted.resource_class),
        (snapshot.by_trait, wanted.trait),
        (snapshot.by_aggregate, wanted.aggregate),
    )
    # these filters read only the indexes of the search, and no tree
    sets = [set(snapshot.roots_having(index, name).ids) for index, name in filters if name]
    roots: Iterable[int] = sorted(sets[0].intersection(*sets[1:])) if sets else trees
    text = wanted.name.casefold()
    if not text:
        return list(roots)
    return [
        root for root in roots if text in trees[root].root.name.casefold() or text == trees[root].root.uuid
    ]


def class_rank(name: str) -> int:
    """Return the position of a resource class in :data:`FIRST_CLASSES`; its length for any other class."""
    return FIRST_CLASSES.index(name) if name in FIRST_CLASSES else len(FIRST_CLASSES)


def _shown_classes(
    snapshot: ModelSnapshot, trees: Mapping[int, HostTree], roots: Iterable[int], first: str
) -> list[str]:
    """Return the resource classes of these trees in the order of the page, which begins with ``first``."""
    present = frozenset[str]().union(*{trees[root].shape.classes for root in roots})

    def class_order(name: str) -> tuple[bool, int, int, str]:
        return name != first, class_rank(name), -len(snapshot.by_class.get(name, ())), name

    return sorted(present, key=class_order)


def _total(
    snapshot: ModelSnapshot, name: str, roots: Sequence[int], states: Mapping[int, HostCondition]
) -> ClassTotal:
    sums = snapshot.sums_of(name)
    hosts = capacity = used = 0
    free = dict.fromkeys(HostCondition, 0)
    for root in roots:
        found = sums.get(root)
        if found is not None:
            hosts += 1
            used += found[0]
            capacity += found[1]
            # a host with a usage above its capacity must not reduce the sum of the free amounts
            if found[1] > found[0]:
                free[states[root]] += found[1] - found[0]
    # a silent host still offers its free amounts, because only its reports are missing
    offered = free[HostCondition.OPEN] + free[HostCondition.SILENT]
    return ClassTotal(
        name, hosts, capacity, used, offered, free[HostCondition.FULL], free[HostCondition.DISABLED]
    )


def _ordered_roots(
    snapshot: ModelSnapshot, trees: Mapping[int, HostTree], roots: Sequence[int], wanted: HostFilter
) -> list[int]:
    by_name = sorted(roots, key=lambda root: natural_order(trees[root].root.name))
    if wanted.order == "name" or not wanted.resource_class:
        return by_name
    sums = snapshot.sums_of(wanted.resource_class)

    def free(root: int) -> float:
        # the free amount is negated, so that the largest free amount comes first
        used, capacity = sums.get(root, (0, 0))
        return used - capacity

    def share(root: int) -> float:
        used, capacity = sums.get(root, (0, 0))
        # the share of a host without a capacity is unknown, so this host comes last
        return -used / capacity if capacity > 0 else 1.0

    return sorted(by_name, key=free if wanted.order == "free" else share)


def _fleet_host(
    snapshot: ModelSnapshot, tree: HostTree, state: HostCondition, columns: Iterable[str]
) -> FleetHost:
    amounts = {}
    for name in columns:
        found = snapshot.sums_of(name).get(tree.root.id)
        if found is not None:
            amounts[name] = ClassAmounts(capacity=found[1], used=found[0])
    zones = sum([ZONE in each.traits for each in tree.members])
    return FleetHost(
        tree.root,
        len(tree.members),
        zones,
        any(SHARES in each.traits for each in tree.members),
        state,
        amounts,
        broken_promises(tree.members),
    )


_DIGITS: Final = re.compile(r"([0-9]+)")


# without the cache, each request for a page would split the names of 10,000 hosts again
@lru_cache(maxsize=65_536)
def natural_order(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key that compares numbers in names by value: ``cn2`` before ``cn10``."""
    # split() with a group yields text and digits in turn; the last text has no digits after it and gets 0
    parts = iter(_DIGITS.split(name.casefold()))
    return tuple([(text, int(next(parts, "0"))) for text in parts])


def filter_choices(snapshot: ModelSnapshot) -> tuple[list[str], list[str], list[str]]:
    """Return the first :data:`_MAX_CHOICES` classes, traits and aggregates each, for filters of visitors."""
    classes = sorted(snapshot.by_class, key=lambda name: (name not in FIRST_CLASSES, name))
    traits, aggregates = sorted(snapshot.by_trait), sorted(snapshot.by_aggregate)
    return classes[:_MAX_CHOICES], traits[:_MAX_CHOICES], aggregates[:_MAX_CHOICES]
