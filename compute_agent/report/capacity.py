"""Finds providers of a host for amounts of resource classes, near the CPUs of a guest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import os_traits

from compute_agent.inventory.derive import spread_amount
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuSet

Amounts = Mapping[str, int]
"""Amounts by resource class."""

Held = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Allocations on the host's providers: amounts by consumer, by provider uuid and by resource class."""


@dataclass(frozen=True, slots=True)
class CpuLocation:
    """The CPUs of a running guest.

    :ivar own: the dedicated CPUs of this guest: CPUs that it uses, and siblings that are kept empty.
    :ivar floating: the other CPUs on which the guest can run.
    :ivar pinned_vcpus: the number of guest CPUs that are pinned to CPUs in ``own``.
    """

    own: CpuSet = frozenset()
    floating: CpuSet = frozenset()
    pinned_vcpus: int = 0


def total_amounts(allocation: Mapping[str, Amounts]) -> dict[str, int]:
    """The amounts of an allocation by resource class, summed over all providers."""
    amounts: Counter[str] = Counter()
    for resources in allocation.values():
        amounts.update(resources)
    return dict(amounts)


class FreeCapacity:
    """The free amounts of the providers of a host. Finds providers for the amounts that a guest needs."""

    def __init__(
        self, derived: ProviderTree, inventories: Mapping[str, Mapping[str, ProviderInventory]], held: Held
    ) -> None:
        """Compute the free amounts from inventories and allocations."""
        self.homes = _provider_homes(derived)
        """The providers of each resource class, each with the CPUs that are nearest to it."""
        self._names = {node.uuid: node.name for node in derived.nodes}
        self._inventories = inventories
        self._leaves = _leaf_cpus(derived)
        self._used: defaultdict[tuple[str, str], int] = defaultdict(int)
        for providers in held.values():
            for uuid, amounts in providers.items():
                for name, amount in amounts.items():
                    self._used[uuid, name] += amount

    def take_amount(self, uuid: str, name: str, amount: int) -> None:
        """Count an amount of a provider's resource class as used; a negative amount becomes free again."""
        self._used[uuid, name] += amount

    def fit_together(
        self, has: Mapping[str, Amounts], amounts: Amounts, origin: CpuSet
    ) -> dict[str, dict[str, int]] | str:
        """Find providers for the amounts of a consumer that has no running guest.

        All amounts come from one zone if any zone has enough. Zones with more CPUs of ``origin`` are tried
        first. Otherwise the amounts are divided over several zones, near ``origin``.

        :param origin: the CPUs of the consumer's present providers.
        """
        for leaf in sorted(self._leaves, key=lambda cpus: -len(cpus & origin)):
            found = self.fit_amounts(has, amounts, CpuLocation(leaf, leaf), exactly=True)
            if not isinstance(found, str):
                return found
        return self.fit_amounts(has, amounts, CpuLocation(origin, origin))

    def fit_amounts(
        self, has: Mapping[str, Amounts], amounts: Amounts, location: CpuLocation, exactly: bool = False
    ) -> dict[str, dict[str, int]] | str:
        """Find providers for the amounts, near the CPUs of a guest.

        Amounts that exceed the free amounts of the nearest providers go to other providers.

        :param has: the present allocations of the consumer, by provider and resource class.
        :param amounts: the wanted amounts by resource class.
        :param exactly: whether the nearest providers have to have all amounts.
        :return: the amounts by resource class and provider, or the reason why the free amounts are too small.
        """
        found = {}
        for name, amount in amounts.items():
            homes = self.homes.get(name, {})
            # VCPU stands for shared CPUs, so its provider should be near the CPUs on which the guest floats.
            cpus = (
                (location.floating or location.own) if name == "VCPU" else (location.own or location.floating)
            )
            free = [self._free_amount(has, uuid, name) for uuid in homes]
            parts = _share(amount, [len(cpus & home) for home in homes.values()], free, exactly)
            if parts is None:
                text = ", ".join(self._free_words(has, uuid, name) for uuid in homes) or "none"
                return f"there is no room for {amount} {name} (free: {text})"
            found[name] = {uuid: part for uuid, part in zip(homes, parts, strict=True) if part}
        return found

    def _free_amount(self, has: Mapping[str, Amounts], uuid: str, name: str) -> int:
        """The amount of a resource class that a consumer can still take from a provider."""
        return min(self._unused_amount(uuid, name), self._allowed_amount(has, uuid, name))

    def _free_words(self, has: Mapping[str, Amounts], uuid: str, name: str) -> str:
        """The name of a provider and its free amount, with ``max_unit`` if it allows the consumer less."""
        unused = self._unused_amount(uuid, name)
        words = f"{self._names[uuid]} {unused}"
        if self._allowed_amount(has, uuid, name) >= unused:
            return words
        return f"{words}, but at most {self._inventories[uuid][name].max_unit} in one allocation"

    def _unused_amount(self, uuid: str, name: str) -> int:
        """The amount of a resource class of a provider that no consumer holds."""
        inventory = self._inventories.get(uuid, {}).get(name)
        if inventory is None:
            return 0  # the provider is derived but not reported yet
        # Placement, too, rounds the capacity down to an integer.
        capacity = int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
        # The capacity can be below the use, because ratios and reserves change while guests hold amounts.
        return max(0, capacity - self._used[uuid, name])

    def _allowed_amount(self, has: Mapping[str, Amounts], uuid: str, name: str) -> int:
        """The amount that ``max_unit`` still allows a consumer to take from a provider."""
        inventory = self._inventories.get(uuid, {}).get(name)
        # max_unit limits the whole allocation of a consumer on a provider.
        return 0 if inventory is None else max(0, inventory.max_unit - has.get(uuid, {}).get(name, 0))


