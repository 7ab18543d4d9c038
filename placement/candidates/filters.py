"""``GET /resource_providers``: which providers pass the filters of a request."""

from collections.abc import Iterator

from placement.candidates.request import ProviderFilter
from placement.model.provider import Provider
from placement.model.world import World


def filter_providers(world: World, wanted: ProviderFilter) -> list[Provider]:
    """The providers that pass every filter, in ascending order of their ids.

    A provider passes ``resources`` if it can give all of it now, alone.
    """
    sets = sorted(_sets(world, wanted), key=len)
    numbers = sets[0].intersection(*sets[1:]) if sets else world.providers.keys()
    found = [world.providers[number] for number in sorted(numbers)]
    # what the indexes do not tell
    if wanted.forbidden:
        found = [each for each in found if each.traits.isdisjoint(wanted.forbidden)]
    if wanted.forbidden_aggregates:
        found = [each for each in found if each.aggregates.isdisjoint(wanted.forbidden_aggregates)]
    for name, amount in wanted.resources.items():
        found = [each for each in found if each.inventories[name].accepts(amount, each.used.get(name, 0))]
    return found


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
