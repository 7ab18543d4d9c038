"""What installed packages tell of capacity, and how much of it is offered: pure functions.

A collector is an entry point of the group ``compute_agent.capacity``: an object with the members of
:class:`Collector`, or something without parameters that makes one, such as its class. It tells how much there
is of resource classes that providers of the host have an inventory of, as from files
(``[compute] provider_config_location``). The inventory says how much there can be at most; what is not there
is reserved. What is not known, or not any more, is not there.

What collectors told, as it is kept: after a new start it is true for as long as it would have been.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Protocol

from compute_agent import kept_json
from compute_agent.kept_json import number
from compute_agent.model.messages import ConfigError, printable
from compute_agent.reclaim.offers import CapacityOffer

ENTRY_POINTS: Final = "compute_agent.capacity"

MAX_MEASUREMENTS: Final = 1000
"""Of one collector at a time."""

MAX_VALID_SECONDS: Final = 3600.0
"""What a collector tells is true no longer than this."""

_AT_ONCE: Final = 1e9
"""What there is need not grow bit by bit: whoever tells of it knows it."""


@dataclass(frozen=True, slots=True)
class ClassMeasurement:
    """So much of a resource class is there in a zone, and ``margin`` of it is rather not to be counted on.

    ``zone`` is the end of the name of the provider, such as ``NUMA_0``; empty: the host. ``valid_until`` is
    in seconds since the epoch.
    """

    resource_class: str
    zone: str
    amount: float
    margin: float
    valid_until: float


class CapacityCollector(Protocol):
    """What a package has to offer."""

    @property
    def resource_classes(self) -> Collection[str]:
        """The classes that it tells of, always the same: nothing of them is offered that it does not tell."""
        ...

    def collect(self) -> Iterable[ClassMeasurement]:
        """How much there is now. Called once a minute in a thread of its own; it may take long, and raise."""
        ...


@dataclass(frozen=True, slots=True)
class CollectedAmount:
    """What is known and offered of a class of one provider; amounts in the units of the class.

    ``offer`` is of what there is at most. ``valid_until`` of 0: nothing was ever told.
    """

    amount: float = 0.0
    margin: float = 0.0
    valid_until: float = 0.0
    offer: CapacityOffer = field(default_factory=CapacityOffer)

    def left(self, now: float) -> float:
        """What is there and not expired; a clock that went back makes nothing valid for longer."""
        valid = now <= self.valid_until <= now + MAX_VALID_SECONDS
        return max(0.0, self.amount - self.margin) if valid else 0.0

    def offered(self, now: float) -> int:
        """What is offered of it now."""
        return min(self.offer.published, math.floor(self.left(now)))

    def after(self, told: ClassMeasurement | None, most: int, now: float) -> CollectedAmount:
        """With what was told last, of an inventory that offers ``most``.

        Less is offered at once; more when for a quarter of an hour it was a tenth more.
        """
        kept = self
        if told is not None:
            until = min(told.valid_until, now + MAX_VALID_SECONDS)
            kept = replace(self, amount=told.amount, margin=told.margin, valid_until=until)
        return replace(kept, offer=kept.offer.after(min(kept.left(now), most), most, now, growth=_AT_ONCE))

    def words(self, collector: str, now: float) -> str:
        """Why so much is offered."""
        if not self.valid_until:
            return f"{collector} has told nothing of it yet"
        if not self.left(now) and not now <= self.valid_until <= now + MAX_VALID_SECONDS:
            return f"what {collector} told is out of date"
        return f"{collector} tells {self.amount:g}, of which {self.margin:g} are not to be counted on"


def checked(told: Any, classes: Collection[str], now: float) -> ClassMeasurement:
    """What a collector told, if it can be meant.

    :raises ValueError: it cannot.
    """
    if not isinstance(told, ClassMeasurement):
        raise ValueError(f"it told a {printable(type(told).__name__)}, not a Measurement")
    named = isinstance(told.zone, str) and isinstance(told.resource_class, str)
    if not named or told.resource_class not in classes:
        raise ValueError(
            f"it told of {printable(repr(told.resource_class))} in {printable(repr(told.zone))}, and its"
            f" classes are {', '.join(sorted(classes))}"
        )
    for name in ("amount", "margin", "valid_until"):
        value = getattr(told, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            raise ValueError(f"{name} of {told.resource_class} is {printable(repr(value))}")
    if told.valid_until < now:
        raise ValueError(f"what it told of {told.resource_class} was out of date then")
    return told


def found_collectors() -> dict[str, EntryPoint]:
    """The collectors of installed packages by name; none of them is loaded."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def check_collectors(names: Iterable[str]) -> None:
    """See that all that the configuration names are installed.

    :raises ConfigError:
    """
    found = found_collectors()
    for name in names:
        if name not in found:
            installed = ", ".join(sorted(found)) or "none"
            raise ConfigError(
                f"[capacity] collectors: no installed package has a collector {name} (there are: {installed})"
            )


FILE: Final = "collected.json"
"""In the state folder."""

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CollectedClasses:
    """Of one collector: its classes, and what is known of each, by class and uuid of the provider."""

    classes: frozenset[str] = frozenset()
    collected: Mapping[tuple[str, str], CollectedAmount] = field(default_factory=dict)


def dump(known: Mapping[str, CollectedClasses]) -> bytes:
    """What is known of collectors, by name, as the content of the file."""
    collectors = {
        name: {
            "classes": sorted(one.classes),
            "collected": [[*key, asdict(collected)] for key, collected in one.collected.items()],
        }
        for name, one in known.items()
    }
    return kept_json.dump(VERSION, {"collectors": collectors})


def parse(content: bytes) -> dict[str, CollectedClasses]:
    """What is known of collectors, from the content of the file.

    :raises ValueError: it is something else.
    """
    return kept_json.parse(VERSION, content, _collectors)


def _collectors(document: Any) -> dict[str, CollectedClasses]:
    return {str(name): _known(one) for name, one in document["collectors"].items()}


def _known(content: Any) -> CollectedClasses:
    return CollectedClasses(
        frozenset(map(str, content["classes"])),
        {(str(name), str(uuid)): _collected(one) for name, uuid, one in content["collected"]},
    )


def _collected(content: Any) -> CollectedAmount:
    offer = content["offer"]
    return CollectedAmount(
        number(content["amount"], 1e15),
        number(content["margin"], 1e15),
        number(content["valid_until"], 1e15),
        # A clock that jumped must not let it grow at once.
        CapacityOffer(math.floor(number(offer["published"], 1e15)), number(offer["level"], 1e15)),
    )
