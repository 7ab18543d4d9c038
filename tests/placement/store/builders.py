"""Builds claims and inventories in the form of the store, without REST, and reads allocations of
consumers.
"""

from collections.abc import Mapping

from placement.db.database import ServiceDatabase
from placement.read_model.provider import Inventory
from placement.store import allocations
from placement.store.claims import ConsumerClaim
from placement.store.consumers import ConsumerOwnership


def build_claim(
    consumer: str,
    resources: Mapping[str, Mapping[str, int]],
    generation: int | None = None,
    consumer_type: str | None = None,
) -> ConsumerClaim:
    """A claim of these amounts by provider and resource class. Without a generation, its consumer is new."""
    return ConsumerClaim(consumer, resources, generation, ConsumerOwnership("project", "user", consumer_type))


def inventory_values(
    total: int,
    *,
    reserved: int = 0,
    min_unit: int = 1,
    max_unit: int | None = None,
    step_size: int = 1,
    allocation_ratio: float = 1.0,
) -> Inventory:
    """An inventory of which one consumer may take everything, unless the test changes a field."""
    return Inventory(
        total, reserved, min_unit, total if max_unit is None else max_unit, step_size, allocation_ratio
    )


def read_holders(database: ServiceDatabase, provider: str) -> dict[str, int]:
    """The amount of one resource class of a provider that each consumer holds."""
    with database.read() as conn:
        return {each.consumer: each.used for each in allocations.of_providers(conn, [provider])}
