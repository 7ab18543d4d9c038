"""Sets of CPUs as text, the purposes of a host's CPUs, classes of CPUs and pools of CPUs.

The kernel's formats are those of ``bitmap_parselist`` and ``bitmap_parse`` (lib/bitmap-str.c): lists such as
``0-3,8``, and masks such as ``ff,ffffffff`` (words of 32 bits, the most significant first). Options may also
exclude CPUs from a list (``^2``, ``^4-5``).
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
"""Highest CPU number accepted: above any NR_CPUS of kernels, and low enough that a typing error fills no
memory."""

_PART: Final = re.compile(r"(\^?)\s*([0-9]+)(?:\s*-\s*([0-9]+))?", re.ASCII)


class BadCpuSet(ValueError):
    """A text that is not a CPU set; ``part`` is the piece that is wrong."""

    def __init__(self, text: str, part: str, why: str) -> None:
        super().__init__(f"bad CPU set {text!r}: {part!r} {why}")
        self.text = text
        self.part = part


def parse(text: str) -> frozenset[int]:
    """CPU numbers of a list such as ``0-3,^2,8,^4-5``; exclusions apply wherever they stand.

    Blanks around parts and empty parts are allowed, as they are in the kernel; an empty text is the empty
    set.

    :raises BadCpuSet: a part is not a CPU number, range or exclusion.
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
        # Collected apart, as an exclusion also applies to parts behind it.
        (excluded if match[1] else included).update(range(first, last + 1))
    return frozenset(included - excluded)


def parse_or_empty(text: str | None) -> frozenset[int]:
    """CPU numbers of a list; the empty set for a missing text, or one that is not a CPU set."""
    try:
        return parse(text or "")
    except BadCpuSet:
        return frozenset()


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

    :raises BadCpuSet: a word has more than 8 digits, or another character.
    """
    mask = 0
    for word in text.split(","):
        word = word.strip()
        if not re.fullmatch(r"[0-9a-fA-F]{1,8}", word):
            raise BadCpuSet(text, word, "is not a word of up to 8 hexadecimal digits")
        mask = mask << 32 | int(word, 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def format_mask(cpus: Iterable[int]) -> str:
    """A kernel mask of ``cpus``, such as ``ff,ffffffff``, without leading zeros."""
    digits = f"{sum(1 << cpu for cpu in set(cpus)):x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    words = [digits[index : index + 8] for index in range(0, len(digits), 8)]
    return ",".join((words[0].lstrip("0") or "0", *words[1:]))


@dataclass(frozen=True, slots=True)
class CpuSets:
    """The purpose of each usable CPU. CPUs in no set belong to the host.

    :ivar dedicated: CPUs that back PCPU. Disjoint from ``shared``, except with ``vcpu_pin_set`` alone.
    :ivar shared: CPUs that back VCPU.
    :ivar emulator: CPUs for emulator threads without a CPU of their own; empty without shared CPUs.
    :ivar reserved_vcpus: VCPU that the host keeps.
    :ivar warnings: sentences for operators.
    :ivar pooled: dedicated and shared CPUs that belong to a pool, for its members only.
    :ivar offline: CPUs of ``[compute] cpu_dedicated_set`` that are offline and were never seen online. Such
        CPUs are in no set until they are online.
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
            f"[compute] cpu_dedicated_set: {named_cpus(self.offline)} {_verb_for(self.offline)} offline,"
            " and left out until online: a CPU that goes offline, such as by nova-compute's"
            " cpu_power_management, counts once the agent has seen it online"
        )

    @property
    def open_shared(self) -> frozenset[int]:
        """The shared CPUs of no pool."""
        return self.shared - self.pooled

    @property
    def is_both(self) -> bool:
        """Whether the same CPUs back PCPU and VCPU, as with the legacy ``vcpu_pin_set`` alone."""
        return bool(self.dedicated) and self.dedicated == self.shared

    @property
    def is_legacy(self) -> bool:
        """Whether the sets come from the legacy ``vcpu_pin_set``, with or without ``cpu_shared_set``."""
        return self.is_both or self.emulator != self.shared

    def describe_strays(
        self, held: frozenset[int], online: frozenset[int], reach: frozenset[int] | None = None
    ) -> str:
        """Words about dedicated CPUs that a guest holds and should not have; empty if all are right.

        After a change of the configuration they may be in another set or in none.

        :param held: dedicated CPUs of the guest.
        :param online: CPUs of the host that are online.
        :param reach: CPUs where the guest may be: those of its pools, or, if the guest has no pool, the CPUs
            outside all pools. None if the host has no pools.
        """
        # An offline CPU counts once, as offline: it is in no set either way.
        gone, offline = held & online - self.dedicated, held - online
        pooled = held & online & self.dedicated - reach if reach is not None else frozenset[int]()
        reasons = [
            f"{named_cpus(cpus)} {reason}"
            for cpus, reason in (
                (gone, f"{_verb_for(gone)} not in [compute] cpu_dedicated_set any more"),
                (offline, f"{_verb_for(offline)} offline"),
                (pooled, f"{_verb_for(pooled)} not of the pool that it holds CPUs of any more"),
            )
            if cpus
        ]
        return ", ".join(reasons)


