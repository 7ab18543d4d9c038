"""Several worker processes under load: nothing is over-committed, lost, doubled or answered 5xx."""

from pathlib import Path

import pytest

from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.workers import stress

pytestmark = pytest.mark.slow

SECONDS = examples(10)
KILLS = examples(70)


def test_concurrent_claims_keep_the_books(
    database_server: DatabaseServer, database_url: str, tmp_path: Path
) -> None:
    outcome = stress.run(database_url, tmp_path, seconds=SECONDS, kills=0)
    print(f"{database_server.kind}: {dict(outcome.answers)} in {outcome.seconds:.0f} s")
    assert outcome.failures == []
    assert outcome.answers["204"] > 50
    assert set(outcome.answers) <= {"204", "409"}


def test_killed_workers_lose_and_double_nothing(
    database_server: DatabaseServer, database_url: str, tmp_path: Path
) -> None:
    outcome = stress.run(database_url, tmp_path, seconds=SECONDS, kills=KILLS)
    print(
        f"{database_server.kind}: {outcome.kills} kills, {dict(outcome.answers)} in {outcome.seconds:.0f} s"
    )
    assert outcome.failures == []
    assert outcome.kills == KILLS
    assert set(outcome.answers) <= {"204", "409", "connection lost"}
