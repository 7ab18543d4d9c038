"""Places guests on CPUs: pure functions assign CPUs to a guest, or refuse the guest with a reason.

Nouns
    A *dedicated* CPU is offered as PCPU, and belongs to one guest. *Shared* CPUs are offered as VCPU. Guests
    *float* on shared CPUs: they run on any of them. The *supply* describes the CPUs of the host: which CPUs
    are dedicated or shared, and which guests hold dedicated CPUs.

    A *request* describes the needs of one guest: the number of its guest CPUs, a *demand* for each provider
    of its allocation, a thread policy and an emulator policy. A demand has amounts of PCPU and VCPU, and the
    CPUs of the provider's zone. An *assignment* lists the CPUs that each guest CPU may use, and CPUs that are
    kept empty for the guest. A *refusal* states why there is no assignment.

    A *policy* is a function from supply and request to an assignment or a refusal. Policies that place guests
    share :func:`base.place_guest`, and differ only in the choice of dedicated CPUs among the free CPUs of a
    demand. Policy ``topology-aware`` chooses by *pieces* (CPUs of the same node, L3 cache and package) and by
    the *free cores* of each piece (:mod:`cores`).

An example
    A processor has two L3 caches of two cores with two threads each: CPUs 0-3 and 4-7, with the cores 0-1,
    2-3, 4-5 and 6-7. All are dedicated, and a guest holds CPU 0. ``topology-aware`` gives the next guest

    - with one PCPU: CPU 1. Another guest already uses the other thread of this core, so whole cores stay
      free.
    - with two PCPU: CPUs 2 and 3, a whole core under the cache that is in use, so that the other cache stays
      free.
    - with three PCPU: CPUs 2, 3 and 1, under one cache, without breaking a whole core.
    - with four PCPU: CPUs 4 to 7, under one cache, because only three CPUs are free under the other cache.

    With thread policy ``isolate``, a guest with two PCPU is refused, because two cores have four threads.

Invariants
    - A dedicated CPU is in at most one assignment, whether it is used or kept empty.
    - A guest gets all dedicated CPUs of its allocation, each in the zone of the CPU's provider, or a refusal.
    - If the demands of a guest's definition (strict memory, pins) cannot be met, the guest stays where it is
      (:mod:`constraints`).
    - The same supply and request always give the same assignment. Policies use no random numbers and read no
      files.
    - A guest runs on CPUs of a pool only if its allocation contains CPUs of the pool (:mod:`shared_cpus`).
    - A running guest is not moved while its CPUs serve its request (:func:`base.refit_assignment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compute_agent.policy.base import Policy
from compute_agent.policy.constraints import within_constraints
from compute_agent.policy.policies import leave_in_place, place_by_topology, place_in_order, place_nowhere

# Three policies place guests alike, but each is an object of its own: HostState compares the policy with
# STATIC_PLUS and STATIC_POOLS to find out whether guests borrow CPUs, or need a pool.
STATIC_PLUS: Final = within_constraints(place_in_order)
"""Policy ``static`` in which floating guests may use free dedicated CPUs (:func:`shared_cpus.lend_cpus`)."""

STATIC_POOLS: Final = within_constraints(place_in_order)
"""Policy ``static``, which refuses guests without CPUs of a pool (:func:`shared_cpus.refuse_outside`)."""

POLICIES: Final[Mapping[str, Policy]] = {
    "none": place_nowhere,
    "follow": leave_in_place,
    "static": within_constraints(place_in_order),
    "static-plus": STATIC_PLUS,
    "static-pools": STATIC_POOLS,
    "topology-aware": within_constraints(place_by_topology),
}
"""The placement policies by the name that ``[policy] name`` selects."""

__all__ = ["POLICIES", "STATIC_PLUS", "STATIC_POOLS", "leave_in_place", "place_nowhere"]
