"""Parsed requests of clients as frozen dataclasses, checks of their names, and the filter of providers.

The names of fields follow the sections "Allocation candidates" and "Resource providers" of the API reference.
:mod:`placement.schemas.candidates` and :mod:`placement.schemas.query` make these requests from query strings.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from placement.exceptions import InvalidRequest
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget, yielding_slices


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """One group of a request: its ``resources[$S]``, ``required[$S]``, ``member_of[$S]`` and ``in_tree[$S]``.

    Several providers can serve the group without a suffix together; exactly one provider serves each other
    group. A provider has to have one trait of each set in ``required``, and be in one aggregate of each set
    in ``member_of``. Neither the provider nor an ancestor may have a trait of ``outside``. The provider or an
    ancestor has to have each trait of ``inside``. Query strings have no parameters for ``outside`` and
    ``inside``.
    """

    # an empty field states no condition, so each new field needs an empty default
    suffix: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    forbidden_aggregates: frozenset[str] = frozenset()
    in_tree: str | None = None
    outside: frozenset[str] = frozenset()
    inside: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CandidatesRequest:
    """The query parameters of a ``GET /allocation_candidates``.

    ``nested`` is False below microversion 1.29, where a candidate uses at most one provider of a tree.
    """

    groups: tuple[RequestGroup, ...]
    group_policy: str | None = None
    root_required: frozenset[str] = frozenset()
    root_forbidden: frozenset[str] = frozenset()
    same_subtrees: tuple[frozenset[str], ...] = ()
    # a limit is not a condition, so explanations ignore it
    limit: int | None = None
    nested: bool = True

    @property
    def total_amounts(self) -> dict[str, int]:
        """The sum over all groups of the requested amount of each class."""
        amounts: dict[str, int] = {}
        for group in self.groups:
            for name, amount in group.resources.items():
                amounts[name] = amounts.get(name, 0) + amount
        return amounts


@dataclass(frozen=True, slots=True)
class ProviderFilter:
    """The filters of ``GET /resource_providers``. A filter that is None or empty excludes no provider."""

    name: str | None = None
    uuid: str | None = None
    member_of: tuple[frozenset[str], ...] = ()
    forbidden_aggregates: frozenset[str] = frozenset()
    resources: Mapping[str, int] = field(default_factory=dict)
    in_tree: str | None = None
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()


def check_names(
    request: CandidatesRequest | ProviderFilter, classes: Container[str], traits: Container[str]
) -> None:
    """Check that each resource class and trait of the request exists.

    :raises InvalidRequest: a name does not exist. The message names it; unknown classes come before unknown
        traits.
    """
    # the error messages of the two endpoints differ, and clients depend on their texts
    if isinstance(request, ProviderFilter):
        _check_classes(request.resources, classes)
        prefix = 'Invalid trait(s) in "required" parameter: '
        _check_traits((*request.required, request.forbidden), traits, prefix)
        return
    for group in request.groups:
        _check_classes(group.resources, classes)
    named = [request.root_required, request.root_forbidden]
    for group in request.groups:
        named += [*group.required, group.forbidden, group.outside, group.inside]
    _check_traits(named, traits)


def _check_classes(resources: Iterable[str], classes: Container[str]) -> None:
    for name in resources:
        if name not in classes:
            raise InvalidRequest(
                f"Invalid resource class in resources parameter: No such resource class {name}."
            )


def _check_traits(named: Iterable[frozenset[str]], traits: Container[str], prefix: str = "") -> None:
    # one message has all unknown traits, so that a client can correct all of them at once
    unknown = {name for names in named for name in names if name not in traits}
    if unknown:
        raise InvalidRequest(f"{prefix}No such trait(s): {', '.join(sorted(unknown))}.")


def named_roots(snapshot: ModelSnapshot, uuids: Iterable[str], meant: str) -> frozenset[int]:
    """Return the ids of the roots with these uuids.

    :param meant: the purpose of the roots, as the end of the error message "There is no root provider X,
        which ...".
    :raises InvalidRequest: a uuid belongs to no provider, or to a provider that is not a root.
    """
    # uuids are sorted, so that equal requests always report the same wrong uuid
    found = set()
    for uuid in sorted(uuids):
        root = snapshot.get(uuid)
        if root is None or root.parent_id is not None:
            raise InvalidRequest(f"There is no root provider {uuid}, which {meant}.")
        found.add(root.id)
    return frozenset(found)


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
