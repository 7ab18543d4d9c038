"""A candidate that was chosen, and what is left of the world beside it."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from placement.candidates.pattern import AllocationCandidate
from placement.candidates.request import CandidatesRequest
from placement.model.provider import SHARES, Provider
from placement.model.snapshot import ModelSnapshot
from placement.store.allocations import Allocation
from placement.store.groups import hosts_of


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """What each criterion says of a choice, from 0 to 1, and the sum of that by weights: more is better."""

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
    def of(cls, snapshot: ModelSnapshot, candidate: AllocationCandidate) -> "HostChoice":
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
    return _using(snapshot, ((provider.uuid, amounts) for provider, amounts in choice.resources))


def giving_back(snapshot: ModelSnapshot, held: Iterable[Allocation]) -> ModelSnapshot:
    """The world in which nobody holds these any more; the snapshot must not be changed while it is needed."""
    return _using(snapshot, ((each.provider, {each.resource_class: -each.used}) for each in held))


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


def _using(snapshot: ModelSnapshot, more: Iterable[tuple[str, Mapping[str, int]]]) -> ModelSnapshot:
    """The snapshot if so much more were used of providers, by uuid, as far as they are there."""
    used: dict[int, dict[str, int]] = {}
    for uuid, amounts in more:
        provider = snapshot.get(uuid)
        if provider is not None:
            here = used.setdefault(provider.id, {**provider.used})
            for name, amount in amounts.items():
                here[name] = here.get(name, 0) + amount
    return snapshot.using(used)
