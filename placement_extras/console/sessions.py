"""Stores the console's sessions, attempts to sign in, and secrets of calendar feeds.

All workers share them, because tables of the database have them.

The migrations in ``revisions`` make these tables. The table ``alembic_version_console`` has the revision of
the last migration.

The cookie of a browser is a *secret* of 256 random bits. Three values are derived from the secret: the *key*
of the session in the database, the key that encrypts the session's content, and the *mark*. None of these
values reveals another one. A form contains the mark, so that other sites cannot send this form. A copy of the
database is not enough to impersonate a visitor. The token of the Identity service never leaves the service.

An *attempt* to sign in has two *subjects*: the user name together with the client's address, and the address
alone. Each subject has as many *slots* as attempts are allowed. An attempt takes a free slot of each of its
subjects. If two attempts choose the same slot, the database refuses the second one, which then tries another
slot.

The address of a *feed* has a secret of the same form, of which the database has only a digest. The primary
key of a feed is a digest of the id of its project. So a project has one feed. Some databases ignore the case
of letters in texts, but digests differ.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.database import WriteTransaction
from placement.db.tables import ConsumerId, ExtensionTables

TABLES: Final = ExtensionTables.from_branch("console", Path(__file__).parent / "revisions")

console_sessions = TABLES.define_table(
    "console_sessions",
    # the key, which is derived from the browser's secret; only the secret itself decrypts the content
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("content", sa.Text, nullable=False),
    # this time is by the clock of the database
    sa.Column("expires_at", sa.Double, nullable=False, index=True),
)

console_attempts = TABLES.define_table(
    "console_attempts",
    # rows of attempts to sign in, one for each subject of an attempt. A successful attempt deletes the rows
    # of its user name.
    sa.Column("id", ConsumerId, primary_key=True),
    sa.Column("subject", sa.String(64), nullable=False, index=True),
    sa.Column("at", sa.Double, nullable=False, index=True),
    # the slot that the attempt has taken; NULL for attempts that workers of an older release have written
    sa.Column("slot", sa.SmallInteger, nullable=True),
    sa.Index("ix_console_attempts_subject_slot", "subject", "slot", unique=True),
)

console_feeds = TABLES.define_table(
    "console_feeds",
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("secret_digest", sa.String(64), nullable=False),
    sa.Column("project_id", sa.String(255), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Index("ix_console_feeds_secret_digest", "secret_digest", unique=True),
)


def insert_session(tx: WriteTransaction, key: str, content: str, seconds: float) -> None:
    """Store a session that expires after a number of seconds."""
    tx.conn.execute(
        sa.insert(console_sessions).values(id=key, content=content, expires_at=clock.ServerNow() + seconds)
    )


def find_session(conn: sa.Connection, key: str) -> str | None:
    """Return the content of a session; None if it does not exist or has expired."""
    found: str | None = conn.execute(
        sa.select(console_sessions.c.content).where(
            # the current time comes from the database, because the clocks of workers can differ by minutes
            console_sessions.c.id == key,
            console_sessions.c.expires_at > clock.ServerNow(),
        )
    ).scalar()
    return found


def delete_session(tx: WriteTransaction, key: str) -> None:
    """Delete a session; a missing session is not an error."""
    tx.conn.execute(sa.delete(console_sessions).where(console_sessions.c.id == key))


def replace_feed(tx: WriteTransaction, project: str, secret: str) -> float:
    """Store the secret of a project's feed instead of a former one; return the time of the database."""
    delete_feed(tx, project)
    now = clock.server_time(tx.conn)
    row = {"id": _feed_id(project), "secret_digest": _feed_digest(secret)}
    tx.conn.execute(sa.insert(console_feeds).values(**row, project_id=project, created_at=now))
    return now


def delete_feed(tx: WriteTransaction, project: str) -> bool:
    """Delete the feed of a project; return whether there was one."""
    query = sa.delete(console_feeds).where(console_feeds.c.id == _feed_id(project))
    return bool(tx.conn.execute(query).rowcount)


def find_feed(conn: sa.Connection, project: str) -> float | None:
    """Return the time at which the feed of a project was made; None if there is none."""
    query = sa.select(console_feeds.c.created_at).where(console_feeds.c.id == _feed_id(project))
    found: float | None = conn.execute(query).scalar()
    return found


def feed_project(conn: sa.Connection, secret: str) -> str | None:
    """Return the project with the feed of this secret; None if there is none."""
    # the database compares digests, and a client cannot choose a digest that is similar to a stored one. So
    # the time of the answer reveals nothing about secrets
    query = sa.select(console_feeds.c.project_id).where(console_feeds.c.secret_digest == _feed_digest(secret))
    found: str | None = conn.execute(query).scalar()
    return found


def _feed_digest(secret: str) -> str:
    return _derive_key(secret, b"console feed").hex()


def _feed_id(project: str) -> str:
    return hashlib.blake2b(project.encode(), digest_size=_BYTES, person=b"feed project").hexdigest()


