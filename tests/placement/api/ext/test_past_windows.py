"""The history of windows, windows that give a part back, and windows that end early."""

import uuid
from typing import Any

import pytest

from placement.store import window_history
from tests.placement.api.ext.windows import HOUR, PATH, book, booked, show
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    put_allocation,
    read_error,
    read_usages,
)
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin
from tests.placement.workers.window_tables import find_broken_promises


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=8)


def past(admin: Admin, state: str, **fields: Any) -> dict[str, dict[str, Any]]:
    query = "&".join([f"state={state}", *(f"{name}={value}" for name, value in fields.items())])
    answer = admin("GET", f"{PATH}?{query}")
    assert answer.status_code == 200, answer.text
    return {each["uuid"]: each for each in answer.json["reservations"]}


def test_a_window_that_ended_is_in_the_history_with_its_promised_amounts(
    admin: Admin, url: str, host: str
) -> None:
    window = booked(admin, 4, 1, 2, lead_time=600)
    untouched = show(admin, window)
    assert past(admin, "ended") == {}
    advance_clock(url, 1.5 * HOUR)
    # a claim takes all of it; the window lasts until its end
    claim = {**new_claim("resources=VCPU:4"), "project_id": "project"}
    taken = post_claims(admin, claim, reservation=window, ends_at=after(0.4 * HOUR))
    assert taken.status_code == 201
    assert past(admin, "ended") == {}
    advance_clock(url, HOUR)
    found = past(admin, "ended")[window]
    assert found == {
        **found,
        "project_id": untouched["project_id"],
        "user_id": untouched["user_id"],
        "lead_time": 600,
        "state": "ended",
        "promised": {"VCPU": 4},
        "ended_at": None,
        "allocations": {},
    }
    assert past(admin, "cancelled") == {}


def test_a_window_deleted_before_its_start_is_cancelled_and_later_it_has_ended(
    admin: Admin, url: str, host: str
) -> None:
    cancelled, returned, released = (booked(admin, 2, 1, 2) for _ in range(3))
    assert admin("DELETE", f"{PATH}/{cancelled}").status_code == 204
    assert past(admin, "cancelled").keys() == {cancelled}
    advance_clock(url, 1.5 * HOUR)
    assert show(admin, released)["state"] == "active"
    assert admin("DELETE", f"{PATH}/{returned}").status_code == 204
    assert admin("DELETE", f"/allocations/{released}").status_code == 204
    assert past(admin, "cancelled").keys() == {cancelled}
    ended = past(admin, "ended")
    assert ended.keys() == {returned, released}
    assert ended[returned]["ended_at"] < ended[returned]["expires_at"]


def test_readers_see_the_history_of_their_project_page_by_page(admin: Admin, host: str) -> None:
    windows = sorted(booked(admin, 1, 1, 2) for _ in range(3))
    other = booked(admin, 1, 1, 2, project_id="another")
    for each in (*windows, other):
        assert admin("DELETE", f"{PATH}/{each}").status_code == 204
    assert past(admin, "cancelled", limit=3, project_id="project").keys() == set(windows)
    first = admin("GET", f"{PATH}?state=cancelled&limit=2&project_id=project").json
    (link,) = first["links"]
    rest = admin("GET", link["href"]).json
    shown = [each["uuid"] for each in (*first["reservations"], *rest["reservations"])]
    assert (shown, "links" in rest) == (windows, False)
    reader = {"X-Auth-Token": "ann:another", "X-Roles": "reader"}
    seen = admin("GET", f"{PATH}?state=cancelled", headers=reader).json["reservations"]
    assert [each["uuid"] for each in seen] == [other]


