"""Warnings about QoS classes with options that this host or the agent's privileges do not allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compute_agent.classes.guest_classes import QosClass
from compute_agent.conf.qos import QOS_CLASS
from compute_agent.host.proc_stat import has_capability
from compute_agent.model.resource import CoreScope

_CAP_SYS_PTRACE: Final = 19
"""The number of CAP_SYS_PTRACE in linux/capability.h."""


def class_warnings(classes: Mapping[str, QosClass], realtime_limit: str, status: str) -> list[str]:
    """The warnings about options of QoS classes that cannot be applied here, or that delay the host's work.

    :param classes: the QoS classes by name.
    :param realtime_limit: a message about the kernel's limit for realtime threads; empty if there is no
        limit.
    :param status: the content of /proc/self/status.
    """
    found = [
        f"[{QOS_CLASS}{one.name}] realtime_priority: interrupts and other work of the host on the CPUs of a"
        " busy guest wait for the guest; set isolation = quiet or alone for the class"
        for one in classes.values()
        if one.cpu.realtime_priority and not one.isolation.is_quiet
    ]
    if realtime_limit and any(one.cpu.realtime_priority for one in classes.values()):
        found.append(realtime_limit)
    if not has_capability(status, _CAP_SYS_PTRACE):
        found += [
            f"[{QOS_CLASS}{one.name}] core_scheduling: the agent lacks CAP_SYS_PTRACE, which core cookies"
            " need; add it to CapabilityBoundingSet= of the unit"
            for one in classes.values()
            if one.cpu.core_scheduling is not CoreScope.NONE
        ]
    return found
