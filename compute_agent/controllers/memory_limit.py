"""Controller ``memory_limit``: how much memory a guest gets, and who gives way when there is none left.

``memory.max`` of a process guest is what it holds of ``MEMORY_MB`` and ``[compute] memory_overhead`` more.
Its class says the rest, in percent of what it holds: from where on it is slowed down and has to give back
(``memory.high``), how much of it the kernel spares while others have something to give (``memory.low``), and
how soon it is killed where nobody has (``oom_score_adj``).

A limit below what a guest uses at that moment would have it killed: it waits until the guest uses less, and
that is shown. Limits that somebody else has set stay; the drivers tell these from the agent's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from compute_agent.controllers.base import Target
from compute_agent.drivers.base import UNLIMITED, Driver, MemoryLimits
from compute_agent.inventory.tree import ProviderNode
from compute_agent.model.allocation import Allocation
from compute_agent.model.errors import GuestGoneError
from compute_agent.model.memory_share import MemoryShare

_MIB: Final = 1 << 20


class MemoryLimitController:
    """Sets limits and protection of memory through the driver."""

    name = "memory_limit"

    def __init__(self, driver: Driver, classes: Mapping[str, MemoryShare], overhead_mb: int) -> None:
        """``classes`` are the shares by the name of the class."""
        self._driver = driver
        self._classes = classes
        self._overhead_mb = overhead_mb
        self.refused: Mapping[str, Sequence[str]] = {}

    def sync(self, targets: Sequence[Target], zones: Sequence[ProviderNode]) -> None:
        """Find those who use more than they may have: they are not killed for that."""
        refused = {}
        for target in targets:
            maximum = self._limits(target).maximum
            if maximum in (None, UNLIMITED):
                continue
            try:
                used = self._driver.memory_use(target.guest)
            except GuestGoneError:
                continue
            if used is not None and maximum is not None and used > maximum:
                refused[target.guest.uuid] = (
                    f"it uses {used // _MIB} MiB, and may have {maximum // _MIB}: its memory.max is not set"
                    " until it uses less, as it would be killed; let it hold more MEMORY_MB, or stop it",
                )
        self.refused = refused

    def drifted(self, target: Target) -> str | None:
        """Which limits the guest has instead; None if it has those that it should have."""
        wanted = self._wanted(target)
        has = self._driver.memory_limits(target.guest, wanted)
        return None if has is None else f"memory {_text(has)} in place of {_text(wanted)}"

    def apply(self, target: Target) -> bool:
        """Set what differs. True if anything did."""
        return self._driver.limit_memory(target.guest, self._wanted(target))

    def _wanted(self, target: Target) -> MemoryLimits:
        limits = self._limits(target)
        if target.guest.uuid in self.refused:
            return MemoryLimits(None, limits.high, limits.low, limits.oom_score_adj)
        return limits

    def _limits(self, target: Target) -> MemoryLimits:
        if target.allocation is None:
            return MemoryLimits()
        share = self._classes.get(target.guest.settings.qos_class, MemoryShare())
        return memory_limits(target.allocation, share, self._overhead_mb)


def memory_limits(allocation: Allocation, share: MemoryShare, overhead_mb: int) -> MemoryLimits:
    """The limits of a guest of a class that holds ``allocation``; without memory in that it has none."""
    held = sum(amounts.get("MEMORY_MB", 0) for amounts in allocation.values())
    if not held:
        return MemoryLimits(UNLIMITED, UNLIMITED, 0, share.oom_score_adj)
    return MemoryLimits(
        maximum=(held + overhead_mb) * _MIB,
        high=UNLIMITED if share.high is None else held * _MIB * share.high // 100,
        low=held * _MIB * share.low // 100,
        oom_score_adj=share.oom_score_adj,
    )


def _text(limits: MemoryLimits) -> str:
    parts = {"max": limits.maximum, "high": limits.high, "low": limits.low}
    words = [
        f"{name} {'unlimited' if amount >= UNLIMITED else f'{amount / _MIB:g} MiB'}"
        for name, amount in parts.items()
        if amount is not None
    ]
    if limits.oom_score_adj is not None:
        words.append(f"oom_score_adj {limits.oom_score_adj}")
    return ", ".join(words) or "as it is"
