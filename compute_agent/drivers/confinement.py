"""What the group of a process guest says of CPU limits and memory, and how it is made to say something else.

A guest without a group cannot be confined in this way: it has None for one.
"""

from __future__ import annotations

from compute_agent.drivers.base import CpuLimits, QuotaError
from compute_agent.drivers.cgroup import GuestCgroup, agree
from compute_agent.model import cpuset
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError


def other_limits(guest: Guest, group: GuestCgroup | None, wanted: CpuLimits) -> CpuLimits | None:
    """The limits of the group where they are not those wanted; None if they agree.

    :raises DriverError: a guest that cannot have a quota is to have one.
    """
    has = None if group is None else group.cpu_limits()
    if has is None and wanted.quota is not None:
        why = "it is in no cgroup v2 group of its own with the controller cpu ([cgroup] root)"
        raise QuotaError(guest, wanted.quota, why)
    return None if has is None or agree(has, wanted) else has


def limit(guest: Guest, group: GuestCgroup | None, wanted: CpuLimits) -> bool:
    """Write the limits that differ, and read them back. True if any did.

    :raises DriverError:
    """
    has = other_limits(guest, group, wanted)
    if group is None or has is None:
        return False
    try:
        group.limit_cpu(has, wanted)
    except OSError as error:
        raise DriverError(f"the CPU limits of guest {guest} cannot be set: {error}") from error
    if left := other_limits(guest, group, wanted):
        raise DriverError(f"guest {guest} has {left}, as the kernel did not take {wanted}")
    return True


def other_nodes(group: GuestCgroup | None, wanted: frozenset[int]) -> frozenset[int] | None:
    """The NUMA nodes of the group where they are not those wanted (empty: all that it could have).

    None if they agree or cannot be set.
    """
    has = None if group is None else group.memory_nodes()
    if group is None or has is None or has == wanted:
        return None
    return None if not wanted and has >= group.possible_nodes() else has


def bind(guest: Guest, group: GuestCgroup | None, wanted: frozenset[int]) -> bool:
    """Write the NUMA nodes if they differ, and read them back. True if they did.

    :raises DriverError:
    """
    if group is None or other_nodes(group, wanted) is None:
        return False
    nodes = cpuset.format(wanted) or "any"
    try:
        group.bind_memory(wanted or group.possible_nodes())
    except OSError as error:
        raise DriverError(
            f"the memory of guest {guest} cannot be bound to NUMA nodes {nodes}: {error}"
        ) from error
    if other_nodes(group, wanted) is not None:
        raise DriverError(f"guest {guest}: the kernel did not bind its memory to NUMA nodes {nodes}")
    return True
