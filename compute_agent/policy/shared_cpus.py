"""CPU pools: admits guests to pools, and lends idle dedicated CPUs to guests that float.

Lending changes no inventory. If a guest is placed on a lent CPU, the borrowers lose this CPU at once. Pools
with ``max_cpus`` borrow first, in the order of their names. A pool borrows its own idle dedicated CPUs first,
then whole idle cores from the end of its zones. With policy ``static-plus``, guests outside of pools borrow
the remaining CPUs. All functions are pure.

An example: CPUs 0 and 1 are shared, and 2 to 7 are dedicated; cores have two threads. CPU 1 is in a pool with
``max_cpus = 3``, and a guest holds CPU 6. The pool borrows CPUs 4 and 5. With ``static-plus``, guests outside
of pools float on CPUs 0, 2, 3 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuPool, CpuSet, CpuSets
from compute_agent.policy.base import PlacementRefusal, ProviderDemand


def refuse_outside(demands: Sequence[ProviderDemand]) -> PlacementRefusal | None:
    """Refuse a guest that holds no CPUs, or CPUs outside of pools; None means that it is not refused."""
    outside = [demand.zone for demand in demands if not demand.pool]
    if demands and not outside:
        return None
    return PlacementRefusal(
        "with [policy] name = static-pools guests run only in pools, but it holds"
        f" {'CPUs of ' + ', '.join(outside) if outside else 'none of their CPUs'}: allocate CPUs of a"
        " provider with a trait CUSTOM_CPU_POOL_*"
    )


def admit_guest(
    pools: Iterable[CpuPool], wanted: Iterable[str], qos_class: str, members: int
) -> PlacementRefusal | None:
    """Refuse a guest that a pool does not admit; None means that all its pools admit it.

    :param wanted: the names of the pools of which the guest holds CPUs.
    :param members: the number of other guests in the fullest of these pools; 0 if the guest is a member
        already.
    """
    by_name = {pool.name: pool for pool in pools}
    for name in wanted:
        pool = by_name.get(name)
        if pool is None:
            continue  # the pool was removed from the options after the guest had started
        if pool.classes and qos_class not in pool.classes:
            return PlacementRefusal(
                f"[cpu_pool:{name}] admits guests of {', '.join(sorted(pool.classes))}, but the guest is of"
                f" {qos_class}"
            )
        if pool.max_guests is not None and members >= pool.max_guests:
            return PlacementRefusal(f"[cpu_pool:{name}] admits {pool.max_guests} guests, and has {members}")
    return None


@dataclass(frozen=True, slots=True)
class PoolBorrower:
    """A pool that can borrow idle dedicated CPUs.

    :ivar pool: the name of the pool that borrows.
    :ivar cpus: the dedicated and shared CPUs of the pool.
    :ivar zones: all CPUs of the zones in which the pool has CPUs.
    :ivar max_cpus: the maximum number of shared CPUs of the pool, including borrowed ones.
    """

    pool: str
    cpus: CpuSet
    zones: CpuSet
    max_cpus: int


def lend_cpus(
    topology: HostTopology,
    cpu_sets: CpuSets,
    held: CpuSet,
    borrowers: Iterable[PoolBorrower],
    to_others: bool,
) -> Mapping[str, CpuSet]:
    """Lend idle dedicated CPUs, each to at most one pool; return them by pool.

    The empty name stands for guests outside of pools.

    :param held: the dedicated CPUs that guests hold, which are not lent.
    :param to_others: whether guests outside of pools can borrow the CPUs that remain.
    """
    idle = (cpu_sets.dedicated & topology.online) - held
    found = {}
    for one in borrowers:
        own_shared = len(one.cpus & cpu_sets.shared & topology.online)
        there = idle & one.zones & (one.cpus | (topology.online - cpu_sets.pooled))
        own, others = sorted(there & one.cpus), there - one.cpus
        whole = [cpu for cpu in others if topology.threads_of(cpu) <= idle]
        # CPUs are lent from the end, because policies give the lowest CPUs to the next guests.
        order = [*own, *sorted(whole, reverse=True), *sorted(others.difference(whole), reverse=True)]
        found[one.pool] = frozenset(order[: max(0, one.max_cpus - own_shared)])
        idle -= found[one.pool]
    if to_others:
        found[""] = idle - cpu_sets.pooled
    return found
