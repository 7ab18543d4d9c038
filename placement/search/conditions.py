"""Conditions on one provider, and the needs of a request, each of which exactly one provider serves.

A kind of condition is a Python class that is listed once, in :data:`GROUP_CONDITIONS` or
:data:`ROOT_CONDITIONS`. Modules that enumerate conditions ask :func:`group_conditions`,
:func:`root_conditions` or :func:`condition_class`, and read the attributes of the class. A new condition is a
field of :class:`~placement.search.request.RequestGroup` and a class in the list.

Each group with a suffix is one need. The group without a suffix is divided into one need per resource class,
because each resource class can come from a different provider.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import not_
from typing import Any, ClassVar, Final, Self, TypeVar

from placement.read_model.index import ProviderIndex
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree, TreeClass
from placement.search.request import CandidatesRequest, RequestGroup

MetPositions = Callable[[HostTree], tuple[bool, ...]]
"""A function that returns, for each position in a tree, whether the provider there meets a condition."""
ProviderCheck = Callable[[Provider], bool]

_S = TypeVar("_S", RequestGroup, CandidatesRequest)

Names = frozenset[str]


class _RememberedNames(dict[Names, bool]):
    """Cached results of a condition, by the checked names, such as the traits of a provider."""

    def __init__(self, answer: Callable[[Names], bool]) -> None:
        self._answer = answer

    # the class is a dict with __missing__(), so that a known value is looked up in C and no Python function
    # is called
    def __missing__(self, names: Names) -> bool:
        met = self[names] = self._answer(names)
        return met


@dataclass(frozen=True, slots=True)
class ConditionWords:
    """The words that describe a condition in sentences and queries.

    The templates may contain ``{names}`` ("A or B"), ``{any_of}`` ("any of A, B"), ``{all_of}`` ("A and B")
    and ``{amount}``. ``lacking`` may also use ``{found}``, the amount at the provider that comes closest.
    """

    meeting: str
    """Predicate, with a plural verb, that describes hosts which meet the condition."""
    lacking: str = ""
    """Predicate, with a plural verb, that describes hosts which do not meet the condition."""
    parameter: str = ""
    """Name of the query parameter that states the condition, without a suffix; empty if there is none."""
    mark: str = ""
    """Prefix of the value of ``parameter``, such as ``!`` for forbidden names."""
    unknown: str = ""
    """Remark about names that no provider has; empty if these names need no remark."""

    @staticmethod
    def render(
        template: str, names: Sequence[str], amount: int | None = None, found: int | None = None
    ) -> str:
        """Return a template with its fields filled in."""
        # a single name needs no "any of" or "all of"
        any_of = names[0] if len(names) == 1 else f"any of {', '.join(names)}"
        return template.format(
            names=" or ".join(names), any_of=any_of, all_of=" and ".join(names), amount=amount, found=found
        )


@dataclass(frozen=True, slots=True)
class IndexedNames:
    """The names with which an index of the snapshot finds providers. Each candidate has such a provider.

    ``at_root`` tells whether this provider is the root of the anchoring tree. ``spans_trees`` tells whether a
    name at a root counts for all providers of the root's tree.
    """

    index: ProviderIndex[str]
    names: tuple[str, ...]
    at_root: bool = False
    spans_trees: bool = False


@dataclass(frozen=True, slots=True)
class ProviderCondition(ABC):
    """A condition on one provider. Two conditions are equal if they are met by the same providers.

    ``sets`` has sets of names, such as traits. Each set is a *piece*, which a request could state as a
    separate condition. A provider meets the condition if it meets every piece. An explanation counts each
    piece separately, and a relaxation can leave out single pieces.
    """

    # these are class variables, because the lists of conditions have classes and no instances
    name: ClassVar[str]
    """The name of the condition in explanations."""
    field: ClassVar[str]
    """Name of the field of :class:`RequestGroup` that states the condition; with ``of_roots``, of a field of
    :class:`CandidatesRequest`.
    """
    words: ClassVar[ConditionWords]
    of_roots: ClassVar[bool] = False
    """Whether the root of the tree has to meet the condition, rather than providers of a group."""
    reads: ClassVar[tuple[str, ...]] = ("id",)
    """Attributes of a provider that decide whether the condition is met. From these attributes,
    :mod:`placement.search.equivalence` derives which trees and which providers are equivalent for a request.

    Names with the prefix ``root.`` are attributes of the root, and names with the prefix ``above.`` are
    attributes of all ancestors. The default is an attribute that differs between any two providers, which is
    correct for every condition, but slow.
    """
    index: ClassVar[str | None] = None
    """Name of the snapshot's attribute that maps the names of ``sets`` to providers, for the search for
    roots; None if there is no such index.

    With an index, the condition has the same result for all providers without any of the names. The
    exceptions are providers in trees with a root that has one of the names.
    """
    excludes: ClassVar[bool] = False
    """Whether the condition excludes the providers with a name of ``sets``; if not, it requires a name."""

    sets: tuple[Names, ...] = ()

    @classmethod
    def from_field(cls, said: Any, group: RequestGroup | None) -> Self:
        """Return the condition that a field of the request states by its value.

        :param said: the value of the field in the request.
        :param group: the group that has the field. For conditions on roots, which are fields of the request,
            the group is None.
        """
        return cls(_split_field(said))

    @property
    def met_together(self) -> bool:
        """Whether it is enough that the providers of a group together meet the pieces."""
        return False

    @abstractmethod
    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Return whether the provider meets the condition."""

    def admits_names(self, names: Names) -> bool:
        """Return whether a provider with these names, such as traits, meets the condition."""
        # map() runs in C, which saves time because this method runs for each set of traits in the cloud
        if self.excludes:
            return all(map(names.isdisjoint, self.sets))
        return not any(map(names.isdisjoint, self.sets))

    def met_in(self, snapshot: ModelSnapshot) -> MetPositions:
        """Return a function that tells for each provider of a tree whether the provider meets the condition.

        The function is valid for one request.
        """
        # this is correct for every condition, but slow, so the common conditions override it
        return lambda tree: tuple([self.met_by(each, snapshot) for each in tree.members])

    def single_pieces(self) -> Iterator[Self]:
        """Yield a condition for each set of names in this condition."""
        # one piece is yielded unchanged, because replace() is slow and each request calls this
        if len(self.sets) == 1:
            yield self
        else:
            yield from (replace(self, sets=(names,)) for names in self.sets)

    def deciding_pieces(self) -> Iterator[ProviderCondition]:
        """Yield simpler conditions: their results in a tree determine the result of this condition."""
        return self.single_pieces()

    def alternative_checks(self, snapshot: ModelSnapshot) -> tuple[ProviderCheck, ...]:
        """Return the alternative checks of one piece; for most conditions there is only one.

        A provider meets the condition if, for some number n, it passes check n of every piece.
        """
        return (partial(self.met_by, snapshot=snapshot),)

    def indexed_names(self, snapshot: ModelSnapshot) -> Iterator[IndexedNames]:
        """Yield the names with which an index finds the providers that meet the condition."""
        # the method yields nothing for conditions that exclude names, because no index lists the providers
        # without a name
        if self.index is not None and not self.excludes:
            for names in self.sets:
                yield IndexedNames(getattr(snapshot, self.index), tuple(names), self.of_roots)

    def named_providers(self, snapshot: ModelSnapshot) -> set[int] | None:
        """Return ids of providers that can meet the condition; None if the condition names no providers."""
        return None

    def is_unknown(self, snapshot: ModelSnapshot) -> bool:
        """Return whether no provider has any of the names of ``sets``."""
        if self.index is None:
            # without an index it is unknown whether the names exist, and no remark is better than a wrong one
            return False
        index = getattr(snapshot, self.index)
        return all(name not in index for names in self.sets for name in names)


