"""Sets of CPUs as text, the CPU sets of a host (dedicated, shared), classes of CPUs and pools of CPUs.

The kernel's formats are those of ``bitmap_parselist`` and ``bitmap_parse`` (lib/bitmap-str.c): lists such as
``0-3,8``, and masks such as ``ff,ffffffff`` (words of 32 bits, the most significant first). Options can also
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
"""Parses a text with CPU numbers; raises :class:`BadCpuSet` for a wrong text."""

MAX_CPU: Final = 65535
"""Highest CPU number that is accepted.

The limit is above NR_CPUS of all kernels, and low enough that a typing error, such as 0-99999999, does not
fill the memory.
"""

_PART: Final = re.compile(r"(\^?)\s*([0-9]+)(?:\s*-\s*([0-9]+))?", re.ASCII)


class BadCpuSet(ValueError):
    """A text is not a CPU set; ``part`` is the wrong part of the text."""

    def __init__(self, text: str, part: str, why: str) -> None:
        super().__init__(f"bad CPU set {text!r}: {part!r} {why}")
        self.text = text
        self.part = part


def parse(text: str) -> frozenset[int]:
    """Parse a list of CPUs such as ``0-3,^2,8,^4-5``. An exclusion (``^``) applies to all parts.

    Blanks around parts and empty parts are allowed, as in the kernel. An empty text is the empty set.

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
        # Exclusions are subtracted at the end, because they also apply to parts that follow them.
        (excluded if match[1] else included).update(range(first, last + 1))
    return frozenset(included - excluded)


def parse_or_empty(text: str | None) -> frozenset[int]:
    """Parse a list of CPUs; a missing or malformed text gives the empty set."""
    try:
        return parse(text or "")
    except BadCpuSet:
        return frozenset()


def format(cpus: Iterable[int]) -> str:
    """The list of ``cpus`` as the kernel prints it, such as ``0-3,8``; empty for the empty set."""
    ranges: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1] = (ranges[-1][0], cpu)
        else:
            ranges.append((cpu, cpu))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def parse_mask(text: str) -> frozenset[int]:
    """Parse a mask of the kernel such as ``ff,ffffffff``.

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
    """The mask of ``cpus`` in the kernel's format without leading zeros, such as ``ff,ffffffff``."""
    digits = f"{sum(1 << cpu for cpu in set(cpus)):x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    words = [digits[index : index + 8] for index in range(0, len(digits), 8)]
    return ",".join((words[0].lstrip("0") or "0", *words[1:]))


