"""A request that takes too long to search: 36 groups fill 12 devices up to the last unit of two classes."""

import random
from typing import Final

from placement.search.request import CandidatesRequest, RequestGroup
from tests.placement.search.snapshots import Spec

DEVICES: Final = 12
CLASSES: Final = ("CUSTOM_A", "CUSTOM_B")

_chance = random.Random(0)
_AMOUNTS: Final = [
    (a, 65 - a + _chance.randint(-3, 3)) for a in [_chance.randint(20, 45) for _ in range(3 * DEVICES)]
]
GROUPS: Final = {f"_{number}": dict(zip(CLASSES, each, strict=True)) for number, each in enumerate(_AMOUNTS)}


def hard_question(limit: int | None = 1) -> CandidatesRequest:
    """The request with all 36 groups."""
    groups = [RequestGroup(suffix, amounts) for suffix, amounts in GROUPS.items()]
    return CandidatesRequest(tuple(groups), group_policy="none", limit=limit)


def query(limit: int = 1) -> str:
    """The same request as a query string."""
    groups = "&".join(f"resources{suffix}={asked(suffix)}" for suffix in GROUPS)
    return f"{groups}&group_policy=none&limit={limit}"


def asked(suffix: str) -> str:
    """The resources of one group, as in a query string."""
    return ",".join(f"{name}:{amount}" for name, amount in GROUPS[suffix].items())


def sizes(spare: int = 0) -> list[dict[str, int]]:
    """The inventory of each device: all devices together have what the groups need, and ``spare`` more on
    each device.
    """
    needed = {name: sum(amounts[name] for amounts in GROUPS.values()) for name in CLASSES}
    return [
        {name: (total + number) // DEVICES + spare for name, total in needed.items()}
        for number in range(DEVICES)
    ]


def host(name: str, spare: int = 0) -> list[Spec]:
    """A host with these 12 devices."""
    return [Spec(name), *(Spec(f"{name}_{number}", name, size) for number, size in enumerate(sizes(spare)))]
