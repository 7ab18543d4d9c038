"""Snapshots: the usage of the host and its guests at one moment, and the expected usage after an action."""

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
    """The amount of a control that a guest may use while it is not throttled.

    - ``full`` is the whole allotment in the lever's unit (cores, percent, ways).
    - ``granule`` is the smallest difference of limits, in the same unit: limits are multiples of it.
    - ``per_unit`` converts a limit into use: one unit of the limit allows this amount of the lever's metric.
      For example, one way of a cache has ``per_unit`` bytes. If ``per_unit`` is None, use is assumed to
      shrink in proportion to the limit.
    """

    full: float
    granule: float = 0.01
    per_unit: float | None = 1.0

    def __post_init__(self) -> None:
        # The computation of steps divides by the granule, and at least one granule has to fit into the
        # allotment.
        if not 0 < self.granule <= self.full:
            raise ValueError(
                f"a granule of {self.granule} is not between 0 and the whole amount, {self.full}"
            )


@dataclass(frozen=True, slots=True)
class GuestUsage:
    """The facts about a guest that decisions use: its class, its allotments and its usage.

    - ``rank`` is the rank of its QoS class: guests of a lower rank are limited and evicted first.
    - ``priority`` orders guests of one class: a guest with a lower priority is limited and evicted first.
    - ``protected`` is whether watermarks and interference must not limit or evict the guest, such as a guest
      with dedicated CPUs.
    - ``started`` is the time of its start, in seconds on a clock that all guests share.
    - ``usage`` is in the units of the metrics; the usage of a missing series is unknown.
    - ``name`` is the name of the guest in messages.
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

    def with_usage(self, usage: Mapping[MetricSeries, float]) -> GuestUsage:
        """The same facts with another usage."""
        # dataclasses.replace() takes more than twice as long, and each round copies the facts of all guests.
        return GuestUsage(
            self.uuid,
            self.qos_class,
            self.rank,
            self.priority,
            self.protected,
            self.started,
            self.allotments,
            usage,
            self.name,
        )


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """The usage of the host and its guests in one round, in the units of the metrics.

    - ``time`` is in monotonic seconds.
    - ``host`` is the usage of the whole host by series.
    - ``guests`` are the guests by uuid.
    - ``capacity`` is the usage that counts as 100 %, by series; the capacity of a missing series is unknown.
    """

    time: float
    host: Mapping[MetricSeries, float]
    guests: Mapping[str, GuestUsage] = field(default_factory=dict)
    capacity: Mapping[MetricSeries, float] = field(default_factory=dict)

    def with_usage(self, guest: str, usage: Mapping[MetricSeries, float]) -> UsageSnapshot:
        """The expected snapshot if a guest's use of some metrics changed to ``usage``."""
        before = self.guests[guest]
        # The usage of the host changes by the difference of the guest's usage. The part of the usage that
        # belongs to no guest stays as measured.
        host = dict(self.host)
        for series, amount in usage.items():
            if series in host:
                host[series] += amount - before.usage.get(series, 0.0)
        # The mapping is copied, because a plan derives several snapshots from one snapshot.
        guests = dict(self.guests)
        guests[guest] = replace(before, usage={**before.usage, **usage})
        return replace(self, host=host, guests=guests)

    def with_earlier_usage(self, guests: Mapping[str, GuestUsage]) -> UsageSnapshot:
        """The snapshot, with earlier values for the series of guests that it lacks.

        :param guests: the guests of an earlier snapshot. They are in the result if this snapshot has no
            guests.
        """
        if not self.guests:
            return replace(self, guests=guests)
        known = {uuid: guest.usage for uuid, guest in guests.items()}
        return replace(
            self,
            guests={
                uuid: guest.with_usage({**known.get(uuid, {}), **guest.usage})
                for uuid, guest in self.guests.items()
            },
        )

    def without_guest(self, guest: str, metrics: Iterable[str]) -> UsageSnapshot:
        """The expected snapshot without a guest; the host's usage of ``metrics`` falls by the guest's use."""
        # with_usage() subtracts the guest's use from the host's usage if the new use is 0.
        freed = {series: 0.0 for series in self.guests[guest].usage if series.metric in metrics}
        gone = self.with_usage(guest, freed)
        return replace(gone, guests={uuid: one for uuid, one in gone.guests.items() if uuid != guest})
