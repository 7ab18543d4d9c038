"""The nouns of claims: what a client wants, the scenario it is placed in, and a choice with its zones.

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
from placement.store.groups import ConsumerGroup, Members, hosts_of, present, size

Order = tuple[tuple[str, float], ...]
"""Criteria (see :mod:`placement.search.claims.scores`) and their weights; none of them twice."""


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """A request for candidates, and the consumer that shall hold one instead of all that it holds.

    ``version`` is the one in whose grammar the request was written. ``fallback`` is what will do
    as well, where nothing does that the request asks for; ``warnings`` say what of a flavor is not in either.
    ``generation`` is the consumer's as the client knows it, None for a new one. ``only`` and ``avoid`` are
    uuids of root providers: the hosts that may be chosen, None for all, and those of which nothing may be
    taken. By ``order`` the best choice is made; without it, any. It joins the ``group``, or leaves that in
    which it was. By ``topology`` dedicated CPUs and memory are split over zones; without it, they come as the
    request says. ``expires_in`` so many seconds it is gone again, unless somebody confirms it.
    """

    consumer: str
    generation: int | None
    owner: ConsumerOwnership
    request: CandidatesRequest
    version: Microversion
    fallback: CandidatesRequest | None = None
    warnings: tuple[str, ...] = ()
    only: frozenset[str] | None = None
    avoid: frozenset[str] = frozenset()
    alternates: int = 0
    order: Order = ()
    group: ConsumerGroup | None = None
    topology: TopologyPolicy | None = None
    expires_in: float | None = None

    @property
    def names_hosts(self) -> bool:
        """Whether it names hosts, so that hosts that are alike are not the same to it."""
        return bool(self.only or self.avoid)


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """The score of a choice by each criterion, from 0 to 1, and their weighted sum: more is better."""

    total: float
    criteria: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HostChoice:
    """A candidate with its providers: the root of its host, amounts by provider, who serves which suffix.

    It has a score if an order is wanted.
    """

    root: Provider
    resources: tuple[tuple[Provider, Mapping[str, int]], ...]
    mappings: Mapping[str, tuple[Provider, ...]]
    score: ChoiceScore | None = None

    @classmethod
    def of(cls, snapshot: ModelSnapshot, candidate: AllocationCandidate) -> HostChoice:
        """The choice of a candidate that was found in the snapshot."""
        members, providers = candidate.provider_set.members, snapshot.providers
        return cls(
            providers[members[0].root_id],
            tuple((providers[each], amounts) for each, amounts in candidate.resources.items()),
            {suffix: tuple(providers[each] for each in ids) for suffix, ids in candidate.mappings.items()},
        )

    @property
    def hosts(self) -> frozenset[int]:
        """The roots of the hosts where something is held, as groups count them: mostly :attr:`root` alone."""
        return hosts_of((provider.root_id, SHARES in provider.traits) for provider, _ in self.resources)

    @property
    def providers(self) -> Iterator[Provider]:
        """All whose description made this a candidate; some may come twice."""
        yield self.root
        for provider, _ in self.resources:
            yield provider
        for served in self.mappings.values():
            yield from served


def stays_at_its_host(snapshot: ModelSnapshot, request: CandidatesRequest) -> bool:
    """Whether each choice takes something of the tree where it is anchored, so that it is on that host alone.

    It is where it asks for a class that nothing has that shares; else a choice may be of pools alone.
    """
    pools = [snapshot.providers[each] for each in snapshot.by_trait.get(SHARES, ())]
    shared = {name for pool in pools for name in pool.inventories}
    return any(not shared.issuperset(group.resources) for group in request.groups)


def holding(snapshot: ModelSnapshot, choice: HostChoice) -> ModelSnapshot:
    """The world in which somebody holds this choice; the snapshot must not be changed while it is needed."""
    return _using_more(snapshot, ((provider.uuid, amounts) for provider, amounts in choice.resources))


def giving_back(snapshot: ModelSnapshot, held: Iterable[Allocation]) -> ModelSnapshot:
    """The world in which nobody holds these any more; the snapshot must not be changed while it is needed."""
    return _using_more(snapshot, ((each.provider, {each.resource_class: -each.used}) for each in held))


def within(snapshot: ModelSnapshot, held: Collection[Allocation]) -> tuple[ModelSnapshot, frozenset[str]]:
    """The world of a claim that takes all from what is held, and the roots (uuids) of the hosts in question.

    There, and on what hosts share, nothing is free but that; other hosts are as they were. The snapshot must
    not be changed while it is needed.
    """
    amounts: dict[int, dict[str, int]] = {}
    for each in held:
        provider = snapshot.get(each.provider)
        if provider is not None and each.resource_class in provider.inventories:
            amounts.setdefault(provider.id, {})[each.resource_class] = each.used
    roots = {snapshot.providers[provider_id].root_id for provider_id in amounts}
    concerned = {member for root in roots for member in snapshot.trees[root]} | snapshot.by_trait.get(
        SHARES, set()
    )
    used = {
        provider_id: {
            name: each.capacity - amounts.get(provider_id, {}).get(name, 0)
            for name, each in snapshot.providers[provider_id].inventories.items()
        }
        for provider_id in concerned
    }
    return snapshot.using(used), frozenset(snapshot.providers[root].uuid for root in roots)


def _using_more(snapshot: ModelSnapshot, more: Iterable[tuple[str, Mapping[str, int]]]) -> ModelSnapshot:
    """The snapshot if so much more were used of providers, by uuid, as far as they are there."""
    used: dict[int, dict[str, int]] = {}
    for uuid, amounts in more:
        provider = snapshot.get(uuid)
        if provider is not None:
            here = used.setdefault(provider.id, {**provider.used})
            for name, amount in amounts.items():
                here[name] = here.get(name, 0) + amount
    return snapshot.using(used)


NOBODY: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class ClaimScenario:
    """A snapshot, which must not be changed, and of each group how many members a host has, by its root.

    ``distances`` are those of zones, where they are known; all others are equally far apart. ``sizes`` are
    how many members the groups have, of which one may be on several hosts; without it each is on one.
    """

    snapshot: ModelSnapshot
    groups: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    distances: Distances = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: ModelSnapshot, members: Members, wanted: Iterable[WantedClaim]) -> ClaimScenario:
        """The world before any of those wanted has a place."""
        wanted = list(wanted)
        moving = {each.consumer for each in wanted}
        groups = {name: present(each, moving) for name, each in members.items()}
        far = any(each.topology is not None or "numa_distance" in dict(each.order) for each in wanted)
        sizes = {name: size(each, moving) for name, each in members.items()}
        return cls(snapshot, groups, snapshot.distances() if far else {}, sizes)

    def beside(self, group: ConsumerGroup | None) -> Mapping[int, int]:
        """How many members each host has that whoever joins this group would be beside."""
        return NOBODY if group is None else self.groups.get(group.name, NOBODY)

    def size_of(self, group: ConsumerGroup | None) -> int:
        """How many members there are that whoever joins this group would be beside."""
        if group is None:
            return 0
        return self.sizes.get(group.name, sum(self.beside(group).values()))

    def holding(self, wanted: WantedClaim, choice: HostChoice) -> ClaimScenario:
        """The world in which this choice was made for one that is wanted."""
        world = replace(self, snapshot=holding(self.snapshot, choice))
        if wanted.group is None:
            return world
        count = Counter(self.beside(wanted.group))
        count.update(choice.hosts)
        name = wanted.group.name
        sizes = {**self.sizes, name: self.size_of(wanted.group) + 1}
        return replace(world, groups={**self.groups, name: count}, sizes=sizes)


def zone_of(snapshot: ModelSnapshot, provider: Provider) -> int | None:
    """The id of the nearest provider, upwards from this one, that is a NUMA node."""
    return next((each.id for each in snapshot.upwards(provider) if ZONE in each.traits), None)
