"""Policy ``none``: guests are accounted and listed, and left where they are."""

from __future__ import annotations

from compute_agent.policy.base import CpuSupply, GuestRequest


def place_nowhere(supply: CpuSupply, request: GuestRequest) -> None:
    """Leave the guest as it is."""
