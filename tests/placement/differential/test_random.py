"""Tests that random requests get the same answers from both services, apart from documented deviations.

Each run sends the same sequences of requests. With `PLACEMENT_COMPUTE_DIFFERENTIAL_STORIES=1000`, it sends a
thousand other sequences.
"""

import os
import random
from typing import Final

import pytest

from tests.examples import examples
from tests.placement.differential.generator import Generator
from tests.placement.differential.play import Names, Play
from tests.placement.differential.services import Request, ServicePair
from tests.placement.differential.stories import look

pytestmark = pytest.mark.slow

_ASKED: Final = os.environ.get("PLACEMENT_COMPUTE_DIFFERENTIAL_STORIES")
STORIES: Final = int(_ASKED or examples(6))
REQUESTS: Final = 30
_FIRST: Final = random.randrange(10**6) if _ASKED else 1
#: after these deviations the databases still agree
HARMLESS: Final = {
    "classes",
    "forbidding-without-resources",
    "last-modified",
    "mappings",
    "method-of-older-versions",
    "order",
    "sums",
    "unknown-names",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + STORIES))
def test_random_stories_get_the_same_answers_from_both_services(pair: ServicePair, seed: int) -> None:
    play, names = Play(pair, several_faults=True), Names(1_000_000 + seed)
    generator = Generator(seed, names, play)
    try:
        for request in generator.setting():
            play.ask(request)
        for _ in range(REQUESTS):
            play.ask(generator.request())
            if set(play.deviations) - HARMLESS:
                break
        else:
            look(play, names.providers, names.consumers)
    finally:
        _remove(pair, names)


def _remove(pair: ServicePair, names: Names) -> None:
    """Remove all objects that later sequences of requests would see."""
    for uuid in names.consumers:
        pair.ask(Request("DELETE", f"/allocations/{uuid}"))
    for _ in names.providers:  # leaves first
        for uuid in names.providers:
            pair.ask(Request("DELETE", f"/resource_providers/{uuid}"))
