"""The commands on pages about restoring a database work with a guest that is younger than the backup."""

import pytest

from tests.doc.pages import SITE, Block, blocks
from tests.doc.reader import is_run
from tests.doc.world import HAS, DocumentMachine, DocumentWorldMissing, machine
from tests.doc.worlds import SETUPS

GUEST = "3f1c9a5e-0000-4000-8000-000000000001"
PROJECT, USER = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000001"

BODY = """
import json, sys
provider = json.load(sys.stdin)["resource_providers"][0]["uuid"]
body = {"allocations": {provider: {"resources": {"PCPU": 1}}}, "consumer_generation": None}
print(json.dumps({**body, "project_id": sys.argv[1], "user_id": sys.argv[2], "consumer_type": "INSTANCE"}))
"""

START = f"""
ask() {{ curl --silent --fail -H "X-Auth-Token: admin" -H "OpenStack-API-Version: placement 1.39" "$@"; }}
body=$(ask "$SERVICE/resource_providers?resources=PCPU:1" | python3 -c '{BODY}' {PROJECT} {USER})
ask -X PUT -H "Content-Type: application/json" $SERVICE/allocations/{GUEST} --data "$body"
compute-agent guest run --uuid {GUEST} --name young -- sleep 3600 > /dev/null
until grep -q '"project_id": "{PROJECT}"' /var/lib/compute-agent/state.json; do sleep 0.2; done
"""
"""Starts a guest on a dedicated CPU, and waits for one round of the agent."""

KEPT = """
until test "$(compute-agent status -f value -c placement_history)" = older; do sleep 0.2; done
compute-agent guest show young -f value -c kind
compute-agent status -f value -c guests_kept
"""

HEALED = f"""
curl --silent --fail -H "X-Auth-Token: admin" -H "OpenStack-API-Version: placement 1.39" \\
    $SERVICE/allocations/{GUEST}
until test "$(compute-agent status -f value -c placement_history)" = "goes on"; do sleep 0.2; done
compute-agent guest show young -f value -c kind
compute-agent guest stop young > /dev/null
"""


def typed(made: DocumentMachine, text: str) -> str:
    return made.run(Block("the test", 0, "bash", text))


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize(
    ("page", "backup", "needs"),
    [
        ("howto/restore-the-database", "pg_dump", "postgresql"),
        ("howto/restore-mariadb", "mariadb-dump", "mariadb"),
        ("howto/restore-sqlite", "VACUUM INTO", "sqlite3"),
    ],
)
def test_a_guest_that_is_younger_than_the_backup_keeps_its_cpu_and_gets_its_allocation_back(
    page: str, backup: str, needs: str
) -> None:
    if not HAS[needs]:
        pytest.skip(f"there is no {needs} here")
    seen = []
    try:
        with machine(SETUPS[page]) as made:
            for block in blocks(SITE / f"{page}.md"):
                if block.language != "bash" or not is_run(block) or "allocations accept" in block.text:
                    continue
                healing = "audit --heal" in block.text
                if healing:
                    kept = typed(made, KEPT)
                    assert "dedicated" in kept
                    assert GUEST in kept
                made.run(block)
                if backup in block.text:
                    typed(made, START)
                if healing:
                    healed = typed(made, HEALED)
                    assert all(word in healed for word in (PROJECT, USER, '"PCPU":1', "dedicated"))
                    seen.append(page)
    except DocumentWorldMissing as missing:
        pytest.skip(str(missing))
    assert seen == [page]
