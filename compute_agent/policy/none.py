"""Policy ``none``: guests are accounted and listed, and left where they are."""

from __future__ import annotations

from compute_agent.policy.base import Request, Supply


def place_nowhere(supply: Supply, request: Request) -> None:
    """Leave the guest as it is."""
