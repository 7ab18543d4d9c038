"""Tests that workers that share a database show the same state, which follows the rules of the API, after
random requests.

Each request goes to one of two workers in this process. Afterwards both workers, and a third that has just
started, must show the same providers, usages and candidates, and the sums must be right.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import webtest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.running import application

PROVIDERS = [f"{n:08d}-0000-4000-8000-000000000000" for n in range(5)]
CONSUMERS = [f"{n:08d}-0000-4000-8000-00000000c0de" for n in range(4)]
AGGREGATES = [f"{n:08d}-0000-4000-8000-00000000a000" for n in range(2)]
CLASSES = ["PCPU", "VCPU", "LLC"]
TRAITS = ["HW_CPU_HYPERTHREADING", "MISC_SHARES_VIA_AGGREGATE", "COMPUTE_NODE"]
QUERIES = [
    "resources=PCPU:1",
    "resources=PCPU:1,LLC:2&limit=3",
    "resources=PCPU:1&resources_A=LLC:1&resources_B=VCPU:1&group_policy=isolate",
    "resources=VCPU:1&required=HW_CPU_HYPERTHREADING",
    f"resources=VCPU:1&member_of={AGGREGATES[0]}",
]
EXPLAINED = [
    *(each.partition("&limit")[0] for each in QUERIES),
    "resources=PCPU:9,LLC:7",
    "resources_A=VCPU:5&resources_B=VCPU:4&group_policy=none&same_subtree=_A,_B",
    "resources=LLC:3&required=COMPUTE_NODE",
]


def worker(url: str) -> webtest.TestApp:
    headers = {"HTTP_X_AUTH_TOKEN": "admin", "HTTP_OPENSTACK_API_VERSION": "placement 1.39"}
    return webtest.TestApp(application(url), extra_environ=headers)


def shown(app: webtest.TestApp) -> dict[str, Any]:
    """Return a worker's data of all providers in a form that can be compared."""
    providers = app.get("/resource_providers").json["resource_providers"]
    state = {}
    for provider in providers:
        path = f"/resource_providers/{provider['uuid']}"
        details = {
            part: app.get(f"{path}/{part}").json for part in ("inventories", "usages", "traits", "aggregates")
        }
        state[provider["uuid"]] = {**provider, **details}
    candidates = {
        query: sorted(map(str, app.get(f"/allocation_candidates?{query}").json["allocation_requests"]))
        for query in QUERIES
        if "limit" not in query
    }
    explanations = {query: explain(app, query) for query in EXPLAINED}
    return {"providers": state, "candidates": candidates, "explanations": explanations}


def explain(app: webtest.TestApp, query: str) -> str:
    """Return the explanation of a query as the worker sends it."""
    return str(app.post_json("/ext/v1/explanations", {"query": query}).text)


