"""Reclaim of memory: the kernel moves memory that guests do not use to swap.

Watermarks reclaim memory before they limit or evict guests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from compute_agent.drivers.base import GuestThreads
from compute_agent.drivers.memory_limits import reclaim_memory
from compute_agent.host.kernel_files import read_optional
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.usage.rounds import parse_recent_pressure

RECLAIM_SECONDS: Final = 1.0
"""Maximum seconds for which the kernel reclaims memory for one action. The thread of watermarks waits for the
kernel.
"""

MAX_PRESSURE: Final = 10.0
"""Maximum memory pressure of a guest (PSI ``avg10``), in percent of the time. A guest with a higher pressure
needs all its memory, so nothing is reclaimed."""

_MIN_PART: Final = 0.1
"""If a reclaim frees less than this part of the requested amount, the agent reclaims nothing more of the
guest for minutes.
"""


class MemoryReclaimer:
    """Asks the kernel to reclaim memory of guests. Any thread may use this object."""

    def __init__(
        self,
        pipeline: GuestPipeline,
        driver: GuestThreads,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = pipeline
        self._driver = driver
        self._monotonic = monotonic

    def reclaim_memory(self, uuid: str, amount: int) -> None:
        """Ask the kernel to reclaim up to ``amount`` bytes of a guest's memory; return after about a second.

        :raises GuestGoneError: the guest is gone.
        :raises DriverError: the guest needs all its memory, or the kernel cannot reclaim memory of the guest.
        """
        view = next((one for one in self._pipeline.guest_views() if one.guest.uuid == uuid), None)
        if view is None:
            raise GuestGoneError(f"guest {uuid} has ended")
        group = self._driver.usage_group(view.guest)
        if not group:
            raise DriverError("the guest has no cgroup v2 group of its own")
        pressure = parse_recent_pressure(read_optional(f"{group}/memory.pressure") or "")
        if pressure is not None and pressure > MAX_PRESSURE:
            raise DriverError(f"the guest has waited for memory in {pressure:g} % of the last 10 seconds")
        try:
            done = reclaim_memory(group, amount, RECLAIM_SECONDS, self._monotonic)
        except FileNotFoundError as error:
            raise DriverError(
                f"the kernel is older than Linux 5.19, or the guest has ended: {error}"
            ) from error
        except OSError as error:
            raise DriverError(f"the kernel reclaims no memory: {error}") from error
        if done < amount * _MIN_PART:
            raise DriverError(f"the kernel found less than {amount >> 20} MiB that the guest does not use")
