"""Revisions of settings, with their head, and errors of the fleet."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final


class FleetError(Exception):
    """A source cannot be read, or a revision is refused. The text is the reason."""


class SourceError(FleetError):
    """A source of fleet settings cannot be read at present, probably by no host that uses it."""


MAX_BYTES: Final = 256 * 1024
"""The largest revision in bytes. An ini file of all options has a tenth of that."""

GROUP_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""The form of names of groups, which are also names of files."""

# Metrics and attributes have it as a float, which is exact up to here.
MAX_GENERATION: Final = 2**53

_END: Final = b"#\n"
_FIELD: Final = re.compile(r"# (group|generation|expires) = (\S+)")


@dataclass(frozen=True, slots=True)
class FleetRevision:
    """The head of a revision. ``digest`` covers the whole revision except its signature."""

    group: str
    generation: int
    expires: datetime | None
    digest: str

    def __str__(self) -> str:
        """The name of the revision in messages."""
        return f"{self.group} generation {self.generation}"


def write(settings: bytes, group: str, generation: int, expires: datetime | None = None) -> bytes:
    """The bytes to sign: a head, and settings in the form of an ini file.

    :raises FleetError: group or generation is wrong.
    """
    if not GROUP_NAME.fullmatch(group):
        raise FleetError(
            f"{group!r} is not a name of a group: it has at most 64 letters and digits, and"
            " also ._- after the first character"
        )
    if not 0 < generation <= MAX_GENERATION:
        raise FleetError(f"the generation is {generation}: it has to be 1 at least, {MAX_GENERATION} at most")
    head = f"# group = {group}\n# generation = {generation}\n"
    if expires is not None:
        head += f"# expires = {expires.astimezone(UTC).isoformat(timespec='seconds')}\n"
    return head.encode() + _END + settings


def read(signed: bytes) -> FleetRevision:
    """Parse the bytes that :func:`write` returned.

    :raises FleetError: the bytes are damaged, or from another release.
    """
    head, end, _ = signed.partition(_END)
    found: dict[str, str] = {}
    # Bytes that are not UTF-8 become a line that no field matches.
    for line in head.decode("utf-8", "replace").splitlines():
        field = _FIELD.fullmatch(line)
        if field is None or field[1] in found:
            raise FleetError(f"its first line is of another release, or damaged: {line[:80]!r}")
        found[field[1]] = field[2]
    try:
        group, generation, expires = found["group"], int(found["generation"]), found.get("expires")
        until = None if expires is None else datetime.fromisoformat(expires)
    except (KeyError, ValueError) as error:
        raise FleetError(f"its head is not complete: {error}") from error
    if not end or (until is not None and until.tzinfo is None) or not 0 < generation <= MAX_GENERATION:
        raise FleetError("its head is damaged")
    return FleetRevision(group, generation, until, hashlib.blake2b(signed, digest_size=16).hexdigest())
