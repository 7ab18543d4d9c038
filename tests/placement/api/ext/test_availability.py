"""Finding the earliest windows over REST, and booking them."""

import time
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.search.budget import BudgetExhausted, SearchBudget
from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    provider_path,
    put_allocation,
    read_error,
)
from tests.placement.moving_clock import after, iso
from tests.placement.running import Admin, application

PATH = "/ext/v1/availability"
RESERVATIONS = "/ext/v1/reservations"
HOUR = 3600
OWNER = {"project_id": "project", "user_id": "user"}


def find(admin: Admin, amount: int, hours: float, **fields: Any) -> Any:
    body = {"query": f"resources=VCPU:{amount}", "duration": int(hours * HOUR), **fields}
    answer = admin("POST", PATH, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json


def book(admin: Admin, amount: int, begin: str, end: str, **fields: Any) -> str:
    body = {"query": f"resources=VCPU:{amount}", "starts_at": begin, "expires_at": end, **OWNER, **fields}
    answer = admin("POST", RESERVATIONS, json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json["reservation"]["uuid"])


@pytest.fixture
def host(admin: Admin) -> str:
    return make_provider(admin, "cn", VCPU=8)


def test_the_earliest_window_begins_when_another_one_ends_and_can_be_booked(admin: Admin, host: str) -> None:
    begin, end = after(HOUR), after(3 * HOUR)
    book(admin, 6, begin, end)
    now, soon = find(admin, 4, 0.5)["windows"]
    assert (now["free_until"], soon["starts_at"], soon["free_until"]) == (begin, end, None)
    (first,) = find(admin, 4, 2, limit=1)["windows"]
    assert first["starts_at"] == end
    assert (first["root_provider_uuid"], first["allocations"]) == (host, {host: {"resources": {"VCPU": 4}}})
    book(admin, 4, first["starts_at"], first["ends_at"], allowed_hosts=[first["root_provider_uuid"]])
    assert find(admin, 8, 1)["windows"][0]["starts_at"] == first["ends_at"]


def test_a_window_may_begin_now_beside_guests_without_an_end(admin: Admin, host: str) -> None:
    assert put_allocation(admin, {host: {"VCPU": 6}}).status_code == 204
    found = find(admin, 2, 1)
    (first,) = found["windows"]
    assert (found["is_complete"], found["reason"], found["explanation"]) == (True, None, None)
    assert first["starts_at"] <= after(1)
    book(admin, 2, first["starts_at"], first["ends_at"])


def test_not_before_and_deadline_limit_the_windows(admin: Admin, host: str) -> None:
    window = book(admin, 8, after(2 * HOUR), after(4 * HOUR))
    begin = after(HOUR / 2)
    (first, second) = find(admin, 8, 1, not_before=begin)["windows"]
    assert (first["starts_at"], second["free_until"]) == (begin, None)
    found = find(admin, 8, 1, not_before=after(2 * HOUR), deadline=after(4 * HOUR))
    assert (found["windows"], found["explanation"]) == ([], None)
    assert found["reason"].startswith("No window of 3600 seconds is free between ")
    assert f"overlap this time: {window} from " in found["reason"]


def test_lead_and_cleaning_time_are_free_around_a_found_window(admin: Admin, host: str) -> None:
    end, later = after(2 * HOUR), after(6 * HOUR)
    book(admin, 8, after(HOUR), end)
    book(admin, 8, later, after(7 * HOUR))
    margins = {"lead_time": HOUR, "cleaning_time": 1800}
    (first, last) = find(admin, 4, 2, **margins)["windows"]
    # an hour after the first window ends, and half an hour before the second one begins
    assert first["starts_at"] == iso(seconds(end) + HOUR)
    assert (first["ends_at"], first["free_until"]) == (
        iso(seconds(end) + 3 * HOUR),
        iso(seconds(later) - 1800),
    )
    assert last["free_until"] is None
    assert find(admin, 4, 2, deadline=first["ends_at"], **margins)["windows"] == [first]
    assert find(admin, 4, 3, deadline=later, **margins)["windows"] == []
    book(admin, 4, first["starts_at"], first["ends_at"], **margins)


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_request_that_never_fits_is_explained(admin: Admin, host: str) -> None:
    book(admin, 8, after(2 * HOUR), after(4 * HOUR))
    assert put_allocation(admin, {make_provider(admin, "full", VCPU=9): {"VCPU": 1}}).status_code == 204
    found = find(admin, 9, 1)
    assert (found["windows"], found["explanation"]) == ([], None)
    assert found["reason"].startswith(
        "No host has room for the request at any time, even without all windows"
    )
    found = find(admin, 9, 1, explain=True)
    assert found["reason"].startswith("There is no candidate for the request: ")
    assert found["explanation"]["hosts"] == 2


def test_claims_that_end_make_room_and_claims_without_an_end_do_not(admin: Admin, host: str) -> None:
    end = after(2 * HOUR)
    assert post_claims(admin, new_claim("resources=VCPU:5"), ends_at=end).status_code == 201
    assert put_allocation(admin, {host: {"VCPU": 1}}).status_code == 204
    (first,) = find(admin, 7, 1)["windows"]
    assert first["starts_at"] == end
    assert find(admin, 8, 1)["windows"] == []


def test_hosts_are_allowed_and_excluded(admin: Admin, host: str) -> None:
    other = make_provider(admin, "other", VCPU=8)
    for fields, expected in (({"allowed_hosts": [other]}, other), ({"excluded_hosts": [other]}, host)):
        (window,) = find(admin, 8, 1, **fields)["windows"]
        assert window["root_provider_uuid"] == expected
    assert [each["root_provider_uuid"] for each in find(admin, 8, 1)["windows"]] == [host, other]


def test_a_found_topology_can_be_booked(admin: Admin) -> None:
    root = make_provider(admin, "numa")
    for number in range(2):
        node = make_provider(admin, f"node{number}", parent=root, PCPU=4)
        assert admin("PUT", provider_path(node, "traits"), json=TRAITS).status_code == 200
    asked = {"query": "resources=PCPU:6", "topology": "best-effort"}
    first = find(admin, 0, 1, **asked)["windows"][0]
    assert sum(each["resources"]["PCPU"] for each in first["allocations"].values()) == 6
    book(admin, 0, first["starts_at"], first["ends_at"], **asked)
    assert find(admin, 0, 1, **asked)["windows"][0]["starts_at"] == first["ends_at"]


TRAITS = {"resource_provider_generation": 1, "traits": ["HW_NUMA_ROOT"]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"duration": 0}, "duration"),
        ({"limit": 101}, "limit"),
        ({"deadline": "2100-02-30T00:00:00Z"}, "deadline is not a valid time"),
        ({"not_before": "tomorrow"}, "a time in UTC"),
        ({"deadline": "2000-01-01T00:00:00Z"}, "No window of this duration lies between"),
        ({"not_before": "2999-01-01T00:00:00Z"}, "No window of this duration lies between"),
        ({"query": "resources=CUSTOM_UNKNOWN:1"}, "No such resource class"),
        ({"query": None}, "is needed"),
    ],
)
def test_wrong_questions_are_refused(admin: Admin, host: str, fields: dict[str, Any], message: str) -> None:
    body = {"query": "resources=VCPU:1", "duration": 60, **fields}
    answer = admin("POST", PATH, json={key: each for key, each in body.items() if each is not None})
    assert answer.status_code == 400
    assert message in read_error(answer)[2]


