"""The common part of drivers of guests without guest CPUs: process guests, services and containers.

All threads of such a guest are equal. Such a guest has no emulator, and no helpers outside of its own
processes.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence

from compute_agent.drivers.base import CpuSettings
from compute_agent.model.guest import Guest


class UndividedThreads(abc.ABC):
    """Answers questions about threads of guest CPUs, emulators and helpers, which the guest does not have.

    Each method raises :class:`~compute_agent.model.messages.GuestGoneError` if the guest has ended.
    """

    @abc.abstractmethod
    def _check_running(self, guest: Guest) -> None:
        """Check that a guest runs.

        :raises GuestGoneError: the guest has ended.
        """

    @property
    def flavor_source(self) -> None:
        """Always None: the guest has no flavor."""
        return

    @property
    def expecting_driver(self) -> None:
        """Always None: no program announces the start of a guest."""
        return

    def bind_starting_memory(self, guest: Guest, nodes: frozenset[int]) -> bool:
        """Return False, because no program announces the start of a guest."""
        return False

    def usage_group(self, guest: Guest) -> str:
        """The folder of the guest's own group; empty if the guest has no own group."""
        return guest.cgroup

    def vcpu_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """Always empty: the guest has no guest CPUs, no emulator, and no helpers outside its processes."""
        self._check_running(guest)
        return {}

    helper_affinity = emulator_threads = vcpu_affinity

    def emulator_affinity(self, guest: Guest) -> frozenset[int]:
        """Always empty: the guest has no emulator."""
        self._check_running(guest)
        return frozenset()

    def move_emulator(self, guest: Guest, threads: Collection[int], cpus: frozenset[int]) -> int:
        """Always 0: the guest has no emulator threads to move."""
        self._check_running(guest)
        return 0

    def moved_emulator(self, guest: Guest, online: frozenset[int]) -> Mapping[int, frozenset[int]]:
        """Always empty: the guest has no emulator threads."""
        self._check_running(guest)
        return {}

    def restore_emulator(self, guest: Guest, online: frozenset[int]) -> int:
        """Always 0: the guest has no emulator threads to move back."""
        self._check_running(guest)
        return 0

    def stuck_helpers(self, guest: Guest) -> Sequence[str]:
        """Always empty: the guest has no helpers outside its own processes."""
        self._check_running(guest)
        return ()


def undivided_cpus(settings: CpuSettings) -> frozenset[int]:
    """The CPUs for all threads of a guest without guest CPUs."""
    # A confined guest can have emulator CPUs only.
    return settings.cpus or settings.emulator_cpus
