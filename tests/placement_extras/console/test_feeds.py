"""Tests of secret calendar addresses: their rights, their revocation, and the knowledge of an attacker."""

import logging
import re
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from placement.api.context import shown_path
from placement.exceptions import Unavailable
from placement_extras.console import sessions
from placement_extras.console.icalendar import FeedTexts
from tests.placement.api.ext.windows import booked
from tests.placement.builders import make_provider, read_error
from tests.placement.running import Admin, application
from tests.placement_extras.console.behind_keystone import AUTHTOKEN, service
from tests.placement_extras.console.fake_identity import serving

PATH = "/ext/v1/reservation_calendar"


@pytest.fixture
def file(migrated_file: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(migrated_file, tmp_path / "placement.sqlite"))


@pytest.fixture
def app(file: Path) -> Any:
    return application(f"sqlite:///{file}", console={"enabled": True})


def made(app: Any, project: str = "project") -> str:
    """Make an address, and return it."""
    answer = Admin(app)("POST", PATH, query_string={"project_id": project})
    assert answer.status_code == 201, answer.text
    assert answer.headers["Location"] == answer.json["calendar"]["url"]
    return str(answer.json["calendar"]["url"])


def test_an_address_needs_no_token_and_shows_the_windows_of_its_project(app: Any) -> None:
    admin = Admin(app)
    make_provider(admin, "h-1", VCPU=8)
    window, other = booked(admin, 4, 1, 2), booked(admin, 4, 1, 2, project_id="lab")
    answer = Client(app).get(made(app))
    assert (answer.status_code, answer.content_type) == (200, "text/calendar; charset=utf-8")
    assert (f"UID:{window}" in answer.text, other in answer.text) == (True, False)
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_revoked_and_a_replaced_address_answer_as_one_that_never_existed(app: Any, file: Path) -> None:
    admin, client = Admin(app), Client(app)
    first, lab = made(app), made(app, "lab")
    second = made(app)
    assert admin("GET", PATH, query_string={"project_id": "project"}).json["calendar"].keys() == {
        "project_id",
        "created_at",
    }
    assert [client.get(each).status_code for each in (first, second, lab)] == [404, 200, 200]
    assert admin("DELETE", PATH, query_string={"project_id": "project"}).status_code == 204
    never = f"/console/feeds/{sessions.new_secret()}.ics"
    answers = [client.get(each) for each in (first, second, never, "/console/feeds/x.ics")]
    pages = {re.sub(r"req-[0-9a-f-]+", "", each.text) for each in answers}
    assert ({each.status_code for each in answers}, len(pages)) == ({404}, 1)
    assert client.get(lab).status_code == 200
    for method in ("GET", "DELETE"):
        status, _, detail = read_error(admin(method, PATH, query_string={"project_id": "project"}))
        assert (status, detail) == (404, "The project project has no calendar address.")
    # the database has no secret
    content = str(sqlite3.connect(file).execute("SELECT * FROM console_feeds").fetchall())
    assert ("lab" in content, secret_of(lab) in content) == (True, False)


def secret_of(address: str) -> str:
    found = re.search(r"/console/feeds/([\w-]{43})\.ics$", address)
    assert found, address
    return found[1]


def test_projects_with_ids_that_differ_in_case_have_different_addresses(app: Any) -> None:
    lower, upper = made(app, "lab"), made(app, "LAB")
    assert [Client(app).get(each).status_code for each in (lower, upper)] == [200, 200]


