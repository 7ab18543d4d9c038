"""Tests that generations of providers increase as in OpenStack Placement, because clients compare
generations.
"""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.placement.builders import claim_body, inventories_body, make_provider
from tests.placement.running import Admin

Amounts = dict[str, dict[str, int]]


class ProviderPair:
    """Two providers with inventories, and two consumers, for one test."""

    def __init__(self, admin: Admin) -> None:
        self.send = admin
        self.one, self.other = str(uuid4()), str(uuid4())
        self.guest, self.neighbour = str(uuid4()), str(uuid4())
        for uuid in (self.one, self.other):
            make_provider(admin, uuid, provider=uuid, VCPU=8, DISK_GB=8)

    def expect(self, status: int, method: str, path: str, body: Any = None, version: str = "1.39") -> Any:
        headers = {"OpenStack-API-Version": f"placement {version}"}
        answer = self.send(method, path, headers=headers, **({} if body is None else {"json": body}))
        assert answer.status_code == status, answer.text
        return answer

    def generation(self, uuid: str) -> int:
        return int(self.send("GET", f"/resource_providers/{uuid}").json["generation"])

    def generations(self) -> tuple[int, int]:
        return self.generation(self.one), self.generation(self.other)

    def described(self, uuid: str, **totals: int) -> dict[str, Any]:
        return inventories_body(self.generation(uuid), **totals)

    def claim(self, consumer: str, amounts: Amounts) -> dict[str, Any]:
        generation = self.send("GET", f"/allocations/{consumer}").json.get("consumer_generation")
        return claim_body(amounts, generation)

    def put(self, consumer: str, amounts: Amounts) -> None:
        self.expect(204, "PUT", f"/allocations/{consumer}", self.claim(consumer, amounts))

    def post(self, wanted: dict[str, Amounts]) -> None:
        bodies = {consumer: self.claim(consumer, amounts) for consumer, amounts in wanted.items()}
        self.expect(204, "POST", "/allocations", bodies)

    def reshape(self, totals: Amounts, wanted: dict[str, Amounts]) -> None:
        inventories = {uuid: self.described(uuid, **each) for uuid, each in totals.items()}
        bodies = {consumer: self.claim(consumer, amounts) for consumer, amounts in wanted.items()}
        self.expect(204, "POST", "/reshaper", {"inventories": inventories, "allocations": bodies})


ALL = {"VCPU": 8, "DISK_GB": 8}
ONE = {"VCPU": 1}
STEPS: list[tuple[str, Callable[[ProviderPair], Any], tuple[int, int]]] = [
    ("the same again", lambda p: p.put(p.guest, {p.one: ONE}), (1, 0)),
    ("to the other provider", lambda p: p.put(p.guest, {p.other: ONE}), (0, 1)),
    ("to both", lambda p: p.put(p.guest, {p.one: {"DISK_GB": 1}, p.other: ONE}), (1, 1)),
    ("emptied by PUT", lambda p: p.put(p.guest, {}), (1, 0)),
    ("emptied by POST", lambda p: p.post({p.guest: {}}), (1, 0)),
    ("two emptied", lambda p: p.post({p.guest: {}, p.neighbour: {}}), (1, 1)),
    ("one emptied, one kept", lambda p: p.post({p.guest: {}, p.neighbour: {p.one: ONE}}), (1, 0)),
    ("one emptied, one kept elsewhere", lambda p: p.post({p.guest: {}, p.neighbour: {p.other: ONE}}), (1, 1)),
    (
        "emptied before 1.28",
        lambda p: p.expect(
            204,
            "POST",
            "/allocations",
            {p.guest: {"allocations": {}, "project_id": "p", "user_id": "u"}},
            "1.13",
        ),
        (1, 0),
    ),
    ("nothing emptied", lambda p: p.put(str(uuid4()), {}), (0, 0)),
    ("deleted", lambda p: p.expect(204, "DELETE", f"/allocations/{p.guest}"), (0, 0)),
    ("reshaped to the same", lambda p: p.reshape({p.one: ALL}, {}), (2, 0)),
    ("reshaped to less", lambda p: p.reshape({p.one: {"VCPU": 8}}, {}), (2, 0)),
    ("reshaped with an allocation", lambda p: p.reshape({p.one: ALL}, {p.guest: {p.one: ONE}}), (3, 0)),
    ("reshaped to no inventories", lambda p: p.reshape({p.one: {}}, {p.guest: {}, p.neighbour: {}}), (2, 1)),
    (
        "moved away and reshaped to no inventories",
        lambda p: p.reshape(
            {p.one: {}, p.other: ALL}, {p.guest: {p.other: ONE}, p.neighbour: {p.other: ONE}}
        ),
        (1, 3),
    ),
    ("reshaped, emptied", lambda p: p.reshape({p.other: ALL}, {p.guest: {}}), (1, 2)),
]


TRAITS: list[tuple[list[str], int]] = [
    ([], 0),
    (["COMPUTE_NODE"], 1),
    (["COMPUTE_NODE"], 0),
    (["COMPUTE_NODE", "COMPUTE_NODE"], 0),
    (["COMPUTE_NODE", "HW_CPU_X86_AVX2"], 1),
    (["HW_CPU_X86_AVX2", "COMPUTE_NODE"], 0),
    ([], 1),
]


@pytest.mark.parametrize(("step", "raised"), [pytest.param(*row[1:], id=row[0]) for row in STEPS])
def test_generations_of_providers_rise_as_clients_expect(
    admin: Admin, step: Callable[[ProviderPair], Any], raised: tuple[int, int]
) -> None:
    """The guest has an allocation of one provider. Its neighbour has an allocation of both providers."""
    pair = ProviderPair(admin)
    pair.post({pair.guest: {pair.one: ONE}, pair.neighbour: {pair.one: ONE, pair.other: ONE}})
    before = pair.generations()
    step(pair)
    after = pair.generations()
    assert (after[0] - before[0], after[1] - before[1]) == raised


def test_generations_stay_while_traits_do(admin: Admin) -> None:
    pair = ProviderPair(admin)
    path = f"/resource_providers/{pair.one}/traits"
    for traits, raised in TRAITS:
        before = pair.generation(pair.one)
        body = {"traits": traits, "resource_provider_generation": before}
        answer = pair.expect(200, "PUT", path, body).json
        assert answer == {"traits": sorted(set(traits)), "resource_provider_generation": before + raised}
        assert pair.generation(pair.one) == before + raised
    pair.expect(204, "DELETE", path)
    assert pair.generation(pair.one) == before + raised
