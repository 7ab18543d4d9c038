"""Requests at random get the same answers from both services, or the table of deviations says why not.

The same in every run; with `PLACEMENT_COMPUTE_DIFFERENTIAL_STORIES=1000` that many other ones.
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
#: after these the databases still hold the same
HARMLESS: Final = {
    "classes",
    "last-modified",
    "mappings",
    "method-of-older-versions",
    "order",
    "sums",
    "unknown-names",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + STORIES))
def test_a_story_at_random_goes_as_it_goes_there(pair: ServicePair, seed: int) -> None:
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
    """Leave nothing that later stories would see."""
    for uuid in names.consumers:
        pair.ask(Request("DELETE", f"/allocations/{uuid}"))
    for _ in names.providers:  # leaves first
        for uuid in names.providers:
            pair.ask(Request("DELETE", f"/resource_providers/{uuid}"))
