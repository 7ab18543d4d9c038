"""Revisions of fleet settings with their head (group, generation, expiry), and the errors of the fleet."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final


class FleetError(Exception):
    """A source cannot be read, or a revision is refused. The text of the error is the reason."""


class SourceError(FleetError):
    """A source of fleet settings cannot be read now, probably not by other hosts either."""


MAX_BYTES: Final = 256 * 1024
"""Maximum size of a revision in bytes. An ini file with all options needs a tenth of this size."""

GROUP_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""The form of the name of a group, which is also the name of a file."""

# Metrics and attributes of spans have the generation as a float, which is exact up to this number.
MAX_GENERATION: Final = 2**53

_END: Final = b"#\n"
_FIELD: Final = re.compile(r"# (group|generation|expires) = (\S+)")


@dataclass(frozen=True, slots=True)
class FleetRevision:
    """The head of a revision.

    :ivar generation: the number of the revision, from 1; later revisions of a group have higher numbers.
    :ivar expires: the time from which hosts refuse the revision; None means never.
    :ivar digest: a hash of the whole revision without its signature, in hexadecimal.
    """

    group: str
    generation: int
    expires: datetime | None
    digest: str

    def __str__(self) -> str:
        """The group and generation, by which messages name the revision."""
        return f"{self.group} generation {self.generation}"


def write(settings: bytes, group: str, generation: int, expires: datetime | None = None) -> bytes:
    """The bytes to sign: a head, and the settings in the form of an ini file.

    :raises FleetError: the group or the generation is wrong.
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
    """Parse the head of the bytes that :func:`write` returned.

    :raises FleetError: the bytes are damaged, or from another release.
    """
    head, end, _ = signed.partition(_END)
    found: dict[str, str] = {}
    # Bytes that are not UTF-8 are replaced. The line then matches no field, so the error below names the
    # line.
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
