"""What is wrong with the settings of the fleet.

What a revision is, and what its head says.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final


class FleetError(Exception):
    """A source cannot be read, or a revision is not to be taken up; the text says why."""


class SourceError(FleetError):
    """A source cannot be read now, as it cannot on all hosts that have it."""


MAX_BYTES: Final = 256 * 1024
"""Bytes of a revision: an ini file of all options is a tenth of that."""

GROUP_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of groups, which are names of files, too."""

MAX_GENERATION: Final = 2**53

_END: Final = b"#\n"
_FIELD: Final = re.compile(r"# (group|generation|expires) = (\S+)")


@dataclass(frozen=True, slots=True)
class FleetRevision:
    """What the head of a revision says; ``digest`` is that of all of it, its signature apart."""

    group: str
    generation: int
    expires: datetime | None
    digest: str

    def __str__(self) -> str:
        """How messages call it."""
        return f"{self.group} generation {self.generation}"


def write(settings: bytes, group: str, generation: int, expires: datetime | None = None) -> bytes:
    """What is to be signed: a head, and these settings, which are an ini file.

    :raises FleetError: what is given cannot be in one.
    """
    if not GROUP_NAME.fullmatch(group):
        raise FleetError(f"{group!r} is no name of a group: 64 letters, digits and, behind the first, ._-")
    if not 0 < generation <= MAX_GENERATION:
        raise FleetError(f"the generation is {generation}: it has to be 1 at least, {MAX_GENERATION} at most")
    head = f"# group = {group}\n# generation = {generation}\n"
    if expires is not None:
        head += f"# expires = {expires.astimezone(UTC).isoformat(timespec='seconds')}\n"
    return head.encode() + _END + settings


def read(signed: bytes) -> FleetRevision:
    """The revision of what write() returned.

    :raises FleetError: another release has written it, or nobody.
    """
    head, end, _ = signed.partition(_END)
    found: dict[str, str] = {}
    for line in head.decode("utf-8", "replace").splitlines():
        field = _FIELD.fullmatch(line)
        if field is None or field[1] in found:
            raise FleetError(f"its head is that of another release, or damaged: {line[:80]!r}")
        found[field[1]] = field[2]
    try:
        group, generation, expires = found["group"], int(found["generation"]), found.get("expires")
        until = None if expires is None else datetime.fromisoformat(expires)
    except (KeyError, ValueError) as error:
        raise FleetError(f"its head is not complete: {error}") from error
    if not end or (until is not None and until.tzinfo is None) or not 0 < generation <= MAX_GENERATION:
        raise FleetError("its head is damaged")
    return FleetRevision(group, generation, until, hashlib.blake2b(signed, digest_size=16).hexdigest())
