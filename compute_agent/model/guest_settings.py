"""What the owner of a guest asks for beside amounts."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from compute_agent.model.memory_type import MemoryType
from compute_agent.model.qos_class import LATENCY_SENSITIVE

MAX_VCPUS: Final = 4096
MAX_PRIORITY: Final = (1 << 31) - 1
MAX_ANNOTATION: Final = 4096
"""Characters."""


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


@dataclass(frozen=True, slots=True)
class GuestSettings:
    """What the guest's owner asked for beside amounts.

    ``resctrl`` is the annotation about cache and memory bandwidth, ``priority`` that of eviction; empty texts
    are no wish, and so is one for a ``blockio_class``. ``memory_type`` is the kind of memory it is to have.
    """

    vcpus: int = 1
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER
    emulator_policy: EmulatorPolicy = EmulatorPolicy.SHARE
    qos_class: str = LATENCY_SENSITIVE
    priority: int = 0
    resctrl: str = ""
    blockio_class: str = ""
    memory_type: MemoryType = MemoryType.ANY
