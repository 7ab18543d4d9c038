"""The failures that several folders meet.

What guests and providers are called in messages, and how to show what somebody else wrote.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID


class ConfigError(Exception):
    """A configuration that the agent refuses to start with; the text names the options and CPUs concerned."""


class DriverError(Exception):
    """A guest could not be started, adopted, changed or stopped; the text says which and why."""


class GuestGoneError(DriverError):
    """The guest has ended meanwhile. Whoever wanted to change it has nothing left to do."""


_MAX_LENGTH: Final = 1000
"""Characters that are shown of a text."""


def is_uuid(text: str) -> bool:
    """Whether a text is a uuid in the one spelling that the agent writes: small letters, with hyphens."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def called(name: str, uuid: str) -> str:
    """The name, for people, and the uuid, for commands and searches: ``web-1 (8f0c...)``.

    Names are given by tenants: one that would break a line of the log is shown with escapes.
    """
    if name in ("", uuid):
        return uuid
    return f"{name if name.isprintable() else ascii(name)} ({uuid})"


def on_one_line(text: str) -> str:
    """A text without control characters, which could tell a terminal to do something."""
    if text.isprintable():  # nearly always, and asked hundreds of times a round
        return text
    return "".join(it if it.isprintable() else "\N{REPLACEMENT CHARACTER}" for it in text)


def printable(text: str) -> str:
    """A text of somebody else's, fit for terminals, logs and labels.

    It is on one line, and no longer than one reads.
    """
    text = on_one_line(text[: _MAX_LENGTH + 1])
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."