def may_attempt(conn: sa.Connection, limits: Mapping[str, int], seconds: float) -> bool:
    """Return whether :func:`count_attempt` would accept another attempt. This check needs no write."""
    return _free(conn, limits, seconds) is not None


def count_attempt(tx: WriteTransaction, limits: Mapping[str, int], seconds: float) -> bool:
    """Count an attempt to sign in, before it is made; if a limit is reached, return False instead.

    :param limits: for each subject (at most 64 characters), the maximum number of attempts within
        ``seconds``.
    """
    free = _free(tx.conn, limits, seconds)
    if free is None:
        return False
    for subject, slots in free.items():
        # a random choice makes it unlikely that simultaneous attempts choose the same slot
        slot = random.choice(slots)
        of_slot = (console_attempts.c.subject == subject, console_attempts.c.slot == slot)
        expired = console_attempts.c.at <= clock.ServerNow() - seconds
        # the row of an expired attempt can still occupy the slot
        tx.conn.execute(sa.delete(console_attempts).where(*of_slot, expired))
        # two attempts with one slot violate the unique index, so the limit holds for any number of
        # simultaneous attempts
        tx.conn.execute(sa.insert(console_attempts).values(subject=subject, slot=slot, at=clock.ServerNow()))
    return True


def _free(conn: sa.Connection, limits: Mapping[str, int], seconds: float) -> dict[str, list[int]] | None:
    """Return the free slots of each subject; None if one of the subjects has no free slot."""
    taken: dict[str, list[int | None]] = {subject: [] for subject in limits}
    rows = conn.execute(
        sa.select(console_attempts.c.subject, console_attempts.c.slot).where(
            console_attempts.c.subject.in_(limits), console_attempts.c.at > clock.ServerNow() - seconds
        )
    )
    for subject, slot in rows:
        taken[subject].append(slot)
    # the limit also counts attempts without a slot, which workers of an older release have written
    if any(len(taken[subject]) >= limit for subject, limit in limits.items()):
        return None
    return {
        subject: [slot for slot in range(limit) if slot not in taken[subject]]
        for subject, limit in limits.items()
    }


def forget_attempts(tx: WriteTransaction, subject: str) -> None:
    """Delete the counted attempts of a subject."""
    tx.conn.execute(sa.delete(console_attempts).where(console_attempts.c.subject == subject))


def has_expired(conn: sa.Connection, seconds: float) -> bool:
    """Return whether :func:`remove_expired` would delete any row."""
    found = conn.execute(
        sa.select(sa.or_(*(sa.exists().where(condition) for condition in _expired_rows(seconds).values())))
    ).scalar()
    return bool(found)


def remove_expired(tx: WriteTransaction, seconds: float) -> None:
    """Delete expired sessions and old attempts."""
    for table, condition in _expired_rows(seconds).items():
        tx.conn.execute(sa.delete(table).where(condition))


def _expired_rows(seconds: float) -> dict[sa.Table, sa.ColumnElement[bool]]:
    return {
        console_sessions: console_sessions.c.expires_at <= clock.ServerNow(),
        console_attempts: console_attempts.c.at <= clock.ServerNow() - seconds,
    }


_BYTES: Final = 32
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def new_secret() -> str:
    """Return a new secret: 256 random bits as text."""
    return secrets.token_urlsafe(_BYTES)


def is_one(text: str | None) -> bool:
    """Return whether a text has the form of a secret made by :func:`new_secret`."""
    return text is not None and _SECRET.fullmatch(text) is not None


def key(secret: str) -> str:
    """Return the key under which a session is stored in the database: 64 hexadecimal digits."""
    return _derive_key(secret, b"console key").hex()


def form_mark(secret: str) -> str:
    """Return the mark for the forms in a browser, derived from the secret of this browser."""
    return _derive_key(secret, b"console form").hex()


def is_marked(secret: str, mark_: str) -> bool:
    """Return whether a form has the right mark. The comparison takes equally long for each wrong mark."""
    return hmac.compare_digest(form_mark(secret).encode(), mark_.encode("utf-8", "replace"))


def subject_digest(secret: bytes, *whom: str) -> str:
    """Return the digest of a subject of attempts: 64 hexadecimal digits that do not reveal the subject.

    :param secret: a text that is not in the database. Without this text, a copy of the database does not help
        to guess user names.
    """
    key = hashlib.blake2b(secret, digest_size=_BYTES, person=b"console attempt").digest()
    # a separator that no part contains stands between the parts, so that ("ab", "c") and ("a", "bc") differ
    text = b"\0".join(each.encode("utf-8", "replace") for each in whom)
    return hashlib.blake2b(text, digest_size=_BYTES, key=key).hexdigest()


def cipher_key(secret: str) -> bytes:
    """Return the key that encrypts the content of a session: 32 bytes."""
    return _derive_key(secret, b"console content")


def _derive_key(secret: str, purpose: bytes) -> bytes:
    # the database contains the key of the session's row; this key does not reveal the keys of other purposes
    return hashlib.blake2b(secret.encode(), digest_size=_BYTES, person=purpose).digest()
