"""What a class of guests means for their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from compute_agent.model.qos_class import BEST_EFFORT, LATENCY_SENSITIVE_RESERVED


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Amounts are percent of what a guest holds of ``MEMORY_MB``.

    Above ``high`` it is slowed down and has to give back (None: never), up to ``low`` it is spared while
    others have something to give. ``oom_score_adj`` is the kernel's, -1000 to 1000: guests with more of it
    are killed first where memory runs out.
    """

    high: int | None = None
    low: int = 0
    oom_score_adj: int = 100


DEFAULT_SHARES: Final[Mapping[str, MemoryShare]] = {
    BEST_EFFORT: MemoryShare(oom_score_adj=500),
    LATENCY_SENSITIVE_RESERVED: MemoryShare(low=100, oom_score_adj=0),
}
"""The shares of the classes that exist without configuration, where they are others than of any class.

Guests are killed before the host's own daemons, which have 0; and less than 0 takes a privilege.
"""
