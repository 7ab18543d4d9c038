"""What a single provider has to offer: the parts into which a request falls.

A suffixed group is one :class:`Need`, served by one provider. The group without
a suffix falls into one need per resource class, as each class may come from
another provider.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from placement.candidates.conditions import HasTraits, InAggregates, InTree, ProviderCondition
from placement.candidates.request import CandidatesRequest, RequestGroup
from placement.model.provider import Provider
from placement.model.snapshot import ModelSnapshot


@dataclass(frozen=True, slots=True)
class ProviderNeed:
    """Something that exactly one provider of a candidate serves.

    ``unsuffixed`` marks the needs of the group without a suffix: the traits it requires are looked for on
    all its providers together (:attr:`~placement.candidates.rules.RequestRules.unsuffixed_traits`), so that
    a need has none of its own, and the aggregates of a root count for its whole tree.
    """

    suffix: str
    resources: tuple[tuple[str, int], ...]
    conditions: tuple[ProviderCondition, ...]
    unsuffixed: bool

    @property
    def terms(self) -> Hashable:
        """All that decides on who can serve it."""
        return self.resources, self.conditions

    def served_by(self, provider: Provider, snapshot: ModelSnapshot) -> bool:
        """Whether the provider has what is needed, all by itself and as it is used now."""
        for name, amount in self.resources:
            inventory = provider.inventories.get(name)
            if inventory is None or not inventory.accepts(amount, provider.used.get(name, 0)):
                return False
        for condition in self.conditions:  # noqa: SIM110  # a generator costs more than most conditions
            if not condition.met_by(provider, snapshot):
                return False
        return True


def needs_of(request: CandidatesRequest) -> tuple[ProviderNeed, ...]:
    """All needs of the request, group by group."""
    return tuple(need for group in request.groups for need in _needs_of_group(group))


def _needs_of_group(group: RequestGroup) -> tuple[ProviderNeed, ...]:
    resources = tuple(group.resources.items())
    unsuffixed = group.suffix == ""
    parts = [(resource,) for resource in resources] if unsuffixed else [resources]
    conditions = tuple(_conditions_of(group, unsuffixed=unsuffixed))
    return tuple(ProviderNeed(group.suffix, part, conditions, unsuffixed) for part in parts)


def _conditions_of(group: RequestGroup, *, unsuffixed: bool) -> Iterator[ProviderCondition]:
    """What each provider of the group has to be."""
    required = () if unsuffixed else group.required
    if required or group.forbidden:
        yield HasTraits(required, group.forbidden)
    if group.member_of or group.forbidden_aggregates:
        yield InAggregates(group.member_of, group.forbidden_aggregates, or_root=unsuffixed)
    if group.in_tree is not None:
        yield InTree(group.in_tree)
