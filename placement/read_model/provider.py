"""A resource provider of the read model, with its inventories.

Resource classes, traits and aggregates are interned strings with their names, so that no search translates
ids.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass as value_class
else:

    def value_class(*, frozen: bool, slots: bool) -> Any:
        """Return a decorator for dataclasses that only the type checker protects from changes.

        The constructor of a frozen dataclass takes at least four times as long, and a worker makes up to a
        million objects at its start.
        """
        return dataclass(slots=slots, unsafe_hash=frozen)


SHARES: Final = "MISC_SHARES_VIA_AGGREGATE"
DISABLED: Final = "COMPUTE_STATUS_DISABLED"
"""The trait that Nova's scheduler always forbids, so that it chooses no disabled host."""
STATUS_TRAITS: Final = frozenset({DISABLED, "CUSTOM_HOST_DISABLED", "CUSTOM_WATERMARK_REACHED"})
"""The traits of a host that gets no new guests: the trait of Nova, and the traits with which the agent marks
the cause.
"""
# the largest integer that every JSON parser reads without rounding
_MAX_CAPACITY: Final = 2.0**53


def capacity(total: int, reserved: int, allocation_ratio: float) -> int:
    """Return ``(total - reserved) * allocation_ratio``, rounded down, within the integers of JSON parsers."""
    # the capacity is limited before the conversion to int, which would fail for an infinite float and be slow
    # for a huge one
    return int(max(-_MAX_CAPACITY, min(_MAX_CAPACITY, (total - reserved) * allocation_ratio)))


@dataclass(frozen=True, slots=True)
class Inventory:
    """The amount of one resource class at a provider, and the bounds of one allocation.

    The fields have the names of the columns of the database, and of the properties in bodies. Providers share
    equal inventories as one object, so the time of the last write is stored in the provider.
    """

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    # the capacity is computed once, because each search reads it. It is not compared, because the other
    # fields determine it
    capacity: int = field(init=False, compare=False)
    """The amount that can be allocated in total; it includes the amounts that are already used."""

    def __post_init__(self) -> None:
        # this call is the only way to set a field of a frozen dataclass
        object.__setattr__(self, "capacity", capacity(self.total, self.reserved, self.allocation_ratio))

    def to_values(self) -> dict[str, Any]:
        """Return the fields by name, as columns and answers have them."""
        return {
            "total": self.total,
            "reserved": self.reserved,
            "min_unit": self.min_unit,
            "max_unit": self.max_unit,
            "step_size": self.step_size,
            "allocation_ratio": self.allocation_ratio,
        }

    def is_portion(self, amount: int) -> bool:
        """Return whether min_unit, max_unit and step_size permit this amount, however much is free."""
        return self.min_unit <= amount <= self.max_unit and amount % self.step_size == 0

    def accepts_amount(self, amount: int, used: int) -> bool:
        """Return whether one allocation can have ``amount`` if ``used`` units are already in use."""
        return self.is_portion(amount) and used + amount <= self.capacity


Attribute = str | float
"""The value of an attribute: a text or a number.

Only numbers can be used to order providers.
"""


@value_class(frozen=True, slots=True)
class Provider:
    """A resource provider with inventories, traits, aggregates and usage.

    A provider object is never changed, only replaced.

    ``updated_at`` is in seconds since 1970 (UTC), like all times of the model.
    """

    id: int
    uuid: str
    name: str
    generation: int
    parent_id: int | None
    root_id: int
    updated_at: float
    # these are mappings by class name, because searches look up one class at many providers
    inventories: Mapping[str, Inventory]
    used: Mapping[str, int]
    traits: frozenset[str]
    aggregates: frozenset[str]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    described_seq: int = 0
    """The number of the provider's last change that concerned more than usage."""
    inventory_times: tuple[float, ...] = ()
    """The times of the last writes of the inventories, in the order of ``inventories``; only one time if all
    are equal.
    """

    def with_usage(self, used: Mapping[str, int]) -> "Provider":
        """Return this provider with another usage."""
        # a search within windows replaces all providers of the cloud, and dataclasses.replace() takes several
        # times as long
        return Provider(
            self.id,
            self.uuid,
            self.name,
            self.generation,
            self.parent_id,
            self.root_id,
            self.updated_at,
            self.inventories,
            used,
            self.traits,
            self.aggregates,
            self.attributes,
            self.described_seq,
            self.inventory_times,
        )

    def offered_at(self, name: str) -> float:
        """Return when the inventory of a resource class was last written, in seconds since 1970."""
        times = self.inventory_times
        return times[0] if len(times) == 1 else times[list(self.inventories).index(name)]

    def free(self, name: str) -> int:
        """Return the unused amount of a resource class; negative if usage exceeds the capacity."""
        return self.inventories[name].capacity - self.used.get(name, 0)


def in_order(traits: Iterable[str]) -> list[str]:
    """Sort traits in the order of answers: standard traits by name, then custom traits by name."""
    return sorted(traits, key=lambda name: (name.startswith("CUSTOM_"), name))
