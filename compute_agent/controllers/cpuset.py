"""Controller ``cpuset``: the threads of a guest run on its CPUs."""

from __future__ import annotations

from compute_agent.controllers.base import GuestController, GuestTarget
from compute_agent.drivers.base import CpuSettings, GuestDriver
from compute_agent.model import cpuset
from compute_agent.model.guest import CpuAssignment


class CpusetController(GuestController):
    """Pins guests through their driver. A guest without an assignment stays where it is."""

    name = "cpuset"

    def __init__(self, driver: GuestDriver) -> None:
        self._driver = driver

    def drifted(self, target: GuestTarget) -> str | None:
        """Which threads run elsewhere, or would at the next start; None if all are where they should be."""
        if target.assignment is None:
            return None
        settings = _settings(target, target.assignment)
        misplaced = self._driver.misplaced_threads(target.guest, settings)
        if not misplaced:
            return self._driver.definition_drift(target.guest, settings) or None
        tid, cpus = min(misplaced.items())
        return f"{len(misplaced)} threads elsewhere, such as {tid} on CPUs {cpuset.format(cpus)}"

    def apply(self, target: GuestTarget) -> bool:
        """Pin what is elsewhere. True if anything was."""
        if self.drifted(target) is None or target.assignment is None:
            return False
        self._driver.apply_cpu_settings(target.guest, _settings(target, target.assignment))
        return True


def _settings(target: GuestTarget, assignment: CpuAssignment) -> CpuSettings:
    """The CPU settings of a target's assignment on the CPUs that are online.

    A guest CPU whose CPUs are all offline runs on what else the guest has, or else on those that nobody
    holds, and in the end on any online CPU: the kernel would let it run anywhere, too, and takes no affinity
    without an online CPU.
    """
    online = target.online
    rest = (assignment.cpus & online) or (assignment.emulator_cpus & online) or target.spare or online
    return CpuSettings(
        vcpu_cpus=tuple((cpus & online) or rest for cpus in assignment.vcpu_cpus),
        emulator_cpus=(assignment.emulator_cpus & online) or rest,
    )
