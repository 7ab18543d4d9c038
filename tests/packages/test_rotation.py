"""logrotate moves logs of running programs without a signal, and no line is lost."""

import re
import threading
from collections import Counter
from pathlib import Path

import pytest
import requests

from tests.packages.rotation import RULES, Rotation, lines_of
from tests.placement.serving import HEADERS, service

pytestmark = pytest.mark.slow

ROTATIONS = 8


@pytest.mark.parametrize("program", RULES)
def test_logrotate_accepts_every_line(program: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o750)
    (logs / "some.log").write_text("a line\n")
    said = Rotation(program, tmp_path, logs)("--debug", "--force")
    assert "considering log" in said
    assert "error" not in said
    assert "unknown" not in said


def test_no_line_of_the_service_is_lost(tmp_path: Path) -> None:
    """Rotate logs while clients send requests; each request id of an answer is in the logs."""
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o750)
    rotate = Rotation("placement", tmp_path, logs)
    ids: list[str] = []
    enough = threading.Event()

    def ask(url: str) -> None:
        with requests.Session() as session:
            while not enough.is_set():
                answer = session.get(f"{url}/resource_providers", headers=HEADERS, timeout=60)
                ids.append(answer.headers["x-openstack-request-id"])

    options = f"[DEFAULT]\nlog_dir = {logs}\nlog_file = placement-api.log\n"
    database = f"sqlite:///{tmp_path}/placement.sqlite"
    with service(
        database, tmp_path, workers=2, api_options=options, database_options="sync_on_startup = true"
    ) as running:
        clients = [threading.Thread(target=ask, args=(running.base,)) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            for _ in range(ROTATIONS):
                before = len(ids)
                while len(ids) < before + 50 and any(client.is_alive() for client in clients):
                    enough.wait(0.01)
                rotate("--force")
        finally:
            enough.set()
            for client in clients:
                client.join()
    lines = lines_of(logs, "placement-api.log")
    found = Counter(re.findall(r"requestlog \[.*?(req-[0-9a-f-]{36})", "\n".join(lines)))
    assert len(ids) >= ROTATIONS * 50
    assert Counter(ids) - found == Counter()
    assert {found[each] for each in ids} == {1}
    assert len([*logs.iterdir()]) == ROTATIONS + 1
    assert len([*logs.glob("*.gz")]) == ROTATIONS - 1
    assert (logs / "placement-api.log").stat().st_size > 0
