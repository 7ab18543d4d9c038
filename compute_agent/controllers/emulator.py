"""Controller ``emulator``: moves threads that run no guest CPU away from dedicated CPUs.

The controller is for hosts where another program pins guests. The controller acts only with ``[isolation]
emulator = move``, and only on threads that are pinned in the definition of their domain. A release restores
these pins.

Emulator threads are QEMU's threads that run no guest CPU, the workers of vhost, and helpers. Emulator threads
belong on shared CPUs of the guest's NUMA nodes. With the emulator policy ``isolate`` the guest has a
dedicated CPU for its emulator threads, which none of its guest CPUs uses. All other dedicated CPUs are for
guest CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from compute_agent.controllers.base import (
    PINS,
    GuestController,
    GuestTarget,
    ReleaseItem,
)
from compute_agent.drivers.base import CpuTuning
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment, Guest
from compute_agent.model.messages import named_few

_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class EmulatorSettings:
    """The configuration of controller ``emulator``.

    :ivar moves: whether threads are moved (``[isolation] emulator``).
    :ivar shared: the CPUs in the option ``cpu_shared_set``.
    :ivar nodes: the CPUs of each NUMA node, by number of the node.
    """

    moves: bool = False
    shared: CpuSet = frozenset()
    nodes: Mapping[int, CpuSet] = field(default_factory=dict)

    def choose_cpus(self, place: CpuAssignment, held: CpuSet, online: CpuSet) -> CpuSet:
        """The shared CPUs in the NUMA nodes of a guest, or else all shared CPUs; empty if no CPU is left.

        :param held: the CPUs that guests hold, which emulator threads must not use.
        """
        free = self.shared & online - held
        near = frozenset[int]().union(*(cpus for cpus in self.nodes.values() if cpus & place.cpus))
        return free & near or free


def find_misplaced(threads: Mapping[int, CpuSet], place: CpuAssignment, held: CpuSet) -> dict[int, CpuSet]:
    """The threads that may use dedicated CPUs although the policy forbids it, each with these CPUs.

    :param threads: the CPUs of a guest's threads that run no guest CPU, by thread id.
    :param place: the assignment of the guest: the CPUs and NUMA nodes where it runs.
    :param held: the CPUs that all guests together hold.
    """
    reserved = held - (place.held_cpus - place.cpus)
    return {tid: cpus & reserved for tid, cpus in threads.items() if cpus & reserved}


def tell_misplaced(misplaced: Mapping[int, CpuSet]) -> str:
    """A message about threads on CPUs where they do not belong; empty if there are no such threads."""
    if not misplaced:
        return ""
    cpus = cpuset.format(frozenset().union(*misplaced.values()))
    tids = named_few([str(tid) for tid in sorted(misplaced)], _SHOWN)
    return f"threads that run no guest CPU may use dedicated CPUs {cpus}: {tids}"


NO_SHARED: Final = "no shared CPU is free for them"
NO_PIN: Final = (
    "the kernel does not move them, or the domain's definition has no pin that they could get back"
)


STAYING_EMULATORS: Final = EmulatorSettings()


class EmulatorController(GuestController):
    """Moves emulator threads, vhost workers and helpers from dedicated CPUs to shared CPUs."""

    name = "emulator"

    def __init__(self, driver: CpuTuning, settings: EmulatorSettings) -> None:
        self._driver = driver
        self._settings = settings
        self._held: CpuSet = frozenset()
        #: By guest, the threads that could not be moved, with the dedicated CPUs on which they stay. The
        #: agent does not try to move them again.
        self._left: dict[str, Mapping[int, CpuSet]] = {}

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Record the CPUs that guests hold, and the threads that cannot be moved away from these CPUs."""
        self._held = frozenset[int]().union(
            *(target.assignment.held_cpus for target in targets if target.assignment is not None)
        )
        present = {target.guest.uuid for target in targets}
        self._left = {uuid: left for uuid, left in self._left.items() if uuid in present}
        super().sync(targets, zones)

    def list_refusals(self, target: GuestTarget) -> Iterator[str]:
        """Yield a message about threads of the guest that cannot be moved away from dedicated CPUs."""
        if not self._settings.moves or target.guest.settings.preserve:
            return
        misplaced = self._find_misplaced(target)
        if not misplaced:
            self._left.pop(target.guest.uuid, None)
        elif not self._choose_cpus(target):
            yield f"{tell_misplaced(misplaced)}; {NO_SHARED}"
        elif misplaced == self._left.get(target.guest.uuid):
            yield f"{tell_misplaced(misplaced)}; {NO_PIN}"

    def describe_drift(self, target: GuestTarget) -> str | None:
        """A text about movable threads on dedicated CPUs; None if no such thread exists."""
        return tell_misplaced(self._find_movable(target)) or None

    def apply(self, target: GuestTarget) -> bool:
        """Move the threads on dedicated CPUs; return whether any moved."""
        movable = self._find_movable(target)
        if not movable:
            return False
        moved = self._driver.move_emulator(target.guest, movable, self._choose_cpus(target))
        left = self._find_misplaced(target)
        if left:
            self._left[target.guest.uuid] = left
        else:
            self._left.pop(target.guest.uuid, None)
        return bool(moved)

    def describe_change(self, target: GuestTarget, difference: str) -> str:
        """A text with the threads on dedicated CPUs, and the CPUs to which they would be moved."""
        return f"{difference} -> {cpuset.format(self._choose_cpus(target))}"

    def list_written(self, guest: Guest, online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The threads that are pinned to other CPUs than the definition of the guest's domain says."""
        if moved := self._driver.moved_emulator(guest, online):
            has = f"emulator CPUs {cpuset.format(frozenset().union(*moved.values()))}"
            give_back = partial(self._driver.restore_emulator, guest, online)
            yield ReleaseItem(PINS, str(guest), has, give_back)

    def _find_misplaced(self, target: GuestTarget) -> dict[int, CpuSet]:
        if target.assignment is None:
            return {}
        threads = self._driver.emulator_threads(target.guest)
        return find_misplaced(threads, target.assignment, self._held)

    def _find_movable(self, target: GuestTarget) -> dict[int, CpuSet]:
        """The dedicated CPUs on which each thread that can be moved may run, by thread id.

        The result is empty if no shared CPU is available, or if an earlier attempt could not move the same
        threads.
        """
        if not self._settings.moves or not self._choose_cpus(target):
            return {}
        misplaced = self._find_misplaced(target)
        return {} if misplaced == self._left.get(target.guest.uuid) else misplaced

    def _choose_cpus(self, target: GuestTarget) -> CpuSet:
        if target.assignment is None:
            return frozenset()
        return self._settings.choose_cpus(target.assignment, self._held, target.online)
