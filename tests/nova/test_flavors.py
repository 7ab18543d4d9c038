"""This service translates flavors and images to the same queries as Nova.

FLAVORS is the number of random cases, FLAVORS_SEED their seed.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from benchmarks.reference import ReferenceMissing, install_environment
from tests.nova.flavors import cases
from tests.nova.handpicked import handpicked
from tests.nova.judging import REQUIREMENTS, verdicts
from tests.placement_extras.flavors.answers import REFUSED, judged, ours, recorded

pytestmark = [pytest.mark.slow, pytest.mark.nova]

COUNT: Final = int(os.environ.get("FLAVORS", "500"))
SEED: Final = int(os.environ.get("FLAVORS_SEED", "34"))


@pytest.fixture(scope="module")
def programs() -> Path:
    """Environment with Nova."""
    try:
        return install_environment("nova-functional-34.0.0", REQUIREMENTS)
    except ReferenceMissing as error:
        pytest.skip(str(error))


def test_random_flavors_are_translated_as_nova_does(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = cases(COUNT, SEED)
    said = verdicts(programs, asked)
    pairs = list(zip(asked, said, strict=True))
    different = [(case, verdict) for case, verdict in pairs if ours(case) != judged(verdict)]
    by_nova = Counter(verdict["refused"] for verdict in said if "refused" in verdict)
    by_placement = sum("query" in verdict and judged(verdict) == REFUSED for verdict in said)
    with capsys.disabled():
        print(
            f"\n{COUNT} flavors of seed {SEED}: {len(different)} differences; Nova refuses {by_nova.total()} "
            f"with {len(by_nova)} kinds of errors, Placement {by_placement} of the queries"
        )
    assert different == []
    assert 0.05 < (by_nova.total() + by_placement) / COUNT < 0.6, "too few or too many are refused"


def test_the_recorded_verdicts_are_those_of_nova(programs: Path) -> None:
    found = recorded()
    said = verdicts(programs, [{"flavor": each["flavor"], "rules": each["rules"]} for each in found])
    assert [each["nova"] for each in found] == said
    chosen = dict(handpicked())
    for each in found:
        if each["about"] in chosen:
            expected = chosen.pop(each["about"])
            assert {name: each[name] for name in expected} == expected, "record it anew"
    assert not chosen, "record these, too"
