"""CPU set strings: what operators write (``0-3,^2,8``), and the kernel's lists and masks.

The kernel's own formats are those of ``bitmap_parselist`` and ``bitmap_parse`` (lib/bitmap-str.c): lists such
as ``0-3,8``, masks such as ``ff,ffffffff`` (comma-separated words of 32 bits, the most significant first).
Exclusions (``^2``, ``^4-5``) are what the configuration adds to lists.

What the CPUs of a host are for.

How fast CPUs work and how deep they sleep: what one class of them says, and what was there before.

A part of the host's CPUs that some guests have to themselves: what its section says.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

CpuSet = frozenset[int]
"""Logical CPUs, by the number that the kernel gives them."""

Parser = Callable[[str], frozenset[int]]

MAX_CPU: Final = 65535
"""Highest CPU number accepted: above any NR_CPUS, yet a typing error cannot fill the memory."""

_PART: Final = re.compile(r"(\^?)\s*([0-9]+)(?:\s*-\s*([0-9]+))?", re.ASCII)


class BadCpuSet(ValueError):
    """A CPU set string that cannot be read; ``part`` is the piece that is wrong."""

    def __init__(self, text: str, part: str, why: str) -> None:
        super().__init__(f"bad CPU set {text!r}: {part!r} {why}")
        self.text = text
        self.part = part


def parse(text: str) -> frozenset[int]:
    """CPU numbers of a list such as ``0-3,^2,8,^4-5``; exclusions apply wherever they stand.

    Blanks around parts and empty parts are allowed, as they are in the kernel; an empty text is the empty
    set.

    :raises BadCpuSet: that names the bad part.
    """
    included: set[int] = set()
    excluded: set[int] = set()
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            continue
        match = _PART.fullmatch(part)
        if match is None:
            raise BadCpuSet(text, part, "is not a CPU number, a range (0-3) or an exclusion (^2)")
        first = int(match[2])
        last = first if match[3] is None else int(match[3])
        if last > MAX_CPU or first > MAX_CPU:
            raise BadCpuSet(text, part, f"is above the highest CPU number, {MAX_CPU}")
        if last < first:
            raise BadCpuSet(text, part, "is a range that ends before it starts")
        (excluded if match[1] else included).update(range(first, last + 1))
    return frozenset(included - excluded)


def format(cpus: Iterable[int]) -> str:
    """The shortest list of ``cpus``, as the kernel prints it: ``0-3,8``; the empty set is an empty text."""
    ranges: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def parse_mask(text: str) -> frozenset[int]:
    """CPU numbers of a kernel mask such as ``ff,ffffffff``.

    :raises BadCpuSet: that names the bad word.
    """
    mask = 0
    for word in text.split(","):
        word = word.strip()
        if not re.fullmatch(r"[0-9a-fA-F]{1,8}", word):
            raise BadCpuSet(text, word, "is not a word of up to 8 hexadecimal digits")
        mask = mask << 32 | int(word, 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


@dataclass(frozen=True, slots=True)
class CpuSets:
    """What each usable CPU is for; those in no set belong to the host.

    ``dedicated`` and ``shared`` are disjoint but for the legacy ``vcpu_pin_set`` alone, which is both.
    ``emulator`` is where emulator threads run that have no CPU of their own; it is empty where there is no
    shared CPU. ``pooled`` are those of them that are in a pool, for its members only. ``offline`` are CPUs
    of ``[compute] cpu_dedicated_set`` that are offline and were never seen online, and so in no set until
    they are online.
    """

    dedicated: frozenset[int]
    shared: frozenset[int]
    emulator: frozenset[int]
    reserved_vcpus: int = 0
    warnings: tuple[str, ...] = ()
    pooled: frozenset[int] = frozenset()
    offline: frozenset[int] = frozenset()

    @property
    def offline_warning(self) -> str:
        """A sentence on offline dedicated CPUs; empty if there are none."""
        if not self.offline:
            return ""
        return (
            f"[compute] cpu_dedicated_set: {named(self.offline)} {_are(self.offline)} offline, and left out"
            " until online: a CPU that goes offline, such as by nova-compute's cpu_power_management, counts"
            " once the agent has seen it online"
        )

    @property
    def open_shared(self) -> frozenset[int]:
        """The shared CPUs of no pool."""
        return self.shared - self.pooled

    @property
    def both(self) -> bool:
        """Whether the same CPUs back PCPU and VCPU, as with the legacy ``vcpu_pin_set`` alone."""
        return bool(self.dedicated) and self.dedicated == self.shared

    @property
    def legacy(self) -> bool:
        """Whether they come from the legacy ``vcpu_pin_set``, with or without ``cpu_shared_set``."""
        return self.both or self.emulator != self.shared

    def stray(self, held: frozenset[int], online: frozenset[int], reach: frozenset[int] | None = None) -> str:
        """What is wrong with the dedicated CPUs that a guest holds, in words; empty if nothing is.

        They are in no set, or in another one, after the configuration changed, and offline ones run nobody.
        ``reach`` are those of its pools, or of no pool, where there are any.
        """
        gone, offline = held & online - self.dedicated, held - online
        pooled = held & online & self.dedicated - reach if reach is not None else frozenset[int]()
        reasons = [
            f"{named(cpus)} {reason}"
            for cpus, reason in (
                (gone, f"{_are(gone)} not in [compute] cpu_dedicated_set any more"),
                (offline, f"{_are(offline)} offline"),
                (pooled, f"{_are(pooled)} not of the pool that it holds CPUs of any more"),
            )
            if cpus
        ]
        return ", ".join(reasons)


def named(cpus: frozenset[int]) -> str:
    """CPUs in the words of a message: ``CPU 3``, ``CPUs 4-7``."""
    return f"{'CPU' if len(cpus) == 1 else 'CPUs'} {format(cpus)}"


def _are(cpus: frozenset[int]) -> str:
    return "is" if len(cpus) == 1 else "are"


IDLE: Final = "idle"
"""The class of the dedicated CPUs that nobody holds."""

SHARED: Final = "shared"
"""The class of the shared CPUs."""


class NamedFrequency(enum.StrEnum):
    """A frequency that is another one on each processor."""

    MIN = "min"
    BASE = "base"
    TURBO = "turbo"


class ParkMode(enum.StrEnum):
    """What happens to idle dedicated cores after a while."""

    OFFLINE = "offline"
    GOVERNOR = "governor"
    C_STATE = "c-state"


Bound = int | NamedFrequency | None
"""A frequency in kHz, or in a word; None: as it was found."""


@dataclass(frozen=True, slots=True)
class CpuClass:
    """A section ``[cpu_class:NAME]``; what is None or empty stays as it was found.

    ``energy_preference`` is one of energy_performance_available_preferences, ``disabled_c_states`` are names
    of idle states that must not be entered. Of uncore frequencies ``base`` is none. Idle CPUs are parked
    after so many seconds, where the class is theirs and says how.
    """

    name: str
    governor: str | None = None
    min_frequency: Bound = None
    max_frequency: Bound = None
    energy_preference: str | None = None
    disabled_c_states: tuple[str, ...] = ()
    min_uncore: Bound = None
    max_uncore: Bound = None
    park: ParkMode | None = None
    park_after: float = 60.0


@dataclass(frozen=True, slots=True)
class FormerValues:
    """What files of the kernel held before the agent wrote to them, by path, since a boot (its boot_id)."""

    boot: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


CPU_POOL: Final = "cpu_pool:"
"""What names of their sections begin with."""


@dataclass(frozen=True, slots=True)
class CpuPool:
    """A section ``[cpu_pool:NAME]``.

    It has the CPUs of ``cpus``; or so many dedicated and shared ones of one NUMA node, ``per_node`` of each.
    Members that float may use ``max_cpus`` altogether, with dedicated ones that nobody holds (None: no more
    than the pool has). ``classes`` are those whose guests it takes (empty: all), and it takes ``max_guests``.
    """

    name: str
    cpus: CpuSet = frozenset()
    dedicated_cpus: int = 0
    shared_cpus: int = 0
    per_node: bool = False
    max_cpus: int | None = None
    classes: frozenset[str] = frozenset()
    max_guests: int | None = None
