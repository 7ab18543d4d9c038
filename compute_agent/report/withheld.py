"""Amounts that are not to be sold although they are there, reserved as far as nobody holds them.

A pure function; the generation that is written with tells whether somebody has claimed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.messages import called
from compute_agent.report.plan import Ownership, ReportedProvider, settled_inventories


@dataclass(frozen=True, slots=True)
class WithheldUnits:
    """What became of ``asked`` units of a class that a provider is to withhold.

    ``own`` is what is reserved anyway, ``reserved`` all that is then, ``held`` what is held at ``ratio``.
    ``foreign``: somebody set ``reserved`` through the API, and that stays.
    """

    uuid: str
    name: str
    resource_class: str
    asked: int
    own: int
    reserved: int
    held: int
    ratio: float
    foreign: bool = False

    @property
    def in_full(self) -> bool:
        """Whether all is withheld that is to be."""
        return not self.foreign and self.reserved >= self.own + self.asked

    @property
    def words(self) -> str:
        """What became of it."""
        if self.foreign:
            return (
                f"reserved of {self.resource_class} was set to {self.reserved} through the API and stays:"
                f" nothing is withheld; with {self.own + self.asked} it would be"
            )
        if self.in_full:
            return f"reserved of {self.resource_class}, {self.own} of it anyway"
        return (
            f"reserved of {self.resource_class}, {self.own} of it anyway: no more can be, as {self.held} are"
            f" held at an allocation ratio of {self.ratio:g}"
        )

    def __str__(self) -> str:
        return f"{called(self.name, self.uuid)}: {self.asked} are withheld; {self.reserved} {self.words}"


def keep_withheld(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    owned: Ownership,
    held: Callable[[str, str], int],
) -> tuple[ProviderTree, tuple[WithheldUnits, ...]]:
    """The tree with as much reserved of what is to be withheld as can be, and what became of it.

    ``held`` tells how much of a class is held of a provider; it is asked only where something is withheld.
    """
    nodes: list[ProviderNode] = []
    found: list[WithheldUnits] = []
    for node in derived.nodes:
        for name, asked in node.withheld.items():
            own = node.inventories.get(name)
            if own is None or asked <= 0:
                continue
            there = reported[node.uuid].inventories.get(name) if node.uuid in reported else None
            ratio = own.allocation_ratio
            if there is not None and (name, "allocation_ratio") not in derived.configured:
                ratio = there.allocation_ratio
            used = held(node.uuid, name) if there is not None else 0
            most = min(own.reserved + asked, most_reserved(own, ratio, used))
            node = replace(node, inventories={**node.inventories, name: replace(own, reserved=most)})
            settled = settled_inventories(derived, node, reported, owned)[name]
            foreign = "reserved" in settled.kept
            reserved = settled.inventory.reserved
            found.append(
                WithheldUnits(node.uuid, node.name, name, asked, own.reserved, reserved, used, ratio, foreign)
            )
        nodes.append(node)
    return replace(derived, nodes=tuple(nodes)), tuple(found)


def most_reserved(inventory: ProviderInventory, ratio: float, used: int) -> int:
    """The most that can be reserved so that the capacity stays what is used or more.

    Capacity is (total - reserved) times the ratio, as Placement has it. Never less than is reserved anyway.
    """
    low, high = inventory.reserved, max(inventory.reserved, inventory.total)
    while low < high:
        middle = (low + high + 1) // 2
        if int((inventory.total - middle) * ratio) >= used:
            low = middle
        else:
            high = middle - 1
    return low