def named_cpus(cpus: frozenset[int]) -> str:
    """CPUs as a message names them: ``CPU 3``, ``CPUs 4-7``."""
    return f"{'CPU' if len(cpus) == 1 else 'CPUs'} {format(cpus)}"


def _verb_for(cpus: frozenset[int]) -> str:
    return "is" if len(cpus) == 1 else "are"


IDLE: Final = "idle"
"""Name of the class of dedicated CPUs that no guest holds."""

SHARED: Final = "shared"
"""Name of the class of shared CPUs."""


class NamedFrequency(enum.StrEnum):
    """A frequency by name; its value depends on the processor."""

    MIN = "min"
    BASE = "base"
    TURBO = "turbo"


class ParkMode(enum.StrEnum):
    """How idle dedicated cores are parked."""

    OFFLINE = "offline"
    GOVERNOR = "governor"
    C_STATE = "c-state"


Bound = int | NamedFrequency | None
"""A frequency in kHz or by name; None leaves it unchanged."""


@dataclass(frozen=True, slots=True)
class CpuClass:
    """A section ``[cpu_class:NAME]``. A value of None or an empty one changes nothing.

    :ivar energy_preference: one of the kernel's energy_performance_available_preferences.
    :ivar disabled_c_states: names of idle states that CPUs of the class must not enter.
    :ivar min_uncore: as ``max_uncore``, a frequency in kHz, ``min`` or ``turbo``; ``base`` is not possible.
    :ivar park: how idle cores are parked; in the class ``idle`` only.
    :ivar park_after: seconds that a core is idle before the agent parks the core.
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
    """Contents of kernel files, by path, before the agent wrote to them.

    The values apply to one boot of the host, which ``boot`` names by its boot_id: a reboot resets the files.
    """

    boot: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


CPU_POOL: Final = "cpu_pool:"
"""Prefix of the names of sections of pools."""


@dataclass(frozen=True, slots=True)
class CpuPool:
    """A section ``[cpu_pool:NAME]``.

    :ivar cpus: the CPUs of the pool, empty if the section has numbers of CPUs instead.
    :ivar dedicated_cpus: number of dedicated CPUs of one NUMA node; ``shared_cpus`` is the number of shared
        ones.
    :ivar per_node: whether the pool has these numbers of CPUs on each NUMA node.
    :ivar max_cpus: CPUs that all floating members together may use, unheld dedicated ones of the zone
        included; None limits them to the CPUs of the pool.
    :ivar classes: classes of guests that the pool takes; empty takes all.
    :ivar max_guests: guests that the pool takes at a time; None takes any number.
    """

    name: str
    cpus: CpuSet = frozenset()
    dedicated_cpus: int = 0
    shared_cpus: int = 0
    per_node: bool = False
    max_cpus: int | None = None
    classes: frozenset[str] = frozenset()
    max_guests: int | None = None
