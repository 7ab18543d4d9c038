"""Times as answers below ``/ext/v1`` have them."""

from datetime import UTC, datetime


def shown(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601, UTC, to the millisecond."""
    time = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    return f"{time.isoformat(timespec='milliseconds')}Z"