def _provider_homes(derived: ProviderTree) -> dict[str, dict[str, CpuSet]]:
    """The providers of each class, each with its nearest CPUs.

    A CPU counts only for its innermost provider.
    """
    parents = {node.uuid: node.parent for node in derived.nodes}

    def zone_depth(node: ProviderNode) -> tuple[int, bool]:
        depth, parent = 0, node.parent
        while parent is not None:
            depth, parent = depth + 1, parents[parent]
        # The deepest providers first; at one depth, NUMA nodes before caches that span two of them.
        return -depth, os_traits.HW_NUMA_ROOT not in node.traits

    found: dict[str, dict[str, CpuSet]] = {}
    for name in {name for node in derived.nodes for name in node.inventories}:
        taken: CpuSet = frozenset()
        homes: dict[str, CpuSet] = {}
        for node in sorted(derived.providers_of(name), key=zone_depth):
            homes[node.uuid] = node.cpus - taken
            taken |= node.cpus
        found[name] = {node.uuid: homes[node.uuid] for node in derived.providers_of(name)}
    return found


def _leaf_cpus(derived: ProviderTree) -> tuple[CpuSet, ...]:
    """The CPUs of each innermost zone without those of pools, then the CPUs of each pool, in tree order."""
    pools = [node for node in derived.nodes if node.pool]
    pooled = frozenset[int]().union(*(node.cpus for node in pools))
    # Providers of devices have no CPUs, so a zone with only devices below it is an innermost zone.
    parents = {node.parent for node in derived.nodes if not (node.pool or node.device)}
    rests = [node.cpus - pooled for node in derived.nodes if node.uuid not in parents and not node.pool]
    return tuple(cpus for cpus in (*rests, *(node.cpus for node in pools)) if cpus)


def _share(amount: int, weights: Sequence[int], free: Sequence[int], exactly: bool) -> list[int] | None:
    """Divide ``amount`` in proportion to ``weights``; no part exceeds the free amount at the same index.

    Remainders go to the indexes with the highest weights; of equal weights, the first indexes come first. The
    result is None if not enough is free. With ``exactly``, the result is also None if a proportional part
    exceeds the free amount at its index.
    """
    # If all weights are 0, all parts are 0 here, and the first indexes with free amounts get everything.
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
