"""Requests of clients, after parsing: plain frozen data.

The words are those of the API reference, "Allocation candidates" and "Resource
providers"; :mod:`placement.schemas.query` makes these from query strings.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from placement.exceptions import InvalidRequest


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """One group of ``resources[$S]``, ``required[$S]``, ``member_of[$S]`` and ``in_tree[$S]``.

    The group without a suffix may be served by several providers, any other by
    exactly one. Of every set in ``required`` (traits) and ``member_of``
    (aggregates) one element is enough; all the sets have to be met.
    """

    suffix: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    forbidden_aggregates: frozenset[str] = frozenset()
    in_tree: str | None = None


@dataclass(frozen=True, slots=True)
class CandidatesRequest:
    """A whole ``GET /allocation_candidates``.

    ``nested`` is False below microversion 1.29: a candidate then uses no two
    providers of the same tree.
    """

    groups: tuple[RequestGroup, ...]
    group_policy: str | None = None
    root_required: frozenset[str] = frozenset()
    root_forbidden: frozenset[str] = frozenset()
    same_subtrees: tuple[frozenset[str], ...] = ()
    limit: int | None = None
    nested: bool = True

    @property
    def total_amounts(self) -> dict[str, int]:
        """How much of each class all groups ask for together."""
        amounts: dict[str, int] = {}
        for group in self.groups:
            for name, amount in group.resources.items():
                amounts[name] = amounts.get(name, 0) + amount
        return amounts


@dataclass(frozen=True, slots=True)
class ProviderFilter:
    """The filters of ``GET /resource_providers``; what is None or empty filters nothing."""

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
    """Make sure that every resource class and trait in the request exists.

    :raises InvalidRequest: naming what does not exist, classes first.
    """
    if isinstance(request, ProviderFilter):
        _check_classes(request.resources, classes)
        prefix = 'Invalid trait(s) in "required" parameter: '
        _check_traits((*request.required, request.forbidden), traits, prefix)
        return
    for group in request.groups:
        _check_classes(group.resources, classes)
    named = [request.root_required, request.root_forbidden]
    for group in request.groups:
        named += [*group.required, group.forbidden]
    _check_traits(named, traits)


def _check_classes(resources: Iterable[str], classes: Container[str]) -> None:
    for name in resources:
        if name not in classes:
            raise InvalidRequest(
                f"Invalid resource class in resources parameter: No such resource class {name}."
            )


def _check_traits(named: Iterable[frozenset[str]], traits: Container[str], prefix: str = "") -> None:
    unknown = {name for names in named for name in names if name not in traits}
    if unknown:
        raise InvalidRequest(f"{prefix}No such trait(s): {', '.join(sorted(unknown))}.")
