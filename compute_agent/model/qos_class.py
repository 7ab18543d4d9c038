"""The classes of guests: their names. What they mean is said in ``qos`` and ``resctrl``."""

from __future__ import annotations

import re

BEST_EFFORT = "BE"
LATENCY_SENSITIVE = "LS"
LATENCY_SENSITIVE_RESERVED = "LSR"

CLASS_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z", re.ASCII)
"""What a class may be called: folders and labels carry the name."""
