"""Moves the clock for tests by shifting all stored times: the clock of a database server cannot be set."""

import time
from datetime import UTC, datetime

from placement.db.buckets import EPOCH
from tests.placement.sql import execute_sql


def iso(seconds: float) -> str:
    """Return a time as the API takes it."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def after(seconds: float) -> str:
    """Return the time some seconds from now, by the clock of the machine, which the databases share."""
    return iso(time.time() + seconds)


def advance_clock(url: str, seconds: float) -> None:
    """Have some seconds pass for reservations and claims."""
    execute_sql(
        url,
        f"UPDATE reservations SET starts_at = starts_at - {seconds}, expires_at = expires_at - {seconds}",
        f"UPDATE booked_windows SET starts_at = starts_at - {seconds}, expires_at = expires_at - {seconds},"
        f" ended_at = ended_at - {seconds}, booked_at = booked_at - {seconds},"
        f" end_set_at = end_set_at - {seconds}",
        f"UPDATE claim_expiries SET expires_at = expires_at - {seconds}, booked_at = booked_at - {seconds},"
        f" kept_until = kept_until - {seconds}",
        f"UPDATE ended_claims SET ends_at = ends_at - {seconds}, booked_at = booked_at - {seconds}",
        # workers read everything again, as after each write of times that stamps no provider
        f"UPDATE change_buckets SET counter = counter + 1 WHERE id = {EPOCH}",
    )
