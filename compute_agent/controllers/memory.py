"""Controllers ``memory`` and ``memory_limit``: the NUMA nodes of a guest's memory, and its limits.

Controller ``memory`` binds the memory of a guest to the NUMA nodes of the providers of its ``MEMORY_MB``. The
CPUs of the guest do not decide, because the guest can float over CPUs of other nodes, and a node can be
without CPUs. If the provider tree has no NUMA nodes, the allocation names no node. A guest with dedicated
CPUs then gets memory of the NUMA nodes of its CPUs, and any other guest gets memory of any node. Huge pages
that a guest has already taken stay where they are, because the kernel chooses their node when the guest
starts.

If libvirt's hook has announced a domain, the agent binds its memory as soon as its process exists. The reason
is PCI passthrough: QEMU maps the memory for the IOMMU before the first guest CPU runs. From then on, the
kernel pins the pages, and no binding can move them (mm/gup.c, FOLL_LONGTERM).

Controller ``memory_limit`` limits how much memory a guest gets, and decides which guests the kernel kills
first when memory runs out. ``memory.max`` of a process guest is its allocated memory plus ``[compute]
memory_overhead``, and without allocated memory the ``memory_limit_mb`` of its class. The class of the guest
sets the other values. Amounts are in percent of the memory in the guest's allocation:

- ``memory.high``: above it the kernel slows the guest down and reclaims its memory.
- ``memory.low``: below it the kernel reclaims memory of other groups first.
- ``memory.min``: below it the kernel reclaims no memory of the guest.
- ``memory.oom.group``: whether the kernel kills all processes of the guest together.
- ``oom_score_adj``: how early the kernel kills the guest when no memory can be reclaimed.

On a host that offers huge pages, a process guest can use as many pages of each size as its allocation
contains (``hugetlb.*.max``).

The kernel would kill a guest for a limit below its current use. So the agent sets the limit only when the
guest uses less, and the status shows the delay. The agent does not change limits that another program has
set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from compute_agent.controllers.base import (
    FOREIGN_ROUNDS,
    PINS,
    GuestController,
    GuestTarget,
    ReleaseItem,
)
from compute_agent.drivers.base import UNLIMITED, MemoryLimits, MemoryTuning
from compute_agent.inventory.traits import memory_trait
from compute_agent.model import cpuset
from compute_agent.model.guest import Allocation, Guest
from compute_agent.model.guest_settings import MemoryType
from compute_agent.model.resource import (
    HUGE_PAGES,
    MEMORY,
    MEMORY_HIGH,
    RECLAIMED_MEMORY,
    MemoryShare,
    ThrottleControl,
)


class MemoryController(GuestController):
    """Binds the memory of guests through the driver. A guest without an assignment keeps its binding."""

    name = "memory"
    compare_rounds = FOREIGN_ROUNDS

    def __init__(
        self,
        driver: MemoryTuning,
        memory_types: Mapping[int, MemoryType] = MappingProxyType({}),
        binds_all: bool = True,
    ) -> None:
        """Begin with the memory types of the host.

        :param memory_types: the type of memory of each NUMA node of the host.
        :param binds_all: whether the agent binds the memory of all guests. If another program pins guests,
            the agent binds only the memory of guests that ask for a memory type.
        """
        self._driver = driver
        self._binds_all = binds_all
        self._memory_types = memory_types

    def list_refusals(self, target: GuestTarget) -> Iterator[str]:
        """Yield a message if a guest does not get the type of memory for which it asks."""
        wanted, place = target.guest.settings.memory_type, target.assignment
        if wanted is MemoryType.ANY or place is None:
            return
        others = {node for node in place.mems if self._memory_types.get(node) is not wanted}
        if place.mems and not others:
            return
        gets = f"it asks for memory of type {wanted}, but gets memory of NUMA nodes {_nodes_text(place.mems)}"
        if wanted not in self._memory_types.values():
            yield f"{gets}: this host has none of that type"
        elif not self._binds_all:
            yield f"{gets}, because its definition binds it to them: remove hw:numa_nodes from its flavor"
        else:
            yield f"{gets}: allocate its MEMORY_MB from a provider with the trait {memory_trait(wanted)}"

    def begin_guest(self, target: GuestTarget) -> None:
        """Bind the memory of a starting guest to the NUMA nodes of its allocation or memory type, if any.

        If another program pins guests, the agent binds only to nodes of the guest's memory type.
        """
        nodes = target.starting_mems
        if nodes and self._decides_on(target.guest, nodes):
            self._driver.bind_starting_memory(target.guest, nodes)

    def describe_drift(self, target: GuestTarget) -> str | None:
        """A text with the NUMA nodes of the guest's memory; None if they are the wanted nodes."""
        place = target.assignment
        if place is None or not self._decides_on(target.guest, place.mems):
            return None
        has = self._driver.memory_nodes(target.guest, place.mems)
        if has is None:
            return None
        return f"memory from NUMA nodes {_nodes_text(has)} in place of {_nodes_text(place.mems)}"

    def apply(self, target: GuestTarget) -> bool:
        """Bind the guest's memory, or remove its binding; return whether a setting was written."""
        place = target.assignment
        if place is None or not self._decides_on(target.guest, place.mems):
            return False
        return self._driver.bind_memory(target.guest, place.mems)

    def _decides_on(self, guest: Guest, nodes: frozenset[int]) -> bool:
        """Whether the agent binds the guest's memory; ``nodes`` are the NUMA nodes that it would choose."""
        if self._binds_all:
            return True
        # If the host has no memory of the type, the guest stays where the other program bound it.
        wanted = guest.settings.memory_type
        return bool(nodes) and all(self._memory_types.get(node) is wanted for node in nodes)

    def list_written(self, guest: Guest, online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The NUMA nodes to which the agent has bound a guest's memory.

        The result is empty if another program binds the memory of guests.
        """
        nodes = self._driver.memory_nodes(guest, frozenset()) if self._binds_all else None
        if nodes is not None:
            give_back = partial(self._driver.bind_memory, guest, frozenset())
            yield ReleaseItem(PINS, str(guest), f"memory of NUMA nodes {cpuset.format(nodes)}", give_back)


def _nodes_text(nodes: frozenset[int]) -> str:
    return cpuset.format(nodes) or "any"


_MIB: Final = 1 << 20

# The constant has the values of a new group. An empty tuple for huge pages lifts the agent's own limits on
# them.
_NO_LIMITS: Final = MemoryLimits(UNLIMITED, UNLIMITED, 0, 0, (), 0, False)

PageLimits = tuple[tuple[int, int], ...]
"""Pairs of a huge page size in KiB and the bytes that a guest may use in pages of that size."""


class MemoryLimitController(GuestController):
    """Sets limits and protection of guests' memory through the driver."""

    name = "memory_limit"
    compare_rounds = FOREIGN_ROUNDS

    def __init__(
        self,
        driver: MemoryTuning,
        classes: Mapping[str, MemoryShare],
        overhead_mb: int,
        limits_pages: bool = False,
    ) -> None:
        """Begin with these settings of the classes of guests.

        :param classes: the percentages of memory of each class, by its name.
        :param overhead_mb: the MiB that a guest may use beyond its allocation.
        :param limits_pages: whether the host offers huge pages. If so, each guest is limited to the huge
            pages in its allocation.
        """
        self._limits_pages = limits_pages
        self._driver = driver
        self._classes = classes
        self._overhead_mb = overhead_mb

    def list_refusals(self, target: GuestTarget) -> Iterator[str]:
        """Yield messages about limits that a guest cannot have, and about use above its limits.

        The agent does not kill a guest for its use.
        """
        limits = self._target_limits(target)
        if used := self._used_beyond(target, limits):
            maximum = limits.maximum or 0
            yield (
                f"it uses {used // _MIB} MiB, but may use only {maximum // _MIB}: the agent sets"
                " memory.max once it uses less, because the kernel would kill it now; allocate more"
                " MEMORY_MB, or stop it"
            )
        yield from self._driver.memory_missing(target.guest, limits)
        pages = self._driver.huge_page_use(target.guest) if limits.huge_pages else {}
        for size, amount in limits.huge_pages or ():
            if pages.get(size, 0) > amount:
                kib = size * 1024
                yield (
                    f"it uses {pages[size] // kib} huge pages of {size} KiB, but may use only"
                    f" {amount // kib}: it gets no more pages, and the limit applies once it uses fewer;"
                    f" allocate more {HUGE_PAGES[size]}, or stop it"
                )

    def _used_beyond(self, target: GuestTarget, limits: MemoryLimits) -> int:
        """The bytes that a guest uses, if it uses more than its limit; otherwise 0."""
        if limits.maximum is None or limits.maximum == UNLIMITED:
            return 0
        used = self._driver.memory_use(target.guest) or 0
        return used if used > limits.maximum else 0

    def describe_drift(self, target: GuestTarget) -> str | None:
        """A text with the present limits if they differ from the wanted limits; None if they agree."""
        # The full limits are compared first. They usually agree, and then the used memory need not be read.
        if self._driver.memory_limits(target.guest, self._target_limits(target)) is None:
            return None
        wanted = self._wanted_limits(target)
        has = self._driver.memory_limits(target.guest, wanted)
        return None if has is None else f"memory {_limit_text(has)} in place of {_limit_text(wanted)}"

    def apply(self, target: GuestTarget) -> bool:
        """Set the memory limits that differ; return whether any limit differed."""
        return self._driver.limit_memory(target.guest, self._wanted_limits(target))

    def list_written(self, guest: Guest, online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The limits and the protection of a guest's memory that the agent wrote."""
        has = self._driver.memory_limits(guest, _NO_LIMITS)
        if has is not None:
            give_back = partial(self._driver.limit_memory, guest, _NO_LIMITS)
            yield ReleaseItem(PINS, str(guest), f"memory {_limit_text(has)}", give_back)

    def _wanted_limits(self, target: GuestTarget) -> MemoryLimits:
        limits = self._target_limits(target)
        if self._used_beyond(target, limits):
            # When memory.max is written below the current use, the kernel reclaims memory and then kills at
            # once.
            limits = replace(limits, maximum=None)
        if limits.huge_pages:
            # The kernel refuses hugetlb.*.max below the current use (EBUSY), so the limit is lowered as the
            # use falls.
            used = self._driver.huge_page_use(target.guest)
            pages = ((size, max(amount, used.get(size, 0))) for size, amount in limits.huge_pages)
            limits = replace(limits, huge_pages=tuple(pages))
        return limits

    def _target_limits(self, target: GuestTarget) -> MemoryLimits:
        if target.allocation is None:
            return MemoryLimits()
        share = self._classes.get(target.guest.settings.qos_class, MemoryShare())
        # The value is an empty tuple, because this lifts limits that an earlier configuration has set, while
        # None would leave them in force.
        pages = page_limits(target.allocation) if self._limits_pages else ()
        limits = memory_limits(target.allocation, share, self._overhead_mb, pages)
        throttle = target.limits.get(ThrottleControl(MEMORY_HIGH))
        if throttle is None or limits.high is None:
            return limits
        # If both the class and throttling set a limit, the lower one applies.
        return replace(limits, high=min(limits.high, int(throttle)))


def page_limits(allocation: Allocation) -> PageLimits:
    """The bytes that a guest may use in huge pages of each size, from its allocation."""
    return tuple(
        (size, sum(amounts.get(name, 0) for amounts in allocation.values()) * size * 1024)
        for size, name in HUGE_PAGES.items()
    )


def memory_limits(
    allocation: Allocation, share: MemoryShare, overhead_mb: int, pages: PageLimits | None = None
) -> MemoryLimits:
    """The memory limits of a guest that holds ``allocation``.

    Without memory in the allocation, the only limit is that of the guest's class, if it has one.

    :param share: the limits of the guest's class, most of them as percentages of the memory in the
        allocation.
    :param overhead_mb: the MiB that the guest may use beyond its allocation.
    :param pages: the limits of huge pages; None means that the agent leaves these limits unchanged.
    """
    held = sum(amounts.get(name, 0) for amounts in allocation.values() for name in (MEMORY, RECLAIMED_MEMORY))
    if not held:
        maximum = UNLIMITED if share.limit_mb is None else share.limit_mb * _MIB
        return MemoryLimits(maximum, UNLIMITED, 0, share.oom_score_adj, pages, 0, share.oom_group)
    return MemoryLimits(
        maximum=(held + overhead_mb) * _MIB,
        high=UNLIMITED if share.high is None else held * _MIB * share.high // 100,
        low=held * _MIB * share.low // 100,
        oom_score_adj=share.oom_score_adj,
        huge_pages=pages,
        minimum=held * _MIB * share.minimum // 100,
        oom_group=share.oom_group,
    )


def _limit_text(limits: MemoryLimits) -> str:
    parts = {"max": limits.maximum, "high": limits.high, "low": limits.low, "min": limits.minimum}
    words = [
        f"{name} {'unlimited' if amount >= UNLIMITED else f'{amount / _MIB:g} MiB'}"
        for name, amount in parts.items()
        if amount is not None
    ]
    words += [f"{amount / _MIB:g} MiB in pages of {size} KiB" for size, amount in limits.huge_pages or ()]
    if limits.oom_score_adj is not None:
        words.append(f"oom_score_adj {limits.oom_score_adj}")
    if limits.oom_group is not None:
        words.append(f"oom.group {int(limits.oom_group)}")
    return ", ".join(words) or "as it is"
