"""What a single provider has to offer: the parts into which a request falls.

A suffixed group is one :class:`Need`, served by one provider. The group without
a suffix falls into one need per resource class, as each class may come from
another provider.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from placement.candidates.request import CandidatesRequest, RequestGroup
from placement.model.world import Provider, World


@dataclass(frozen=True, slots=True)
class Need:
    """Something that exactly one provider of a candidate serves.

    ``collective`` marks the needs of the group without a suffix: the traits it
    requires are looked for on all its providers together, so that a need has
    none of its own, and the aggregates of a root count for its whole tree.
    """

    suffix: str
    resources: tuple[tuple[str, int], ...]
    required: tuple[frozenset[str], ...]
    forbidden: frozenset[str]
    member_of: tuple[frozenset[str], ...]
    forbidden_aggregates: frozenset[str]
    in_tree: str | None
    collective: bool

    @property
    def terms(self) -> Hashable:
        """All that decides on who can serve it."""
        traits = self.required, self.forbidden
        return (
            self.resources,
            *traits,
            self.member_of,
            self.forbidden_aggregates,
            self.in_tree,
            self.collective,
        )

    def served_by(self, provider: Provider, world: World) -> bool:
        """Whether the provider has what is needed, all by itself and as it is used now."""
        return self.suits(provider, world) and all(
            provider.used.get(name, 0) + amount <= provider.inventories[name].capacity
            for name, amount in self.resources
        )

    def suits(self, provider: Provider, world: World) -> bool:
        """Whether the provider, with nothing used, may have what is needed.

        What its inventories hold is not looked at, only in which portions they give it.
        """
        for name, amount in self.resources:
            inventory = provider.inventories.get(name)
            if inventory is None or not inventory.portions(amount):
                return False
        traits = provider.traits
        if not traits.isdisjoint(self.forbidden) or any(map(traits.isdisjoint, self.required)):
            return False
        return self._in_aggregates(provider, world) and self._in_tree(provider, world)

    def _in_aggregates(self, provider: Provider, world: World) -> bool:
        if not self.member_of and not self.forbidden_aggregates:
            return True
        memberships = [provider.aggregates]
        if self.collective:
            memberships.append(world.providers[provider.root_id].aggregates)
        # the provider or its root, but one of them alone has to be in all of the aggregates
        return all(map(self.forbidden_aggregates.isdisjoint, memberships)) and any(
            not any(map(aggregates.isdisjoint, self.member_of)) for aggregates in memberships
        )

    def _in_tree(self, provider: Provider, world: World) -> bool:
        if self.in_tree is None:
            return True
        member = world.get(self.in_tree)
        return member is not None and member.root_id == provider.root_id


def needs_of(request: CandidatesRequest) -> tuple[Need, ...]:
    """All needs of the request, group by group."""
    return tuple(need for group in request.groups for need in _needs_of_group(group))


def _needs_of_group(group: RequestGroup) -> tuple[Need, ...]:
    resources = tuple(group.resources.items())
    collective = group.suffix == ""
    return tuple(
        Need(
            suffix=group.suffix,
            resources=part,
            required=() if collective else group.required,
            forbidden=group.forbidden,
            member_of=group.member_of,
            forbidden_aggregates=group.forbidden_aggregates,
            in_tree=group.in_tree,
            collective=collective,
        )
        for part in (((resource,) for resource in resources) if collective else (resources,))
    )
