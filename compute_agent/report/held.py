"""What is held of what is to be offered otherwise or not any more: pages in memory, CPUs, what files add."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.messages import called
from compute_agent.model.resource import OWN_CLASSES
from compute_agent.report.huge_pages import keep_held_memory
from compute_agent.report.plan import OwnedNames, Ownership, ReportedProvider
from compute_agent.report.pools import keep_held_cpus
from compute_agent.report.withheld import WithheldUnits, keep_withheld


@dataclass(frozen=True, slots=True)
class WithheldOffers:
    """What is not offered so far, a sentence each.

    ``pages`` are huge pages whose memory is held, ``cpus`` those of pools that guests of others hold.
    ``removed`` are classes that no file adds any more, and that somebody holds, ``withheld`` is what became
    of all that is to be withheld.
    """

    pages: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    withheld: tuple[WithheldUnits, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of them that an operator should know of."""
        return (*self.pages, *self.cpus, *self.removed, *self.not_withheld)

    @property
    def not_withheld(self) -> tuple[str, ...]:
        """What cannot be withheld, and why."""
        return tuple(str(one) for one in self.withheld if not one.in_full)


def beside_held(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    owned: Ownership,
    held: Callable[[str, str], int],
) -> tuple[ProviderTree, WithheldOffers]:
    """The tree as it can be reported now, and what waits.

    ``held`` tells how much of a class is held of a provider.
    """
    tree, pages = keep_held_memory(derived, reported, lambda uuid: held(uuid, "MEMORY_MB"))
    tree, cpus = keep_held_cpus(tree, reported, held)
    tree, removed = _keep_removed(tree, reported, owned, held)
    tree, withheld = keep_withheld(tree, reported, owned, held)
    return tree, WithheldOffers(pages, cpus, removed, withheld)


def _keep_removed(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    owned: Ownership,
    held: Callable[[str, str], int],
) -> tuple[ProviderTree, tuple[str, ...]]:
    """With classes of others that were added and are not any more, as long as they are held: all reserved."""
    nodes, waiting = [], []
    for node in derived.nodes:
        kept = {}
        for name, inventory in _removed(node, reported, owned):
            if amount := held(node.uuid, name):
                kept[name] = replace(inventory, reserved=inventory.total)
                waiting.append(
                    f"{called(node.name, node.uuid)}: {amount} {name} are held, which is not to be there any"
                    " more: all of it is reserved, and it goes when nothing is held"
                )
        nodes.append(replace(node, inventories={**node.inventories, **kept}) if kept else node)
    return replace(derived, nodes=tuple(nodes)), tuple(waiting)


def _removed(
    node: ProviderNode, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> Iterator[tuple[str, ProviderInventory]]:
    mine = owned.get(node.uuid, OwnedNames()).classes - OWN_CLASSES - node.inventories.keys()
    there = reported[node.uuid].inventories if mine and node.uuid in reported else {}
    yield from ((name, there[name]) for name in sorted(mine & there.keys()))
