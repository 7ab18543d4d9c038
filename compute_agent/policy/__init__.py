"""Where a guest goes: pure functions from the host, what others hold and a request to an assignment or a
refusal.
"""

from __future__ import annotations

from collections.abc import Mapping

from compute_agent.policy.base import Policy
from compute_agent.policy.none import place_nowhere
from compute_agent.policy.static import place_in_order
from compute_agent.policy.topology_aware import place_by_topology

POLICIES: Mapping[str, Policy] = {
    "none": place_nowhere,
    "static": place_in_order,
    "topology-aware": place_by_topology,
}
"""By the name that ``[policy] name`` knows them under."""

__all__ = ["POLICIES", "place_nowhere"]