def test_windows_respect_the_limits_on_duration_and_horizon(url: str) -> None:
    admin = Admin(application(url, reservations={"max_duration": 2 * HOUR, "max_ahead": 3 * HOUR}))
    host = make_provider(admin, "cn", VCPU=8)
    window = book(admin, 8, after(2 * HOUR), after(3.9 * HOUR))
    assert find(admin, 1, 1)["windows"][0]["free_until"] is not None
    later = find(admin, 1, 2, not_before=after(HOUR))
    assert later["windows"] == []
    assert f"overlap this time: {window}" in later["reason"]
    long = find(admin, 1, 3, allowed_hosts=[host])
    assert long["windows"] == []
    assert "at most 7200 seconds ([reservations] max_duration)" in long["reason"]
    assert "([reservations] max_ahead)" in find(admin, 1, 1, not_before=after(4 * HOUR))["reason"]


def test_only_windows_of_possible_hosts_and_classes_are_in_the_way(admin: Admin, host: str) -> None:
    here = book(admin, 8, after(HOUR), after(9 * HOUR))
    other = make_provider(admin, "other", VCPU=8, DISK_GB=8)
    book(admin, 8, after(HOUR), after(9 * HOUR), allowed_hosts=[other])
    book(admin, 0, after(HOUR), after(9 * HOUR), query="resources=DISK_GB:1")
    times = {"not_before": after(2 * HOUR), "deadline": after(8 * HOUR)}
    reason = find(admin, 1, 1, **times, allowed_hosts=[host])["reason"]
    assert reason.count(" until ") == 1
    assert f"overlap this time: {here} from" in reason
    assert find(admin, 1, 1, **times)["reason"].count(" until ") == 2
    # a booking names the same windows
    body = {"query": "resources=VCPU:1", **OWNER, "starts_at": times["not_before"]}
    refused = admin(
        "POST", RESERVATIONS, json={**body, "expires_at": times["deadline"], "allowed_hosts": [host]}
    )
    assert read_error(refused)[2].count(" until ") == 1


