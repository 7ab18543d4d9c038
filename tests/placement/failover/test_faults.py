"""Tests with a few faults of each kind of replicated database; ``make test-failover`` has many more."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.databases import ServerMissing
from tests.placement.failover import galera, postgresql
from tests.placement.failover.outcome import FailoverOutcome

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(galera.run, marks=pytest.mark.mysql, id="galera"),
        pytest.param(postgresql.run, marks=pytest.mark.postgresql, id="postgresql"),
    ],
)
def test_confirmed_writes_are_visible_at_once_after_each_fault(
    run: Callable[..., FailoverOutcome], tmp_path: Path
) -> None:
    try:
        outcome = run(tmp_path, 2, random.randrange(1 << 32), workers=1)
    except ServerMissing as error:
        pytest.skip(str(error))
    print(outcome.table())
    assert outcome.wrong == []
    assert outcome.counts["PUT 204"] > 10
    # bookings, and claims from windows
    assert outcome.counts["POST 201"] > 0
    assert len(outcome.faults) == 2
