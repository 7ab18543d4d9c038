"""The amounts of a resource class that a provider can give to one guest (its *room*)."""

from dataclasses import dataclass

from placement.read_model.provider import Inventory


@dataclass(frozen=True, slots=True, order=True)
class ZoneRoom:
    """The amounts of a class that a provider can give: multiples of ``step`` from ``least`` to ``most``."""

    provider: int
    least: int
    most: int
    step: int

    @classmethod
    def from_inventory(cls, provider: int, inventory: Inventory, free: int, taken: int = 0) -> "ZoneRoom":
        """Return the possible amounts of a provider with this free amount.

        :param taken: the amount of the class that other groups of the same consumer take from the provider.
        """
        step = inventory.step_size
        # one allocation has this amount and ``taken``, so min_unit, max_unit and step_size apply to the sum
        # of both amounts
        least = -(-max(1, inventory.min_unit - taken) // step) * step
        most = max(0, min(free, inventory.max_unit) - taken) // step * step
        return cls(provider, least, most, step)
