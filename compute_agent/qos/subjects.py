"""From what the agent knows of a guest to what watermarks need to know of it."""

from __future__ import annotations

from collections.abc import Mapping

from compute_agent.model.guest import Guest
from compute_agent.model.resource import BLOCKIO, CPU_QUOTA, ThrottleControl
from compute_agent.qos.classes import QosClasses
from compute_agent.qos.rounds import MeasuredGuest
from compute_agent.qos.snapshot import GuestAllotment, GuestUsage


def build_subject(
    guest: Guest,
    classes: QosClasses,
    *,
    dedicated: bool,
    started: float = 0.0,
    cgroup: str = "",
    pids: tuple[int, ...] = (),
    caches: Mapping[ThrottleControl, GuestAllotment] | None = None,
) -> MeasuredGuest:
    """A guest as it is measured and decided about.

    ``dedicated``: it holds dedicated CPUs. ``started`` is in seconds on a clock that all guests share,
    ``cgroup`` the folder of its cgroup v2 group; without one its main process, or ``pids``, are measured.
    ``caches`` is what it may use of bandwidth and cache ways, by L3 domain, where these can be controlled. A
    guest may use as many cores as it has CPUs, and all of what its class of block I/O lets it.
    """
    settings = guest.settings
    facts = GuestUsage(
        uuid=guest.uuid,
        name=guest.name,
        qos_class=settings.qos_class,
        rank=classes.rank(settings.qos_class),
        priority=settings.priority,
        protected=classes.protects(settings.qos_class, dedicated),
        started=started,
        entitlements={
            ThrottleControl(CPU_QUOTA): GuestAllotment(float(settings.vcpus)),
            ThrottleControl(BLOCKIO): GuestAllotment(100.0, 1.0, per_unit=None),
            **(caches or {}),
        },
    )
    return MeasuredGuest(facts, cgroup, pids or (guest.pid,))
