"""The settings of a guest beside amounts: classes, priority, shares and policies, and their origins.

Each setting has a name, a type and a default (:class:`GuestSettings`). Domain metadata, extra specs, rules
and commands have its value as text, which :func:`read_setting` parses. :class:`SettingSource` names the
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
    """The kind of memory of a NUMA node. ``any`` is the setting of a guest without a preference."""

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
"""Names that classes may have. Folders of resctrl and labels of metrics carry them, hence the characters."""


def class_section(prefix: str, name: str) -> str:
    """The section of a class of guests, CPUs or block I/O, as errors name it.

    :raises ConfigError: the name has other characters, or is too long.
    """
    section = f"[{prefix}{name}]"
    if not CLASS_NAME.match(name):
        raise ConfigError(f"{section}: a name has 1 to 64 letters, digits, hyphens and underscores")
    return section


MAX_VCPUS: Final = 4096
"""Guest CPUs of one guest: above the limit of QEMU, and low enough that a hostile definition costs little."""
MAX_PRIORITY: Final = (1 << 31) - 1
MAX_ANNOTATION: Final = 4096
"""Characters of a resctrl annotation."""

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
    """Interrupts, other work of the kernel and processes of the host run elsewhere, as far as they can."""
    ALONE = "alone"
    """As ``quiet``, and the CPUs are cpuset partitions of the kernel."""

    @property
    def is_quiet(self) -> bool:
        """Whether the host's work is to keep off the CPUs."""
        return self in (IsolationLevel.QUIET, IsolationLevel.ALONE)


ISOLATION_LEVELS: Final = tuple(level.value for level in IsolationLevel if level)
"""The levels that options and commands take."""


@dataclass(frozen=True, slots=True)
class GuestSettings:
    """The settings of a guest beside amounts.

    :ivar priority: guests of a lower priority are throttled and evicted first within their class.
    :ivar resctrl: annotation about cache and memory bandwidth; empty asks for nothing.
    :ivar blockio_class: class of block I/O; empty asks for nothing.
    :ivar memory_type: kind of memory that the guest gets.
    :ivar cpu_class: class of the guest's dedicated CPUs; empty: the class that ``qos_class`` names.
    :ivar spread: dedicated CPUs go to as many cores as possible, where the thread policy is ``prefer``.
    :ivar preserve: the agent leaves the guest as it is.
    :ivar isolation: level of isolation of the guest's dedicated CPUs.
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
        # An explicit thread policy is a demand on siblings, which spreading must not break.
        if self.spread and self.thread_policy is ThreadPolicy.PREFER:
            return ThreadPolicy.SPREAD
        return self.thread_policy

    @property
    def chosen_values(self) -> dict[str, Any]:
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


def _read_annotation(text: str) -> str:
    if len(text) > MAX_ANNOTATION:
        raise ValueError(f"{MAX_ANNOTATION} characters at most")
    return text


def _read_priority(text: str) -> int:
    # int() accepts digits of all scripts, and thousands of them.
    if not _NUMBER.match(text) or abs(int(text)) > MAX_PRIORITY:
        raise ValueError(f"a whole number within {MAX_PRIORITY} of 0")
    return int(text)


def _read_truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise ValueError("true or false")
    return _TRUTHS[text.lower()]


def _choice_reader(kind: type[enum.StrEnum]) -> Callable[[str], enum.StrEnum]:
    def read_choice(text: str) -> enum.StrEnum:
        try:
            return kind(text)
        except ValueError as error:
            raise ValueError(f"one of {', '.join(filter(None, kind))}") from error

    return read_choice


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "qos_class": _class_name,
    "priority": _read_priority,
    "resctrl": _read_annotation,
    "blockio_class": _optional_class,
    "cpu_class": _optional_class,
    "isolation": _choice_reader(IsolationLevel),
    "memory_type": _choice_reader(MemoryType),
    "spread": _read_truth,
    "thread_policy": _choice_reader(ThreadPolicy),
    "emulator_policy": _choice_reader(EmulatorPolicy),
    "preserve": _read_truth,
}

SETTING_NAMES: Final = tuple(_READERS)
"""The names of all settings, in the order in which they are shown."""

DEFAULT_VALUES: Final[Mapping[str, Any]] = {
    field.name: field.default for field in fields(GuestSettings) if field.name in _READERS
}


def read_setting(name: str, text: str) -> Any:
    """The value of a setting from its text.

    :raises ValueError: the text is not a value of the setting; the message has the possible ones.
    """
    return _READERS[name](text)


def setting_text(value: Any) -> str:
    """The text of a value, such that read_setting() gives the value back."""
    return str(value).lower() if isinstance(value, bool) else str(value)