def condition_class(name: str) -> type[ProviderCondition] | None:
    """Return the class of the condition with this name; None if there is no such condition."""
    return next((each for each in (*GROUP_CONDITIONS, *ROOT_CONDITIONS) if each.name == name), None)


def group_conditions(group: RequestGroup) -> list[ProviderCondition]:
    """Return the conditions that a group states."""
    # an empty field states no condition
    return [each.from_field(said, group) for each in GROUP_CONDITIONS if (said := getattr(group, each.field))]


def root_conditions(request: CandidatesRequest) -> list[ProviderCondition]:
    """Return the conditions that a request states about the root of a tree."""
    return [each.from_field(said, None) for each in ROOT_CONDITIONS if (said := getattr(request, each.field))]


def all_conditions(
    request: CandidatesRequest, needs: Iterable[ProviderNeed]
) -> dict[ProviderCondition, None]:
    """Return all conditions, each once: first those on roots, then those of the needs, group by group."""
    found = dict.fromkeys(root_conditions(request))
    before = None
    for need in needs:
        # conditions are read once for each group, because comparing suffixes is faster than hashing
        # conditions
        if need.suffix != before and (need.conditions or need.together):
            before = need.suffix
            found |= dict.fromkeys((*need.conditions, *need.together))
    return found


def keep_pieces(stating: _S, keeps: Callable[[ProviderCondition], bool]) -> _S:
    """Return a group or a request with only some pieces of its conditions.

    :param keeps: a function that returns whether a piece of a condition is kept.
    """
    # groups and requests have different fields, so each has its own list of condition classes
    found = group_conditions(stating) if isinstance(stating, RequestGroup) else root_conditions(stating)
    changes = {}
    for condition in found:
        kept = tuple([piece.sets[0] for piece in condition.single_pieces() if keeps(piece)])
        # a field stays unchanged if its condition keeps all pieces
        if len(kept) < len(condition.sets):
            changes[condition.field] = _join_sets(kept, getattr(stating, condition.field))
    # replace() keeps all other fields, also fields that no condition class reads
    return replace(stating, **changes) if changes else stating


