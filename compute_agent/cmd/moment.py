"""Times as people give them to commands."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from datetime import datetime

from compute_agent.conf.duration import parse_duration


def moment(text: str) -> float:
    """Seconds since the epoch of a length of time ago, or of a time in ISO 8601 (without an offset: here)."""
    try:
        found = _seconds(text)
        datetime.fromtimestamp(found).astimezone()  # as commands show it
    except (ValueError, OverflowError, OSError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a length of time, as 90, 30m, 1h or 7d, nor a time, as 2026-05-01T13:00"
        ) from error
    return found


def _seconds(text: str) -> float:
    with suppress(ValueError):
        return time.time() - parse_duration(text)
    return datetime.fromisoformat(text).timestamp()
