"""Tests of adopting the database of a running OpenStack Placement, which then accepts no more writes and
loses none.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reference import ReferenceInstall
from benchmarks.servers import OpenStack
from placement.db import adoption, migration
from placement.store.consumers import ConsumerOwnership
from placement_extras.migration.abandonment import AbandonWay, abandon_adoption
from placement_extras.migration.adoption import adopt_database
from placement_extras.shadow.comparison import comparable_body
from tests.databases import DatabaseServer
from tests.placement.builders import claim_body, inventories_body
from tests.placement.differential.services import Request, ServiceClient, ShadowAnswer
from tests.placement.running import Admin, application
from tests.placement.sql import read_tables

pytestmark = pytest.mark.slow

OWNER = ConsumerOwnership("nobody", "nobody", None)


def uuid(kind: str, number: int) -> str:
    return f"{kind * 8}-0000-4000-8000-{number:012x}"


@pytest.fixture
def url(database_server: DatabaseServer) -> Iterator[str]:
    url = database_server.fresh_database()
    yield url
    database_server.drop_database(url)


@pytest.fixture
def stock(url: str, reference: ReferenceInstall, tmp_path: Path) -> Iterator[OpenStack]:
    with OpenStack(url, tmp_path, 1, 4, reference) as service:
        yield service


def hold_vcpus(amount: int = 1, generation: int | None = None, host: int = 1) -> dict[str, Any]:
    return claim_body({uuid("a", host): {"VCPU": amount}}, generation, project_id="red", user_id="ann")


def large_inventories(generation: int, **totals: int) -> dict[str, Any]:
    units = {name: {"total": total, "allocation_ratio": 1.1} for name, total in totals.items()}
    return inventories_body(generation, **units)


def world() -> Iterator[Request]:
    """Three hosts, the second of which is below the first, with custom names and two guests."""
    for number, parent in ((1, None), (2, uuid("a", 1)), (3, None)):
        body = {"name": f"host{number}", "uuid": uuid("a", number), "parent_provider_uuid": parent}
        yield Request("POST", "/resource_providers", body)
    for number in (1, 2):
        yield Request(
            "PUT", f"/resource_providers/{uuid('a', number)}/inventories", large_inventories(0, VCPU=1000)
        )
    for name in ("GONE", "OLD"):
        yield Request("PUT", f"/resource_classes/CUSTOM_{name}")
        yield Request("PUT", f"/traits/CUSTOM_{name}")
    traits = {"resource_provider_generation": 1, "traits": ["CUSTOM_OLD", "HW_CPU_X86_AVX2"]}
    yield Request("PUT", f"/resource_providers/{uuid('a', 1)}/traits", traits)
    pool = {"resource_provider_generation": 2, "aggregates": [uuid("b", 1)]}
    yield Request("PUT", f"/resource_providers/{uuid('a', 1)}/aggregates", pool)
    for number in (1, 2):
        yield Request("PUT", f"/allocations/{uuid('c', number)}", hold_vcpus(4))


#: each kind of write that a client can request, valid in the initial world
WRITES = {
    "make a provider": Request("POST", "/resource_providers", {"name": "x", "uuid": uuid("a", 9)}),
    "rename a provider": Request("PUT", f"/resource_providers/{uuid('a', 3)}", {"name": "renamed"}),
    "delete a provider": Request("DELETE", f"/resource_providers/{uuid('a', 3)}"),
    "set inventories": Request(
        "PUT", f"/resource_providers/{uuid('a', 2)}/inventories", large_inventories(1, VCPU=9)
    ),
    "add an inventory": Request(
        "POST",
        f"/resource_providers/{uuid('a', 3)}/inventories",
        {"resource_provider_generation": 0, "resource_class": "VCPU", "total": 7},
    ),
    "delete inventories": Request("DELETE", f"/resource_providers/{uuid('a', 2)}/inventories"),
    "delete an inventory": Request("DELETE", f"/resource_providers/{uuid('a', 2)}/inventories/VCPU"),
    "set traits": Request(
        "PUT",
        f"/resource_providers/{uuid('a', 2)}/traits",
        {"resource_provider_generation": 1, "traits": ["CUSTOM_OLD"]},
    ),
    "delete traits": Request("DELETE", f"/resource_providers/{uuid('a', 1)}/traits"),
    "set aggregates": Request(
        "PUT",
        f"/resource_providers/{uuid('a', 2)}/aggregates",
        {"resource_provider_generation": 1, "aggregates": [uuid("b", 2)]},
    ),
    "make a class": Request("PUT", "/resource_classes/CUSTOM_NEW"),
    "rename a class": Request("PUT", "/resource_classes/CUSTOM_OLD", {"name": "CUSTOM_OTHER"}, "1.6"),
    "delete a class": Request("DELETE", "/resource_classes/CUSTOM_GONE"),
    "make a trait": Request("PUT", "/traits/CUSTOM_NEW"),
    "delete a trait": Request("DELETE", "/traits/CUSTOM_GONE"),
    "claim": Request("PUT", f"/allocations/{uuid('c', 9)}", hold_vcpus()),
    "claim for several": Request(
        "POST", "/allocations", {uuid("c", 8): hold_vcpus(), uuid("c", 7): hold_vcpus()}
    ),
    "change a claim": Request("PUT", f"/allocations/{uuid('c', 1)}", hold_vcpus(5, 1)),
    "empty a claim": Request("PUT", f"/allocations/{uuid('c', 2)}", {**hold_vcpus(1, 1), "allocations": {}}),
    "release": Request("DELETE", f"/allocations/{uuid('c', 1)}"),
    "reshape": Request(
        "POST",
        "/reshaper",
        {"inventories": {uuid("a", 2): large_inventories(1, VCPU=10)}, "allocations": {}},
    ),
}


def contents(url: str) -> dict[str, list[str]]:
    return read_tables(url, lambda name: True)


def fill(client: ServiceClient) -> None:
    for request in world():
        answer = client.send(request)
        assert answer.status < 300, (str(request), answer)


def test_a_stock_service_that_was_left_running_cannot_write(stock: OpenStack, url: str) -> None:
    with ServiceClient(stock.port) as client:
        fill(client)
        adopt_database(url, OWNER, [])
        before = contents(url)
        answers = {what: client.send(request).status for what, request in WRITES.items()}
        assert contents(url) == before
        assert {what: status for what, status in answers.items() if status < 500} == {}
        stock.restart_service()
    with ServiceClient(stock.port) as client:
        answers = {what: client.send(request).status for what, request in WRITES.items()}
        assert contents(url) == before
        assert {what: status for what, status in answers.items() if status < 500} == {}
        abandon_adoption(url, OWNER)
        stock.restart_service()
    with ServiceClient(stock.port) as client:
        answers = {what: client.send(request).status for what, request in WRITES.items()}
        refused = {what for what, status in answers.items() if status >= 300}
        assert "claim" not in refused
        assert "make a provider" not in refused


class ChangingGuests(threading.Thread):
    """Claims resources for one new consumer after another, and releases every third, until it is stopped."""

    def __init__(self, port: int, kind: str) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._kind = kind
        self.enough = threading.Event()
        self.held: set[str] = set()
        self.released: set[str] = set()
        self.refused: list[ShadowAnswer | None] = []  # An entry is None without an answer

    def run(self) -> None:
        self._number = 0
        while not self.enough.is_set():
            with ServiceClient(self._port) as client:
                try:
                    self._work(client)
                except TimeoutError:  # without its tables, it retries for more than a minute
                    self.refused.append(None)

    def _work(self, client: ServiceClient) -> None:
        while not self.enough.is_set():
            self._number += 1
            consumer = uuid(self._kind, self._number)
            body = hold_vcpus(1, host=1 + self._number % 2)
            answer = client.send(Request("PUT", f"/allocations/{consumer}", body))
            if answer.status != 204:
                self.refused.append(answer)
                continue
            self.held.add(consumer)
            if self._number % 3 == 0:
                self.held.remove(consumer)
                answer = client.send(Request("DELETE", f"/allocations/{consumer}"))
                if answer.status == 204:
                    self.released.add(consumer)


def test_all_confirmed_writes_of_a_stock_service_survive_its_adoption(stock: OpenStack, url: str) -> None:
    with ServiceClient(stock.port) as client:
        fill(client)
    guests = [ChangingGuests(stock.port, kind) for kind in "def"]
    for each in guests:
        each.start()
    while sum(len(each.held) for each in guests) < 30:
        assert all(each.is_alive() for each in guests)
        guests[0].join(0.05)
    outcome = adopt_database(url, OWNER, [])
    assert outcome.copied
    while not all(each.refused for each in guests):  # the stock service, which cannot write any more
        assert all(each.is_alive() for each in guests)
        guests[0].join(0.05)
    for each in guests:
        each.enough.set()
        each.join(120)
    present = {
        consumer
        for number in (1, 2)
        for consumer in Admin(application(url))(
            "GET", f"/resource_providers/{uuid('a', number)}/allocations"
        ).json["allocations"]  # type: ignore[index]  # the answer has a document
    }
    for each in guests:
        assert each.held - present == set(), "confirmed and lost"
        assert each.released & present == set(), "released and held"
    assert abandon_adoption(url, OWNER).changes == ()


def asked(ask: Any) -> dict[str, Any]:
    paths = ["/resource_providers", "/resource_classes", "/traits?name=startswith:CUSTOM_"]
    for number in (1, 2, 3, 4):
        for part in ("", "/inventories", "/traits", "/aggregates", "/usages", "/allocations"):
            paths.append(f"/resource_providers/{uuid('a', number)}{part}")
    paths += [f"/allocations/{uuid('c', number)}" for number in (1, 2, 3)]
    answers = {path: comparable_body(path, ask(path, "1.39")) for path in paths}
    # consumer types, new in 1.38, are an error of OpenStack Placement on PostgreSQL
    usages = {path: ask(path, "1.37") for path in ("/usages?project_id=red", "/usages?project_id=green")}
    return {**answers, **usages}


def test_a_stock_service_answers_with_what_was_carried_back(stock: OpenStack, url: str) -> None:
    with ServiceClient(stock.port) as client:
        fill(client)
        first = asked(lambda path, version: client.send(Request("GET", path, version=version)).body)
        adopt_database(url, OWNER, ["LLC"])
        admin = Admin(application(url))
        assert admin("GET", f"/allocations/{uuid('c', 1)}").json == first[f"/allocations/{uuid('c', 1)}"]
        later = (
            (
                "POST",
                "/resource_providers",
                {"name": "host4", "uuid": uuid("a", 4), "parent_provider_uuid": uuid("a", 3)},
            ),
            ("PUT", f"/resource_providers/{uuid('a', 4)}/inventories", large_inventories(0, LLC=11, PCPU=8)),
            ("PUT", "/traits/CUSTOM_LATER", None),
            ("DELETE", "/traits/CUSTOM_GONE", None),
            ("DELETE", "/resource_classes/CUSTOM_GONE", None),
            ("PUT", "/resource_classes/CUSTOM_LATER", None),
            (
                "PUT",
                f"/resource_providers/{uuid('a', 4)}/traits",
                {"resource_provider_generation": 1, "traits": ["CUSTOM_LATER", "HW_CPU_X86_AVX2"]},
            ),
            (
                "PUT",
                f"/resource_providers/{uuid('a', 1)}/aggregates",
                {"resource_provider_generation": 5, "aggregates": [uuid("b", 7)]},
            ),
            (
                "PUT",
                f"/allocations/{uuid('c', 3)}",
                {
                    **hold_vcpus(),
                    "allocations": {uuid("a", 4): {"resources": {"PCPU": 2, "LLC": 3}}},
                    "project_id": "green",
                    "consumer_type": "VOLUME",
                },
            ),
            ("PUT", f"/allocations/{uuid('c', 1)}", hold_vcpus(7, 1)),
            ("PUT", f"/allocations/{uuid('c', 2)}", {**hold_vcpus(1, 1), "allocations": {}}),
        )
        for method, path, body in later:
            answer = admin(method, path, **({} if body is None else {"json": body}))
            assert answer.status_code < 300, (path, answer.text)
        ours = asked(
            lambda path, version: (
                admin("GET", path, headers={"OpenStack-API-Version": f"placement {version}"}).json
            )
        )
        classes = ours["/resource_classes"]["resource_classes"]
        classes.remove(next(each for each in classes if each["name"] == "MBA"))  # unused names
        abandon_adoption(url, OWNER, AbandonWay.CARRY_BACK)
        assert migration.version(url) == adoption.REVISIONS[-1]
        theirs = asked(lambda path, version: client.send(Request("GET", path, version=version)).body)
        assert {path: answer for path, answer in theirs.items() if answer != ours[path]} == {}
        # it continues where our service stopped
        assert client.send(Request("PUT", f"/allocations/{uuid('c', 1)}", hold_vcpus(8, 2))).status == 204
        fresh = {"name": "host5", "uuid": uuid("a", 5)}
        assert client.send(Request("POST", "/resource_providers", fresh)).status == 200
        assert client.send(Request("PUT", "/resource_classes/CUSTOM_EVEN_LATER")).status == 201
        assert client.send(Request("PUT", "/traits/CUSTOM_EVEN_LATER")).status == 201
        stock.restart_service()
    with ServiceClient(stock.port) as client:
        assert client.send(Request("GET", f"/allocations/{uuid('c', 1)}")).body["consumer_generation"] == 3