def test_no_line_of_the_log_has_a_secret(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    address = made(app)
    client = Client(app)
    assert client.get(address).status_code == 200
    assert client.get(f"{address}/more").status_code == 404
    assert client.post(address).status_code == 405
    assert client.get(address, base_url="http://localhost/mounted").status_code == 200
    lines = [record.getMessage() for record in caplog.records if record.name == "placement.requestlog"]
    assert [line.split('"')[1] for line in lines if "feeds" in line] == [
        *["GET /console/feeds/***"] * 2,
        "POST /console/feeds/***",
        "GET /mounted/console/feeds/***",
    ]
    assert secret_of(address) not in caplog.text
    assert shown_path("/console/feed") == "/console/feed"


@pytest.mark.parametrize(
    ("roles", "project", "statuses"),
    [
        ("reader,member", "mine", (201, 200, 204)),
        ("reader", "mine", (403, 404, 403)),
        ("reader,member", "other", (403, 403, 403)),
    ],
)
def test_members_of_a_project_make_and_revoke_its_address(
    app: Any, roles: str, project: str, statuses: tuple[int, ...]
) -> None:
    headers = {"X-Auth-Token": "ann:mine", "X-Roles": roles}
    asked = {"project_id": project}
    found = tuple(
        Admin(app)(method, PATH, headers=headers, query_string=asked).status_code
        for method in ("POST", "GET", "DELETE")
    )
    assert found == statuses


def test_the_default_project_is_that_of_the_caller(app: Any) -> None:
    headers = {"X-Auth-Token": "ann:mine", "X-Roles": "reader,member"}
    answer = Admin(app)("POST", PATH, headers=headers)
    assert answer.json["calendar"]["project_id"] == "mine"
    assert read_error(Admin(app)("POST", f"{PATH}?project=mine", headers=headers))[0] == 400


def test_without_a_console_no_address_is_made(file: Path) -> None:
    answer = Admin(application(f"sqlite:///{file}"))("POST", PATH)
    assert (answer.status_code, "[console] enabled" in answer.text) == (409, True)


def test_a_policy_that_hides_reservations_of_readers_hides_the_feed(file: Path, tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text('"placement:ext:reservations:list": "role:admin"\n')
    app = application(f"sqlite:///{file}", console={"enabled": True}, oslo_policy={"policy_file": str(rules)})
    assert Client(app).get(made(app)).status_code == 403


def test_behind_keystone_only_the_address_needs_no_session(file: Path, tmp_path: Path) -> None:
    address = made(application(f"sqlite:///{file}", console={"enabled": True}), "web")
    with serving() as identity:
        client = Client(service(AUTHTOKEN.format(url=identity.url), file, tmp_path))
        answer = client.get(address)
        assert (answer.status_code, answer.text.startswith("BEGIN:VCALENDAR")) == (200, True)
        assert client.get("/console/feeds/x.ics").status_code == 404
        assert client.get("/console/calendar.ics").status_code == 303
        assert client.post(PATH).status_code == 401


def test_a_feed_is_made_once_a_minute(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("placement_extras.console.icalendar.time.monotonic", lambda: now[0])
    admin, client = Admin(app), Client(app)
    make_provider(admin, "h-1", VCPU=8)
    address = made(app)
    before = client.get(address).text
    window = booked(admin, 4, 1, 2)
    now[0] += 59
    assert client.get(address).text == before
    now[0] += 2
    assert window in client.get(address).text


def test_texts_of_feeds_are_bounded_and_made_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement_extras.console.icalendar._MAX_KEPT", 25)
    monkeypatch.setattr("placement_extras.console.icalendar._MAX_WAIT", 0.01)
    texts, calls = FeedTexts(), list[str]()

    def get(project: str, size: int = 10) -> str:
        return texts.get_text(project, lambda: calls.append(project) or project * size)

    assert get("a") == "a" * 10
    assert (get("b"), get("a"), calls) == ("b" * 10, "a" * 10, ["a", "b"])
    # a third text removes the first one, and a text that is too large is still sent
    get("c")
    get("a")
    assert (get("d", 99), calls) == ("d" * 99, ["a", "b", "c", "a", "d"])
    making, made_text = threading.Event(), threading.Event()

    def wait() -> str:
        making.set()
        assert made_text.wait(60)
        return "slow"

    thread = threading.Thread(target=texts.get_text, args=("slow", wait))
    thread.start()
    assert making.wait(60)
    with pytest.raises(Unavailable, match="try again"):
        get("e")
    # a text that exists waits for no other text
    assert (get("d", 99), calls[-1]) == ("d" * 99, "d")
    made_text.set()
    thread.join()

    def fail() -> str:
        raise Unavailable("no database")

    with pytest.raises(Unavailable, match="no database"):
        texts.get_text("f", fail)
    assert get("e") == "e" * 10
