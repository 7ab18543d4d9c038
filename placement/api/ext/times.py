"""Times as answers below ``/ext/v1`` have them."""

from datetime import UTC, datetime
from typing import Final

_LAST: Final = 253_402_300_799.0
"""The last second of 9999. A time within it may be after it as a float, where no date is."""


def shown(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601, UTC, to the millisecond."""
    time = datetime.fromtimestamp(min(seconds, _LAST), UTC).replace(tzinfo=None)
    return f"{time.isoformat(timespec='milliseconds')}Z"
