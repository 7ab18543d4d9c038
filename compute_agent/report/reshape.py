"""Plans a reshape: one POST /reshaper that moves allocations together with inventories. Pure functions.

If a provider loses a resource class, allocations of the class, also of memory, move to a provider near the
consumer's CPUs. If a guest holds ``VCPU``, and each of its guest CPUs runs alone on a dedicated CPU, its
``VCPU`` becomes ``PCPU``. All other allocations stay unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderTree
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import ConsumerAllocations
from compute_agent.model.resource import MOVABLE, STOCK_NAMES
from compute_agent.report.capacity import CpuLocation, FreeCapacity, Held, total_amounts
from compute_agent.report.client import consumer_body
from compute_agent.report.plan import (
    Ownership,
    ReportedProvider,
    inventories_to_api,
    present_inventories,
    wanted_inventories,
)

_OTHER_NAME: Final = {**STOCK_NAMES, **{stock: ours for ours, stock in STOCK_NAMES.items()}}


@dataclass(frozen=True, slots=True)
class AllocationMove:
    """An amount that moves to another provider or class; ``source`` and ``target`` are uuids."""

    consumer: str
    source: str
    source_class: str
    source_amount: int
    target: str
    target_class: str
    target_amount: int


@dataclass(frozen=True, slots=True)
class InventoryChange:
    """All inventories of a provider before and after the reshape; a new provider has none before."""

    uuid: str
    before: Mapping[str, ProviderInventory] = field(hash=False)
    after: Mapping[str, ProviderInventory] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ReshapePlan:
    """One reshape. A reshape without moves needs only an ordinary report.

    :ivar inventories: the providers with changed inventories.
    :ivar allocations: for each consumer with a move, all its new allocations on this host.
    """

    moves: tuple[AllocationMove, ...] = ()
    inventories: tuple[InventoryChange, ...] = ()
    allocations: Held = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class InfeasibleReshape:
    """The reason why the present allocations cannot move to the new tree."""

    reason: str


def plan_reshape(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    owned: Ownership,
    held: Held,
    locations: Mapping[str, CpuLocation],
    zones: Mapping[str, CpuSet],
) -> ReshapePlan | InfeasibleReshape:
    """Plan the reshape from ``reported`` to ``derived``.

    If no provider of the new tree has the resource class of an allocation, the allocation cannot move. The
    agent then keeps the allocation and its inventory. Foreign classes and providers stay unchanged.

    :param derived: the new tree of the host.
    :param locations: the CPUs of the guests that run here, by consumer.
    :param zones: the CPUs of providers by uuid, including removed ones. An allocation without a guest stays
        in its zone.
    """
    if not reported:
        return ReshapePlan()
    wanted = _all_wanted(derived, reported, owned)
    planner = _ReshapePlanner(derived, wanted, held, zones)
    for consumer in sorted(held, key=lambda consumer: (_certainty_rank(locations.get(consumer)), consumer)):
        problem = planner.move_consumer(consumer, locations.get(consumer))
        if problem is not None:
            return InfeasibleReshape(f"{consumer}: {problem}")
    if not planner.moves:
        return ReshapePlan()
    for provider, resource_class in planner.stuck:
        # The inventory stays, because its allocations cannot move.
        wanted[provider][resource_class] = reported[provider].inventories[resource_class]
    changes = tuple(
        InventoryChange(uuid, before, after)
        for uuid, after in wanted.items()
        if after != (before := dict(present_inventories(uuid, reported)))
    )
    moved = {move.consumer for move in planner.moves}
    return ReshapePlan(
        tuple(planner.moves), changes, {consumer: planner.held[consumer] for consumer in sorted(moved)}
    )


def to_body(
    plan: ReshapePlan,
    reported: Mapping[str, ReportedProvider],
    records: Mapping[str, ConsumerAllocations],
) -> dict[str, Any]:
    """The body of POST /reshaper.

    :param reported: the present providers, with their generations.
    :param records: the consumers of the plan, with their allocations on all hosts.
    :raises KeyError: a provider does not exist yet, or a consumer has no record.
    """
    inventories = {
        change.uuid: {
            "resource_provider_generation": reported[change.uuid].generation,
            "inventories": inventories_to_api(change.after),
        }
        for change in plan.inventories
    }
    allocations = {}
    for consumer, here in plan.allocations.items():
        record = records[consumer]
        # The reshaper replaces all allocations of a consumer, so its allocations on other hosts are sent
        # unchanged.
        elsewhere = {uuid: amounts for uuid, amounts in record.resources.items() if uuid not in reported}
        allocations[consumer] = consumer_body(replace(record, resources={**elsewhere, **here}))
    return {"inventories": inventories, "allocations": allocations}


def _all_wanted(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> dict[str, dict[str, ProviderInventory]]:
    """The new inventories of all providers of the agent, including providers that will be deleted."""
    wanted = {node.uuid: wanted_inventories(derived, node, reported, owned) for node in derived.ours}
    for uuid, provider in reported.items():
        if uuid not in wanted and uuid in owned:
            mine = owned[uuid].classes
            wanted[uuid] = {name: kept for name, kept in provider.inventories.items() if name not in mine}
    return wanted


def _certainty_rank(location: CpuLocation | None) -> int:
    """The rank in the order of moves: guests with dedicated CPUs, other guests, then all other consumers."""
    if location is None:
        return 2
    # A guest with dedicated CPUs fits on one provider only. An allocation without a guest fits on any
    # provider.
    return 0 if location.own else 1


class _ReshapePlanner:
    """Moves consumers one by one, each into the capacity that previous consumers have left free."""

    def __init__(
        self,
        derived: ProviderTree,
        wanted: Mapping[str, Mapping[str, ProviderInventory]],
        held: Held,
        zones: Mapping[str, CpuSet],
    ) -> None:
        self.moves: list[AllocationMove] = []
        self.stuck: set[tuple[str, str]] = set()
        """The provider and resource class of each allocation that cannot move."""
        self.held = {
            consumer: {uuid: dict(amounts) for uuid, amounts in providers.items()}
            for consumer, providers in held.items()
        }
        self._free = FreeCapacity(derived, wanted, held)
        self._wanted = wanted
        self._zones = zones

    def move_consumer(self, consumer: str, location: CpuLocation | None) -> str | None:
        """Move a consumer's allocations; return None, or the reason if they exceed the free capacity."""
        sources: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        converted = self._becomes_pcpu(consumer, location)
        for uuid, resources in list(self.held[consumer].items()):
            for name, amount in list(resources.items()):
                if converted and name == "VCPU":
                    sources["VCPU", "PCPU"][uuid] = amount
                elif uuid not in self._wanted or name in self._wanted[uuid]:
                    # The provider belongs to another program, or it keeps the class. So the allocation need
                    # not move.
                    continue
                # If only the name of the class changes, between the agent's name and the standard one, amount
                # and provider stay.
                elif (other := _OTHER_NAME.get(name)) in self._wanted[uuid]:
                    # This line is for the type checker: None is not a key of the inventories.
                    assert other is not None
                    self._record_move(consumer, (name, other), {uuid: amount}, {uuid: amount})
                elif name in MOVABLE and name in self._free.homes:
                    sources[name, name][uuid] = amount
                else:
                    self.stuck.add((uuid, name))
        # VCPU becomes PCPU only for guests that held no PCPU, so that each new class comes from one old
        # class.
        amounts = {name: sum(parts.values()) for (_, name), parts in sources.items()}
        if converted and location is not None:
            # Sibling threads that the guest keeps empty also count as its PCPU.
            amounts["PCPU"] = len(location.own)
        if location is not None:
            targets = self._free.fit_amounts(self.held[consumer], amounts, location)
        else:
            # If the guest does not run, all amounts go to one zone, preferably to the present zone.
            zones = (self._zones.get(uuid, frozenset()) for parts in sources.values() for uuid in parts)
            targets = self._free.fit_together(self.held[consumer], amounts, frozenset().union(*zones))
        if isinstance(targets, str):
            return targets
        for key, parts in sources.items():
            self._record_move(consumer, key, parts, targets[key[1]])
        return None

    def _becomes_pcpu(self, consumer: str, location: CpuLocation | None) -> bool:
        if location is None or not location.pinned_vcpus or "PCPU" not in self._free.homes:
            return False
        totals = total_amounts(self.held[consumer])
        return not totals.get("PCPU") and totals.get("VCPU") == location.pinned_vcpus

    def _record_move(
        self, consumer: str, key: tuple[str, str], sources: Mapping[str, int], targets: Mapping[str, int]
    ) -> None:
        old, new = key
        mine = self.held[consumer]
        for uuid, amount in sources.items():
            self._free.take_amount(uuid, old, -amount)
            del mine[uuid][old]
            if not mine[uuid]:
                # Placement refuses a provider without amounts in an allocation.
                del mine[uuid]
        for uuid, amount in targets.items():
            there = mine.setdefault(uuid, {})
            there[new] = there.get(new, 0) + amount
            self._free.take_amount(uuid, new, amount)
        self.moves.extend(_pair_parts(consumer, old, sources, new, targets))


def _pair_parts(
    consumer: str, old: str, sources: Mapping[str, int], new: str, targets: Mapping[str, int]
) -> Iterable[AllocationMove]:
    """Make moves of old amounts to new amounts. The two totals can differ by a constant factor."""
    total_old, total_new = sum(sources.values()), sum(targets.values())
    # The amounts are exact fractions: floating-point numbers could add up to one unit more or less than was
    # held.
    factor = Fraction(total_new, total_old)
    left = {uuid: amount * factor for uuid, amount in sources.items()}
    for target, wanted in targets.items():
        needed = Fraction(wanted)
        for source in list(left):
            part = min(needed, left[source])
            if part:
                yield AllocationMove(consumer, source, old, round(part / factor), target, new, round(part))
            needed -= part
            left[source] -= part
