"""Tests of ``GET /ext/v1/changes``, by which clients follow changes of providers, and wait for changes."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from placement.db.database import ServiceDatabase
from placement.store.changes import KEPT
from tests.placement.builders import make_provider, new_claim, post_claims, read_error
from tests.placement.running import Admin, application
from tests.waits import wait_for

PATH = "/ext/v1/changes"


@pytest.fixture
def admin(url: str) -> Admin:
    return waiting(url, 1)


def waiting(url: str, requests: int) -> Admin:
    """A worker in which at most `requests` requests may wait for changes."""
    return Admin(application(url, api={"waiting_requests": requests}))


def begin(admin: Admin) -> str:
    answer = admin("GET", PATH).json
    assert (answer["resource_providers"], answer["deleted_resource_providers"]) == ([], [])
    cursor: str = answer["cursor"]
    return cursor


def since(admin: Admin, cursor: str, **more: Any) -> dict[str, Any]:
    answer = admin("GET", PATH, query_string={"since": cursor, **more})
    assert answer.status_code == 200, answer.json
    found: dict[str, Any] = answer.json
    return found


def seen(answer: dict[str, Any]) -> dict[str, str]:
    return {each["uuid"]: each["changed"] for each in answer["resource_providers"]}


def test_a_change_is_reported_once_by_any_worker(admin: Admin, url: str) -> None:
    quiet = make_provider(admin, "quiet", VCPU=8)
    cursor = begin(admin)
    busy = make_provider(admin, "busy", VCPU=8)
    other = Admin(application(url))
    first = since(other, cursor)
    assert seen(first) == {busy: "description"}
    assert first["resource_providers"][0]["generation"] == 1
    assert since(admin, first["cursor"])["resource_providers"] == []
    assert seen(since(admin, cursor)) == {busy: "description"}  # as often as it is asked for
    assert quiet not in seen(first)


def test_a_change_of_usage_lists_all_consumers(admin: Admin) -> None:
    only = make_provider(admin, "cn", VCPU=8)
    cursor = begin(admin)
    consumers = [new_claim("resources=VCPU:1") for _ in range(2)]
    uuids = sorted(each["consumer_uuid"] for each in consumers)
    assert post_claims(admin, *consumers).status_code == 201
    found = since(admin, cursor)
    assert seen(found) == {only: "usage"}
    assert found["resource_providers"][0]["consumers"] == [{"uuid": each, "generation": 1} for each in uuids]
    assert admin("DELETE", f"/allocations/{uuids[0]}").status_code == 204
    (changed,) = since(admin, found["cursor"])["resource_providers"]
    assert (changed["changed"], changed["consumers"]) == ("usage", [{"uuid": uuids[1], "generation": 1}])


def test_deleted_providers_are_reported_and_recreated_ones_twice(admin: Admin) -> None:
    gone, again = make_provider(admin, "gone"), make_provider(admin, "again")
    cursor = begin(admin)
    for each in (gone, again):
        assert admin("DELETE", f"/resource_providers/{each}").status_code == 204
    assert admin("POST", "/resource_providers", json={"name": "again", "uuid": again}).status_code == 200
    found = since(admin, cursor)
    assert sorted(found["deleted_resource_providers"]) == sorted([gone, again])
    assert seen(found) == {again: "description"}
    assert since(admin, found["cursor"])["deleted_resource_providers"] == []


def test_pages_list_each_change_once(admin: Admin) -> None:
    cursor = begin(admin)
    hosts = {make_provider(admin, f"cn{number}", VCPU=8) for number in range(12)}
    together = [new_claim("resources=VCPU:8") for _ in range(12)]
    assert post_claims(admin, *together).status_code == 201  # all are stamped by one transaction
    told: list[str] = []
    more = True
    while more:
        page = since(admin, cursor, limit=5)
        assert page["resource_providers"]
        told += seen(page)
        cursor, more = page["cursor"], page["more"]
    assert sorted(told) == sorted(hosts)
    assert since(admin, cursor)["resource_providers"] == []


def test_an_invalid_cursor_is_refused(admin: Admin) -> None:
    cursor = begin(admin)
    for text in ("x", cursor[:-4], cursor + "AAAA", "\u00e9", "B" + cursor[1:]):
        assert admin("GET", PATH, query_string={"since": text}).status_code == 400
    for query in ("wait=61", "wait=-1", "limit=0", "nothing=1"):
        assert admin("GET", f"{PATH}?{query}").status_code == 400
    assert "'61' is not a number of seconds from 0 to 60" in admin("GET", f"{PATH}?wait=61").text


def test_a_cursor_of_another_epoch_or_history_is_gone(admin: Admin, url: str) -> None:
    make_provider(admin, "cn", VCPU=8)
    ahead = begin(admin)
    database = ServiceDatabase(url)
    try:
        database.write(lambda tx: tx.renew_epoch())
    finally:
        database.close()
    status, code, detail = read_error(admin("GET", PATH, query_string={"since": ahead}))
    assert (status, code) == (410, "placement.ext.cursor_too_old")
    assert "another history or epoch" in detail
    assert "Send a request without 'since'" in detail


def test_a_cursor_from_before_too_many_deletions_is_gone(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement.store.changes.KEPT", 2)
    cursor = begin(admin)
    uuid = "00000000-0000-4000-8000-00000000beef"  # one bucket
    after = []
    for _ in range(3):
        assert admin("POST", "/resource_providers", json={"name": "cn", "uuid": uuid}).status_code == 200
        assert admin("DELETE", f"/resource_providers/{uuid}").status_code == 204
        after.append(begin(admin))
    assert read_error(admin("GET", PATH, query_string={"since": cursor}))[0] == 410
    assert since(admin, after[1])["deleted_resource_providers"] == [uuid]
    assert KEPT == 64


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def test_a_waiting_request_is_answered_when_something_changes(admin: Admin, url: str) -> None:
    other = Admin(application(url))
    cursor = begin(admin)
    thread, results = in_background(lambda: since(admin, cursor, wait=60))
    only = make_provider(other, "cn", VCPU=8)
    thread.join(timeout=55)
    assert not thread.is_alive()
    assert seen(results[0]) == {only: "description"}


def test_a_wait_without_changes_has_an_empty_answer(admin: Admin) -> None:
    make_provider(admin, "cn", VCPU=8)
    cursor = begin(admin)
    found = since(admin, cursor, wait=1)
    assert (found["resource_providers"], found["more"]) == ([], False)
    assert since(admin, found["cursor"])["resource_providers"] == []


def test_the_number_of_waiting_requests_is_limited(url: str) -> None:
    admin, none = waiting(url, 1), waiting(url, 0)
    cursor = begin(admin)
    answer = none("GET", PATH, query_string={"since": cursor, "wait": 60})
    assert (answer.status_code, answer.headers["Retry-After"]) == (200, "5")

    def wait() -> Any:
        while True:  # the other request may hold a place for a while
            answer = admin("GET", PATH, query_string={"since": cursor, "wait": 60})
            if "Retry-After" not in answer.headers:
                return answer.json
            time.sleep(0.01)

    thread, results = in_background(wait)

    def is_taken() -> bool:
        return "Retry-After" in admin("GET", PATH, query_string={"since": cursor, "wait": 1}).headers

    wait_for(is_taken, "the place is taken", pause=0.5)  # it is free meanwhile: the other request can take it
    only = make_provider(admin, "cn", VCPU=8)
    thread.join(timeout=55)
    assert seen(results[0]) == {only: "description"}
    assert "Retry-After" not in admin("GET", PATH, query_string={"since": cursor, "wait": 1}).headers
