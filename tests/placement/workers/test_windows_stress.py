"""Windows under load, with killed workers: no instant is above the capacity, and each hold is right."""

from pathlib import Path

import pytest

from placement.db.database import ServiceDatabase
from placement.maintenance.audit import AuditProblem, find_contradictions
from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.workers import windows_stress

pytestmark = pytest.mark.slow

SECONDS = examples(20)
KILLS = examples(50)


@pytest.mark.parametrize("kills", [0, KILLS], ids=["all workers run", "workers are killed"])
def test_no_instant_ahead_is_above_the_capacity(
    database_server: DatabaseServer, database_url: str, tmp_path: Path, kills: int
) -> None:
    outcome = windows_stress.run(database_url, tmp_path, seconds=SECONDS, kills=kills)
    counts = f"{outcome.kills} kills, {outcome.looks} looks, {outcome.moves} moves, {dict(outcome.answers)}"
    print(f"{database_server.kind}, seed {outcome.seed}: {counts}")
    assert outcome.failures == []
    assert outcome.kills == kills
    for needed in windows_stress.NEEDED:
        assert outcome.answers[needed] > 0
    assert outcome.moves > 0
    database = ServiceDatabase(database_url)
    with database.read() as conn:
        found = find_contradictions(conn)
    database.close()
    # only an inventory that was lowered, or of a host with a maintenance, may be too small
    assert {each.problem for each in found} <= {AuditProblem.OVER_CAPACITY}
