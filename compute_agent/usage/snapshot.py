"""The host and its guests at one moment, as decisions see them, and as they would be after an action."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from compute_agent.model.resource import ThrottleControl


class MetricSeries(NamedTuple):
    """A metric on one domain of the host: an L3 cache id as text, or "" for the host as a whole."""

    metric: str
    domain: str = ""

    def __str__(self) -> str:
        return f"{self.metric} of domain {self.domain}" if self.domain else self.metric


@dataclass(frozen=True, slots=True)
class GuestAllotment:
    """The part of a control that a guest may use when it is not throttled.

    - ``full`` is in the lever's unit (cores, percent, ways), and limits are multiples of ``granule``.
    - ``per_unit`` is how much of the lever's metric one unit of limit lets through (bytes of cache per way).
      None:
      not known, and use is taken to shrink as the limit does.
    """

    full: float
    granule: float = 0.01
    per_unit: float | None = 1.0

    def __post_init__(self) -> None:
        # A limit of one granule must be possible, or no step would ever end.
        if not 0 < self.granule <= self.full:
            raise ValueError(f"a granule of {self.granule} is not within what there is, {self.full}")


@dataclass(frozen=True, slots=True)
class GuestUsage:
    """A guest with its use. ``name`` is for people.

    - ``rank`` is that of its class.
    - ``protected``: the agent must not limit or evict the guest (dedicated CPUs, a high class).
    - ``started`` is a time in seconds on any clock that all guests share.
    - ``usage`` is in the units of the metrics; a series that is missing is not known.
    """

    uuid: str
    qos_class: str
    rank: int
    priority: int = 0
    protected: bool = False
    started: float = 0.0
    allotments: Mapping[ThrottleControl, GuestAllotment] = field(default_factory=dict)
    usage: Mapping[MetricSeries, float] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """One round. ``host`` is the usage of the whole host, ``capacity`` the amount of 100 % where it is known.

    ``time`` is in seconds of a monotonic clock.
    """

    time: float
    host: Mapping[MetricSeries, float]
    guests: Mapping[str, GuestUsage] = field(default_factory=dict)
    capacity: Mapping[MetricSeries, float] = field(default_factory=dict)

    def with_usage(self, guest: str, usage: Mapping[MetricSeries, float]) -> UsageSnapshot:
        """The snapshot if a guest used ``usage`` of the series in it."""
        before = self.guests[guest]
        # By differences: the host uses more than its guests do, and that part stays as it was measured.
        host = dict(self.host)
        for series, amount in usage.items():
            if series in host:
                host[series] += amount - before.usage.get(series, 0.0)
        # A copy: plans try several futures of one snapshot.
        guests = dict(self.guests)
        guests[guest] = replace(before, usage={**before.usage, **usage})
        return replace(self, host=host, guests=guests)

    def without_guest(self, guest: str, metrics: Iterable[str]) -> UsageSnapshot:
        """The snapshot if a guest had gone, and its use of ``metrics`` with it."""
        # Zero first, so that the host loses its use by the same sum.
        freed = {series: 0.0 for series in self.guests[guest].usage if series.metric in metrics}
        gone = self.with_usage(guest, freed)
        return replace(gone, guests={uuid: one for uuid, one in gone.guests.items() if uuid != guest})
