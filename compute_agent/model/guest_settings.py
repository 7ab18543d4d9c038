"""The settings of a guest beside amounts: classes, priority, shares and policies, and their origins.

Each setting has a name, a type and a default (:class:`GuestSettings`). :func:`read_setting` makes its value
of a text, as domain metadata, extra specs, rules and commands have it. :class:`SettingSource` names the
origins.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from compute_agent.model.messages import ConfigError


class MemoryType(enum.StrEnum):
    """What the memory of a NUMA node is; ``any`` is the wish of a guest that does not mind."""

    ANY = "any"
    DRAM = "dram"
    HBM = "hbm"
    CXL = "cxl"
    PMEM = "pmem"
    GPU = "gpu"


BEST_EFFORT: Final = "BE"
LATENCY_SENSITIVE: Final = "LS"
LATENCY_SENSITIVE_RESERVED: Final = "LSR"

CLASS_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z", re.ASCII)
"""The names that classes may have: folders and labels carry the name."""


def class_section(prefix: str, name: str) -> str:
    """The section of a class as errors name it, of classes of guests, CPUs or block I/O.

    :raises ConfigError: a class cannot have this name.
    """
    section = f"[{prefix}{name}]"
    if not CLASS_NAME.match(name):
        raise ConfigError(f"{section}: a name has 1 to 64 letters, digits, hyphens and underscores")
    return section


MAX_VCPUS: Final = 4096
MAX_PRIORITY: Final = (1 << 31) - 1
MAX_ANNOTATION: Final = 4096
"""Characters."""

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}\Z")
_TRUTHS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class ThreadPolicy(enum.StrEnum):
    """How a dedicated guest's CPUs relate to hardware threads (``hw:cpu_thread_policy``)."""

    PREFER = "prefer"
    REQUIRE = "require"
    ISOLATE = "isolate"
    SPREAD = "spread"


class EmulatorPolicy(enum.StrEnum):
    """Where emulator and I/O threads run (``hw:emulator_threads_policy``)."""

    SHARE = "share"
    ISOLATE = "isolate"


class IsolationLevel(enum.StrEnum):
    """How far the host's own work keeps off the dedicated CPUs of a guest."""

    UNSET = ""
    """Of a guest: the level of its class. Of a class: ``shared``."""
    SHARED = "shared"
    """Interrupts, workqueues and watchdogs of the host may run there."""
    QUIET = "quiet"


ISOLATION_LEVELS: Final = tuple(level.value for level in IsolationLevel if level)
"""The levels that options and commands take."""


@dataclass(frozen=True, slots=True)
class GuestSettings:
    """The settings of a guest beside amounts.

    ``resctrl`` is the annotation about cache and memory bandwidth, ``priority`` that of eviction. An empty
    text is no wish, and so it is for ``blockio_class``. ``memory_type`` is the kind of memory that the guest
    gets. ``cpu_class`` is the class of its dedicated CPUs; empty: that of its ``qos_class``. ``spread``:
    dedicated CPUs go to as many cores as possible, where the thread policy is ``prefer``. ``preserve``: the
    agent leaves the guest as it is. ``isolation`` is the level of its dedicated CPUs.
    """

    vcpus: int = 1
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER
    emulator_policy: EmulatorPolicy = EmulatorPolicy.SHARE
    qos_class: str = LATENCY_SENSITIVE
    priority: int = 0
    resctrl: str = ""
    blockio_class: str = ""
    memory_type: MemoryType = MemoryType.ANY
    cpu_class: str = ""
    spread: bool = False
    preserve: bool = False
    isolation: IsolationLevel = IsolationLevel.UNSET

    @property
    def core_policy(self) -> ThreadPolicy:
        """The thread policy by which dedicated CPUs are chosen."""
        # A thread policy that somebody chose is a demand on siblings, which spreading must not break.
        if self.spread and self.thread_policy is ThreadPolicy.PREFER:
            return ThreadPolicy.SPREAD
        return self.thread_policy

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that are not at their defaults, by name."""
        values = {name: getattr(self, name) for name in SETTING_NAMES}
        return {name: value for name, value in values.items() if value != DEFAULT_VALUES[name]}


class SettingSource(enum.StrEnum):
    """The origin of a setting, strongest first."""

    BY_HAND = "by hand"
    """``compute-agent guest set``."""
    FLEET = "fleet"
    """A section ``[guest:UUID]`` of the fleet's settings."""
    DOMAIN = "domain"
    """The metadata of the domain."""
    START = "start"
    """Options of ``guest run`` or ``guest adopt``."""
    FLAVOR = "flavor"
    IMAGE = "image"
    RULE = "rule"
    DEFAULT = "default"


def _class_name(text: str) -> str:
    if not CLASS_NAME.match(text):
        raise ValueError("letters, digits, - and _, 64 at most")
    return text


def _optional_class(text: str) -> str:
    return _class_name(text) if text else ""


def _annotation(text: str) -> str:
    if len(text) > MAX_ANNOTATION:
        raise ValueError(f"{MAX_ANNOTATION} characters at most")
    return text


def _priority(text: str) -> int:
    # int() would take digits of all scripts, and thousands of them.
    if not _NUMBER.match(text) or abs(int(text)) > MAX_PRIORITY:
        raise ValueError(f"a whole number within {MAX_PRIORITY} of 0")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise ValueError("true or false")
    return _TRUTHS[text.lower()]


def _choice(kind: type[enum.StrEnum]) -> Callable[[str], enum.StrEnum]:
    def read_choice(text: str) -> enum.StrEnum:
        try:
            return kind(text)
        except ValueError as error:
            raise ValueError(f"one of {', '.join(filter(None, kind))}") from error

    return read_choice


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "qos_class": _class_name,
    "priority": _priority,
    "resctrl": _annotation,
    "blockio_class": _optional_class,
    "cpu_class": _optional_class,
    "isolation": _choice(IsolationLevel),
    "memory_type": _choice(MemoryType),
    "spread": _truth,
    "thread_policy": _choice(ThreadPolicy),
    "emulator_policy": _choice(EmulatorPolicy),
    "preserve": _truth,
}

SETTING_NAMES: Final = tuple(_READERS)
"""The names of all settings, in the order in which they are shown."""

DEFAULT_VALUES: Final[Mapping[str, Any]] = {
    field.name: field.default for field in fields(GuestSettings) if field.name in _READERS
}


def read_setting(name: str, text: str) -> Any:
    """The value of a setting from its text.

    :raises ValueError: saying what is possible.
    """
    return _READERS[name](text)


def setting_text(value: Any) -> str:
    """The text of a value, such that read_setting() gives the value back."""
    return str(value).lower() if isinstance(value, bool) else str(value)
