"""How fast CPUs work and how deep they sleep: what one class of them says, and what was there before."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

IDLE: Final = "idle"
"""The class of the dedicated CPUs that nobody holds."""

SHARED: Final = "shared"
"""The class of the shared CPUs."""


class NamedFrequency(enum.StrEnum):
    """A frequency that is another one on each processor."""

    MIN = "min"
    BASE = "base"
    TURBO = "turbo"


Bound = int | NamedFrequency | None
"""A frequency in kHz, or in a word; None: as it was found."""


@dataclass(frozen=True, slots=True)
class CpuClass:
    """A section ``[cpu_class:NAME]``; what is None or empty stays as it was found.

    ``energy_preference`` is one of energy_performance_available_preferences, ``disabled_c_states`` are names
    of idle states that must not be entered. Of uncore frequencies ``base`` is none.
    """

    name: str
    governor: str | None = None
    min_frequency: Bound = None
    max_frequency: Bound = None
    energy_preference: str | None = None
    disabled_c_states: tuple[str, ...] = ()
    min_uncore: Bound = None
    max_uncore: Bound = None


@dataclass(frozen=True, slots=True)
class FormerValues:
    """What files of the kernel held before the agent wrote to them, by path, since a boot (its boot_id)."""

    boot: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
