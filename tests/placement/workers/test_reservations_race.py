"""Clients on two workers claim from reservations and beside them, while some reservations expire."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.databases import DatabaseServer
from tests.placement.builders import make_provider, new_claim, post_claims, read_error, read_usages
from tests.placement.running import Admin, application

RESERVATIONS = "/ext/v1/reservations"
RESERVED = 12
BESIDE = 8


@pytest.fixture
def workers(database_server: DatabaseServer, database_template: str) -> Iterator[list[Admin]]:
    url = database_server.clone(database_template)
    yield [Admin(application(url)) for _ in range(2)]
    database_server.drop_database(url)


def reserve(admin: Admin, query: str, seconds: float) -> str:
    body = {"query": query, "project_id": "project", "user_id": "user", "expires_in": seconds}
    answer = admin("POST", RESERVATIONS, json=body)
    assert answer.status_code == 201, answer.json
    uuid: str = answer.json["reservation"]["uuid"]
    return uuid


def at_once(*works: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert not failures, failures


def test_claims_get_exactly_their_reservation_or_the_rest(workers: list[Admin]) -> None:
    hosts = [make_provider(workers[0], f"cn{number}", VCPU=(RESERVED + BESIDE) // 2) for number in range(2)]
    half = f"resources=VCPU:{RESERVED // 2}"
    reservations = [reserve(workers[0], half, 3600) for _ in range(2)]
    claimed: Counter[str] = Counter()

    def take(admin: Admin, reservation: str | None) -> None:
        more = {} if reservation is None else {"reservation": reservation}
        while True:
            answer = post_claims(admin, new_claim("resources=VCPU:1"), **more)
            if answer.status_code == 503:  # other clients were faster each time
                continue
            if answer.status_code != 201:
                status, code, _ = read_error(answer)
                assert (status, code.removeprefix("placement.ext.")) in (
                    (409, "no_candidate"),
                    (409, "no_reservation"),
                )
                return
            claimed[reservation or "beside"] += 1

    at_once(*(lambda a=admin, r=each: take(a, r) for admin in workers for each in (*reservations, None)))
    assert claimed == {"beside": BESIDE, **dict.fromkeys(reservations, RESERVED // 2)}
    assert [read_usages(workers[0], each)["VCPU"] for each in hosts] == [(RESERVED + BESIDE) // 2] * 2
    assert workers[1]("GET", RESERVATIONS).json == {"reservations": []}


def test_expired_reservations_are_claimed_once(workers: list[Admin]) -> None:
    only = make_provider(workers[0], "cn", VCPU=RESERVED)
    for _ in range(RESERVED):
        reserve(workers[0], "resources=VCPU:1", 1.0)
    claimed: list[int] = []
    end = time.monotonic() + 100

    def take(admin: Admin) -> None:
        while len(claimed) < RESERVED:
            assert time.monotonic() < end
            answer = post_claims(admin, new_claim("resources=VCPU:1"))
            assert answer.status_code in (201, 409, 503), answer.json
            if answer.status_code == 201:
                claimed.append(1)

    at_once(*(lambda a=admin: take(a) for admin in workers for _ in range(2)))
    assert len(claimed) == RESERVED
    assert read_usages(workers[1], only) == {"VCPU": RESERVED}
