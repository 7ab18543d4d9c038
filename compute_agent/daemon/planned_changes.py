"""What is to be changed, in words for a person who decides whether it shall be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from compute_agent.inventory.provider_tree import ProviderInventory
from compute_agent.report.plan import (
    Action,
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    DeleteProvider,
    ReportedProvider,
    SetInventories,
    SetTraits,
    UpdateProvider,
    to_api,
)
from compute_agent.report.reshape import AllocationMove

PLACEMENT: Final = "placement"

_TRAITS_IN_A_ROW: Final = 4


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One change: ``where`` (placement, or the name of a controller), whose, and what."""

    where: str
    subject: str
    change: str


def of_move(move: AllocationMove, names: Mapping[str, str]) -> PlannedChange:
    """A part of an allocation that goes elsewhere; ``names`` are those of providers by uuid."""
    source = f"{move.source_class} {move.source_amount} of {names.get(move.source, move.source)}"
    target = f"{move.target_class} {move.target_amount} of {names.get(move.target, move.target)}"
    return PlannedChange(PLACEMENT, move.consumer, f"allocation {source} -> {target}")


def of_action(
    action: Action, reported: Mapping[str, ReportedProvider], names: Mapping[str, str]
) -> Iterator[PlannedChange]:
    """What a request would change."""
    match action:
        case CreateResourceClass(name):
            yield PlannedChange(PLACEMENT, name, "resource class, new")
        case CreateTrait(name):
            yield PlannedChange(PLACEMENT, name, "trait, new")
        case CreateProvider(_, name, parent):
            below = f" below {names.get(parent, parent)}" if parent else ""
            yield PlannedChange(PLACEMENT, name, f"provider, new{below}")
        case UpdateProvider(uuid, name, parent):
            below = f" below {names.get(parent, parent)}" if parent else ", a root"
            yield PlannedChange(PLACEMENT, reported[uuid].name, f"provider -> {name}{below}")
        case DeleteProvider(uuid):
            yield PlannedChange(PLACEMENT, names.get(uuid, uuid), "provider, deleted")
        case SetInventories(uuid, inventories):
            before = reported[uuid].inventories if uuid in reported else {}
            for name in sorted({*before, *inventories}):
                if before.get(name) != inventories.get(name):
                    change = f"{name} {_amounts(before.get(name))} -> {_amounts(inventories.get(name))}"
                    yield PlannedChange(PLACEMENT, names.get(uuid, uuid), change)
        case SetTraits(uuid, traits):
            had = reported[uuid].traits if uuid in reported else frozenset[str]()
            signs = [*(f"+{name}" for name in sorted(traits - had)), *(f"-{n}" for n in sorted(had - traits))]
            for few in zip_longest(*[iter(signs)] * _TRAITS_IN_A_ROW, fillvalue=""):
                yield PlannedChange(PLACEMENT, names.get(uuid, uuid), f"traits {' '.join(few).strip()}")


def _amounts(inventory: ProviderInventory | None) -> str:
    """An inventory in short: its total, and what is not as usual."""
    if inventory is None:
        return "none"
    amounts = to_api(inventory)
    reserved = f", reserved {amounts['reserved']}" if amounts["reserved"] else ""
    ratio = f", times {amounts['allocation_ratio']:g}" if amounts["allocation_ratio"] != 1 else ""
    return f"{amounts['total']}{reserved}{ratio}"
