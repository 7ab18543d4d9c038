"""What was used in a zone between two reads of the host and its guests: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compute_agent.capacity.history import SYSTEM, ZoneReading


@dataclass(frozen=True, slots=True)
class GuestUse:
    """A guest that runs. It may run on ``cpus``, and use so many cores as ``entitlement`` says.

    ``cores`` is what it used between the reads; None: that is not known, as it has just begun. ``parts`` are
    those of what it used by CPU; empty: it lies evenly. ``reclaimed``: it lives on what others leave.
    """

    uuid: str
    entitlement: float
    cpus: frozenset[int]
    cores: float | None = None
    reclaimed: bool = False
    parts: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostUse:
    """One read of host and guests, and what was used since the one before.

    ``busy`` are the parts of the time that CPUs were, ``stolen`` those in which a hypervisor ran others,
    ``guests`` those that run. ``left`` says whether guests have ended since, and ``reclaimed_left`` whether
    such were among them that live on what others leave.
    """

    time: float
    busy: Mapping[int, float]
    guests: tuple[GuestUse, ...]
    left: bool = False
    reclaimed_left: bool = False
    stolen: Mapping[int, float] = field(default_factory=dict)


def read_zone(use: HostUse, shared: frozenset[int]) -> ZoneReading | None:
    """What the others used of the ``shared`` CPUs of a zone; None where that cannot be told.

    What a guest uses lies evenly on the CPUs that it may run on, unless more is known. What is nobody's is
    the system's, unless guests came or went meanwhile: it may have been theirs. Nor can it be told what the
    others used if one of these lives on what they leave.
    """
    if use.reclaimed_left or not shared <= use.busy.keys():
        return None
    total = sum(use.busy[cpu] for cpu in shared)
    others: dict[str, float] = {}
    complete = not use.left
    for guest in use.guests:
        part = used_part(guest, shared)
        if not part:
            continue
        if guest.cores is None:
            if guest.reclaimed:
                return None
            complete = False
        elif guest.reclaimed:
            total -= guest.cores * part
        else:
            others[guest.uuid] = guest.cores * part
    total = max(0.0, total)
    if complete:
        others[SYSTEM] = max(0.0, total - sum(others.values()))
    return ZoneReading(use.time, total, others)


def used_part(guest: GuestUse, shared: frozenset[int]) -> float:
    """The part of what a guest used that was of the shared CPUs of a zone."""
    return sum(guest.parts.get(one, 0.0) for one in shared) if guest.parts else part_of(guest, shared)


def part_of(guest: GuestUse, shared: frozenset[int]) -> float:
    """The part of its CPUs that a guest has among the shared ones of a zone."""
    return len(guest.cpus & shared) / len(guest.cpus) if guest.cpus else 0.0


def entitlements(guests: Iterable[GuestUse], shared: frozenset[int]) -> dict[str, float]:
    """What each of the others may use of the shared CPUs of a zone, in cores."""
    return {
        guest.uuid: min(guest.entitlement, float(len(guest.cpus & shared)))
        for guest in guests
        if not guest.reclaimed and guest.cpus & shared
    }
