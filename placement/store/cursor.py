"""Where somebody who follows changes is: the change counters that were read last, as text."""

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from placement.db.buckets import EPOCH, PROVIDER_BUCKETS
from placement.exceptions import CURSOR_TOO_OLD, Gone, InvalidRequest

_VERSION: Final = 1
_BITS: Final = 48
"""Of a counter so many are kept: it goes up by some 2**23 for a change, so 16 million of a bucket fit."""
_HEAD: Final = struct.Struct(">BQI")
_SIZE: Final = _HEAD.size + PROVIDER_BUCKETS * _BITS // 8


@dataclass(frozen=True, slots=True)
class ChangeCursor:
    """The epoch and history of a database, and the low bits of the counter of each bucket of providers."""

    epoch: int
    history: int
    counters: tuple[int, ...]

    @classmethod
    def of(cls, counters: Mapping[int, int], history: str) -> "ChangeCursor":
        """The cursor of a database that shows these counters, by bucket."""
        kept = tuple(counters[bucket] % (1 << _BITS) for bucket in range(PROVIDER_BUCKETS))
        return cls(counters[EPOCH], crc32(history.encode()), kept)

    @classmethod
    def parse(cls, text: str) -> "ChangeCursor":
        """The cursor that a client was given.

        :raises InvalidRequest: it was not given this.
        """
        try:
            data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        except ValueError:
            data = b""
        if len(data) != _SIZE or data[0] != _VERSION:
            raise InvalidRequest("since is no cursor that this service has given.")
        _, epoch, history = _HEAD.unpack_from(data)
        step = _BITS // 8
        parts = (data[at : at + step] for at in range(_HEAD.size, _SIZE, step))
        return cls(epoch, history, tuple(int.from_bytes(part, "big") for part in parts))

    def __str__(self) -> str:
        """As :meth:`parse` takes it."""
        parts = b"".join(each.to_bytes(_BITS // 8, "big") for each in self.counters)
        data = _HEAD.pack(_VERSION, self.epoch, self.history) + parts
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")

    def counters_before(self, now: Mapping[int, int], history: str) -> dict[int, int]:
        """The whole counters that it stands for, of those buckets that have others now.

        :raises Gone: the database does not go on from there.
        """
        if (self.epoch, self.history) != (now[EPOCH], crc32(history.encode())):
            raise too_old("the database has another history or epoch, as after a restore or a failover")
        found: dict[int, int] = {}
        for bucket, low in enumerate(self.counters):
            since = (now[bucket] - low) % (1 << _BITS)
            if since >= 1 << (_BITS - 1):
                raise too_old("change counters went back")
            if since:
                found[bucket] = now[bucket] - since
        return found


def too_old(why: str) -> Gone:
    """The error that nobody knows any more what changed since a cursor."""
    return Gone(
        f"What changed since then is not known any more: {why}. Ask without since for a new cursor, then read"
        " all that you need anew, and go on from the new cursor.",
        CURSOR_TOO_OLD,
    )
