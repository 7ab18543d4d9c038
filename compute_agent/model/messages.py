"""Errors that several packages share, names in messages, and foreign text made safe to show."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final
from uuid import UUID


class ConfigError(Exception):
    """The agent refuses a configuration. The text names the options and CPUs that are wrong."""


class DriverError(Exception):
    """Guests could not be listed, started, adopted, changed, locked or stopped. The text has the reason."""


class GuestGoneError(DriverError):
    """The guest has ended, so that the caller has nothing left to change."""


_MAX_LENGTH: Final = 1000
"""Maximum number of characters of a foreign text that a message shows."""


def is_uuid(text: str) -> bool:
    """Whether a text is a uuid in the one spelling that the agent writes: small letters, with hyphens."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def full_name(name: str, uuid: str) -> str:
    """The name and uuid of a guest, such as ``web-1 (8f0c...)``.

    Control characters in the name are escaped, because they could forge log lines.
    """
    if name in ("", uuid):
        return uuid
    return f"{name if name.isprintable() else ascii(name)} ({uuid})"


def on_one_line(text: str) -> str:
    """The text with control characters replaced, because a terminal would interpret them."""
    if text.isprintable():  # the common case comes first, because this runs hundreds of times in a round
        return text
    return "".join(it if it.isprintable() else "\N{REPLACEMENT CHARACTER}" for it in text)


def named_few(names: Sequence[str], most: int) -> str:
    """The first ``most`` names and the number of further names, for messages: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def printable_text(text: str) -> str:
    """A foreign text in a form that terminals can show: on one line, at most 1,000 characters."""
    # The text is cut first, because on_one_line() examines each character, and the text can be huge.
    text = on_one_line(text[: _MAX_LENGTH + 1])
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."


def missing_package(wanted: str, package: str, extra: str) -> ConfigError:
    """Build the error for a missing Python package that a feature needs; the text says how to install it.

    :param wanted: the feature or option that needs the package. The error message begins with this text.
    :param package: the name of the Python package.
    :param extra: the optional dependency group (extra) of the agent's distribution that installs the package.
    """
    # The command has a path, not a name: the public index has no distribution of the agent's name, and pip
    # would install whatever a stranger registers under that name.
    return ConfigError(
        f"{wanted} needs the Python package {package}, which is not installed: install this release's wheel"
        f" with its extra {extra}, pip install '/PATH/TO/placement_compute-VERSION-py3-none-any.whl[{extra}]'"
    )


def require_cryptography(wanted: str) -> None:
    """:raises ConfigError: the package ``cryptography``, which verifies signatures, is not installed."""
    if find_spec("cryptography") is None:
        raise missing_package(wanted, "cryptography", "fleet")