def _split_field(said: Any) -> tuple[Names, ...]:
    """Return the names of a field as sets: a tuple of sets unchanged, otherwise a set for each name."""
    # each set of such a tuple has alternatives; the parser has made the tuple
    if isinstance(said, tuple):
        return said
    # names are sorted, so that explanations list names in the same order each time
    return tuple([frozenset({name}) for name in ([said] if isinstance(said, str) else sorted(said))])


def _join_sets(sets: tuple[Names, ...], said: Any) -> Any:
    """Return the sets as a value of the same type as ``said``, the current value of the field."""
    if isinstance(said, tuple):
        return sets
    # the type stays the same, because the changed request may be written as a query string
    names = frozenset[str]().union(*sets)
    return next(iter(names), None) if isinstance(said, str) else names


class _TraitCondition(ProviderCondition):
    """A condition on a provider's own traits, without the traits of its ancestors."""

    __slots__ = ()

    # only traits decide this condition, and all trees of a class have the same traits at each position
    reads = ("traits",)
    index = "by_trait"

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Return whether the provider has, or lacks, the traits."""
        return self.admits_names(provider.traits)

    def met_in(self, snapshot: ModelSnapshot) -> MetPositions:
        """Return a function that checks the traits at all positions."""
        # mostly one set decides, and comparing it with each set of traits takes less time than remembering
        # the results for all sets
        names = frozenset[str]().union(*self.sets)
        if self.excludes:
            return lambda tree: tuple(map(names.isdisjoint, tree.kind.traits))
        if len(self.sets) == 1:
            return lambda tree: tuple(map(not_, map(names.isdisjoint, tree.kind.traits)))
        known = _RememberedNames(self.admits_names)
        return lambda tree: tuple(map(known.__getitem__, tree.kind.traits))


@dataclass(frozen=True, slots=True)
class RequiredTraits(_TraitCondition):
    """Requires at least one trait of each set of traits.

    With ``by_group``, it is enough that all providers of the group without a suffix together have the traits,
    as the API reference says.
    """

    name = "required"
    field = "required"
    words = ConditionWords("have {names}", "lack {any_of}", "required")

    by_group: bool = False

    @classmethod
    def from_field(cls, said: Any, group: RequestGroup | None) -> Self:
        """Return the condition that a field states."""
        return cls(_split_field(said), by_group=group is not None and not group.suffix)

    @property
    def met_together(self) -> bool:
        """Return whether the traits may be spread over the providers of the group."""
        return self.by_group


@dataclass(frozen=True, slots=True)
class ForbiddenTraits(_TraitCondition):
    """Traits that the provider must not have."""

    name = "forbidden"
    field = "forbidden"
    words = ConditionWords("do not have {names}", "have {names}, which is forbidden", "required", "!")
    excludes = True


class _LineageTraits(ProviderCondition):
    """A condition on the traits of a provider together with the traits of all its ancestors."""

    __slots__ = ()

    reads = ("above.traits",)
    index = "by_trait"

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Return whether the provider and its ancestors together have, or lack, the traits."""
        lineage = snapshot.lineage_of(provider)
        return self.admits_names(frozenset[str]().union(*[each.traits for each in lineage]))

    def met_in(self, snapshot: ModelSnapshot) -> MetPositions:
        """Return a function that checks each class of trees once."""

        @cache
        def met_in_class(kind: TreeClass) -> tuple[bool, ...]:
            above = [[kind.traits[at] for at in lineage] for lineage in kind.shape.lineages]
            return tuple([self.admits_names(frozenset[str]().union(*traits)) for traits in above])

        return lambda tree: met_in_class(tree.kind)


