"""Chooses the CPUs of pools, and remembers pools that were removed.

The CPUs of a pool follow from configuration and hardware alone (see the page on pools in ``doc/concepts``). A
pool with named CPUs has these CPUs. Any other pool gets CPUs from the end of its NUMA node. It gets single
threads of a core only if no whole core fits.

If an operator removes the section of a pool, guests with CPUs of the pool keep these CPUs. So the agent
stores the CPUs of all pools in a file of the state folder, before it places guests.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compute_agent.files import UnsafeFileError, put_aside, read_own, write_durably
from compute_agent.host.topology import HostTopology
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CPU_POOL, CpuPool, CpuSet, CpuSets
from compute_agent.model.messages import ConfigError, is_uuid

POOL_PREFIX: Final = "CUSTOM_CPU_POOL_"

Positions = Mapping[str, CpuSet]
"""The CPUs of each pool, by the name of the pool."""


@dataclass(frozen=True, slots=True)
class PoolPart:
    """The CPUs of a pool in one zone.

    :ivar zone: the name of the zone; None means that the CPUs are in no zone and belong to the host itself.
    """

    pool: str
    zone: str | None
    cpus: CpuSet

    @property
    def name(self) -> str:
        """The last part of the provider's name. The name is unique on the host."""
        return f"{self.zone}_POOL_{self.pool}" if self.zone else f"POOL_{self.pool}"


def pool_trait(pool: str) -> str:
    """The trait of the providers of a pool, such as ``CUSTOM_CPU_POOL_GOLD``."""
    return POOL_PREFIX + pool.upper().replace("-", "_")


def lay_out_pools(pools: Sequence[CpuPool], cpu_sets: CpuSets, topology: HostTopology) -> dict[str, CpuSet]:
    """The online CPUs of each pool.

    :raises ConfigError: CPUs of a pool are in no CPU set or in two pools, or there are too few CPUs.
    """
    if pools and cpu_sets.is_legacy:
        raise ConfigError(
            f"[{CPU_POOL}{pools[0].name}]: pools divide [compute] cpu_dedicated_set and cpu_shared_set,"
            " and cannot be combined with [DEFAULT] vcpu_pin_set"
        )
    _check_traits(pools)
    found: dict[str, CpuSet] = {}
    # Pools with named CPUs come first; the other pools get CPUs from the remaining CPUs.
    for pool in sorted(pools, key=lambda pool: (not pool.cpus, pool.name)):
        taken = frozenset[int]().union(*found.values())
        if pool.cpus:
            _check_cpus(pool, cpu_sets, topology, found)
            found[pool.name] = pool.cpus - cpu_sets.offline
        else:
            found[pool.name] = _take_cpus(pool, cpu_sets, topology, taken)
        if pool.max_cpus is not None and not found[pool.name] & cpu_sets.shared:
            raise ConfigError(
                f"[{CPU_POOL}{pool.name}] max_cpus: the option is for floating guests, but the pool has no"
                " CPU of cpu_shared_set; remove the option"
            )
    return {pool.name: found[pool.name] for pool in pools}


def list_pool_parts(positions: Positions, homes: Iterable[tuple[str | None, CpuSet]]) -> list[PoolPart]:
    """The parts of pools in each zone.

    :param homes: the name of each zone with the CPUs that belong to this zone; the name None stands for the
        host itself.
    """
    return [
        PoolPart(pool, zone, inside)
        for zone, home in homes
        for pool, cpus in positions.items()
        if (inside := cpus & home)
    ]


def _check_traits(pools: Iterable[CpuPool]) -> None:
    by_trait: dict[str, str] = {}
    for pool in pools:
        other = by_trait.setdefault(pool_trait(pool.name), pool.name)
        if other != pool.name:
            raise ConfigError(
                f"[{CPU_POOL}{pool.name}] and [{CPU_POOL}{other}] would have the same trait"
                f" {pool_trait(pool.name)}: rename one of the two"
            )


def _check_cpus(pool: CpuPool, cpu_sets: CpuSets, topology: HostTopology, others: Positions) -> None:
    section = f"[{CPU_POOL}{pool.name}]"
    # Offline CPUs of cpu_dedicated_set are no error, although ``cpu_sets.dedicated`` lacks them.
    if stray := pool.cpus - cpu_sets.dedicated - cpu_sets.shared - cpu_sets.offline:
        raise ConfigError(
            f"{section} cpus: {cpuset.format(stray)} are neither in [compute] cpu_dedicated_set nor in"
            " cpu_shared_set"
        )
    for other, cpus in others.items():
        if both := pool.cpus & cpus:
            raise ConfigError(f"{section} cpus: {cpuset.format(both)} are in [{CPU_POOL}{other}], too")


