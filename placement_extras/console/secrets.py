"""What a browser has of a session, and what follows from it.

The cookie is a *secret* of 256 random bits. Three things follow from it, none of which tells another: the
*key* under which the database has the session, the key that its content is encrypted with, and the *mark*
that forms carry, so that no other site can send them. The database alone, or a copy of it, is thus of no use
to whoever wants to be somebody else, and the token of the Identity service never leaves the service.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final

_BYTES: Final = 32
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def new() -> str:
    """A secret."""
    return secrets.token_urlsafe(_BYTES)


def is_one(text: str | None) -> bool:
    """Whether this could be a secret."""
    return text is not None and _SECRET.fullmatch(text) is not None


def key(secret: str) -> str:
    """Under which a session is kept: 64 hexadecimal digits."""
    return _derived(secret, b"console key").hex()


def mark(secret: str) -> str:
    """What forms carry that are sent by a page of the browser that has the secret."""
    return _derived(secret, b"console form").hex()


def is_marked(secret: str, mark_: str) -> bool:
    """Whether a form carries the mark; how long that takes tells nothing."""
    return hmac.compare_digest(mark(secret).encode(), mark_.encode("utf-8", "replace"))


def subject(secret: bytes, *whom: str) -> str:
    """For whom attempts are counted, so that the database does not say it: 64 hexadecimal digits.

    :param secret: what is not in the database, so that nobody can try names and addresses on a copy of it.
    """
    key = hashlib.blake2b(secret, digest_size=_BYTES, person=b"console attempt").digest()
    text = b"\0".join(each.encode("utf-8", "replace") for each in whom)
    return hashlib.blake2b(text, digest_size=_BYTES, key=key).hexdigest()


def cipher_key(secret: str) -> bytes:
    """With which the content of a session is encrypted: 32 bytes."""
    return _derived(secret, b"console content")


def _derived(secret: str, purpose: bytes) -> bytes:
    return hashlib.blake2b(secret.encode(), digest_size=_BYTES, person=purpose).digest()