class SpentBudget(SearchBudget):
    """A budget without any time."""

    def spend(self, steps: int = 1) -> None:
        raise BudgetExhausted


def test_a_search_that_takes_too_long_is_refused(
    admin: Admin, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement.search.claims.claim_context.SearchBudget", SpentBudget)
    answer = admin("POST", PATH, json={"query": "resources=VCPU:1", "duration": 60})
    status, code, detail = read_error(answer)
    assert (status, code) == (400, "placement.ext.search_too_long")
    assert "name hosts in allowed_hosts" in detail


booked = st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.integers(0, 6), st.integers(1, 4))


@pytest.fixture
def template(database_server: DatabaseServer, database_template: str) -> str:
    return database_template


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(windows=st.lists(booked, max_size=6), amount=st.integers(1, 4), hours=st.integers(1, 4))
def test_the_earliest_hour_is_found_and_each_answer_can_be_booked(
    database_server: DatabaseServer,
    template: str,
    windows: list[tuple[str, int, int, int]],
    amount: int,
    hours: int,
) -> None:
    url = database_server.clone(template)
    try:
        admin = Admin(application(url))
        roots = {name: make_provider(admin, name, VCPU=4) for name in "ab"}
        base = time.time() + HOUR
        used = {name: [0] * 99 for name in "ab"}
        for name, size, begin, length in windows:
            if all(each + size <= 4 for each in used[name][begin : begin + length]):
                times = iso(base + begin * HOUR), iso(base + (begin + length) * HOUR)
                book(admin, size, *times, allowed_hosts=[roots[name]])
                for hour in range(begin, begin + length):
                    used[name][hour] += size
        free = [
            hour
            for hour in range(50)
            if any(max(used[name][hour : hour + hours]) + amount <= 4 for name in "ab")
        ]
        answers = find(admin, amount, hours, not_before=iso(base), limit=9)["windows"]
        assert answers[0]["starts_at"] == iso(base + free[0] * HOUR)
        for each in answers:
            # each answer alone, so the booking is undone
            uuid = book(
                admin, amount, each["starts_at"], each["ends_at"], allowed_hosts=[each["root_provider_uuid"]]
            )
            assert admin("DELETE", f"{RESERVATIONS}/{uuid}").status_code == 204
    finally:
        database_server.drop_database(url)