def _take_cpus(pool: CpuPool, cpu_sets: CpuSets, topology: HostTopology, taken: CpuSet) -> CpuSet:
    nodes = [node.cpus for node in topology.numa_nodes if node.cpus] or [topology.usable]
    found: list[CpuSet] = []
    # The node has to have enough dedicated and enough shared CPUs, because a pool without per_node is in one
    # node.
    for node in nodes:
        dedicated = _from_the_end((node & cpu_sets.dedicated) - taken, pool.dedicated_cpus, topology)
        shared = _from_the_end((node & cpu_sets.shared) - taken, pool.shared_cpus, topology)
        if dedicated is not None and shared is not None:
            found.append(dedicated | shared)
            if not pool.per_node:
                break
        elif pool.per_node:
            # With per_node each node needs enough CPUs, so one node without them is an error, which is raised
            # below.
            break
    if len(found) < (len(nodes) if pool.per_node else 1):
        where = "every NUMA node" if pool.per_node else "one NUMA node"
        raise ConfigError(
            f"[{CPU_POOL}{pool.name}]: {where} has to have {pool.dedicated_cpus} CPUs of cpu_dedicated_set"
            f" and {pool.shared_cpus} of cpu_shared_set that are in no other pool"
        )
    return frozenset[int]().union(*found)


def _from_the_end(free: CpuSet, count: int, topology: HostTopology) -> CpuSet | None:
    """Choose ``count`` free CPUs of the last cores; None if fewer CPUs are free.

    Cores with only free threads come first. The other cores follow, those with the most free threads first.
    """
    if len(free) < count:
        return None
    cores = {topology.threads_of(cpu) & free: len(topology.threads_of(cpu)) for cpu in free}
    ordered = sorted(cores, key=lambda core: (len(core) < cores[core], -len(core), -max(core)))
    found: list[int] = []
    for core in ordered:
        if len(found) + len(core) <= count:
            found += core
    # If CPUs are still missing, no remaining core fits as a whole, so single threads of cores are taken.
    for core in ordered:
        found += sorted(core - frozenset(found))[: count - len(found)]
    return frozenset(found)


LOG = logging.getLogger(__name__)

FILE_NAME: Final = "pools.json"

_MAX_KEPT: Final = 1000
"""Maximum number of providers of pools in the file. If the file has more, the oldest providers are dropped.
"""


def recall_pools(state_path: Path, tree: ProviderTree, topology: HostTopology) -> tuple[ProviderNode, ...]:
    """The providers of removed pools, without inventories.

    A damaged file is logged and counts as empty.
    """
    try:
        kept = _load(state_path / FILE_NAME)
    except FileNotFoundError:
        return ()
    except (OSError, UnsafeFileError, ValueError, KeyError, TypeError, AttributeError) as error:
        LOG.warning(
            "The file %s cannot be used, so the CPUs of removed pools are not known: %s",
            state_path / FILE_NAME,
            error,
        )
        return ()
    usable = topology.usable
    return tuple(_pool_node(uuid, one, usable) for uuid, one in kept.items() if tree.get(uuid) is None)


def keep_pools(state_path: Path, tree: ProviderTree) -> None:
    """Save the CPUs of the pools in ``tree``, in addition to the saved CPUs of removed pools.

    :raises OSError: the file cannot be written.
    """
    path = state_path / FILE_NAME
    present = {
        node.uuid: {
            "name": node.name,
            "parent": node.parent,
            "pool": node.pool,
            "cpus": cpuset.format(node.cpus),
        }
        for node in tree.nodes
        if node.pool
    }
    try:
        before = _load(path)
    except FileNotFoundError:
        before = {}
    except (ValueError, KeyError, TypeError, AttributeError):
        # The damaged file is renamed and not removed, so that the operator can look at it.
        put_aside(path)
        before = {}
    merged = {**{uuid: one for uuid, one in before.items() if uuid not in present}, **present}
    if merged != before:
        # The present pools are at the end of the list, so removed pools are dropped first.
        kept = dict(list(merged.items())[-_MAX_KEPT:])
        write_durably(path, json.dumps(kept, indent=1).encode())


def _load(path: Path) -> dict[str, dict[str, Any]]:
    content = json.loads(read_own(path))
    for uuid, one in content.items():
        cpuset.parse(one["cpus"])
        texts = (one["name"], one["pool"], one["parent"])
        if not is_uuid(uuid) or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"{uuid!r} is not a pool")
    return dict(content)


def _pool_node(uuid: str, one: dict[str, Any], usable: frozenset[int]) -> ProviderNode:
    # CPUs that are gone or offline by now are left out, because they run no guest.
    cpus = cpuset.parse(one["cpus"]) & usable
    return ProviderNode(one["name"], uuid, one["parent"], cpus=cpus, pool=one["pool"])
