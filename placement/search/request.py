"""Parsed requests of clients as frozen dataclasses, and checks of the names that clients give.

The names of fields follow the sections "Allocation candidates" and "Resource providers" of the API reference.
:mod:`placement.schemas.query` makes these requests from query strings.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from placement.exceptions import InvalidRequest
from placement.read_model.snapshot import ModelSnapshot


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