@dataclass
class Deployment:
    """Two workers on one database, which get random requests."""

    url: str
    rng: random.Random
    workers: list[webtest.TestApp] = field(init=False)
    generations: dict[str, int] = field(default_factory=dict)
    held: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers = [worker(self.url), worker(self.url)]

    def step(self) -> None:
        app = self.rng.choice(self.workers)
        action = self.rng.choice(
            [self.create] * 3
            + [self.delete, self.move, self.traits, self.aggregates, self.release, self.reshape]
            + [self.inventory] * 3
            + [self.claim] * 5
            + [self.explain] * 3
        )
        action(app)

    def some(self, app: webtest.TestApp, count: int = 1) -> list[str]:
        """A strategy for providers to use in a request. Mostly they exist."""
        listed = app.get("/resource_providers").json["resource_providers"]
        known = [provider["uuid"] for provider in listed]
        if len(known) < count or self.rng.random() < 0.1:
            return self.rng.sample(PROVIDERS, count)
        return self.rng.sample(known, count)

    def expect(self, response: webtest.TestResponse, *statuses: int) -> bool:
        assert response.status_int in statuses, (response.status, response.text)
        return response.status_int < 300

    def generation(self, app: webtest.TestApp, uuid: str) -> int:
        response = app.get(f"/resource_providers/{uuid}", status="*")
        return response.json["generation"] if response.status_int == 200 else 0

    def create(self, app: webtest.TestApp) -> None:
        uuid, parent = self.rng.choice(PROVIDERS), self.rng.choice([None, *self.some(app)])
        body = {"name": f"name of {uuid}", "uuid": uuid, "parent_provider_uuid": parent}
        self.expect(app.post_json("/resource_providers", body, status="*"), 200, 400, 409)

    def delete(self, app: webtest.TestApp) -> None:
        uuid = self.rng.choice(PROVIDERS)
        if self.expect(app.delete(f"/resource_providers/{uuid}", status="*"), 204, 404, 409):
            self.generations.pop(uuid, None)

    def move(self, app: webtest.TestApp) -> None:
        (uuid,), parent = self.some(app), self.rng.choice([None, *self.some(app)])
        body = {"name": f"name of {uuid}", "parent_provider_uuid": parent}
        self.expect(app.put_json(f"/resource_providers/{uuid}", body, status="*"), 200, 400, 404)

    def inventory(self, app: webtest.TestApp) -> None:
        (uuid,) = self.some(app)
        chosen = self.rng.sample(CLASSES, self.rng.randint(1, 3))
        body = {
            "resource_provider_generation": self.generation(app, uuid),
            "inventories": {name: {"total": self.rng.randint(1, 8), "max_unit": 6} for name in chosen},
        }
        self.expect(app.put_json(f"/resource_providers/{uuid}/inventories", body, status="*"), 200, 404, 409)

    def traits(self, app: webtest.TestApp) -> None:
        (uuid,) = self.some(app)
        body = {
            "resource_provider_generation": self.generation(app, uuid),
            "traits": self.rng.sample(TRAITS, self.rng.randint(0, 3)),
        }
        self.expect(app.put_json(f"/resource_providers/{uuid}/traits", body, status="*"), 200, 404)

    def aggregates(self, app: webtest.TestApp) -> None:
        (uuid,) = self.some(app)
        body = {
            "resource_provider_generation": self.generation(app, uuid),
            "aggregates": self.rng.sample(AGGREGATES, self.rng.randint(0, 2)),
        }
        self.expect(app.put_json(f"/resource_providers/{uuid}/aggregates", body, status="*"), 200, 404)

    def body(self, app: webtest.TestApp, consumer: str, allocations: dict[str, Any]) -> dict[str, Any]:
        known = app.get(f"/allocations/{consumer}").json
        return {
            "allocations": {uuid: {"resources": resources} for uuid, resources in allocations.items()},
            "consumer_generation": known.get("consumer_generation"),
            "project_id": "project",
            "user_id": "user",
            "consumer_type": "INSTANCE",
        }

    def claim(self, app: webtest.TestApp) -> None:
        consumer = self.rng.choice(CONSUMERS)
        wanted = {
            uuid: {name: self.rng.randint(1, 4) for name in self.rng.sample(CLASSES, self.rng.randint(1, 2))}
            for uuid in self.some(app, self.rng.randint(1, 2))
        }
        body = self.body(app, consumer, wanted)
        if self.expect(app.put_json(f"/allocations/{consumer}", body, status="*"), 204, 400, 409):
            self.held[consumer] = wanted
            for uuid in wanted:
                self.within_capacity(app, uuid, wanted[uuid])

    def within_capacity(self, app: webtest.TestApp, uuid: str, names: dict[str, int]) -> None:
        usages = app.get(f"/resource_providers/{uuid}/usages").json["usages"]
        inventories = app.get(f"/resource_providers/{uuid}/inventories").json["inventories"]
        for name in names:
            assert usages[name] <= inventories[name]["total"]

    def release(self, app: webtest.TestApp) -> None:
        consumer = self.rng.choice(CONSUMERS)
        deleted = self.expect(app.delete(f"/allocations/{consumer}", status="*"), 204, 404)
        assert deleted == bool(self.held.pop(consumer, None))

    def reshape(self, app: webtest.TestApp) -> None:
        """Move one consumer's PCPU from one provider to another, with the inventory."""
        source, target = self.some(app, 2)
        consumer = self.rng.choice(CONSUMERS)
        wanted = {target: {"PCPU": 1}}
        inventories = {
            source: {
                "resource_provider_generation": self.generation(app, source),
                "inventories": {"VCPU": {"total": 8}, "LLC": {"total": 8}},
            },
            target: {
                "resource_provider_generation": self.generation(app, target),
                "inventories": {name: {"total": 8} for name in CLASSES},
            },
        }
        body = {"inventories": inventories, "allocations": {consumer: self.body(app, consumer, wanted)}}
        if self.expect(app.post_json("/reshaper", body, status="*"), 204, 400, 409):
            self.held[consumer] = wanted

    def explain(self, app: webtest.TestApp) -> None:
        """Ask for an explanation, so that the worker keeps a table of the present trees."""
        explain(app, self.rng.choice(EXPLAINED))

    def check(self) -> None:
        states = [shown(app) for app in (*self.workers, worker(self.url))]
        assert states[0] == states[1] == states[2]
        self.check_books(states[0]["providers"])
        for uuid, provider in states[0]["providers"].items():
            assert provider["generation"] >= self.generations.get(uuid, 0)
            self.generations[uuid] = provider["generation"]

    def check_books(self, providers: dict[str, Any]) -> None:
        for consumer in CONSUMERS:
            allocations = self.workers[0].get(f"/allocations/{consumer}").json["allocations"]
            assert {uuid: each["resources"] for uuid, each in allocations.items()} == self.held.get(
                consumer, {}
            )
        for uuid, provider in providers.items():
            for name, used in provider["usages"]["usages"].items():
                assert used == sum(claim.get(uuid, {}).get(name, 0) for claim in self.held.values())


@contextmanager
def deployment(server: DatabaseServer, template: str, rng: random.Random) -> Iterator[Deployment]:
    url = server.clone(template)
    yield Deployment(url, rng)
    server.drop_database(url)


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False), steps=st.integers(10, 40))
def test_workers_agree_and_the_books_balance(
    database_server: DatabaseServer, database_template: str, rng: random.Random, steps: int
) -> None:
    with deployment(database_server, database_template, rng) as deployed:
        for _ in range(steps):
            deployed.step()
        deployed.check()
        for _ in range(3):
            deployed.step()
            deployed.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_workers_agree_after_long_histories(
    database_server: DatabaseServer, database_template: str, seed: int
) -> None:
    with deployment(database_server, database_template, random.Random(seed)) as deployed:
        for number in range(120):
            deployed.step()
            if number % 20 == 0:
                deployed.check()
        deployed.check()
