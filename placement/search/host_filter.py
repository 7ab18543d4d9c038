"""Finds the providers for ``GET /resource_providers``."""

from __future__ import annotations

from collections.abc import Iterator

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget, yielding_slices
from placement.search.request import ProviderFilter


def filter_providers(snapshot: ModelSnapshot, wanted: ProviderFilter, budget: SearchBudget) -> list[Provider]:
    """Return the providers that pass every filter, in the order of ids.

    Each of these providers alone has enough free of all ``resources``.
    """
    # the smallest set comes first, because the time of an intersection depends on its first set
    sets = sorted(_index_sets(snapshot, wanted), key=len)
    provider_ids = sets[0].intersection(*sets[1:]) if sets else snapshot.providers.keys()
    found: list[Provider] = []
    for some in yielding_slices(sorted(provider_ids), budget):
        found += _filter_passing(list(map(snapshot.providers.__getitem__, some)), wanted)
    return found


def _filter_passing(found: list[Provider], wanted: ProviderFilter) -> list[Provider]:
    """Return those providers that also pass the filters without an index."""
    if wanted.forbidden:
        # providers are checked one by one: the index has the providers with a trait, and the set of all
        # others would be a large copy
        found = [each for each in found if each.traits.isdisjoint(wanted.forbidden)]
    if wanted.forbidden_aggregates:
        found = [each for each in found if each.aggregates.isdisjoint(wanted.forbidden_aggregates)]
    # amounts come last, because they are checked provider by provider, while the earlier filters are set
    # operations
    for name, amount in wanted.resources.items():
        found = [
            each for each in found if each.inventories[name].accepts_amount(amount, each.used.get(name, 0))
        ]
    return found


def _index_sets(snapshot: ModelSnapshot, wanted: ProviderFilter) -> Iterator[set[int]]:
    """Yield, for each filter with an index, the ids of the providers that pass it."""
    if wanted.name is not None:
        yield _single_id(snapshot.by_name.get(wanted.name))
    if wanted.uuid is not None:
        yield _single_id(snapshot.by_uuid.get(wanted.uuid))
    if wanted.in_tree is not None:
        member = snapshot.get(wanted.in_tree)
        yield set(snapshot.trees[member.root_id]) if member else set()
    for aggregates in wanted.member_of:
        yield set().union(*(snapshot.by_aggregate.get(aggregate, set()) for aggregate in aggregates))
    for traits in wanted.required:
        yield set().union(*(snapshot.by_trait.get(trait, set()) for trait in traits))
    for name in wanted.resources:
        yield snapshot.by_class.get(name, set())


def _single_id(provider_id: int | None) -> set[int]:
    return set() if provider_id is None else {provider_id}
