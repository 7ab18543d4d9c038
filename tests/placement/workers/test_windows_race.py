"""Clients on two workers book, claim and release at the same time: no instant is above the capacity."""

import random
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.databases import DatabaseServer
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    put_allocation,
)
from tests.placement.moving_clock import iso
from tests.placement.running import Admin, application
from tests.placement.sql import execute_sql
from tests.placement.workers.window_tables import find_broken_promises, read_books

PATH = "/ext/v1/reservations"
CAPACITY = 6
ROUNDS = 12
HOUR = 3600.0


@pytest.fixture
def url(database_server: DatabaseServer, database_template: str) -> Iterator[str]:
    url = database_server.clone(database_template)
    yield url
    database_server.drop_database(url)


@pytest.fixture
def workers(url: str) -> list[Admin]:
    return [Admin(application(url)) for _ in range(2)]


def work_randomly(admin: Admin, host: str, seed: int, begin: float, failures: list[str]) -> None:
    rng = random.Random(seed)
    made: list[str] = []
    for _ in range(ROUNDS):
        kind, amount, hour = rng.choice("bbclpd"), rng.randint(1, 3), rng.randint(1, 5)
        key = str(uuid.uuid4())
        if kind == "b":
            times = {"starts_at": iso(begin + hour * HOUR), "expires_at": iso(begin + (hour + 1) * HOUR)}
            body = {"query": f"resources=VCPU:{amount}", "project_id": "p", "user_id": "u", "uuid": key}
            answer = admin("POST", PATH, json=body | times)
        elif kind == "c":
            wanted = new_claim(f"resources=VCPU:{amount}", consumer_uuid=key)
            answer = post_claims(admin, wanted, ends_at=iso(begin + hour * HOUR))
        elif kind == "l":
            wanted, least = new_claim(f"resources=VCPU:{amount}", consumer_uuid=key), time.time() + HOUR / 2
            answer = post_claims(admin, wanted, preemptible={"min_duration": int(HOUR / 2)})
            # answers show whole milliseconds
            if answer.status_code == 201 and answer.json["claims"][0]["ends_at"] < iso(least - 0.001):
                failures.append(f"l: {answer.text} ends before {iso(least)}")
        elif kind == "p":
            answer = put_allocation(admin, {host: {"VCPU": 1}}, key)
        elif made:
            answer = admin("DELETE", f"/allocations/{made.pop(rng.randrange(len(made)))}")
        else:
            continue
        # 503: other clients were faster each time
        if answer.status_code not in (201, 204, 409, 503):
            failures.append(f"{kind}: {answer.status_code} {answer.text}")
        if kind != "d" and answer.status_code < 300:
            made.append(key)


def test_racing_bookings_end_preemptible_claims_only_once(url: str, workers: list[Admin]) -> None:
    make_provider(workers[0], "cn", VCPU=CAPACITY)
    for _ in range(CAPACITY):
        lent = post_claims(workers[0], new_claim("resources=VCPU:1"), preemptible={"min_duration": 1800})
        assert lent.status_code == 201
    begin, answers = datetime.now().timestamp(), list[int]()

    def book(admin: Admin, hour: int) -> None:
        times = {"starts_at": iso(begin + hour * HOUR), "expires_at": iso(begin + (hour + 1) * HOUR)}
        body = {"query": "resources=VCPU:2", "project_id": "p", "user_id": "u"}
        answers.append(admin("POST", PATH, json=body | times).status_code)

    threads = [
        threading.Thread(target=book, args=(workers[number % 2], 1 + number % 2), daemon=True)
        for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
        assert not thread.is_alive()
    # both hours have room for three of these windows
    assert answers == [201] * 6
    assert find_broken_promises(url) == []


def test_racing_writes_of_windows_keep_every_instant_below_the_capacity(
    url: str, workers: list[Admin]
) -> None:
    admin = workers[0]
    host = make_provider(admin, "cn", VCPU=CAPACITY)
    begin, failures = datetime.now().timestamp(), list[str]()
    threads = [
        threading.Thread(target=work_randomly, args=(each, host, seed, begin, failures), daemon=True)
        for seed, each in enumerate([*workers, *workers])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
        assert not thread.is_alive()
    assert not failures
    assert find_broken_promises(url) == []


def test_racing_bookings_keep_the_limit_of_their_project(
    database_server: DatabaseServer, database_template: str
) -> None:
    url = database_server.clone(database_template)
    try:
        workers = [
            Admin(application(url, reservations={"max_project_amounts": {"VCPU": 3}})) for _ in range(2)
        ]
        # the hosts have room for all bookings, and none shares a lock with another one
        hosts = [make_provider(workers[0], f"cn{number}", VCPU=CAPACITY) for number in range(4)]
        begin, answers = datetime.now().timestamp(), list[int]()

        def book(admin: Admin, host: str) -> None:
            times = {"starts_at": iso(begin + HOUR), "expires_at": iso(begin + 2 * HOUR)}
            body = {"query": "resources=VCPU:1", "project_id": "p", "user_id": "u", "allowed_hosts": [host]}
            for _ in range(3):
                answers.append(admin("POST", PATH, json=body | times).status_code)

        threads = [
            threading.Thread(target=book, args=(workers[number % 2], host), daemon=True)
            for number, host in enumerate(hosts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=240)
            assert not thread.is_alive()
        assert sorted(answers) == [201] * 3 + [409] * 9
    finally:
        database_server.drop_database(url)


def test_the_check_finds_a_full_instant_and_a_wrong_hold(url: str, workers: list[Admin]) -> None:
    host, begin = make_provider(workers[0], "cn", VCPU=CAPACITY), datetime.now().timestamp()
    times = {"starts_at": iso(begin + HOUR), "expires_at": iso(begin + 2 * HOUR)}
    body = {"query": f"resources=VCPU:{CAPACITY}", "project_id": "p", "user_id": "u"}
    assert workers[0]("POST", PATH, json=body | times).status_code == 201
    assert find_broken_promises(url) == []
    execute_sql(url, "UPDATE planned_allocations SET used = used + 1")
    assert find_broken_promises(url) == [
        f"{CAPACITY + 1} of {CAPACITY}.0 VCPU at an instant of {host}",
        f"hold of VCPU of {host}: {CAPACITY}, not {CAPACITY + 1} to {CAPACITY + 1}",
    ]


def test_the_check_finds_room_of_a_maintenance_that_was_given_away(url: str, workers: list[Admin]) -> None:
    admin = workers[0]
    host, begin, guest = make_provider(admin, "cn", VCPU=CAPACITY), datetime.now().timestamp(), new_claim()
    assert post_claims(admin, guest).status_code == 201
    times = {"starts_at": iso(begin + HOUR), "expires_at": iso(begin + 2 * HOUR)}
    body = {"maintenance_of": host, "project_id": "p", "user_id": "u"}
    maintenance = admin("POST", PATH, json=body | times).json["reservation"]
    before = read_books(url)
    assert before.wrong == before.find_excess() == before.find_growth(before, CAPACITY) == []
    assert before.degraded_reservations() == {maintenance["uuid"]}
    assert [each["missing"] for each in maintenance["degraded"]] == [4]
    execute_sql(url, "UPDATE allocations SET used = used + 1 WHERE used = 4")
    growth = f"5 VCPU of {host} in a maintenance of {CAPACITY}, before 4"
    assert read_books(url).find_growth(before, CAPACITY) == [growth]
    assert admin("DELETE", f"/allocations/{guest['consumer_uuid']}").status_code == 204
    books = read_books(url)
    assert books.find_growth(before, CAPACITY) == []
    assert books.degraded_reservations() == set()
