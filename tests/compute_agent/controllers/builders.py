"""Builders for tests of controllers."""

from compute_agent.controllers.base import GuestTarget
from compute_agent.model.cpuset import FormerValues
from compute_agent.model.guest import CpuAssignment
from tests.compute_agent.builders import build_guest, cpu_set


def class_target(uuid, qos_class, *held):
    guest = build_guest(uuid, qos_class=qos_class)
    place = (
        CpuAssignment((cpu_set(*held),), cpu_set(0), held)
        if held
        else CpuAssignment((cpu_set(0, 1),), cpu_set(0))
    )
    return GuestTarget(guest, place, frozenset(range(8)))


class Store:
    """Stores former values of kernel files. A test can make it fail."""

    def __init__(self):
        self.former_values, self.broken, self.kept = FormerValues(), None, []

    def keep_former_values(self, former):
        if self.broken:
            raise self.broken
        self.former_values = former
        self.kept.append(dict(former.values))