@dataclass(frozen=True, slots=True)
class OutsideTraits(_LineageTraits):
    """Traits that neither the provider nor its ancestors may have, as for a device outside of NUMA nodes."""

    name = "outside"
    field = "outside"
    words = ConditionWords(
        "are not below a provider with {names}", "are below a provider with {names}, which is forbidden"
    )
    excludes = True


@dataclass(frozen=True, slots=True)
class InsideTraits(_LineageTraits):
    """Traits that the provider or one of its ancestors must have, for instance for memory of a NUMA node."""

    name = "inside"
    field = "inside"
    words = ConditionWords("are below a provider with {names}", "are not below a provider with {names}")

    def indexed_names(self, snapshot: ModelSnapshot) -> Iterator[IndexedNames]:
        """Yield nothing, because an ancestor outside of the candidate may have the trait."""
        return iter(())


@dataclass(frozen=True, slots=True)
class InTree(ProviderCondition):
    """The provider has to be in the tree of the provider with this uuid."""

    name = "in_tree"
    field = "in_tree"
    words = ConditionWords(
        "are the tree of {names}",
        "are not the tree of {names}",
        "in_tree",
        unknown="there is no such provider",
    )
    reads = ("root_id",)

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Return whether the provider is in the tree; False if no provider has this uuid."""
        member = self._named_member(snapshot)
        return member is not None and member.root_id == provider.root_id

    def named_providers(self, snapshot: ModelSnapshot) -> set[int]:
        """Return the ids of all providers of the named tree."""
        member = self._named_member(snapshot)
        return set() if member is None else set(snapshot.trees[member.root_id])

    def is_unknown(self, snapshot: ModelSnapshot) -> bool:
        """Return whether no provider has the named uuid."""
        return self._named_member(snapshot) is None

    def _named_member(self, snapshot: ModelSnapshot) -> Provider | None:
        # the condition has one set with one uuid, because a request names one tree
        ((uuid,),) = self.sets
        return snapshot.get(uuid)


@dataclass(frozen=True, slots=True)
class _AggregateCondition(ProviderCondition):
    """A condition on the aggregates of a provider and, with ``or_root``, on those of its root.

    An aggregate of a root counts for all providers of its tree.
    """

    # the root's aggregates are listed even without or_root, because a class variable cannot depend on a field
    reads = ("aggregates", "root.aggregates")
    index = "by_aggregate"

    or_root: bool = False

    @classmethod
    def from_field(cls, said: Any, group: RequestGroup | None) -> Self:
        """Return the condition that a field states."""
        return cls(_split_field(said), or_root=group is not None and group.suffix == "")

    def _admits_both(self, own: Names, root: Names | None) -> bool:
        """Return whether a provider meets the condition, given its own aggregates and those of its root.

        :param root: None if the aggregates of the root do not count.
        """
        if root is None:
            return self.admits_names(own)
        # a forbidden aggregate of the root forbids its whole tree
        if self.excludes:
            return self.admits_names(own) and self.admits_names(root)
        # the provider or its root has to be in an aggregate of every set. It is not enough if the provider is
        # in aggregates of some sets, and the root in aggregates of the others
        return self.admits_names(own) or self.admits_names(root)

    def met_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Return whether the aggregates of the provider or, with ``or_root``, of its root are as required."""
        root = None
        if self.or_root and provider.parent_id is not None:
            # for a root, ``own`` already has the aggregates of the root
            root = snapshot.providers[provider.root_id].aggregates
        return self._admits_both(provider.aggregates, root)

    def met_in(self, snapshot: ModelSnapshot) -> MetPositions:
        """Return a function that checks each combination of own and root aggregates once."""
        known: dict[Names | None, _RememberedNames] = {}

        def met_positions(tree: HostTree) -> tuple[bool, ...]:
            # a root has the same set twice, which does no harm
            root = tree.root.aggregates if self.or_root else None
            beside = known.get(root)
            if beside is None:
                beside = known[root] = _RememberedNames(lambda own: self._admits_both(own, root))
            return tuple(map(beside.__getitem__, tree.aggregates))

        return met_positions

    def deciding_pieces(self) -> Iterator[ProviderCondition]:
        """Yield the pieces without ``or_root``; their results in a tree include the result for its root."""
        return replace(self, or_root=False).single_pieces()


