"""Capacity that collectors of installed packages measure, and the part of it that is offered. Pure functions.

A collector is an entry point of the group ``compute_agent.capacity``. The entry point is an object with the
members of :class:`CapacityCollector`, or a callable without parameters that returns such an object. A
collector reports amounts of resource classes for which providers of the host have an inventory. For example,
a file (``[compute] provider_config_location``) defines this inventory. The total of the inventory is the
maximum, and the part that no collector reports is reserved. An amount that is unknown or too old counts as 0.

Measurements are kept in a file, and stay valid over a restart of the agent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Protocol

from compute_agent.kept_json import MappingFormat, read_number
from compute_agent.model.messages import ConfigError, printable_text
from compute_agent.reclaim.offers import CapacityOffer

ENTRY_POINTS: Final = "compute_agent.capacity"

# A host has few zones and classes, and a faulty package must not fill the agent's memory.
MAX_MEASUREMENTS: Final = 1000
"""Maximum number of measurements that one collector can report at a time."""

# A clock that is set back, or a date far in the future, would otherwise keep a wrong amount for ever.
MAX_VALID_SECONDS: Final = 3600.0
"""The longest validity of a measurement, in seconds."""

# A measured amount is certain, unlike an estimate, so the offer need not grow in steps.
_AT_ONCE: Final = 1e9
"""The permitted growth of the offer, as a multiple of the capacity. The value is too large to limit any
offer.
"""


@dataclass(frozen=True, slots=True)
class ClassMeasurement:
    """The present amount of a resource class in a zone, as a collector reports it.

    :ivar zone: the end of the provider's name, such as ``NUMA_0``; empty for the host.
    :ivar amount: the amount in units of the resource class.
    :ivar margin: the part of ``amount`` that perhaps disappears soon, and so is not offered.
    :ivar valid_until: the time until which the amount counts, in seconds since the epoch.
    """

    resource_class: str
    zone: str
    amount: float
    margin: float
    valid_until: float


class CapacityCollector(Protocol):
    """The members that a collector must have."""

    @property
    def resource_classes(self) -> Collection[str]:
        """The resource classes that the collector reports. Each call has to return the same classes.

        As long as the collector reports no amount of a class, nothing of this class is offered.
        """
        ...

    def collect(self) -> Iterable[ClassMeasurement]:
        """Measure the present amounts. The agent calls this method once a minute in a separate thread.

        The call can take long, and is allowed to raise any error.
        """
        ...


@dataclass(frozen=True, slots=True)
class CollectedAmount:
    """The last measurement of a resource class of one provider, and its offer, in units of the class.

    :ivar valid_until: the time until which the amount counts, in seconds since the epoch; 0 means that no
        measurement was made yet.
    """

    amount: float = 0.0
    margin: float = 0.0
    valid_until: float = 0.0
    offer: CapacityOffer = field(default_factory=CapacityOffer)

    def usable_amount(self, now: float) -> float:
        """The amount without the margin; 0 if the measurement has expired.

        :param now: the present time in seconds since the epoch.
        """
        return max(0.0, self.amount - self.margin) if self._is_valid(now) else 0.0

    def _is_valid(self, now: float) -> bool:
        # The upper bound is needed because a clock that is set back must not prolong the validity.
        return now <= self.valid_until <= now + MAX_VALID_SECONDS

    def offered_amount(self, now: float) -> int:
        """The amount to offer now, in whole units.

        :param now: the present time in seconds since the epoch.
        """
        return min(self.offer.published, math.floor(self.usable_amount(now)))

    def with_measurement(self, told: ClassMeasurement | None, most: int, now: float) -> CollectedAmount:
        """A copy with a new measurement, and with the offer that follows from it.

        A smaller amount is offered at once. A larger amount is offered when it was at least a tenth larger
        for 15 minutes.

        :param told: the new measurement; None means no new measurement.
        :param most: the total of the inventory.
        :param now: the present time in seconds since the epoch.
        """
        kept = self
        if told is not None:
            until = min(told.valid_until, now + MAX_VALID_SECONDS)
            kept = replace(self, amount=told.amount, margin=told.margin, valid_until=until)
        return replace(
            kept, offer=kept.offer.next_offer(min(kept.usable_amount(now), most), most, now, growth=_AT_ONCE)
        )

    def explain_offer(self, collector: str, now: float) -> str:
        """A text with the reason for the offer.

        :param collector: the name of the collector.
        """
        if not self.valid_until:
            return f"{collector} has reported no amount yet"
        if not self._is_valid(now):
            return f"the report of {collector} is out of date"
        return f"{collector} reports {self.amount:g}, with a margin of {self.margin:g}"


def check_measurement(told: Any, classes: Collection[str], now: float) -> ClassMeasurement:
    """Check an object that a collector has returned; return it unchanged if it is a valid measurement.

    :param told: any object that the collector returned.
    :param classes: the resource classes that the collector has declared.
    :raises ValueError: the measurement is not valid. The message begins with "it", which means the collector.
    """
    # The package is not part of the agent, so its objects can have any type, and its texts any length.
    if not isinstance(told, ClassMeasurement):
        raise ValueError(f"it reported a {printable_text(type(told).__name__)}, not a ClassMeasurement")
    named = isinstance(told.zone, str) and isinstance(told.resource_class, str)
    if not named or told.resource_class not in classes:
        raise ValueError(
            f"it reported {printable_text(repr(told.resource_class))} in {printable_text(repr(told.zone))},"
            f" but its classes are {', '.join(sorted(classes))}"
        )
    for name in ("amount", "margin", "valid_until"):
        value = getattr(told, name)
        # A bool is an int, too. NaN fails both comparisons, and infinity fails the second comparison.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            raise ValueError(f"{name} of {told.resource_class} is {printable_text(repr(value))}")
    if told.valid_until < now:
        raise ValueError(f"its report of {told.resource_class} was already out of date")
    return told


def installed_collectors() -> dict[str, EntryPoint]:
    """The collectors of installed packages by name. The collectors are not loaded."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def check_collectors(names: Iterable[str]) -> None:
    """Check that all collectors of the configuration are installed.

    :raises ConfigError: a collector is not installed. The message lists the installed collectors.
    """
    found = installed_collectors()
    for name in names:
        if name not in found:
            installed = ", ".join(sorted(found)) or "none"
            raise ConfigError(
                f"[capacity] collectors: no installed package has a collector {name} (installed: {installed})"
            )


