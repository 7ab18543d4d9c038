"""The classes of guests: their names. What they mean is said in ``qos`` and ``resctrl``."""

from __future__ import annotations

import re
from typing import Final

from compute_agent.model.errors import ConfigError

BEST_EFFORT: Final = "BE"
LATENCY_SENSITIVE: Final = "LS"
LATENCY_SENSITIVE_RESERVED: Final = "LSR"

CLASS_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z", re.ASCII)
"""What a class may be called: folders and labels carry the name."""


def class_section(prefix: str, name: str) -> str:
    """The section of a class as errors name it, of classes of guests, CPUs or block I/O.

    :raises ConfigError: no class may be called so.
    """
    section = f"[{prefix}{name}]"
    if not CLASS_NAME.match(name):
        raise ConfigError(f"{section}: a name has 1 to 64 letters, digits, hyphens and underscores")
    return section
