"""What a world is: the providers and allocations that a file of requests starts from."""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Inventory: TypeAlias = Mapping[str, float]
"""The fields of one inventory: ``total``, and those that are not as they are by default."""


def identifier(variable: str) -> str:
    """The UUID that an environment variable holds; the same in every run."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, variable))


@dataclass(frozen=True, slots=True)
class Provider:
    """A resource provider.

    ``variable`` is the environment variable in which the requests look for its
    UUID, ``parent`` that of the provider above it, and ``aggregates`` those
    of the aggregates that it is in.
    """

    variable: str
    name: str
    parent: str | None = None
    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a consumer has of one provider; names are environment variables as above."""

    consumer: str
    project: str
    user: str
    provider: str
    resources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FixtureWorld:
    """Providers, each of them after its parent, and allocations."""

    providers: tuple[Provider, ...] = ()
    allocations: tuple[Allocation, ...] = ()

    def variables(self) -> Iterator[str]:
        """The environment variables that hold this world's UUIDs, some of them twice."""
        for provider in self.providers:
            yield provider.variable
            yield from provider.aggregates
        for allocation in self.allocations:
            yield from (allocation.consumer, allocation.project, allocation.user)
