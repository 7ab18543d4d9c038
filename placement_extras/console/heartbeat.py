"""Whether the agent of a host still reports, as it said in attributes (``[compute] heartbeat_interval``).

An agent writes only what has changed, so that the time of the last change tells nothing of its life.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from placement.model.provider import Provider

REPORTED_AT: Final = "agent.reported_at"
REPORT_DUE: Final = "agent.report_due"


@dataclass(frozen=True, slots=True)
class AgentHeartbeat:
    """The agent reported at a time, or somewhat later, and will have again when the next is due.

    Both are in seconds since 1970, by the clock of the host.
    """

    reported_at: float
    due: float

    def is_overdue(self, now: float) -> bool:
        """Whether the next one should be there."""
        return now > self.due


def last(members: Iterable[Provider]) -> AgentHeartbeat | None:
    """That of the host with these providers, the first of which that has one; None if none does."""
    for each in members:
        if each.attributes:
            reported_at, due = each.attributes.get(REPORTED_AT), each.attributes.get(REPORT_DUE)
            if isinstance(reported_at, int | float) and isinstance(due, int | float):
                return AgentHeartbeat(reported_at, due)
    return None
