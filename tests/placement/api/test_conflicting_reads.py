"""Tests of requests in which queries fail because of other transactions."""

import logging
from http import HTTPStatus
from uuid import uuid4

import pytest

from placement.db.database import ServiceDatabase
from placement.exceptions import TransactionConflict
from tests.placement.builders import claim_body, make_provider
from tests.placement.running import Admin, application


@pytest.fixture
def admin(sqlite_url: str) -> Admin:
    return Admin(application(sqlite_url))


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch):
    """A function that makes the next queries of the database fail."""

    def fail(times: int) -> list[None]:
        left: list[None] = [None] * times
        read = ServiceDatabase.read

        def failing(database: ServiceDatabase):
            if left:
                left.pop()
                raise TransactionConflict("The database is not available.")
            return read(database)

        monkeypatch.setattr(ServiceDatabase, "read", failing)
        return left

    return fail


def test_a_read_is_repeated_until_no_other_transaction_disturbs_it(admin: Admin, fail) -> None:
    host = make_provider(admin, "host", VCPU=8)
    path = f"/allocations/{uuid4()}"
    assert admin("PUT", path, json=claim_body({host: {"VCPU": 2}}, None)).status_code == HTTPStatus.NO_CONTENT
    left = fail(3)
    answer = admin("GET", path)
    assert (answer.status_code, left) == (HTTPStatus.OK, [])
    assert answer.json["allocations"][host]["resources"] == {"VCPU": 2}


def test_a_read_that_fails_again_and_again_is_answered(admin: Admin, fail, caplog) -> None:
    left = fail(100)
    with caplog.at_level(logging.ERROR):
        answer = admin("GET", f"/allocations/{uuid4()}")
    assert (answer.status_code, len(left)) == (HTTPStatus.SERVICE_UNAVAILABLE, 95)
    assert [each.message for each in caplog.records if "answer 503" in each.message]


def test_a_request_that_may_have_written_is_not_repeated(admin: Admin, fail) -> None:
    left = fail(100)
    answer = admin("POST", "/ext/v1/availability", json={"query": "resources=VCPU:1", "duration": 3600})
    assert (answer.status_code, len(left)) == (HTTPStatus.SERVICE_UNAVAILABLE, 99)
