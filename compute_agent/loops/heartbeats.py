"""Has reports say from time to time that the agent lives, where the configuration wants that."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

from compute_agent.inventory.attributes import heartbeat
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.loops.base import ReloadedConfiguration


class AgentHeartbeats:
    """What is told with a report. For the thread that reports."""

    def __init__(
        self, current: Callable[[], ReloadedConfiguration], clock: Callable[[], float] = time.time
    ) -> None:
        self._current = current
        self._clock = clock

    def offering(self, tree: ProviderTree) -> ProviderTree:
        """The tree, with attributes of the first provider that is the agent's."""
        options = self._current().options.compute
        interval = options.heartbeat_interval
        if not interval:
            return tree
        # hosts that were started together are not to write together
        phase = zlib.crc32(tree.root.uuid.encode()) % interval
        longest = max(interval, options.update_resources_interval)
        return tree.with_attributes(heartbeat(self._clock(), interval, phase, longest))
