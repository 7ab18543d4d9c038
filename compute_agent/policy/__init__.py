"""Where a guest goes: pure functions from a request, the host and what others hold to an assignment.

Or to a refusal.

Nouns
    A *dedicated* CPU backs PCPU and belongs to one guest; *shared* CPUs back VCPU, and guests float on them.
    The *supply* is the host with what its CPUs are for and who holds which. A *request* is what one guest
    needs: so many guest CPUs, for each provider that its allocation names a *demand* (PCPU, VCPU, and the
    CPUs of the provider's zone), a thread policy and an emulator policy. An *assignment* says for each guest
    CPU which CPUs it may use, and which are kept empty for its sake; a *refusal* why there is none.

    A *policy* is a function of supply and request. What all of them do alike is in :func:`base.place`; a
    policy that places only *chooses* dedicated CPUs among the free ones of a demand. ``topology-aware``
    thinks in *pieces* (CPUs that nothing on the host parts but their cores) and in the *free cores* of
    each.

A worked example
    One processor with two L3 caches of two cores, two threads each: CPUs 0-3 and 4-7, the cores being 0-1,
    2-3, 4-5 and 6-7. All are dedicated, and a guest holds CPU 0. ``topology-aware`` gives the next guest

    - of one PCPU CPU 1: the core is broken already, and whole ones are left for others;
    - of two PCPU CPUs 2 and 3: a whole core beside the one in use, so that the other cache stays free;
    - of three PCPU CPUs 2, 3 and 1: under one cache, and no whole core is broken;
    - of four PCPU CPUs 4 to 7: under one cache, as only three are left under the first.

With thread policy ``isolate`` a guest of two PCPU is refused: two cores of two threads take four.

What always holds
    - A dedicated CPU is in at most one assignment, whether it is used or kept empty.
    - A guest gets as many dedicated CPUs as its allocation has PCPU, each in the zone that it was granted in,
      or a refusal: never fewer.
    - What the definition of a guest demands (strict memory, pins) is met, or the guest is left as it is
      (:mod:`constraints`).
    - The same supply and request give the same answer: nothing is random, and nobody is asked.
    - A guest runs on CPUs of a pool only if it holds some of it (:mod:`pools`, :mod:`lending`).
    - A guest that runs is not moved as long as what it has serves it (:func:`base.refit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compute_agent.policy.base import Policy
from compute_agent.policy.constrained import constrained
from compute_agent.policy.policies import leave_in_place, place_by_topology, place_in_order, place_nowhere

STATIC_PLUS: Final = constrained(place_in_order)
"""Besides, guests that float may use dedicated CPUs that nobody holds (:mod:`lending`)."""

STATIC_POOLS: Final = constrained(place_in_order)
"""Besides, guests that hold CPUs of no pool are refused (:mod:`pools`)."""

POLICIES: Final[Mapping[str, Policy]] = {
    "none": place_nowhere,
    "follow": leave_in_place,
    "static": constrained(place_in_order),
    "static-plus": STATIC_PLUS,
    "static-pools": STATIC_POOLS,
    "topology-aware": constrained(place_by_topology),
}
"""By the name that ``[policy] name`` knows them under."""

__all__ = ["POLICIES", "STATIC_PLUS", "STATIC_POOLS", "leave_in_place", "place_nowhere"]
