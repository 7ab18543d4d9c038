"""What is held and lies in what is to be offered otherwise: pages in memory, CPUs in other pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compute_agent.inventory.tree import ProviderTree
from compute_agent.report.huge_pages import keep_held_memory
from compute_agent.report.plan import ReportedProvider
from compute_agent.report.pools import keep_held_cpus


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is not offered so far, a sentence each.

    ``pages`` are huge pages whose memory is held, ``cpus`` those of pools that guests of others hold.
    """

    pages: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()


def beside_held(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    held: Callable[[str, str], int],
) -> tuple[ProviderTree, Waiting]:
    """The tree as it can be reported now, and what waits.

    ``held`` tells how much of a class is held of a provider.
    """
    tree, pages = keep_held_memory(derived, reported, lambda uuid: held(uuid, "MEMORY_MB"))
    tree, cpus = keep_held_cpus(tree, reported, held)
    return tree, Waiting(pages, cpus)
