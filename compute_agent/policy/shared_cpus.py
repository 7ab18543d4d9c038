"""Who may be in a pool of CPUs: pure functions. Where its members run follows from what they hold.

Dedicated CPUs that nobody holds, lent to guests that float: a pure function.

What is lent is accounted nowhere and given back as soon as a guest comes to hold it: who is placed next may
have any of it. Pools with ``max_cpus`` borrow first, in the order of their names, each CPUs of its own, then
whole idle cores from the end of its zones. With policy ``static-plus`` guests of no pool get what is left.

With CPUs 0 and 1 shared and 2 to 7 dedicated in cores of two, CPU 1 in a pool with ``max_cpus = 3``, and CPU
6 held, the pool borrows 4 and 5. With ``static-plus`` the others float on 0, 2, 3 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuPool, CpuSet, CpuSets
from compute_agent.policy.base import PlacementRefusal, ProviderDemand


def refuse_outside(demands: Sequence[ProviderDemand]) -> PlacementRefusal | None:
    """Why a guest cannot be where all guests are to be in pools; None if it holds CPUs of pools only."""
    outside = [demand.zone for demand in demands if not demand.pool]
    if demands and not outside:
        return None
    return PlacementRefusal(
        "with [policy] name = static-pools guests run in pools, and it holds"
        f" {'CPUs of ' + ', '.join(outside) if outside else 'none of their CPUs'}: let it hold those of a"
        " provider with a trait CUSTOM_CPU_POOL_*"
    )


def admit(
    pools: Iterable[CpuPool], wanted: Iterable[str], qos_class: str, members: int
) -> PlacementRefusal | None:
    """Why a guest of a class cannot be in the pools that it holds CPUs of; None if it can.

    ``members`` are the other guests that are in the fullest of them; 0 for a guest that is in already.
    """
    by_name = {pool.name: pool for pool in pools}
    for name in wanted:
        pool = by_name.get(name)
        if pool is None:
            continue  # it is gone, and was there when the guest came
        if pool.classes and qos_class not in pool.classes:
            return PlacementRefusal(
                f"[cpu_pool:{name}] takes guests of {', '.join(sorted(pool.classes))}, and it is of"
                f" {qos_class}"
            )
        if pool.max_guests is not None and members >= pool.max_guests:
            return PlacementRefusal(f"[cpu_pool:{name}] takes {pool.max_guests} guests, and has {members}")
    return None


@dataclass(frozen=True, slots=True)
class PoolBorrower:
    """A pool that may borrow: its CPUs, all those of its zones, and how many shared ones it may come to."""

    pool: str
    cpus: CpuSet
    zones: CpuSet
    max_cpus: int


def lend(
    topology: HostTopology,
    cpu_sets: CpuSets,
    held: CpuSet,
    borrowers: Iterable[PoolBorrower],
    to_others: bool,
) -> Mapping[str, CpuSet]:
    """What each pool gets, by name, and guests of no pool, by the empty name; no CPU twice."""
    idle = (cpu_sets.dedicated & topology.online) - held
    found = {}
    for one in borrowers:
        own_shared = len(one.cpus & cpu_sets.shared & topology.online)
        there = idle & one.zones & (one.cpus | (topology.online - cpu_sets.pooled))
        own, others = sorted(there & one.cpus), there - one.cpus
        whole = [cpu for cpu in others if topology.threads_of(cpu) <= idle]
        order = [*own, *sorted(whole, reverse=True), *sorted(others.difference(whole), reverse=True)]
        found[one.pool] = frozenset(order[: max(0, one.max_cpus - own_shared)])
        idle -= found[one.pool]
    if to_others:
        found[""] = idle - cpu_sets.pooled
    return found
