"""The nouns of claims: a wanted claim, the scenario that it is placed in, and a choice with its zones.

A zone is a NUMA node with all providers below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from placement.microversion import Microversion
from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.search.candidates import AllocationCandidate
from placement.search.claims.topology import Distances, TopologyPolicy
from placement.search.request import CandidatesRequest
from placement.store.allocations import Allocation
from placement.store.consumers import ConsumerOwnership
from placement.store.groups import ConsumerGroup, Members, hosts_of, members_by_host, size

Order = tuple[tuple[str, float], ...]
"""Criteria with their weights, see :mod:`placement.search.claims.scores`; each criterion occurs once."""


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """A request for candidates, and the consumer that is to hold one instead of its current allocations.

    - ``generation``: the consumer's generation as the client knows it; None for a new consumer.
    - ``version``: the microversion of the request's grammar.
    - ``fallback``: a request that is served if ``request`` cannot be.
    - ``warnings``: parts of a flavor that neither request has.
    - ``only``: uuids of the roots that may be chosen; None for all.
    - ``avoid``: uuids of roots of which nothing may be taken.
    - ``alternates``: the number of further choices, on other hosts, that are returned with the choice.
    - ``order``: criteria of the best choice; without it, any choice will do.
    - ``group``: the group that the consumer joins; None takes the consumer out of its group.
    - ``topology``: how dedicated CPUs and memory are split over zones; None takes them as requested.
    - ``expires_in``: seconds until the claim expires, unless a client confirms it.
    """

    consumer: str
    # the number that the client knows, not that of the model: the transaction compares it with the row
    generation: int | None
    owner: ConsumerOwnership
    request: CandidatesRequest
    version: Microversion
    # a whole request, because it may differ in anything: Nova, for instance, asks for VCPU if no PCPU is left
    fallback: CandidatesRequest | None = None
    warnings: tuple[str, ...] = ()
    only: frozenset[str] | None = None
    avoid: frozenset[str] = frozenset()
    alternates: int = 0
    order: Order = ()
    group: ConsumerGroup | None = None
    topology: TopologyPolicy | None = None
    expires_in: float | None = None

    @classmethod
    def without_consumer(
        cls, request: CandidatesRequest, version: Microversion, topology: TopologyPolicy
    ) -> WantedClaim:
        """Return a claim that is only placed, to find out whether a request fits, and never written."""
        return cls("", None, ConsumerOwnership("", "", ""), request, version, topology=topology)

    @property
    def names_hosts(self) -> bool:
        """Return whether the claim names hosts, so that equivalent hosts are not interchangeable."""
        return bool(self.only or self.avoid)


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """The score of a choice by each criterion, from 0 to 1, and their weighted sum; more is better."""

    total: float
    criteria: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HostChoice:
    """A candidate with its providers: the root of its host, amounts by provider, providers by suffix.

    A choice has a score only if the claim has an order.
    """

    root: Provider
    resources: tuple[tuple[Provider, Mapping[str, int]], ...]
    mappings: Mapping[str, tuple[Provider, ...]]
    score: ChoiceScore | None = None

    @classmethod
    def from_candidate(cls, snapshot: ModelSnapshot, candidate: AllocationCandidate) -> HostChoice:
        """Return the choice of a candidate that was found in the snapshot."""
        members, providers = candidate.provider_set.members, snapshot.providers
        return cls(
            # the first member is in the tree where the candidate is anchored; sharing providers follow
            providers[members[0].root_id],
            tuple((providers[each], amounts) for each, amounts in candidate.resources.items()),
            {suffix: tuple(providers[each] for each in ids) for suffix, ids in candidate.mappings.items()},
        )

    @property
    def hosts(self) -> frozenset[int]:
        """The roots of the hosts that give its amounts, as groups count them: mostly :attr:`root` alone."""
        return hosts_of((provider.root_id, SHARES in provider.traits) for provider, _ in self.resources)

    @property
    def providers(self) -> Iterator[Provider]:
        """All providers with inventories or traits that made this a candidate; a provider may come twice."""
        # the root may count for its traits alone, which the transaction has to check, too
        yield self.root
        for provider, _ in self.resources:
            yield provider
        for served in self.mappings.values():
            yield from served


def stays_at_its_host(snapshot: ModelSnapshot, request: CandidatesRequest) -> bool:
    """Return whether each choice for the request takes something from the tree where it is anchored.

    True means that the consumer of each choice is on the host of the choice. This is so if the request asks
    for a class that no sharing provider has; otherwise a choice may consist of sharing providers alone.
    """
    # only sharing providers can take a choice off its host, and a cloud has few of them
    pools = [snapshot.providers[each] for each in snapshot.by_trait.get(SHARES, ())]
    shared = {name for pool in pools for name in pool.inventories}
    return any(not shared.issuperset(group.resources) for group in request.groups)


def with_choice_held(snapshot: ModelSnapshot, choice: HostChoice, times: int = 1) -> ModelSnapshot:
    """Return the snapshot as if consumers held this choice.

    The original must not change while the result is used.

    :param times: the number of consumers that hold the choice.
    """
    return _using_more(
        snapshot,
        (
            (provider.uuid, {name: times * amount for name, amount in amounts.items()})
            for provider, amounts in choice.resources
        ),
    )


def without_allocations(snapshot: ModelSnapshot, held: Iterable[Allocation]) -> ModelSnapshot:
    """Return the snapshot without these allocations; the original must not change while this one is used."""
    # negative amounts make one function update the indexes for both directions
    return _using_more(snapshot, ((each.provider, {each.resource_class: -each.used}) for each in held))


def within_reservation(
    snapshot: ModelSnapshot, held: Collection[Allocation]
) -> tuple[ModelSnapshot, frozenset[str]]:
    """Return the snapshot for a claim that takes all from a reservation, and the uuids of possible roots.

    In the trees of these roots, and at sharing providers, only the reserved amounts are free; other trees are
    unchanged. The original snapshot must not change while the result is used.
    """
    amounts: dict[int, dict[str, int]] = {}
    for each in held:
        provider = snapshot.get(each.provider)
        # an operator may have removed the inventory, or the provider, since the reservation was made
        if provider is not None and each.resource_class in provider.inventories:
            amounts.setdefault(provider.id, {})[each.resource_class] = each.used
    roots = {snapshot.providers[provider_id].root_id for provider_id in amounts}
    # sharing providers are at no host of the reservation, but the amounts taken from them have to be
    # reserved, too
    concerned = {member for root in roots for member in snapshot.trees[root]} | snapshot.by_trait.get(
        SHARES, set()
    )
    # used becomes capacity minus the reserved amount, so that even an overcommitted host can give this amount
    used = {
        provider_id: {
            name: each.capacity - amounts.get(provider_id, {}).get(name, 0)
            for name, each in snapshot.providers[provider_id].inventories.items()
        }
        for provider_id in concerned
    }
    return snapshot.with_usage(used), frozenset(snapshot.providers[root].uuid for root in roots)


def _using_more(snapshot: ModelSnapshot, more: Iterable[tuple[str, Mapping[str, int]]]) -> ModelSnapshot:
    """Return the snapshot with amounts added to usage, by uuid of provider; unknown uuids are ignored."""
    used: dict[int, dict[str, int]] = {}
    for uuid, amounts in more:
        provider = snapshot.get(uuid)
        # allocations were read before the snapshot, so a provider may have been deleted since
        if provider is not None:
            here = used.setdefault(provider.id, {**provider.used})
            for name, amount in amounts.items():
                here[name] = here.get(name, 0) + amount
    return snapshot.with_usage(used)


NO_MEMBERS: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class ClaimScenario:
    """A snapshot, which must not change, and the number of members of each group at each host.

    ``groups`` has these numbers by name of the group and by root of the host.

    ``distances`` are known distances of zones; all others are equally far apart. ``sizes`` has the number of
    members of each group, because a member may be on several hosts. Without ``sizes`` each member is on one
    host.
    """

    snapshot: ModelSnapshot
    groups: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    distances: Distances = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_members(
        cls, snapshot: ModelSnapshot, members: Members, wanted: Iterable[WantedClaim]
    ) -> ClaimScenario:
        """Return the scenario before any of the wanted claims has a place."""
        # copied, because it is read several times and a caller may pass a generator
        wanted = list(wanted)
        # a consumer that moves does not count as another member of its group
        moving = {each.consumer for each in wanted}
        groups = {name: members_by_host(each, moving) for name, each in members.items()}
        # distances are computed from attributes of all hosts, and most claims do not need them
        far = any(each.topology is not None or "numa_distance" in dict(each.order) for each in wanted)
        sizes = {name: size(each, moving) for name, each in members.items()}
        return cls(snapshot, groups, snapshot.zone_distances() if far else {}, sizes)

    def members_beside(self, group: ConsumerGroup | None) -> Mapping[int, int]:
        """Return the number of other members by root of the host, for a consumer that joins this group."""
        # one empty mapping for all scenarios, because this is called for each choice
        return NO_MEMBERS if group is None else self.groups.get(group.name, NO_MEMBERS)

    def size_of(self, group: ConsumerGroup | None) -> int:
        """Return how many other members the group has, for a consumer that joins it."""
        if group is None:
            return 0
        return self.sizes.get(group.name, sum(self.members_beside(group).values()))

    def with_choice(self, wanted: WantedClaim, choice: HostChoice) -> ClaimScenario:
        """Return the scenario in which a wanted claim holds this choice."""
        world = replace(self, snapshot=with_choice_held(self.snapshot, choice))
        if wanted.group is None:
            return world
        # a copy, because this scenario is used again with other choices
        count = Counter(self.members_beside(wanted.group))
        # a member on two hosts counts at both, so the size of the group is counted separately
        count.update(choice.hosts)
        name = wanted.group.name
        sizes = {**self.sizes, name: self.size_of(wanted.group) + 1}
        return replace(world, groups={**self.groups, name: count}, sizes=sizes)


def zone_of(snapshot: ModelSnapshot, provider: Provider) -> int | None:
    """Return the id of the NUMA node that the provider is or is below; None if the provider is in no zone."""
    return next((each.id for each in snapshot.lineage_of(provider) if ZONE in each.traits), None)
