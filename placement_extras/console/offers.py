"""Allocation candidates, drawn on the trees that they are of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placement.candidates.pattern import AllocationCandidate
from placement.model.provider import Provider
from placement.model.snapshot import ModelSnapshot
from placement_extras.console.fleet import natural
from placement_extras.console.host import order


@dataclass(frozen=True, slots=True)
class ProviderTaking:
    """How much of a class is asked of a provider, of what is free there, and used already."""

    resource_class: str
    amount: int
    capacity: int
    used: int


@dataclass(frozen=True, slots=True)
class OfferLine:
    """A provider at its depth below the root; without takings it only leads to others."""

    depth: int
    provider: Provider
    takings: tuple[ProviderTaking, ...]
    groups: tuple[str, ...]


Way = tuple[OfferLine, ...]
"""One candidate: lines of the tree of its host, and of others that share with it."""


@dataclass(frozen=True, slots=True)
class HostOffer:
    """A host, and candidates of it."""

    host: Provider
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class HostOffers:
    """Candidates by host, whether there are more, and whether they are of what a flavor falls back to."""

    shown: tuple[HostOffer, ...]
    has_more: bool
    is_fallback: bool


def draw(
    snapshot: ModelSnapshot, candidates: Sequence[AllocationCandidate], limit: int, *, is_fallback: bool
) -> HostOffers:
    """The first of these candidates, so many at most."""
    by_host: dict[int, list[Way]] = {}
    for each in candidates[:limit]:
        root = each.provider_set.members[0].root_id
        by_host.setdefault(root, []).append(_way(snapshot, each, root))
    offers = [HostOffer(snapshot.providers[root], tuple(ways)) for root, ways in by_host.items()]
    return HostOffers(tuple(offers), len(candidates) > limit, is_fallback)


def _way(snapshot: ModelSnapshot, candidate: AllocationCandidate, root: int) -> Way:
    asked = candidate.resources
    groups: dict[int, list[str]] = {}
    for suffix, served in candidate.mappings.items():
        for provider_id in served:
            groups.setdefault(provider_id, []).append(suffix)
    shown = {above.id for each in {*asked, *groups} for above in snapshot.upwards(snapshot.providers[each])}
    if root not in asked:
        shown.discard(root)  # it is named anyway
    lines = _lines(snapshot, [snapshot.providers[each] for each in shown], asked, groups)
    # the tree that it is of before those that share with it
    return tuple(sorted(lines, key=lambda line: line.provider.root_id != root))


def _lines(
    snapshot: ModelSnapshot,
    providers: Iterable[Provider],
    asked: Mapping[int, Mapping[str, int]],
    groups: Mapping[int, Sequence[str]],
) -> Iterable[OfferLine]:
    paths = {each.id: tuple(snapshot.upwards(each))[::-1] for each in providers}
    in_order = sorted(paths.values(), key=lambda path: [(natural(each.name), each.id) for each in path])
    for path in in_order:
        provider = path[-1]
        takings = [
            ProviderTaking(name, amount, provider.inventories[name].capacity, provider.used.get(name, 0))
            for name, amount in sorted(asked.get(provider.id, {}).items(), key=lambda item: order(item[0]))
        ]
        named = tuple(each for each in groups.get(provider.id, ()) if each)
        yield OfferLine(len(path) - 1, provider, tuple(takings), named)
