"""The classes of claims: a wanted claim, its scenario, and a choice with its zones.

A zone is a NUMA node with all providers below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from placement.db.tables import RESERVATION
from placement.microversion import Microversion
from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.search.budget import SearchBudget
from placement.search.candidate_search import CandidateSearch
from placement.search.candidates import AllocationCandidate
from placement.search.claims.topology import DISTANCE_CRITERIA, Distances, TopologyPolicy
from placement.search.request import CandidatesRequest
from placement.store.allocations import Allocation
from placement.store.consumers import ConsumerOwnership
from placement.store.groups import ConsumerGroup, Members, hosts_of, members_by_host, size
from placement.store.time_profile import EndAction, TimeWindow

Order = tuple[tuple[str, float], ...]
"""Criteria with their weights, see :mod:`placement.search.claims.scores`; each criterion occurs once."""


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """A request for candidates, and the consumer that shall get a candidate in place of its old allocations.

    - ``generation``: the generation of the consumer that the client has sent; None for a new consumer.
    - ``version``: the microversion that decides how the service reads the request.
    - ``fallback``: a second request, which is used if no host satisfies ``request``.
    - ``warnings``: messages about parts of a flavor that neither ``request`` nor ``fallback`` expresses.
    - ``only``: uuids of the roots that may be chosen; None allows all roots.
    - ``avoid``: uuids of roots; the claim must not take any amount from the trees of these roots.
    - ``alternates``: number of alternative choices, on other hosts, that the answer contains beside the
      choice.
    - ``order``: criteria by which the best host is chosen; if it is empty, any host is good enough.
    - ``group``: the group that the consumer joins; None takes the consumer out of its group. For several
      claims of a reservation, the group exists only during the search.
    - ``topology``: how dedicated CPUs and memory are split over zones; None does not split them.
    - ``expires_in``: seconds until the claim expires, unless a client confirms it.
    - ``window``: the time of the allocations; None means from now on, without an end time.
    - ``min_duration``: minimum seconds for which a preemptible claim lasts. The claim ends when its amounts
      are promised to others, or at the end of ``window``. None means that the claim is not preemptible.
    - ``kept_until``: the time until which no window may end the placed preemptible claim.
    - ``on_end``: the action at the end of the window; None means the action of the claim's reservation.
    """

    consumer: str
    # the client has sent the generation; the transaction compares it with the row in the database
    generation: int | None
    owner: ConsumerOwnership
    request: CandidatesRequest
    version: Microversion
    # the fallback is a complete request, because any part may differ from ``request``: Nova's fallback asks
    # for VCPU instead of PCPU
    fallback: CandidatesRequest | None = None
    warnings: tuple[str, ...] = ()
    only: frozenset[str] | None = None
    avoid: frozenset[str] = frozenset()
    alternates: int = 0
    order: Order = ()
    group: ConsumerGroup | None = None
    topology: TopologyPolicy | None = None
    expires_in: float | None = None
    window: TimeWindow | None = None
    min_duration: float | None = None
    kept_until: float | None = None
    on_end: EndAction | None = None

    @classmethod
    def without_consumer(
        cls, request: CandidatesRequest, version: Microversion, topology: TopologyPolicy | None
    ) -> WantedClaim:
        """Return a trial claim, which shows whether the request fits, and is never written."""
        return cls("", None, ConsumerOwnership("", "", ""), request, version, topology=topology)

    @property
    def is_reservation(self) -> bool:
        """Return whether this is a claim of a new reservation, which joins no group that a client knows."""
        return self.owner.consumer_type == RESERVATION

    @property
    def is_booking(self) -> bool:
        """Return whether this is a claim of a new window."""
        return self.is_reservation and self.window is not None

    @property
    def names_hosts(self) -> bool:
        """Return whether the claim names hosts, so that otherwise equivalent hosts are different."""
        return bool(self.only or self.avoid)

    @property
    def names_hosts_or_trees(self) -> bool:
        """Return whether the claim or its request names hosts."""
        return self.names_hosts or any(
            group.in_tree is not None for request in self.all_requests for group in request.groups
        )

    @property
    def end_action(self) -> EndAction:
        """Return the action on the guest at the end of the claim."""
        return EndAction.NONE if self.window is None or self.on_end is None else self.on_end

    @property
    def all_requests(self) -> tuple[CandidatesRequest, ...]:
        """The request and, if there is one, its fallback."""
        return (self.request,) if self.fallback is None else (self.request, self.fallback)

    @property
    def all_ways(self) -> tuple[WantedClaim, ...]:
        """The claim with its request alone and, if there is a fallback, the claim with the fallback alone."""
        if self.fallback is None:
            return (self,)
        return replace(self, fallback=None), replace(self, request=self.fallback, fallback=None)


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """The scores of a choice by criterion, from 0 to 1 (the best), and their weighted sum."""

    total: float
    criteria: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HostChoice:
    """A candidate at a host: its root, amounts by provider, providers by suffix, and perhaps its score."""

    root: Provider
    resources: tuple[tuple[Provider, Mapping[str, int]], ...]
    mappings: Mapping[str, tuple[Provider, ...]]
    score: ChoiceScore | None = None

    @classmethod
    def from_candidate(cls, snapshot: ModelSnapshot, candidate: AllocationCandidate) -> HostChoice:
        """Convert a candidate that was found in the snapshot to a choice."""
        members, providers = candidate.provider_set.members, snapshot.providers
        return cls(
            # the members of the anchoring tree come first in the provider set, before sharing providers
            providers[members[0].root_id],
            tuple((providers[each], amounts) for each, amounts in candidate.resources.items()),
            {suffix: tuple(providers[each] for each in ids) for suffix, ids in candidate.mappings.items()},
        )

    @property
    def hosts(self) -> frozenset[int]:
        """The roots of all trees from which the choice takes amounts; group policies count them as hosts."""
        return hosts_of((provider.root_id, SHARES in provider.traits) for provider, _ in self.resources)

    @property
    def providers(self) -> Iterator[Provider]:
        """All providers with inventories or traits on which the choice depends, some perhaps twice."""
        # the root is included even if it gives no amount, because the transaction has to check its traits
        yield self.root
        for provider, _ in self.resources:
            yield provider
        for served in self.mappings.values():
            yield from served


def wanted_classes(wanted: Iterable[WantedClaim]) -> set[str]:
    """Return the resource classes that the requests of these claims ask for."""
    return {name for each in wanted for request in each.all_requests for name in request.total_amounts}


def taken_amounts(choices: Iterable[HostChoice]) -> Counter[tuple[int, str]]:
    """Return the sums of the amounts that choices take, by id of the provider and by resource class."""
    taken = Counter[tuple[int, str]]()
    for choice in choices:
        for provider, amounts in choice.resources:
            for name, amount in amounts.items():
                taken[provider.id, name] += amount
    return taken


def known_ids(snapshot: ModelSnapshot, uuids: Iterable[str]) -> set[int]:
    """Return the ids of the providers with these uuids; unknown uuids are left out."""
    return {snapshot.by_uuid[each] for each in uuids if each in snapshot.by_uuid}


def sharing_providers(snapshot: ModelSnapshot) -> list[Provider]:
    """Return all sharing providers, of which a cloud has few."""
    return [snapshot.providers[each] for each in snapshot.by_trait.get(SHARES, ())]


def shared_classes(snapshot: ModelSnapshot) -> set[str]:
    """Return the resource classes of all sharing providers."""
    return {name for pool in sharing_providers(snapshot) for name in pool.inventories}


def stays_at_its_host(snapshot: ModelSnapshot, request: CandidatesRequest) -> bool:
    """Return whether every choice takes an amount from the tree at which it is anchored.

    If the result is True, the consumer of each choice is on the host of the choice. A request for a class
    that no sharing provider has makes the result True. Otherwise a choice can take all amounts from sharing
    providers.
    """
    shared = shared_classes(snapshot)
    return any(not shared.issuperset(group.resources) for group in request.groups)


def with_choice_held(snapshot: ModelSnapshot, choice: HostChoice, times: int = 1) -> ModelSnapshot:
    """Return a copy of the snapshot in which consumers have the allocations of this choice.

    The original snapshot must not change while the result is used.

    :param times: the number of consumers that have these allocations.
    """
    return with_more_used(
        snapshot,
        (
            (provider.uuid, {name: times * amount for name, amount in amounts.items()})
            for provider, amounts in choice.resources
        ),
    )


def without_allocations(snapshot: ModelSnapshot, held: Iterable[Allocation]) -> ModelSnapshot:
    """Return the snapshot without these allocations; the original must not change meanwhile."""
    # the same function adds and removes usage: here the amounts are negative
    return with_more_used(snapshot, ((each.provider, {each.resource_class: -each.used}) for each in held))


def with_more_used(snapshot: ModelSnapshot, more: Iterable[tuple[str, Mapping[str, int]]]) -> ModelSnapshot:
    """Return the snapshot with amounts, by uuid of provider, added to the usage; ignore unknown uuids."""
    used: dict[int, dict[str, int]] = {}
    for uuid, amounts in more:
        provider = snapshot.get(uuid)
        # allocations were read before the snapshot, so a provider may have been deleted since
        if provider is not None:
            here = used.setdefault(provider.id, {**provider.used})
            for name, amount in amounts.items():
                here[name] = here.get(name, 0) + amount
    return snapshot.with_usage(used)


class KnownSearches:
    """The searches for the requests of claims, with their results, which several similar snapshots share.

    :param base: a snapshot of all trees; the other snapshots have some of these trees, with any usage.
    """

    def __init__(self, base: ModelSnapshot) -> None:
        self._base = base
        self._known: dict[Hashable, CandidateSearch] = {}

    def search_in(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        budget: SearchBudget,
        among: Container[int] | None,
        *,
        distinct_only: bool,
    ) -> CandidateSearch:
        """Return the search for a request in a snapshot; the arguments are those of the search."""
        # the usage of sharing providers is part of the results, and only with them it matters which roots are
        # searched
        if SHARES in self._base.by_trait:
            return CandidateSearch(snapshot, request, budget, among=among, distinct_only=distinct_only)
        # a search refers to its request and its budget, so that these identities stay valid
        key = id(request), id(budget), distinct_only
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = CandidateSearch(
                self._base, request, budget, distinct_only=distinct_only
            )
        return found if snapshot is self._base else found.in_snapshot(snapshot)


NO_MEMBERS: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class ClaimScenario:
    """The state in which a claim is placed: a snapshot of the providers, and the members of groups by host.

    ``groups`` has the number of members by name of the group and by root of the host.

    ``distances`` has the known distances between zones; any two other zones count as equally far apart.
    ``sizes`` has the number of members of each group, because a member may be on several hosts. If ``sizes``
    is empty, each member is on exactly one host. ``searches`` are those of all scenarios that arise from this
    one.
    """

    snapshot: ModelSnapshot
    searches: KnownSearches
    groups: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    distances: Distances = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_members(
        cls,
        snapshot: ModelSnapshot,
        members: Members,
        wanted: Iterable[WantedClaim],
        searches: KnownSearches | None = None,
    ) -> ClaimScenario:
        """Return the scenario before any of the wanted claims is placed.

        :param searches: searches of earlier scenarios with some of the same trees.
        """
        # the argument is copied to a list, because the code below reads it several times, and it may be a
        # generator
        wanted = list(wanted)
        # the consumers of these claims are left out: a consumer does not count as another member of its own
        # group
        moving = {each.consumer for each in wanted}
        groups = {name: members_by_host(each, moving) for name, each in members.items()}
        far = any(each.topology is not None or DISTANCE_CRITERIA & dict(each.order).keys() for each in wanted)
        sizes = {name: size(each, moving) for name, each in members.items()}
        distances = snapshot.zone_distances() if far else {}
        return cls(snapshot, searches or KnownSearches(snapshot), groups, distances, sizes)

    def members_beside(self, group: ConsumerGroup | None) -> Mapping[int, int]:
        """Return the number of other members of the claim's group at each host, by the root of the host."""
        # the code uses one empty mapping for all scenarios, because this is called for each choice
        return NO_MEMBERS if group is None else self.groups.get(group.name, NO_MEMBERS)

    def size_of(self, group: ConsumerGroup | None) -> int:
        """Return the number of members of the group, not counting the consumer that joins the group."""
        if group is None:
            return 0
        return self.sizes.get(group.name, sum(self.members_beside(group).values()))

    def with_choice(self, wanted: WantedClaim, choice: HostChoice) -> ClaimScenario:
        """Return the scenario in which a wanted claim has the allocations of the given choice."""
        world = replace(self, snapshot=with_choice_held(self.snapshot, choice))
        if wanted.group is None:
            return world
        # the counter is copied before the change, because the search uses this scenario again for other
        # choices
        count = Counter(self.members_beside(wanted.group))
        # a member on two hosts counts at both hosts, so the size of the group is counted separately
        count.update(choice.hosts)
        name = wanted.group.name
        sizes = {**self.sizes, name: self.size_of(wanted.group) + 1}
        return replace(world, groups={**self.groups, name: count}, sizes=sizes)


def zone_of(snapshot: ModelSnapshot, provider: Provider) -> int | None:
    """Return the id of the NUMA node that is the provider or its ancestor; None if there is no such node."""
    return next((each.id for each in snapshot.lineage_of(provider) if ZONE in each.traits), None)
