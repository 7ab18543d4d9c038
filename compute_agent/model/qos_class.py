"""The classes of guests: their names. What they mean is said in ``qos`` and ``resctrl``."""

from __future__ import annotations

import re
from typing import Final

BEST_EFFORT: Final = "BE"
LATENCY_SENSITIVE: Final = "LS"
LATENCY_SENSITIVE_RESERVED: Final = "LSR"

CLASS_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z", re.ASCII)
"""What a class may be called: folders and labels carry the name."""
