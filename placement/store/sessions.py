"""Who is signed in to the console, and who tried to, for all workers of all machines."""

from collections.abc import Mapping

import sqlalchemy as sa

from placement.db import clock
from placement.db.database import Transaction
from placement.db.tables import console_attempts, console_sessions


def begin(tx: Transaction, key: str, content: str, seconds: float) -> None:
    """Keep a session for so many seconds; those that expired are forgotten."""
    tx.conn.execute(sa.delete(console_sessions).where(console_sessions.c.expires_at <= clock.now()))
    tx.conn.execute(
        sa.insert(console_sessions).values(id=key, content=content, expires_at=clock.now() + seconds)
    )


def find(conn: sa.Connection, key: str) -> str | None:
    """The content of a session; None if there is none, or it expired."""
    found: str | None = conn.execute(
        sa.select(console_sessions.c.content).where(
            console_sessions.c.id == key, console_sessions.c.expires_at > clock.now()
        )
    ).scalar()
    return found


def end(tx: Transaction, key: str) -> None:
    """Forget a session; one that is not there is no error."""
    tx.conn.execute(sa.delete(console_sessions).where(console_sessions.c.id == key))


def attempt(tx: Transaction, limits: Mapping[str, int], seconds: float) -> bool:
    """Count an attempt to sign in, before it is made; False, and it is not counted, if it is one too many.

    :param limits: by whom it is counted for (64 characters at most) how many there may be in so many seconds.
    """
    tx.conn.execute(sa.delete(console_attempts).where(console_attempts.c.at <= clock.now() - seconds))
    counts = tx.conn.execute(
        sa.select(console_attempts.c.subject, sa.func.count())
        .where(console_attempts.c.subject.in_(limits))
        .group_by(console_attempts.c.subject)
    )
    if any(count >= limits[subject] for subject, count in counts):
        return False
    for subject in limits:
        tx.conn.execute(sa.insert(console_attempts).values(subject=subject, at=clock.now()))
    return True


def forget_attempts(tx: Transaction, subject: str) -> None:
    """Forget the attempts that are counted for somebody."""
    tx.conn.execute(sa.delete(console_attempts).where(console_attempts.c.subject == subject))
