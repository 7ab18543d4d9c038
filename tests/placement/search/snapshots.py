"""Builds snapshots for tests of candidates, from one line for each provider."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.claims.claim import ClaimScenario, KnownSearches
from placement.search.claims.topology import Distances

NAMESPACE = uuid.UUID("c0ffee00-0000-4000-8000-000000000000")


def name_to_uuid(name: str) -> str:
    """The uuid of the provider or aggregate with this name."""
    return str(uuid.uuid5(NAMESPACE, name))


@dataclass(frozen=True)
class Spec:
    """A provider in a test: the names of itself and its parent, its inventories and its usage."""

    name: str
    parent: str | None = None
    inventories: Mapping[str, int | Inventory] = field(default_factory=dict)
    traits: Iterable[str] = ()
    aggregates: Iterable[str] = ()
    used: Mapping[str, int] = field(default_factory=dict)


def inventory(
    total: int,
    *,
    reserved: int = 0,
    min_unit: int = 1,
    max_unit: int = 2**31 - 1,
    step_size: int = 1,
    allocation_ratio: float = 1.0,
) -> Inventory:
    """An inventory with the defaults of the API."""
    return Inventory(total, reserved, min_unit, max_unit, step_size, allocation_ratio)


def build(*specs: Spec) -> ModelSnapshot:
    """A snapshot with these providers, parents before children. Their ids count from 1."""
    ids: dict[str, int] = {}
    roots: dict[str, int] = {}
    snapshot = ModelSnapshot()
    for provider_id, spec in enumerate(specs, start=1):
        ids[spec.name] = provider_id
        roots[spec.name] = provider_id if spec.parent is None else roots[spec.parent]
        snapshot.put(
            Provider(
                id=provider_id,
                uuid=name_to_uuid(spec.name),
                name=spec.name,
                generation=0,
                parent_id=None if spec.parent is None else ids[spec.parent],
                root_id=roots[spec.name],
                updated_at=0.0,
                inventories={
                    name: inventory(amount) if isinstance(amount, int) else amount
                    for name, amount in spec.inventories.items()
                },
                used=dict(spec.used),
                traits=frozenset(spec.traits),
                aggregates=frozenset(map(name_to_uuid, spec.aggregates)),
                inventory_times=(0.0,) if spec.inventories else (),
            )
        )
    return snapshot


def build_scenario(
    snapshot: ModelSnapshot,
    groups: Mapping[str, Mapping[int, int]] | None = None,
    distances: Distances | None = None,
) -> ClaimScenario:
    """Build the scenario of a claim from the members of groups by host, and from distances of zones."""
    return ClaimScenario(snapshot, KnownSearches(snapshot), groups or {}, distances or {})
