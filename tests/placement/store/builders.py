"""Claims and inventories as the store gets them, without REST, and the allocations of consumers."""

from collections.abc import Mapping

from placement.db.database import ServiceDatabase
from placement.store import allocations
from placement.store.claims import ConsumerClaim
from placement.store.consumers import ConsumerOwnership
from placement.store.inventories import InventoryValues


def build_claim(
    consumer: str,
    resources: Mapping[str, Mapping[str, int]],
    generation: int | None = None,
    consumer_type: str | None = None,
) -> ConsumerClaim:
    """A claim of these amounts by provider and resource class; without a generation the consumer is new."""
    return ConsumerClaim(consumer, resources, generation, ConsumerOwnership("project", "user", consumer_type))


def inventory_values(
    total: int,
    *,
    reserved: int = 0,
    min_unit: int = 1,
    max_unit: int | None = None,
    step_size: int = 1,
    allocation_ratio: float = 1.0,
) -> InventoryValues:
    """An inventory that one consumer may take completely, unless a test changes that."""
    return InventoryValues(
        total, reserved, min_unit, total if max_unit is None else max_unit, step_size, allocation_ratio
    )


def read_holders(database: ServiceDatabase, provider: str) -> dict[str, int]:
    """The amount that each consumer holds of a provider, of one resource class."""
    with database.read() as conn:
        return {each.consumer: each.used for each in allocations.of_provider(conn, provider)}