@dataclass(frozen=True, slots=True)
class CpuSets:
    """The sets of usable CPUs, by their use. CPUs that are in no set belong to the host.

    :ivar dedicated: CPUs that the agent offers as PCPU. None of them is in ``shared``, except with the legacy
        option ``vcpu_pin_set`` alone.
    :ivar shared: CPUs that the agent offers as VCPU.
    :ivar emulator: CPUs for emulator threads, unless a guest has a dedicated CPU for them; empty if there
        are no shared CPUs.
    :ivar reserved_vcpus: the number of VCPU that are reserved for the host.
    :ivar warnings: sentences for operators about the options.
    :ivar pooled: dedicated and shared CPUs that belong to pools. Only guests in the pool of such a CPU may
        use it.
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
        """A message about the CPUs in ``offline``; empty if there are no such CPUs."""
        if not self.offline:
            return ""
        return (
            f"[compute] cpu_dedicated_set: {named_cpus(self.offline)} {_verb_for(self.offline)} offline,"
            " and left out until online: a CPU that goes offline, such as by nova-compute's"
            " cpu_power_management, counts once the agent has seen it online"
        )

    @property
    def open_shared(self) -> frozenset[int]:
        """The shared CPUs that belong to no pool."""
        return self.shared - self.pooled

    @property
    def is_both(self) -> bool:
        """Whether the agent offers the same CPUs as PCPU and VCPU, as with ``vcpu_pin_set`` alone."""
        return bool(self.dedicated) and self.dedicated == self.shared

    @property
    def is_legacy(self) -> bool:
        """Whether the sets come from the legacy ``vcpu_pin_set``, with or without ``cpu_shared_set``."""
        return self.is_both or self.emulator != self.shared

    def describe_strays(
        self, held: frozenset[int], online: frozenset[int], reach: frozenset[int] | None = None
    ) -> str:
        """A text about CPUs that a guest holds but should not have any more; empty without such CPUs.

        A CPU must not be held if it is offline, or if a change of the configuration has removed it from the
        dedicated set or from the guest's pool.

        :param held: the dedicated CPUs of the guest.
        :param online: the online CPUs of the host.
        :param reach: the CPUs that the guest may have: those of its pools or, if the guest has no pool, the
            CPUs outside of all pools. None means that the host has no pools.
        """
        # An offline CPU is reported only as offline, although it is also missing in the dedicated set.
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
    """The text for CPUs in a message: ``CPU 3``, ``CPUs 4-7``."""
    return f"{'CPU' if len(cpus) == 1 else 'CPUs'} {format(cpus)}"


def _verb_for(cpus: frozenset[int]) -> str:
    return "is" if len(cpus) == 1 else "are"


IDLE: Final = "idle"
"""Name of the CPU class of dedicated CPUs that no guest holds."""

SHARED: Final = "shared"
"""Name of the CPU class of shared CPUs."""


class NamedFrequency(enum.StrEnum):
    """A frequency by name. The processor determines its value in kHz."""

    MIN = "min"
    BASE = "base"
    TURBO = "turbo"


class ParkMode(enum.StrEnum):
    """How the agent parks idle dedicated cores: offline, with a governor, or in a deep idle state."""

    OFFLINE = "offline"
    GOVERNOR = "governor"
    C_STATE = "c-state"


Bound = int | NamedFrequency | None
"""A limit of a frequency, in kHz or by name.

A limit of None leaves the present limit unchanged.
"""


@dataclass(frozen=True, slots=True)
class CpuClass:
    """A section ``[cpu_class:NAME]``. A field of None, or an empty field, changes nothing on the CPU.

    :ivar governor: name of a governor of cpufreq.
    :ivar energy_preference: one of the kernel's energy_performance_available_preferences.
    :ivar disabled_c_states: names of idle states that CPUs of the class must not enter.
    :ivar min_uncore: lower limit of the uncore frequency: kHz, ``min`` or ``turbo``, but not ``base``. The
        same values are possible for ``max_uncore``, the upper limit.
    :ivar park: how idle cores are parked. Only the class ``idle`` has this field.
    :ivar park_after: seconds for which a core has to be idle before the agent parks it.
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
    """The contents of kernel files before the agent first wrote to them.

    :ivar boot: the id of the boot in which the contents were saved. The next boot resets the files, so the
        contents are valid only in this boot.
    :ivar values: the content of each file, by path.
    """

    boot: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


CPU_POOL: Final = "cpu_pool:"
"""Prefix of the names of sections that define pools of CPUs."""


@dataclass(frozen=True, slots=True)
class CpuPool:
    """A section ``[cpu_pool:NAME]``.

    :ivar cpus: the CPUs of the pool; empty if the section has numbers of CPUs instead.
    :ivar dedicated_cpus: the number of dedicated CPUs, all of one NUMA node.
    :ivar shared_cpus: the number of shared CPUs, all of one NUMA node.
    :ivar per_node: whether the pool has these numbers of CPUs on each NUMA node.
    :ivar max_cpus: maximum number of CPUs on which floating members may run, including idle dedicated CPUs
        that the pool borrows. None means that the pool does not borrow.
    :ivar classes: the classes of guests that the pool admits; empty means all.
    :ivar max_guests: maximum number of guests in the pool at a time; None means any number.
    """

    name: str
    cpus: CpuSet = frozenset()
    dedicated_cpus: int = 0
    shared_cpus: int = 0
    per_node: bool = False
    max_cpus: int | None = None
    classes: frozenset[str] = frozenset()
    max_guests: int | None = None