def test_the_history_forgets_old_windows_and_more_than_its_maximum(
    admin: Admin, url: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = booked(admin, 1, 1, 2)
    advance_clock(url, 3 * HOUR + window_history.MAX_AGE)
    assert past(admin, "ended").keys() == {old}
    kept = booked(admin, 1, 1, 2)
    assert past(admin, "ended") == {}
    monkeypatch.setattr(window_history, "MAX_KEPT", 1)
    monkeypatch.setattr(window_history, "MAX_RECENT", 2)
    # the uuid of a deleted window may be used again
    assert admin("DELETE", f"{PATH}/{kept}").status_code == 204
    assert book(admin, 1, 1, 2, uuid=kept).status_code == 201
    assert past(admin, "cancelled") == {}
    windows = [kept, *(booked(admin, 1, 1, 2 + number) for number in range(4))]
    for each in windows:
        assert admin("DELETE", f"{PATH}/{each}").status_code == 204
    booked(admin, 1, 1, 2)
    # those that ended last stay, and time events need them for some days
    assert past(admin, "cancelled").keys() == set(windows[-2:])
    advance_clock(url, window_history.RECENT)
    last = booked(admin, 1, 1, 2)
    assert past(admin, "cancelled").keys() == {windows[-1]}
    assert show(admin, last)["state"] == "pending"


def test_a_part_of_a_pending_or_active_window_can_be_given_back(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 8, 1, 3)
    assert put_allocation(admin, {host: {"VCPU": 1}}).status_code == 409

    def keep(amount: int, **fields: Any) -> Any:
        generation = show(admin, window)["generation"]
        kept = {"allocations": {host: {"resources": {"VCPU": amount}}}}
        return admin("PUT", f"{PATH}/{window}", json={"generation": generation, **kept, **fields})

    smaller = keep(5)
    assert smaller.status_code == 200, smaller.text
    held = smaller.json["reservation"]["allocations"]
    assert held == {host: {"resources": {"VCPU": 5}}}
    assert put_allocation(admin, {host: {"VCPU": 3}}).status_code == 204
    larger = keep(6)
    assert (larger.status_code, "cannot keep 6" in larger.text) == (400, True)
    advance_clock(url, 1.5 * HOUR)
    assert show(admin, window)["state"] == "active"
    assert keep(2, expires_at=after(HOUR)).status_code == 200
    assert read_usages(admin, host) == {"VCPU": 5}
    assert put_allocation(admin, {host: {"VCPU": 3}}).status_code == 204
    assert find_broken_promises(url) == []
    advance_clock(url, 1.2 * HOUR)
    assert past(admin, "ended")[window]["promised"] == {"VCPU": 8}
    assert read_usages(admin, host) == {"VCPU": 6}


def test_a_reservation_without_a_start_gives_a_part_back_too(admin: Admin, host: str) -> None:
    body = {"query": "resources=VCPU:8", "project_id": "project", "user_id": "user", "expires_in": HOUR}
    made = admin("POST", PATH, json=body).json["reservation"]
    kept = {"generation": 1, "allocations": {host: {"resources": {"VCPU": 3}}}}
    changed = admin("PUT", f"{PATH}/{made['uuid']}", json=kept).json["reservation"]
    assert (changed["generation"], changed["expires_at"]) == (2, made["expires_at"])
    assert read_usages(admin, host) == {"VCPU": 3}
    unknown = {"generation": 2, "allocations": {str(uuid.uuid4()): {"resources": {"VCPU": 1}}}}
    assert admin("PUT", f"{PATH}/{made['uuid']}", json=unknown).status_code == 400
    assert admin("PUT", f"{PATH}/{made['uuid']}", json={"generation": 2}).status_code == 400


def test_an_active_window_that_is_returned_gives_its_room_back_at_once_and_keeps_claims(
    admin: Admin, url: str, host: str
) -> None:
    window = booked(admin, 8, 1, 3)
    advance_clock(url, 1.5 * HOUR)
    claim = {**new_claim("resources=VCPU:3"), "project_id": "project"}
    assert post_claims(admin, claim, reservation=window, ends_at=after(HOUR)).status_code == 201
    now = {"generation": show(admin, window)["generation"], "expires_in": 0}
    assert "DELETE ends it at once" in admin("PUT", f"{PATH}/{window}", json=now).text
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204
    assert read_usages(admin, host) == {"VCPU": 3}
    assert put_allocation(admin, {host: {"VCPU": 5}}).status_code == 204


@pytest.mark.parametrize("margins", [{"cleaning_time": 7200}, {"lead_time": 7200}])
def test_a_window_with_margins_has_to_end_after_its_start(
    admin: Admin, host: str, margins: dict[str, int]
) -> None:
    answer = book(admin, 1, 3, 2.5, **margins)
    assert (answer.status_code, read_error(answer)[2]) == (
        400,
        "A reservation has to end after its start.",
    )


def test_a_window_that_another_call_empties_is_in_the_history(admin: Admin, url: str, host: str) -> None:
    emptied, changed = booked(admin, 2, 1, 2), booked(admin, 2, 1, 2)
    advance_clock(url, 1.5 * HOUR)
    assert [show(admin, each)["state"] for each in (emptied, changed)] == ["active", "active"]
    for window, resources in ((emptied, {}), (changed, {"VCPU": 2})):
        body = {
            **admin("GET", f"/allocations/{window}").json,
            "allocations": {host: {"resources": resources}} if resources else {},
            "consumer_type": "INSTANCE" if resources else "RESERVATION",
        }
        assert admin("PUT", f"/allocations/{window}", json=body).status_code == 204
    ended = past(admin, "ended")
    assert ended.keys() == {emptied, changed}
    assert all(each["ended_at"] < each["expires_at"] for each in ended.values())


def test_a_reservation_with_the_uuid_of_a_past_window_replaces_it_in_the_history(
    admin: Admin, url: str, host: str
) -> None:
    window = booked(admin, 1, 1, 2)
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204
    assert past(admin, "cancelled").keys() == {window}
    body = {"uuid": window, "query": "resources=VCPU:1", "project_id": "project", "user_id": "user"}
    assert admin("POST", PATH, json={**body, "expires_in": 60}).status_code == 201
    assert past(admin, "cancelled") == {}
    assert admin("DELETE", f"{PATH}/{window}").status_code == 204
    assert past(admin, "cancelled") == past(admin, "ended") == {}


def test_a_window_that_is_over_does_not_end_again(admin: Admin, url: str, host: str) -> None:
    window = booked(admin, 1, 1, 2)
    advance_clock(url, 3 * HOUR)
    before = past(admin, "ended")
    assert before.keys() == {window}
    assert admin("DELETE", f"/allocations/{window}").status_code in {204, 404}
    assert past(admin, "ended") == before


def test_the_latest_end_is_that_of_the_amounts_that_a_window_keeps(admin: Admin, host: str) -> None:
    window = booked(admin, 8, 1, 2)
    booked(admin, 4, 2, 4)
    last = show(admin, booked(admin, 8, 4, 5))["starts_at"]
    body = {"generation": show(admin, window)["generation"], "expires_at": after(4.5 * HOUR)}
    kept = {"allocations": {host: {"resources": {"VCPU": 4}}}}
    refused = admin("PUT", f"{PATH}/{window}", json={**body, **kept})
    assert refused.status_code == 409
    assert f"it may end at {last} at the latest" in read_error(refused)[2]


def test_a_class_of_a_pending_window_can_be_renamed(admin: Admin, url: str) -> None:
    assert admin("PUT", "/resource_classes/CUSTOM_A").status_code == 201
    provider = make_provider(admin, "other", CUSTOM_A=8)
    window = booked(admin, 0, 1, 2, query="resources=CUSTOM_A:3")
    older = {"OpenStack-API-Version": "placement 1.6"}
    answer = admin("PUT", "/resource_classes/CUSTOM_A", json={"name": "CUSTOM_B"}, headers=older)
    assert answer.status_code == 200, answer.text
    assert show(admin, window)["allocations"] == {provider: {"resources": {"CUSTOM_B": 3}}}
    assert find_broken_promises(url) == []
