"""A resource provider of the read model, with its inventories.

Resource classes, traits and aggregates are names (interned strings), so that no search translates ids.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

SHARES: Final = "MISC_SHARES_VIA_AGGREGATE"
DISABLED: Final = "COMPUTE_STATUS_DISABLED"
"""The trait that Nova's scheduler always forbids."""
# the largest integer that every JSON parser reads without rounding
_MAX_CAPACITY: Final = 2.0**53


def capacity(total: int, reserved: int, allocation_ratio: float) -> int:
    """Return the amount that may be allocated: ``(total - reserved) * allocation_ratio``, rounded down.

    Ratios may be huge, so the result is limited to integers that every JSON parser reads.
    """
    # limited as a float, because converting an infinite or huge product to an integer would fail or be slow
    return int(max(-_MAX_CAPACITY, min(_MAX_CAPACITY, (total - reserved) * allocation_ratio)))


@dataclass(frozen=True, slots=True)
class Inventory:
    """The amount of one resource class at a provider, and the portions that guests may take.

    Providers share equal inventories as one object, so the time of the last write belongs to the provider.
    """

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    # computed once, because each search reads it; not compared, because it follows from the other fields
    capacity: int = field(init=False, compare=False)
    """The amount that may be allocated in total, whether it is used or not."""

    def __post_init__(self) -> None:
        # the class is frozen, even for this method
        object.__setattr__(self, "capacity", capacity(self.total, self.reserved, self.allocation_ratio))

    def is_portion(self, amount: int) -> bool:
        """Return whether one allocation can have ``amount``, regardless of the free amount."""
        return self.min_unit <= amount <= self.max_unit and amount % self.step_size == 0

    def accepts_amount(self, amount: int, used: int) -> bool:
        """Return whether one allocation can have ``amount`` beside a usage of ``used``."""
        return self.is_portion(amount) and used + amount <= self.capacity


Attribute = str | float
"""The value of an attribute, a text or a number. The service orders providers by numbers only."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A resource provider with inventories, traits, aggregates and usage.

    A provider is never changed, only replaced.

    ``updated_at`` is in seconds since 1970 (UTC), like all times of the model.
    """

    id: int
    uuid: str
    name: str
    generation: int
    parent_id: int | None
    root_id: int
    updated_at: float
    # mappings by name, because searches ask for one class of many providers
    inventories: Mapping[str, Inventory]
    used: Mapping[str, int]
    traits: frozenset[str]
    aggregates: frozenset[str]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    described_seq: int = 0
    """The version of the provider's description, which changes with everything but usage."""
    inventory_times: tuple[float, ...] = ()
    """The time when each inventory of the provider was written, in their order; one time if all are equal."""

    def offered_at(self, name: str) -> float:
        """Return the time of the last write of the inventory of a class."""
        times = self.inventory_times
        return times[0] if len(times) == 1 else times[list(self.inventories).index(name)]

    def free(self, name: str) -> int:
        """Return the unused amount of a resource class; negative if more than the capacity is used."""
        return self.inventories[name].capacity - self.used.get(name, 0)


def in_order(traits: Iterable[str]) -> list[str]:
    """Return traits in the order of answers: standard traits by name, then custom ones by name."""
    return sorted(traits, key=lambda name: (name.startswith("CUSTOM_"), name))
