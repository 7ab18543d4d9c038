"""Data model of a world: providers and allocations at the start of a file of requests."""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Inventory: TypeAlias = Mapping[str, float]
"""Fields of one inventory: ``total``, and those that differ from the default."""


def identifier(variable: str) -> str:
    """Return the UUID in an environment variable; the UUID is the same in each run."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, variable))


@dataclass(frozen=True, slots=True)
class Provider:
    """A resource provider.

    Identifiers are names of environment variables that hold UUIDs for the requests.

        :param variable: the provider's own
        :param parent: its parent's
        :param aggregates: those of the aggregates that it is a member of
    """

    variable: str
    name: str
    parent: str | None = None
    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocation:
    """One consumer's allocation from one provider; names are environment variables as above."""

    consumer: str
    project: str
    user: str
    provider: str
    resources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FixtureWorld:
    """Providers, each after its parent, and allocations."""

    providers: tuple[Provider, ...] = ()
    allocations: tuple[Allocation, ...] = ()

    def variables(self) -> Iterator[str]:
        """Names of the environment variables with this world's UUIDs, with duplicates."""
        for provider in self.providers:
            yield provider.variable
            yield from provider.aggregates
        for allocation in self.allocations:
            yield from (allocation.consumer, allocation.project, allocation.user)
