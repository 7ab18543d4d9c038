"""Reads the content of an adopted database, and makes one change of each kind."""

from tests.placement.sql import read_tables
from tests.placement_extras.migration import reference_world as world

NEW_HOST, NEW_SERVER = world.uuid("a", 77), world.uuid("c", 77)


def contents(url):
    """Return all rows by table, except the lock that a killed move leaves."""
    return read_tables(url, lambda name: name != "placement_migration_lock")


def write(service):
    """Make one change of each kind in an adopted database."""
    new = {"name": "host2", "uuid": NEW_HOST, "parent_provider_uuid": None}
    assert service.post("/resource_providers", new) == 200
    inventories = {"VCPU": {"total": 8, "allocation_ratio": 1.5}, "LLC": {"total": 11}}
    body = {"resource_provider_generation": 0, "inventories": inventories}
    assert service.put(f"/resource_providers/{NEW_HOST}/inventories", body) == 200
    assert service.put("/traits/CUSTOM_NEW", {}) == 201
    body = {"resource_provider_generation": 1, "traits": ["CUSTOM_NEW", "HW_CPU_X86_AVX512F"]}
    assert service.put(f"/resource_providers/{NEW_HOST}/traits", body) == 200
    body = {"resource_provider_generation": 2, "aggregates": [world.POOL, world.uuid("b", 9)]}
    assert service.put(f"/resource_providers/{NEW_HOST}/aggregates", body) == 200
    assert service.put("/resource_classes/CUSTOM_COPPER", {}) == 201
    held = {
        "allocations": {
            NEW_HOST: {"resources": {"VCPU": 2, "LLC": 3}},
            world.HOST: {"resources": {"MEMORY_MB": 256}},
        },
        "project_id": "green",
        "user_id": "ann",
        "consumer_type": "VOLUME",
        "consumer_generation": None,
    }
    assert service.put(f"/allocations/{NEW_SERVER}", held) == 204
    empty = {**held, "allocations": {}, "consumer_generation": 1, "consumer_type": "MIGRATION"}
    assert service.put(f"/allocations/{world.MIGRATION}", {**empty, "project_id": "red"}) == 204
    assert service.put(f"/resource_providers/{world.DEVICE}", {"name": "renamed"}) == 200