FILE: Final = "collected.json"
"""The name of the file in the state folder."""

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CollectedClasses:
    """The resource classes of one collector, and their amounts.

    :ivar collected: the amounts by resource class and provider uuid.
    """

    classes: frozenset[str] = frozenset()
    collected: Mapping[tuple[str, str], CollectedAmount] = field(default_factory=dict)


def _dump_classes(classes: CollectedClasses) -> dict[str, Any]:
    return {
        "classes": sorted(classes.classes),
        "collected": [[*key, asdict(collected)] for key, collected in classes.collected.items()],
    }


def _parse_classes(content: Any) -> CollectedClasses:
    return CollectedClasses(
        frozenset(map(str, content["classes"])),
        {(str(name), str(uuid)): _parse_amount(one) for name, uuid, one in content["collected"]},
    )


def _parse_amount(content: Any) -> CollectedAmount:
    offer = content["offer"]
    return CollectedAmount(
        read_number(content["amount"], 1e15),
        read_number(content["margin"], 1e15),
        read_number(content["valid_until"], 1e15),
        # The times of the offer are not read: a clock that jumped while the agent was stopped must not let
        # the offer grow.
        CapacityOffer(math.floor(read_number(offer["published"], 1e15)), read_number(offer["level"], 1e15)),
    )


CLASSES_FORMAT: Final = MappingFormat(VERSION, "collectors", _dump_classes, _parse_classes)
"""The format of the file: the classes of collectors by the name of the collector."""
