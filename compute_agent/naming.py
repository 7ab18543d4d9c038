"""What guests and providers are called in messages."""

from __future__ import annotations


def called(name: str, uuid: str) -> str:
    """The name, for people, and the uuid, for commands and searches: ``web-1 (8f0c...)``.

    Names are given by tenants: one that would break a line of the log is shown with escapes.
    """
    if name in ("", uuid):
        return uuid
    return f"{name if name.isprintable() else ascii(name)} ({uuid})"
