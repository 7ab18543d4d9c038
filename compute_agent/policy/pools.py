"""Who may be in a pool of CPUs: pure functions. Where its members run follows from what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compute_agent.model.cpuset import CpuPool
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
