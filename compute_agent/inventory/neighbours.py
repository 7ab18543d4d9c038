"""Attributes of a host: the use of its caches and memory bandwidth, and its limited guests.

The console shows these attributes. The number of attributes is bounded: there is one for each L3 cache, one
for each of the few guests with the largest use, and one for each limited guest.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from compute_agent.inventory.attributes import MAX_TEXT, MISSED_INTERVALS, NEIGHBOUR, UUID

MEASURED_AT: Final = NEIGHBOUR + "measured_at"
"""The time of the measurement, in seconds since the epoch."""
VALID_UNTIL: Final = NEIGHBOUR + "valid_until"
"""The time by which a running agent replaces the values, in seconds since the epoch."""
CACHE: Final = NEIGHBOUR + "cache."
"""Prefix of the attributes with the use of an L3 cache. The kernel's id of the cache follows."""
GUEST: Final = NEIGHBOUR + "guest."
"""Prefix of the attributes with the use of a guest. A number follows; the value begins with the consumer's
uuid."""
LIMIT: Final = NEIGHBOUR + "limit."
"""Prefix of the attributes with the limits of a guest. A number follows; the value begins with the consumer's
uuid."""

# A provider can have 256 attributes, and other programs need some of them.
_MAX_CACHES: Final = 64
_MAX_LIMITED: Final = 20
_TOP: Final = 3
"""Number of guests that are reported because they use most bandwidth, and of guests that are reported because
they use most cache."""
_MB: Final = 1e6
_MIB: Final = 1 << 20
_CLASS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class CacheLoad:
    """The use of an L3 cache: bandwidths in bytes a second, occupancy and size in bytes; None if unknown."""

    bandwidth: float | None = None
    occupancy: float | None = None
    max_bandwidth: float | None = None
    size: float | None = None

    def __str__(self) -> str:
        """The value of the attribute, such as ``1250 MB/s of 25600, 12.5 MiB of 32``."""
        parts = (
            _amount_text(self.bandwidth, self.max_bandwidth, _MB, "MB/s"),
            _amount_text(self.occupancy, self.size, _MIB, "MiB"),
        )
        return ", ".join(filter(None, parts))


def _amount_text(amount: float | None, whole: float | None, unit: float, name: str) -> str:
    if amount is None:
        return ""
    # One decimal is enough for small guests; with more decimals, the value would change with each report.
    text = f"{round(amount / unit, 1):.10g} {name}"
    return text if whole is None else f"{text} of {round(whole / unit, 1):.10g}"


@dataclass(frozen=True, slots=True)
class GuestLoad:
    """The cache use and memory bandwidth of a guest, summed over all L3 caches, with its QoS class."""

    consumer: str
    qos_class: str
    load: CacheLoad

    def __str__(self) -> str:
        """The value of the attribute, such as ``UUID BE: 300 MB/s, 2.1 MiB``."""
        # The class is left out if its name has characters that the console does not accept.
        known = f"{self.qos_class}: " if _CLASS.fullmatch(self.qos_class) else ""
        return f"{self.consumer} {known}{self.load}"


@dataclass(frozen=True, slots=True, order=True)
class RequestedLimit:
    """A limit of a guest, the trigger that requests the limit, and the guests that the limit protects."""

    lever: str
    trigger: str
    victims: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The part of the attribute, such as ``cpu_quota: interference for UUID``."""
        known = [one for one in self.victims if UUID.fullmatch(one)]
        return f"{self.lever}: {self.trigger}" + (f" for {' '.join(known)}" if known else "")


def neighbour_attributes(
    measured_at: float,
    interval: float,
    caches: Mapping[int, CacheLoad],
    guests: Iterable[GuestLoad],
    limits: Mapping[str, Sequence[RequestedLimit]],
) -> dict[str, str | float]:
    """The attributes of a host; empty if the host has neither caches nor limits.

    :param measured_at: the time of the measurement, in seconds since the epoch.
    :param interval: the longest usual time between two measurements, in seconds.
    :param caches: the use of each cache by the whole host, by its id.
    :param limits: the limits by uuid of the guest.
    """
    known = [each for each in guests if UUID.fullmatch(each.consumer)]
    top = {
        *_largest_guests(known, lambda load: load.bandwidth),
        *_largest_guests(known, lambda load: load.occupancy),
    }
    limited = sorted(guest for guest, some in limits.items() if some and UUID.fullmatch(guest))
    told = {
        f"{CACHE}{cache}": text for cache, load in sorted(caches.items())[:_MAX_CACHES] if (text := str(load))
    }
    # Attribute names have numbers and not uuids, because Placement has an index of all attribute names.
    told |= {f"{GUEST}{number}": text for number, text in enumerate(sorted(map(str, top)))}
    told |= {
        f"{LIMIT}{number}": _limit_text(guest, limits[guest])
        for number, guest in enumerate(limited[:_MAX_LIMITED])
    }
    return (
        told | {MEASURED_AT: measured_at, VALID_UNTIL: measured_at + MISSED_INTERVALS * interval}
        if told
        else {}
    )


def _largest_guests(
    guests: Iterable[GuestLoad], amount: Callable[[CacheLoad], float | None]
) -> list[GuestLoad]:
    """The guests with the largest known amounts above 0; guests with equal amounts are ordered by uuid."""
    found = [(value, each.consumer, each) for each in guests if (value := amount(each.load))]
    return [each for _, _, each in heapq.nlargest(_TOP, found, key=lambda one: one[:2])]


def _limit_text(guest: str, limits: Sequence[RequestedLimit]) -> str:
    """The guest's uuid and its first limits: as many whole limits as fit into an attribute."""
    text, separator = guest, " "
    for part in map(str, sorted(limits)):
        if len(longer := text + separator + part) <= MAX_TEXT:
            text, separator = longer, "; "
    return text
