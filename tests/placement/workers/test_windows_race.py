"""Clients on two workers book, claim and release at the same time: no instant is above the capacity."""

import random
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.databases import DatabaseServer
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    provider_path,
    put_allocation,
    read_usages,
)
from tests.placement.moving_clock import iso
from tests.placement.running import Admin, application

PATH = "/ext/v1/reservations"
CAPACITY = 6
ROUNDS = 12
HOUR = 3600.0


@pytest.fixture
def workers(database_server: DatabaseServer, database_template: str) -> Iterator[list[Admin]]:
    url = database_server.clone(database_template)
    yield [Admin(application(url)) for _ in range(2)]
    database_server.drop_database(url)


def work_randomly(admin: Admin, host: str, seed: int, begin: float, failures: list[str]) -> None:
    rng = random.Random(seed)
    made: list[str] = []
    for _ in range(ROUNDS):
        kind, amount, hour = rng.choice("bbcpd"), rng.randint(1, 3), rng.randint(1, 5)
        key = str(uuid.uuid4())
        if kind == "b":
            times = {"starts_at": iso(begin + hour * HOUR), "expires_at": iso(begin + (hour + 1) * HOUR)}
            body = {"query": f"resources=VCPU:{amount}", "project_id": "p", "user_id": "u", "uuid": key}
            answer = admin("POST", PATH, json=body | times)
        elif kind == "c":
            wanted = new_claim(f"resources=VCPU:{amount}", consumer_uuid=key)
            answer = post_claims(admin, wanted, ends_at=iso(begin + hour * HOUR))
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


def test_racing_writes_of_windows_keep_every_instant_below_the_capacity(workers: list[Admin]) -> None:
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
    assert busiest_instant(admin, host) == read_usages(workers[1], host)["VCPU"] <= CAPACITY


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


def busiest_instant(admin: Admin, host: str) -> int:
    """Return the largest sum of all amounts at an instant ahead, from what the API shows of each consumer."""
    ends: dict[str, float] = {}
    amounts: dict[str, tuple[int, float]] = {}
    for consumer, held in admin("GET", provider_path(host, "allocations")).json["allocations"].items():
        if admin("GET", f"/allocations/{consumer}").json["consumer_type"] != "WINDOW_HOLD":
            shown = admin("GET", f"/ext/v1/claims/{consumer}").json
            if "claim" in shown:
                ends[consumer] = datetime.fromisoformat(shown["claim"]["expires_at"]).timestamp()
            amounts[consumer] = held["resources"]["VCPU"], 0.0
    for each in admin("GET", PATH).json["reservations"]:
        begin = datetime.fromisoformat(each["starts_at"]).timestamp()
        amounts[each["uuid"]] = each["allocations"][host]["resources"]["VCPU"], begin
        ends[each["uuid"]] = datetime.fromisoformat(each["expires_at"]).timestamp()
    instants = [datetime.now().timestamp(), *(begin for _, begin in amounts.values())]
    return max(
        sum(
            amount
            for consumer, (amount, begin) in amounts.items()
            if begin <= instant < ends.get(consumer, float("inf"))
        )
        for instant in instants
    )
