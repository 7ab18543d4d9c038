"""A domain that runs, and how it differs from what is wanted of it: nothing here needs libvirtd."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuLimits, CpuSettings, QuotaError
from compute_agent.drivers.cgroup import agree
from compute_agent.drivers.libvirt import domain_group
from compute_agent.drivers.libvirt.definition import DomainDefinition, MemoryBinding
from compute_agent.drivers.libvirt.domain_blockio import DomainBlockIo
from compute_agent.drivers.libvirt.domain_group import DomainGroup
from compute_agent.drivers.libvirt.qemu import QemuProcess, wanted_cpus
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo


@dataclass(slots=True)
class RunningDomain:
    """The guest, its process, its definition with the XML that it is read from, and its memory binding.

    ``refused`` are NUMA nodes that libvirt refused to bind its memory to. ``unreported``: its threads are
    pinned, and libvirt may not know it yet. ``own_limits`` are limits of memory that the agent has set.
    ``blockio`` is how its block I/O is limited, ``soft_limit`` (KiB) its memory; ``refused_blockio`` is what
    libvirt did not take, and why, and so is ``refused_soft_limit``.
    """

    guest: Guest
    process: QemuProcess
    source: str
    definition: DomainDefinition
    binding: MemoryBinding
    refused: frozenset[int] | None = None
    unreported: bool = False
    own_limits: frozenset[str] = frozenset()
    blockio: DomainBlockIo = field(default_factory=DomainBlockIo)
    soft_limit: int | None = None
    refused_soft_limit: str = ""
    refused_blockio: tuple[BlockIo | None, str] | None = None
    _group: DomainGroup | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return procfs.is_alive(self.process.identity)

    def describe_as(self, found: RunningDomain) -> None:
        """Take over what is found to be new about the same process."""
        self.guest, self.source, self.definition = found.guest, found.source, found.definition
        self.binding, self.blockio = found.binding, found.blockio
        self.soft_limit = found.soft_limit

    def redefine(self, definition: DomainDefinition) -> None:
        """Note that the agent made this the definition.

        Its text is another one now, which nobody has read: somebody may make it what it was before.
        """
        if definition != self.definition:
            self.definition, self.source = definition, ""

    @property
    def group(self) -> DomainGroup | None:
        """The group of the domain; None as long as libvirt has made none for CPUs."""
        if self._group is None:
            self._group = domain_group.find(self.guest.pid)
        return self._group

    def pin_rest(self, settings: CpuSettings) -> None:
        """Pin what libvirt's calls left: without cgroups they do not reach the emulator's helpers."""
        for _ in range(procfs.MAX_PASSES):
            misplaced = self.process.misplaced(settings)
            if not misplaced:
                return
            for tid, (it, _) in misplaced.items():
                try:
                    os.sched_setaffinity(tid, wanted_cpus(it, settings))
                except ProcessLookupError:
                    continue
                except OSError as error:
                    raise DriverError(
                        f"thread {tid} of guest {self.guest} cannot be pinned: {error}"
                    ) from error

    def other_limits(self, wanted: CpuLimits) -> CpuLimits | None:
        """The limits in the kernel where they are not those that the domain should have; None if they agree.

        :raises GuestGoneError:
        :raises DriverError: a domain without a group is to have a quota.
        """
        has = None if self.group is None else self.group.limits()
        if has is not None:
            return None if agree(has, self.definition.within(wanted)) else has
        if not self.is_alive:
            raise GuestGoneError(f"guest {self.guest} has ended")
        if wanted.quota is not None:
            why = "libvirt made no cgroup with the controller cpu for it"
            raise QuotaError(self.guest, wanted.quota, why)
        return None

    def other_nodes(self, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes that the kernel or libvirt binds the memory to where they are not those wanted.

        Empty stands for all. None if they agree, or if libvirt refused them.

        :raises GuestGoneError:
        """
        if self.refused == wanted:
            return None
        allowed = procfs.memory_nodes(self.guest.pid)
        if allowed is None:
            raise GuestGoneError(f"guest {self.guest} has ended")
        if allowed == self.binding.nodes == wanted:
            return None
        everywhere = procfs.nodes_with_memory()
        for has in (allowed, self.binding.nodes):
            unbound = not has or has >= everywhere
            if has != wanted and (wanted or not unbound):
                return frozenset() if unbound else has
        return None