@dataclass(frozen=True, slots=True)
class MemberOf(_AggregateCondition):
    """The provider, or with ``or_root`` its root, has to be in an aggregate of each set."""

    name = "member_of"
    field = "member_of"
    words = ConditionWords(
        "are in {names}", "are not in aggregate {names}", "member_of", unknown="no provider is"
    )

    def alternative_checks(self, snapshot: ModelSnapshot) -> tuple[ProviderCheck, ...]:
        """Return two checks, of the provider and of its root; one of them has to pass for all sets."""
        own = partial(replace(self, or_root=False).met_by, snapshot=snapshot)
        if not self.or_root:
            return (own,)
        # the condition has two alternatives, so that a relaxation can leave out the sets that the provider
        # fails, or those that its root fails
        return own, lambda provider: own(snapshot.providers[provider.root_id])

    def indexed_names(self, snapshot: ModelSnapshot) -> Iterator[IndexedNames]:
        """Yield the names to look up in the index; with ``or_root``, a name at a root counts for its tree."""
        for names in self.sets:
            # the method is overridden, because an aggregate of a root counts for all providers of its tree
            yield IndexedNames(snapshot.by_aggregate, tuple(names), spans_trees=self.or_root)


@dataclass(frozen=True, slots=True)
class ForbiddenAggregates(_AggregateCondition):
    """Aggregates that must not contain the provider, nor, with ``or_root``, its root."""

    name = "forbidden_aggregates"
    field = "forbidden_aggregates"
    words = ConditionWords("are not in {names}", "are in the forbidden aggregate {names}", "member_of", "!")
    excludes = True


@dataclass(frozen=True, slots=True)
class RootRequired(RequiredTraits):
    """Traits that the root of the tree has to have."""

    name = "root_required"
    field = "root_required"
    words = ConditionWords("have {names} at the root", "lack {names} at their root", "root_required")
    of_roots = True


@dataclass(frozen=True, slots=True)
class RootForbidden(ForbiddenTraits):
    """Traits that the root of the tree must not have."""

    name = "root_forbidden"
    field = "root_forbidden"
    words = ConditionWords(
        "do not have {names} at the root",
        "have {names} at their root, which is forbidden",
        "root_required",
        "!",
    )
    of_roots = True


# these lists are in the order of explanations. Groups have a list of their own, because each request loops
# over it
GROUP_CONDITIONS: Final[Sequence[type[ProviderCondition]]] = (
    RequiredTraits,
    ForbiddenTraits,
    OutsideTraits,
    InsideTraits,
    InTree,
    MemberOf,
    ForbiddenAggregates,
)
"""The classes of conditions that groups state."""
ROOT_CONDITIONS: Final[Sequence[type[ProviderCondition]]] = (RootRequired, RootForbidden)
"""The classes of conditions that a request states about the roots of trees."""


@dataclass(frozen=True, slots=True)
class ProviderNeed:
    """A part of a request that exactly one provider of a candidate serves.

    ``unsuffixed`` is True for needs of the group without a suffix. The provider has to meet all
    ``conditions``. All providers of the group together have to meet the conditions in ``together``.
    """

    suffix: str
    resources: tuple[tuple[str, int], ...]
    conditions: tuple[ProviderCondition, ...]
    unsuffixed: bool
    together: tuple[ProviderCondition, ...] = ()

    @property
    def serving_terms(self) -> Hashable:
        """All properties of the need that decide which providers can serve it."""
        # the key is without the suffix, so that options are computed once for all groups with equal amounts
        # and conditions
        return self.resources, self.conditions

    def served_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Return whether the provider alone can serve the need, given its current usage."""
        for name, amount in self.resources:
            inventory = provider.inventories.get(name)
            if inventory is None or not inventory.accepts_amount(amount, provider.used.get(name, 0)):
                return False
        # inventories come first, because this check is faster and more providers fail it
        for condition in self.conditions:  # noqa: SIM110  # a generator costs more than most conditions
            if not condition.met_by(provider, snapshot):
                return False
        return True


def needs_of(request: CandidatesRequest) -> tuple[ProviderNeed, ...]:
    """Return all needs of the request, group by group."""
    return tuple(need for group in request.groups for need in _group_needs(group))


def _group_needs(group: RequestGroup) -> tuple[ProviderNeed, ...]:
    resources = tuple(group.resources.items())
    unsuffixed = group.suffix == ""
    # the unsuffixed group has a need for each class, because each class may come from another provider
    parts = [(resource,) for resource in resources] if unsuffixed else [resources]
    stated = group_conditions(group)
    conditions = tuple([each for each in stated if not each.met_together])
    together = tuple([each for each in stated if each.met_together])
    return tuple([ProviderNeed(group.suffix, part, conditions, unsuffixed, together) for part in parts])
