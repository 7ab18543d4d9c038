"""What collectors told, as it is kept: after a new start it is true for as long as it would have been."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.capacity.collector import CollectedAmount
from compute_agent.capacity.offer import CapacityOffer
from compute_agent.kept_json import number

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
