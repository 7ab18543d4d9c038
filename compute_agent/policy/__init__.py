"""Placement of guests on CPUs: pure functions from a request and the supply to an assignment or a refusal.

Nouns
    A *dedicated* CPU backs PCPU and belongs to one guest. *Shared* CPUs back VCPU, and guests float on them.
    The *supply* is the host, with the purpose of each CPU and the holders of dedicated ones.

    A *request* has the needs of one guest: the number of its guest CPUs, a *demand* for each provider of its
    allocation, a thread policy and an emulator policy. A demand has amounts of PCPU and VCPU, and the CPUs of
    the provider's zone. An *assignment* has the CPUs that each guest CPU may use, and CPUs that are kept
    empty for the guest. A *refusal* has the reason why there is no assignment.

    A *policy* is a function of supply and request. All policies have :func:`base.place_guest` in common. A
    policy only *chooses* dedicated CPUs among the free ones of a demand. Policy ``topology-aware`` chooses by
    *pieces* (CPUs of the same node, L3 cache and package) and by the *free cores* of each piece.

An example
    A processor has two L3 caches of two cores with two threads each: CPUs 0-3 and 4-7, with the cores 0-1,
    2-3, 4-5 and 6-7. All are dedicated, and a guest holds CPU 0. ``topology-aware`` gives the next guest

    - with one PCPU: CPU 1. The core of CPU 1 is already broken, and whole cores are left for others.
    - with two PCPU: CPUs 2 and 3, a whole core beside the one in use, so that the other cache stays free.
    - with three PCPU: CPUs 2, 3 and 1, under one cache, and no whole core is broken.
    - with four PCPU: CPUs 4 to 7, under one cache, since only three are free under the first.

    With thread policy ``isolate`` a guest with two PCPU is refused: two cores of two threads take four.

Invariants
    - A dedicated CPU is in at most one assignment, whether it is used or kept empty.
    - A guest gets all dedicated CPUs of its allocation, each in the zone of its provider, or a refusal.
    - The demands of a guest's definition (strict memory, pins) are met, or the guest is left as it is
      (:mod:`constraints`).
    - The same supply and request give the same answer. Nothing is random, and nothing is read.
    - A guest runs on CPUs of a pool only if it holds some of them (:mod:`shared_cpus`).
    - A running guest is not moved while its CPUs serve its request (:func:`base.refit_assignment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compute_agent.policy.base import Policy
from compute_agent.policy.constraints import within_constraints
from compute_agent.policy.policies import leave_in_place, place_by_topology, place_in_order, place_nowhere

STATIC_PLUS: Final = within_constraints(place_in_order)
"""As ``static``, but floating guests may also use free dedicated CPUs (:func:`shared_cpus.lend_cpus`)."""

STATIC_POOLS: Final = within_constraints(place_in_order)
"""As ``static``, but guests that hold no CPUs of a pool are refused (:func:`shared_cpus.refuse_outside`)."""

POLICIES: Final[Mapping[str, Policy]] = {
    "none": place_nowhere,
    "follow": leave_in_place,
    "static": within_constraints(place_in_order),
    "static-plus": STATIC_PLUS,
    "static-pools": STATIC_POOLS,
    "topology-aware": within_constraints(place_by_topology),
}
"""Policies by their name in ``[policy] name``."""

__all__ = ["POLICIES", "STATIC_PLUS", "STATIC_POOLS", "leave_in_place", "place_nowhere"]
