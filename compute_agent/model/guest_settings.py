"""The settings of a guest: its classes, priority, policies and shares of caches, and their sources.

Each setting has a name, a type and a default (:class:`GuestSettings`). Domain metadata, extra specs, rules
and commands give the value of a setting as text, which :func:`read_setting` parses. :class:`SettingSource`
lists the sources.
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
"""The names that classes can have. Names of classes are also names of resctrl folders and labels of metrics.
"""


def class_section(prefix: str, name: str) -> str:
    """The name of a section in brackets for messages, such as ``[qos_class:gold]``.

    :raises ConfigError: the name is empty or too long, or has characters that are not allowed.
    """
    section = f"[{prefix}{name}]"
    if not CLASS_NAME.match(name):
        raise ConfigError(f"{section}: a name has 1 to 64 letters, digits, hyphens and underscores")
    return section


MAX_VCPUS: Final = 4096
"""Maximum number of guest CPUs of a guest.

The number is above the limit of QEMU, and low enough that a hostile definition costs little memory.
"""
MAX_PRIORITY: Final = (1 << 31) - 1
"""Largest priority; the smallest is its negative."""
MAX_ANNOTATION: Final = 4096
"""Maximum number of characters of a resctrl annotation."""

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}\Z")
_TRUTHS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class ThreadPolicy(enum.StrEnum):
    """The choice of hardware threads for dedicated CPUs of a guest (``hw:cpu_thread_policy``)."""

    PREFER = "prefer"
    REQUIRE = "require"
    ISOLATE = "isolate"
    SPREAD = "spread"


class EmulatorPolicy(enum.StrEnum):
    """The CPUs on which emulator and I/O threads run (``hw:emulator_threads_policy``)."""

    SHARE = "share"
    ISOLATE = "isolate"


class IsolationLevel(enum.StrEnum):
    """The isolation level of a guest's dedicated CPUs: which work of the host is kept off them."""

    UNSET = ""
    """No level is chosen. A guest has the level of its class, and a class the level ``shared``."""
    SHARED = "shared"
    """Interrupts, workqueues and watchdogs of the host may run on the CPUs."""
    QUIET = "quiet"
    """Interrupts, other work of the kernel and processes of the host run on other CPUs, if they can move."""
    ALONE = "alone"
    """As ``quiet``, and the CPUs also form a cpuset partition of the kernel."""

    @property
    def is_quiet(self) -> bool:
        """Whether the agent keeps work of the host off the CPUs."""
        return self in (IsolationLevel.QUIET, IsolationLevel.ALONE)


ISOLATION_LEVELS: Final = tuple(level.value for level in IsolationLevel if level)
"""The isolation levels that options and commands accept."""


@dataclass(frozen=True, slots=True)
class GuestSettings:
    """The settings of a guest, apart from the amounts of its allocation.

    :ivar vcpus: the number of guest CPUs.
    :ivar qos_class: name of the guest's QoS class.
    :ivar priority: among guests of the same class, guests with a lower priority are throttled and evicted
        first.
    :ivar resctrl: annotation with shares of cache and memory bandwidth; empty means the shares of the class.
    :ivar blockio_class: name of the class of block I/O; empty if the guest has no such class.
    :ivar memory_type: the type of memory that the guest gets.
    :ivar cpu_class: name of the CPU class of the guest's dedicated CPUs; empty means the CPU class that the
        QoS class names.
    :ivar spread: whether the dedicated CPUs are on as many cores as possible; only with thread policy
        ``prefer``.
    :ivar preserve: whether the agent leaves the guest as it is.
    :ivar isolation: isolation level of the guest's dedicated CPUs.
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
        """The thread policy by which dedicated CPUs are chosen, with ``spread`` taken into account."""
        # Other thread policies are demands on sibling threads, which take precedence over ``spread``.
        if self.spread and self.thread_policy is ThreadPolicy.PREFER:
            return ThreadPolicy.SPREAD
        return self.thread_policy

    @property
    def chosen_values(self) -> dict[str, Any]:
        """The values of the settings that differ from their defaults, by name."""
        values = {name: getattr(self, name) for name in SETTING_NAMES}
        return {name: value for name, value in values.items() if value != DEFAULT_VALUES[name]}


class SettingSource(enum.StrEnum):
    """The sources of a setting, the strongest first."""

    NO_ROOM = "no room"
    """``[guests] no_room``: the class of a guest that waits for its claim."""
    BY_HAND = "by hand"
    """The command ``compute-agent guest set``."""
    FLEET = "fleet"
    """A section ``[guest:UUID]`` of the fleet's settings."""
    DOMAIN = "domain"
    """The metadata of the guest's libvirt domain."""
    UNIT = "unit"
    """The section ``[X-ComputeAgent]`` of the guest's systemd unit."""
    LABEL = "label"
    """Labels of the guest's container."""
    START = "start"
    """Options of ``guest run`` or ``guest adopt``."""
    FLAVOR = "flavor"
    """Extra specs of the guest's flavor."""
    IMAGE = "image"
    """Properties of the guest's image."""
    RULE = "rule"
    """A section ``[guest_rule:NAME]`` that matches the guest."""
    DEFAULT = "default"
    """The default in the configuration, or the default in :class:`GuestSettings`."""


def _class_name(text: str) -> str:
    if not CLASS_NAME.match(text):
        raise ValueError("letters, digits, - and _, 64 at most")
    return text


def _optional_class(text: str) -> str:
    return _class_name(text) if text else ""


def _read_annotation(text: str) -> str:
    if len(text) > MAX_ANNOTATION:
        raise ValueError(f"{MAX_ANNOTATION} characters at most")
    # Commands print the text on terminals. A label in JSON can even have halves of characters (surrogates),
    # which no encoding has.
    if not "".join(set(text) - set("\t\r\n")).isprintable():
        raise ValueError("only printable characters")
    return text


def _read_priority(text: str) -> int:
    # The pattern is checked first, because int() accepts digits of all scripts, and thousands of digits.
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
"""A dict from the name of each setting to its default."""


def read_setting(name: str, text: str) -> Any:
    """Parse the text of a setting.

    :raises ValueError: the text is not a value of the setting; the error lists the possible values.
    """
    return _READERS[name](text)


def setting_text(value: Any) -> str:
    """The text of a setting's value, which :func:`read_setting` parses to the same value."""
    return str(value).lower() if isinstance(value, bool) else str(value)
