"""Tests of an abandonment with --carry-back, which writes all changes since the adoption into the old
tables.
"""

import random

import pytest
import sqlalchemy as sa

from placement.db import adoption
from placement_extras.migration.abandonment import AbandonWay, abandon_adoption
from placement_extras.migration.adoption import adopt_database
from placement_extras.migration.content import compare_content, own_content, read_portable
from placement_extras.migration.stock_database import open_source
from tests.placement.maintenance.conftest import OWNER
from tests.placement.running import Admin, application
from tests.placement_extras.migration import reference_world as world

HOSTS = [world.SHARING, world.HOST, world.NUMA, world.DEVICE, world.NAMELESS]
HOSTS += [world.uuid("a", number) for number in range(20, 26)]
CONSUMERS = [world.SERVER, world.MIGRATION, world.UNTYPED, world.UNRECORDED, world.EMPTY]
CONSUMERS += [world.uuid("c", number) for number in range(20, 26)]
CLASSES = ["VCPU", "PCPU", "DISK_GB", "LLC", "CUSTOM_GOLD", "CUSTOM_SILVER", "CUSTOM_TIN"]
TRAITS = ["CUSTOM_FAST", "CUSTOM_UNUSED", "CUSTOM_OTHER", "HW_CPU_X86_AVX2", "STORAGE_DISK_SSD"]
AGGREGATES = [world.POOL, "bbbbbbbb-0000-4000-8000-000000000002", world.uuid("b", 30)]
STEPS = 40


class RandomOperator:
    """Sends random requests about a few providers and consumers. The service refuses many of them."""

    def __init__(self, url, seed):
        self._random = random.Random(seed)
        self._admin = Admin(application(url))
        self.done = 0

    def step(self):
        """Send one random request."""
        step = self._random.choice(
            (
                self._make,
                self._move,
                self._delete,
                self._swap_names,
                self._offer,
                self._offer,
                self._describe,
                self._claim,
                self._claim,
                self._claim,
                self._release,
                self._name,
            )
        )
        step()

    def _send(self, method, path, body=None, version="1.39"):
        options = {} if body is None else {"json": body}
        answer = self._admin(
            method, path, headers={"OpenStack-API-Version": f"placement {version}"}, **options
        )
        assert answer.status_code < 500, answer.text
        self.done += answer.status_code < 300
        return answer

    def _some(self, of, most=2):
        return self._random.sample(of, self._random.randint(0, most))

    def _provider(self):
        return self._random.choice(HOSTS)

    def _generation(self, provider):
        return (self._send("GET", f"/resource_providers/{provider}").json or {}).get("generation", 0)

    def _make(self):
        parent = self._random.choice((None, self._provider()))
        body = {"uuid": self._provider(), "name": f"n{self._random.random()}", "parent_provider_uuid": parent}
        self._send("POST", "/resource_providers", body)

    def _move(self):
        provider = self._provider()
        name = (self._send("GET", f"/resource_providers/{provider}").json or {}).get("name")
        parent = self._random.choice((None, self._provider()))
        self._send("PUT", f"/resource_providers/{provider}", {"name": name, "parent_provider_uuid": parent})

    def _delete(self):
        self._send("DELETE", f"/resource_providers/{self._provider()}")

    def _swap_names(self):
        listed = self._send("GET", "/resource_providers").json["resource_providers"]
        if len(listed) > 1:
            one, other = self._random.sample(listed, 2)
            for each, name in ((one, "aside"), (other, one["name"]), (one, other["name"])):
                body = {"name": name, "parent_provider_uuid": each["parent_provider_uuid"]}
                self._send("PUT", f"/resource_providers/{each['uuid']}", body)

    def _offer(self):
        provider = self._provider()
        units = {name: {"total": 50, "allocation_ratio": 1.1} for name in self._some(CLASSES, 4)}
        body = {"resource_provider_generation": self._generation(provider), "inventories": units}
        self._send("PUT", f"/resource_providers/{provider}/inventories", body)

    def _describe(self):
        provider = self._provider()
        body = {"resource_provider_generation": self._generation(provider), "traits": self._some(TRAITS)}
        self._send("PUT", f"/resource_providers/{provider}/traits", body)
        body = {
            "resource_provider_generation": self._generation(provider),
            "aggregates": self._some(AGGREGATES),
        }
        self._send("PUT", f"/resource_providers/{provider}/aggregates", body)

    def _claim(self):
        consumer, provider = self._random.choice(CONSUMERS), self._provider()
        offered = self._send("GET", f"/resource_providers/{provider}/inventories").json.get("inventories")
        if offered:
            before = self._send("GET", f"/allocations/{consumer}").json
            body = {
                "allocations": {provider: {"resources": dict.fromkeys(self._some(list(offered), 1), 5)}},
                "project_id": self._random.choice(("red", "blue", "green")),
                "user_id": self._random.choice(("ann", "eve")),
                "consumer_type": self._random.choice(("INSTANCE", "VOLUME")),
                "consumer_generation": before.get("consumer_generation"),
            }
            self._send("PUT", f"/allocations/{consumer}", body)

    def _release(self):
        self._send("DELETE", f"/allocations/{self._random.choice(CONSUMERS)}")

    def _name(self):
        method = self._random.choice(("PUT", "DELETE"))
        self._send(method, f"/resource_classes/{self._random.choice(CLASSES[-3:])}")
        self._send(method, f"/traits/{self._random.choice(TRAITS[:3])}")
        if method == "PUT":
            old, new = self._random.sample(CLASSES[-3:], 2)
            self._send("PUT", f"/resource_classes/{old}", {"name": new}, "1.6")


def ours(url):
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        return read_portable(own_content(conn))


@pytest.mark.parametrize("seed", range(2))
def test_random_changes_are_carried_back(reference, seed):
    reference.at_revision(adoption.REVISIONS[-1])
    url = reference.url
    for turn in range(2):
        adopt_database(url, OWNER, ["LLC", "MBA"])
        operator = RandomOperator(url, f"{seed} {turn}")
        for _ in range(STEPS):
            operator.step()
        assert operator.done > STEPS / 2
        held = ours(url)
        assert abandon_adoption(url, OWNER, AbandonWay.CARRY_BACK).changes
        with open_source(url, OWNER) as source:
            assert compare_content(held, read_portable(source)) == {}
            assert source.leftovers == ()
