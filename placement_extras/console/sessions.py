"""Who is signed in to the console, and who tried to, for all workers of all machines.

An *attempt* to sign in takes a free *slot* of everybody it is counted for, each of whom has as many as there
may be attempts at a time. That no slot is taken twice the database sees to: of two who take the same one at
once the second begins anew, and finds one less.
"""

import random
from collections.abc import Mapping

import sqlalchemy as sa

from placement.db import clock
from placement.db.database import WriteTransaction
from placement_extras.console.tables import console_attempts, console_sessions


def begin(tx: WriteTransaction, key: str, content: str, seconds: float) -> None:
    """Keep a session for so many seconds."""
    tx.conn.execute(
        sa.insert(console_sessions).values(id=key, content=content, expires_at=clock.ServerNow() + seconds)
    )


def find(conn: sa.Connection, key: str) -> str | None:
    """The content of a session; None if there is none, or it expired."""
    found: str | None = conn.execute(
        sa.select(console_sessions.c.content).where(
            console_sessions.c.id == key, console_sessions.c.expires_at > clock.ServerNow()
        )
    ).scalar()
    return found


def end(tx: WriteTransaction, key: str) -> None:
    """Forget a session; one that is not there is no error."""
    tx.conn.execute(sa.delete(console_sessions).where(console_sessions.c.id == key))


def may_attempt(conn: sa.Connection, limits: Mapping[str, int], seconds: float) -> bool:
    """Whether :func:`attempt` would count another one now: asked first, nobody who is refused writes."""
    return _free(conn, limits, seconds) is not None


def attempt(tx: WriteTransaction, limits: Mapping[str, int], seconds: float) -> bool:
    """Count an attempt to sign in, before it is made; False, and it is not counted, if it is one too many.

    :param limits: by whom it is counted for (64 characters at most) how many there may be in so many seconds.
    """
    free = _free(tx.conn, limits, seconds)
    if free is None:
        return False
    for subject, slots in free.items():
        # at random, so that of many at once few meet
        slot = random.choice(slots)
        of_slot = (console_attempts.c.subject == subject, console_attempts.c.slot == slot)
        expired = console_attempts.c.at <= clock.ServerNow() - seconds
        tx.conn.execute(sa.delete(console_attempts).where(*of_slot, expired))
        tx.conn.execute(sa.insert(console_attempts).values(subject=subject, slot=slot, at=clock.ServerNow()))
    return True


def _free(conn: sa.Connection, limits: Mapping[str, int], seconds: float) -> dict[str, list[int]] | None:
    """The slots that are free, by subject; None if somebody has none left."""
    taken: dict[str, list[int | None]] = {subject: [] for subject in limits}
    rows = conn.execute(
        sa.select(console_attempts.c.subject, console_attempts.c.slot).where(
            console_attempts.c.subject.in_(limits), console_attempts.c.at > clock.ServerNow() - seconds
        )
    )
    for subject, slot in rows:
        taken[subject].append(slot)
    if any(len(taken[subject]) >= limit for subject, limit in limits.items()):
        return None
    return {
        subject: [slot for slot in range(limit) if slot not in taken[subject]]
        for subject, limit in limits.items()
    }


def forget_attempts(tx: WriteTransaction, subject: str) -> None:
    """Forget the attempts that are counted for somebody."""
    tx.conn.execute(sa.delete(console_attempts).where(console_attempts.c.subject == subject))


def has_expired(conn: sa.Connection, seconds: float) -> bool:
    """Whether :func:`remove_expired` would find something."""
    found = conn.execute(
        sa.select(sa.or_(*(sa.exists().where(condition) for condition in _expired(seconds).values())))
    ).scalar()
    return bool(found)


def remove_expired(tx: WriteTransaction, seconds: float) -> None:
    """Forget sessions that expired, and attempts that are longer ago."""
    for table, condition in _expired(seconds).items():
        tx.conn.execute(sa.delete(table).where(condition))


def _expired(seconds: float) -> dict[sa.Table, sa.ColumnElement[bool]]:
    return {
        console_sessions: console_sessions.c.expires_at <= clock.ServerNow(),
        console_attempts: console_attempts.c.at <= clock.ServerNow() - seconds,
    }
