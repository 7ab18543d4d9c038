"""Tests of ``[api] explain_empty``: the log explains empty lists of candidates, without a delay of any
request.
"""

import logging
import threading
from collections.abc import Callable, Iterator

import pytest
from oslo_context import context

from placement.api import service as service_module
from tests.placement.builders import make_provider
from tests.placement.running import Admin, application
from tests.waits import wait_for

HOST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
EMPTY = "/allocation_candidates?resources=VCPU:9"


class ExplanationLines(logging.Handler):
    """The log lines about empty answers, each with the id of its request."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        current = context.get_current()
        self.lines.append((record.getMessage(), "" if current is None else str(current.global_request_id)))

    def wait(self, count: int) -> list[tuple[str, str]]:
        wait_for(lambda: len(self.lines) >= count, f"{count} lines", evidence=lambda: self.lines)
        for thread in threading.enumerate():
            if thread.name == "explain":
                thread.join(30)  # it is done with all but the last word
        return self.lines


@pytest.fixture
def told() -> Iterator[ExplanationLines]:
    handler = ExplanationLines()
    level = service_module.LOG.level
    service_module.LOG.setLevel(logging.INFO)
    service_module.LOG.addHandler(handler)
    yield handler
    service_module.LOG.removeHandler(handler)
    service_module.LOG.setLevel(level)


@pytest.fixture
def service(sqlite_url) -> Callable[..., Admin]:
    def start(**options: object) -> Admin:
        admin = Admin(application(sqlite_url, api=options))
        make_provider(admin, "cn", provider=HOST, VCPU=8)
        return admin

    return start


SAID = (
    "There are no allocation candidates: 0 of 1 host: 1 has less than 9 VCPU free (most: 8 on cn); "
    "asking for 8 VCPU would leave 1 host."
)


def global_id(number: int) -> str:
    return f"req-00000000-0000-4000-8000-{number:012}"


def ask(admin: Admin, path: str, number: int) -> None:
    answer = admin("GET", path, headers={"X-Openstack-Request-Id": global_id(number)})
    assert (answer.status_code, answer.json["allocation_requests"]) == (200, [])


def test_an_empty_answer_is_explained_with_the_id_of_its_request(service, told):
    ask(service(), EMPTY, 1)
    assert told.wait(1) == [(SAID, global_id(1))]


def test_the_same_query_is_explained_from_memory_until_something_changes(service, told, monkeypatch):
    explained: list[object] = []
    original = service_module.explain_request
    monkeypatch.setattr(
        service_module, "explain_request", lambda *args: explained.append(1) or original(*args)
    )
    monkeypatch.setattr(service_module, "_SHARE", 0)
    admin = service()
    for number in (1, 2, 3):
        ask(admin, EMPTY, number)
        told.wait(number)
    assert told.lines == [(SAID, global_id(number)) for number in (1, 2, 3)]
    assert len(explained) == 1
    assert admin("PUT", "/traits/CUSTOM_A").status_code == 201
    ask(admin, EMPTY, 4)
    told.wait(4)
    assert len(explained) == 2


def test_queries_above_the_rate_are_counted(service, told, monkeypatch):
    admin = service()
    going_on = threading.Event()
    original = service_module.explain_request

    def slow(*args: object) -> object:
        assert going_on.wait(30)
        return original(*args)

    monkeypatch.setattr(service_module, "explain_request", slow)
    ask(admin, EMPTY, 1)
    for number in (2, 3):  # answered while the first is explained
        ask(admin, f"/allocation_candidates?resources=VCPU:{8 + number}", number)
    assert told.lines == []
    going_on.set()
    ((line, _),) = told.wait(1)
    assert line == SAID + " (2 other empty answers before were not explained)"


def test_explanations_can_be_switched_off(service, told):
    admin = service(explain_empty=False)
    ask(admin, EMPTY, 1)
    assert not any(thread.name == "explain" for thread in threading.enumerate())
    assert told.lines == []


def test_a_writer_does_not_wait_for_an_explanation(service, told, monkeypatch):
    admin = service()
    going_on = threading.Event()
    original = service_module.explain_request

    def slow(snapshot: object, *args: object) -> object:
        assert going_on.wait(30)
        return original(snapshot, *args)

    monkeypatch.setattr(service_module, "explain_request", slow)
    ask(admin, EMPTY, 1)
    assert admin("POST", "/resource_providers", json={"name": "new"}).status_code == 200
    assert len(admin("GET", "/resource_providers").json["resource_providers"]) == 2
    going_on.set()
    assert told.wait(1) == [(SAID, global_id(1))]  # of the cloud as it was


def test_an_answer_that_is_not_empty_is_not_explained(service, told):
    admin = service()
    answer = admin("GET", "/allocation_candidates?resources=VCPU:1")
    assert len(answer.json["allocation_requests"]) == 1
    ask(admin, EMPTY, 2)
    assert told.wait(1) == [(SAID, global_id(2))]
