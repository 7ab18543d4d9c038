"""A guest: a virtual machine or a plain process that the agent looks after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compute_agent.model.constraints import UNCONSTRAINED, PlacementConstraints
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.naming import called


@dataclass(frozen=True, slots=True)
class Guest:
    """One guest as its driver knows it. ``uuid`` is its consumer uuid, ``pid`` its main process.

    ``cgroup`` is the folder of its cgroup v2 group, empty if it has none to itself. ``details`` are for
    people alone: what else the driver can tell, by name. ``dedicated`` is how many of its CPUs it was ordered
    to have for itself; 0: none, or nobody said. ``constraints`` are what its definition demands.
    """

    uuid: str
    driver: str
    name: str
    pid: int
    settings: GuestSettings = field(default_factory=GuestSettings)
    cgroup: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    dedicated: int = 0
    constraints: PlacementConstraints = UNCONSTRAINED

    def __str__(self) -> str:
        return called(self.name, self.uuid)
