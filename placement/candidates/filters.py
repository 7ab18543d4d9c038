"""``GET /resource_providers``: which providers pass the filters of a request."""

from collections.abc import Iterator

from placement.candidates.request import ProviderFilter
from placement.model.world import Provider, World


def filter_providers(world: World, wanted: ProviderFilter) -> list[Provider]:
    """The providers that pass every filter, in ascending order of their ids.

    A provider passes ``resources`` if it can give all of it now, alone.
    """
    sets = list(_sets(world, wanted))
    numbers = set.intersection(*sorted(sets, key=len)) if sets else set(world.providers)
    return [provider for number in sorted(numbers) if _passes(provider := world.providers[number], wanted)]


def _sets(world: World, wanted: ProviderFilter) -> Iterator[set[int]]:
    """For each filter that has an index the ids of those that pass it."""
    if wanted.name is not None:
        yield _single(world.by_name.get(wanted.name))
    if wanted.uuid is not None:
        yield _single(world.by_uuid.get(wanted.uuid))
    if wanted.in_tree is not None:
        member = world.get(wanted.in_tree)
        yield world.trees[member.root_id] if member else set()
    for aggregates in wanted.member_of:
        yield set().union(*(world.by_aggregate.get(aggregate, set()) for aggregate in aggregates))
    for traits in wanted.required:
        yield set().union(*(world.by_trait.get(trait, set()) for trait in traits))
    for name in wanted.resources:
        yield world.by_class.get(name, set())


def _single(number: int | None) -> set[int]:
    return set() if number is None else {number}


def _passes(provider: Provider, wanted: ProviderFilter) -> bool:
    """What the indexes do not tell."""
    return (
        provider.traits.isdisjoint(wanted.forbidden)
        and provider.aggregates.isdisjoint(wanted.forbidden_aggregates)
        and all(
            provider.inventories[name].accepts(amount, provider.used.get(name, 0))
            for name, amount in wanted.resources.items()
        )
    )
