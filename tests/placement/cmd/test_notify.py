"""Tests of ``placement-manage windows notify``: its exit status, its messages and a delivery over HTTP."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from placement.cmd.manage import main
from placement.notifications.notifier import PositionFile
from tests.placement.api.ext.windows import PATH, booked
from tests.placement.builders import make_provider
from tests.placement.running import Admin, application


class EventServer(HTTPServer):
    """A webhook that keeps what it gets, and answers with a status."""

    status = 204

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EventHandler)
        self.documents: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/events"


class EventHandler(BaseHTTPRequestHandler):
    server: EventServer

    def do_POST(self) -> None:  # http.server calls this name
        self.server.documents.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def webhook() -> Iterator[EventServer]:
    server = EventServer()
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def config(tmp_path: Path, sqlite_url: str) -> str:
    path = tmp_path / "placement.conf"
    path.write_text(f"[placement_database]\nconnection = {sqlite_url}\n")
    return str(path)


def test_events_are_posted_once(
    sqlite_url: str, config: str, webhook: EventServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin(application(sqlite_url))
    make_provider(admin, "cn", VCPU=8)
    state = str(tmp_path / "position.json")
    notify = ["--config-file", config, "windows", "notify", "--url", webhook.url, "--state", state, "--once"]
    assert main(notify) == 0
    window = booked(admin, 1, 1, 2)
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204
    assert [main(notify) for _ in range(2)] == [0, 0]
    (document,) = webhook.documents
    assert (document["kind"], document["consumer_uuid"]) == ("reservation.cancelled", window)


def test_a_webhook_that_refuses_ends_the_command_with_status_1(
    sqlite_url: str,
    config: str,
    webhook: EventServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("placement.cmd.manage.time.sleep", pauses.append)
    admin = Admin(application(sqlite_url))
    make_provider(admin, "cn", VCPU=8)
    state = str(tmp_path / "position.json")
    notify = ["--config-file", config, "windows", "notify", "--url", webhook.url, "--state", state, "--once"]
    assert main(notify) == 0
    assert admin("DELETE", f"{PATH}/{booked(admin, 1, 1, 2)}").status_code == 204
    webhook.status = 500
    assert main(notify) == 1
    assert pauses == [1, 2, 4, 8]
    assert len(webhook.documents) == 5
    errors = capsys.readouterr().err
    assert "it answered with status 500. The next call begins with this event." in errors
    webhook.status = 200
    assert main(notify) == 0
    assert len({each["id"] for each in webhook.documents}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "ftp://x/", "--state", "s"], "--url has to be an http or https URL, not 'ftp://x/'."),
        (["--url", "http://x/", "--state", "s", "--notice", "-1"], "--notice has to be a number of seconds"),
        (["--url", "http://x/", "--state", "/dev/null/s"], "--state /dev/null/s cannot be locked"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(
    config: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["--config-file", config, "windows", "notify", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_second_notifier_with_the_same_file_is_refused(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "position.json"
    with PositionFile(state).hold_lock():
        arguments = ["windows", "notify", "--url", "http://127.0.0.1:1/", "--state", str(state)]
        assert main(["--config-file", config, *arguments]) == 1
    assert "Another notifier uses --state" in capsys.readouterr().err
