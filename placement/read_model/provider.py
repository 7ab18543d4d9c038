"""A resource provider with its inventories, as the model has it.

Resource classes, traits and aggregates are their names (interned strings), so that no search has to
translate ids.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

SHARES: Final = "MISC_SHARES_VIA_AGGREGATE"
DISABLED: Final = "COMPUTE_STATUS_DISABLED"
"""The trait that Nova's scheduler forbids by itself."""
_MAX_CAPACITY: Final = 2.0**53


def capacity(total: int, reserved: int, allocation_ratio: float) -> int:
    """What may be allocated in all: ``(total - reserved) * allocation_ratio`` without the fraction.

    Ratios may be huge, and more than any reader of JSON takes for an integer is not shown.
    """
    return int(max(-_MAX_CAPACITY, min(_MAX_CAPACITY, (total - reserved) * allocation_ratio)))


@dataclass(frozen=True, slots=True)
class Inventory:
    """How much of one resource class a provider has, and in which portions it gives it.

    Providers that have equal ones share them, so when it was written is said by the provider.
    """

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    capacity: int = field(init=False, compare=False)
    """What may be allocated in all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", capacity(self.total, self.reserved, self.allocation_ratio))

    def portions(self, amount: int) -> bool:
        """Whether ``amount`` is one that is given in one go, however much is free."""
        return self.min_unit <= amount <= self.max_unit and amount % self.step_size == 0

    def accepts(self, amount: int, used: int) -> bool:
        """Whether ``amount`` more can be allocated in one go when ``used`` is taken."""
        return self.portions(amount) and used + amount <= self.capacity


Attribute = str | float
"""What an attribute says. The service keeps it, and compares numbers."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A resource provider with all that belongs to it. Never changed, only replaced.

    ``updated_at`` is in seconds since 1970 (UTC), as all times of the model.
    """

    id: int
    uuid: str
    name: str
    generation: int
    parent_id: int | None
    root_id: int
    updated_at: float
    inventories: Mapping[str, Inventory]
    used: Mapping[str, int]
    traits: frozenset[str]
    aggregates: frozenset[str]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    described_seq: int = 0
    """Which description of it this is: another one if anything changed but how much is used."""
    inventory_times: tuple[float, ...] = ()
    """When each of its inventories was written, in their order; one time if that is the same of all."""

    def offered_at(self, name: str) -> float:
        """When its inventory of a resource class that it has was written."""
        times = self.inventory_times
        return times[0] if len(times) == 1 else times[list(self.inventories).index(name)]

    def free(self, name: str) -> int:
        """How much of a resource class that it has is not used; below zero where more is than there is."""
        return self.inventories[name].capacity - self.used.get(name, 0)


def in_order(traits: Iterable[str]) -> list[str]:
    """Traits as answers list them: the standard ones by name, then the custom ones."""
    return sorted(traits, key=lambda name: (name.startswith("CUSTOM_"), name))
