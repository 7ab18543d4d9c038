"""Where amounts of resource classes go on a host: where the guest's CPUs are, as far as there is capacity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import os_traits

from compute_agent.inventory.derive import spread_amount
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuSet

Held = Mapping[str, Mapping[str, Mapping[str, int]]]
"""What consumers hold on the host's providers: amounts by consumer, provider and resource class."""


@dataclass(frozen=True, slots=True)
class CpuLocation:
    """Where a running guest is.

    ``own`` are CPUs of the dedicated set that no other guest runs on: those it uses and the siblings it keeps
    empty. ``floating`` are the other CPUs it may run on. ``pinned_vcpus`` is how many guest CPUs run pinned
    on ``own``.
    """

    own: CpuSet = frozenset()
    floating: CpuSet = frozenset()
    pinned_vcpus: int = 0


class FreeCapacity:
    """The free amounts of the providers of a host, and placement of needs on them."""

    def __init__(
        self, derived: ProviderTree, inventories: Mapping[str, Mapping[str, ProviderInventory]], held: Held
    ) -> None:
        """``inventories`` are those that count, by provider of ``derived``."""
        self.homes = _homes(derived)
        """The providers of each resource class, with the CPUs that are nearest to them."""
        self._names = {node.uuid: node.name for node in derived.nodes}
        self._inventories = inventories
        self._leaves = _leaves(derived)
        self._used: defaultdict[tuple[str, str], int] = defaultdict(int)
        for providers in held.values():
            for uuid, amounts in providers.items():
                for name, amount in amounts.items():
                    self._used[uuid, name] += amount

    def take(self, uuid: str, name: str, amount: int) -> None:
        """There is so much less; more if the amount is negative."""
        self._used[uuid, name] += amount

    def fit(
        self, has: Mapping[str, Mapping[str, int]], amounts: Mapping[str, int], location: CpuLocation
    ) -> dict[str, dict[str, int]] | str:
        """Amounts by provider for each resource class, where the guest's CPUs are; or why they do not fit.

        ``has`` is what the consumer holds already. Parts for whose class there is none left at their location
        go elsewhere.
        """
        return self._fit(has, amounts, location, exactly=False)

    def fit_together(
        self, has: Mapping[str, Mapping[str, int]], amounts: Mapping[str, int], origin: CpuSet
    ) -> dict[str, dict[str, int]] | str:
        """Place a need that may be anywhere.

        All in one zone if one has enough, rather in one with many CPUs of ``origin``.
        """
        for leaf in sorted(self._leaves, key=lambda cpus: -len(cpus & origin)):
            found = self._fit(has, amounts, CpuLocation(leaf, leaf), exactly=True)
            if not isinstance(found, str):
                return found
        return self._fit(has, amounts, CpuLocation(origin, origin), exactly=False)

    def _fit(
        self,
        has: Mapping[str, Mapping[str, int]],
        amounts: Mapping[str, int],
        location: CpuLocation,
        exactly: bool,
    ) -> dict[str, dict[str, int]] | str:
        found = {}
        for name, amount in amounts.items():
            homes = self.homes.get(name, {})
            cpus = (
                (location.floating or location.own) if name == "VCPU" else (location.own or location.floating)
            )
            free = [self._left(has, uuid, name) for uuid in homes]
            parts = _share(amount, [len(cpus & home) for home in homes.values()], free, exactly)
            if parts is None:
                amounts_left = (f"{self._names[uuid]} {left}" for uuid, left in zip(homes, free, strict=True))
                text = ", ".join(amounts_left) or "none"
                return f"there is no room for {amount} {name} (free: {text})"
            found[name] = {uuid: part for uuid, part in zip(homes, parts, strict=True) if part}
        return found

    def _left(self, has: Mapping[str, Mapping[str, int]], uuid: str, name: str) -> int:
        """How much more of a class a consumer may take from a provider."""
        inventory = self._inventories.get(uuid, {}).get(name)
        if inventory is None:
            return 0  # derived, but not reported so far
        capacity = int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
        mine = has.get(uuid, {}).get(name, 0)
        return max(0, min(capacity - self._used[uuid, name], inventory.max_unit - mine))


def _homes(derived: ProviderTree) -> dict[str, dict[str, CpuSet]]:
    """The providers of each resource class, with the CPUs nearest to them.

    Each CPU is with the innermost provider around it, and with the NUMA node where two zones cross.
    """
    parents = {node.uuid: node.parent for node in derived.nodes}

    def nearness(node: ProviderNode) -> tuple[int, bool]:
        depth, parent = 0, node.parent
        while parent is not None:
            depth, parent = depth + 1, parents[parent]
        return -depth, os_traits.HW_NUMA_ROOT not in node.traits

    found: dict[str, dict[str, CpuSet]] = {}
    for name in {name for node in derived.nodes for name in node.inventories}:
        taken: CpuSet = frozenset()
        homes: dict[str, CpuSet] = {}
        for node in sorted(derived.providers_of(name), key=nearness):
            homes[node.uuid] = node.cpus - taken
            taken |= node.cpus
        found[name] = {node.uuid: homes[node.uuid] for node in derived.providers_of(name)}
    return found


def _leaves(derived: ProviderTree) -> tuple[CpuSet, ...]:
    """The CPUs of the innermost zones without their pools, then those of pools, in the order of the tree.

    Providers of devices have no CPUs, so a zone with devices alone below it is an innermost one.
    """
    pools = [node for node in derived.nodes if node.pool]
    pooled = frozenset[int]().union(*(node.cpus for node in pools))
    parents = {node.parent for node in derived.nodes if not (node.pool or node.device)}
    rests = [node.cpus - pooled for node in derived.nodes if node.uuid not in parents and not node.pool]
    return tuple(cpus for cpus in (*rests, *(node.cpus for node in pools)) if cpus)


def _share(
    amount: int, weights: Sequence[int], free: Sequence[int], exactly: bool = False
) -> list[int] | None:
    """``amount`` in parts proportional to ``weights``, none above what is free.

    What does not fit there goes to those with the most weight, or first in order. None if there is not enough
    free; with ``exactly`` also if parts would have to go elsewhere.
    """
    if not any(weights):
        weights = [0] * len(free)
        ideal = list(weights)
    else:
        ideal = spread_amount(amount, [weight * amount for weight in weights])
    parts = [min(part, left) for part, left in zip(ideal, free, strict=True)]
    missing = amount - sum(parts)
    if missing and exactly:
        return None
    for index in sorted(range(len(parts)), key=lambda index: -weights[index]):
        more = min(missing, free[index] - parts[index])
        parts[index] += more
        missing -= more
    return None if missing else parts
