"""Where a guest runs, asked of its driver."""

from __future__ import annotations

from compute_agent.drivers.base import GuestDriver
from compute_agent.model.guest import Guest
from compute_agent.policy.policies import KernelPlacement


def observe(driver: GuestDriver, guest: Guest) -> KernelPlacement:
    """Where the kernel lets a guest run now.

    :raises GuestGoneError:
    """
    return KernelPlacement(
        driver.observed_cpus(guest),
        driver.vcpu_affinity(guest),
        driver.emulator_affinity(guest),
        driver.memory_nodes(guest, frozenset()) or frozenset(),
    )
