"""Tests of several worker processes under load: nothing is over-committed, lost or duplicated, and no answer
is 5xx.
"""

from pathlib import Path

import pytest

from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.workers import stress

pytestmark = pytest.mark.slow

SECONDS = examples(10)
KILLS = examples(70)


def test_sums_are_right_after_concurrent_claims(
    database_server: DatabaseServer, database_url: str, tmp_path: Path
) -> None:
    outcome = stress.run(database_url, tmp_path, seconds=SECONDS, kills=0)
    print(f"{database_server.kind}: {dict(outcome.answers)} in {outcome.seconds:.0f} s")
    assert outcome.failures == []
    assert outcome.answers["204"] > 50
    assert set(outcome.answers) <= {"204", "409"}


def test_killed_workers_neither_lose_nor_double_claims(
    database_server: DatabaseServer, database_url: str, tmp_path: Path
) -> None:
    outcome = stress.run(database_url, tmp_path, seconds=SECONDS, kills=KILLS)
    print(
        f"{database_server.kind}: {outcome.kills} kills, {dict(outcome.answers)} in {outcome.seconds:.0f} s"
    )
    assert outcome.failures == []
    assert outcome.kills == KILLS
    assert set(outcome.answers) <= {"204", "409", "connection lost"}
