"""What the kernel kills of guests for want of memory, by the counters in memory.events of their groups.

A killed guest often ends by that, and its group goes with it: whoever removes a group looks for the last
time.
"""

from __future__ import annotations

import threading

from compute_agent.drivers.base import OomKill
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.model.guest import Guest


class OomWatch:
    """What was counted of each guest, and what has yet to be told. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[int, int]] = {}
        self._news: list[OomKill] = []

    def begin(self, guest_uuid: str, group: GuestCgroup | None) -> None:
        """Count from now on what happens to a guest that ran before: who came before has told of the rest."""
        if group is not None and (counts := group.oom_events()) is not None:
            with self._lock:
                self._counted[guest_uuid] = counts

    def look(self, guest: Guest, group: GuestCgroup, last: bool = False) -> None:
        """Look for kills in the group of a guest; ``last``: it has ended."""
        counts = group.oom_events()
        with self._lock:
            if counts is not None:
                at_limit, kills = self._counted.get(guest.uuid, (0, 0))
                if counts[1] > kills:
                    self._news.append(OomKill(guest, counts[1] - kills, counts[0] > at_limit))
                    # Not before: the kernel counts the limit first, and kills some time after that.
                    self._counted[guest.uuid] = counts
            if last:
                self._counted.pop(guest.uuid, None)

    def take(self) -> list[OomKill]:
        """What is new since the last call."""
        with self._lock:
            found, self._news = self._news, []
        return found
