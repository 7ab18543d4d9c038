"""``[placement] candidate_order``: what a client that takes the first candidate of a host gets."""

from pathlib import Path
from typing import Any

import pytest

from placement.api.middleware import build_application
from placement.conf import new_config
from placement.db import migration
from tests.placement.running import Admin

HOST, NODES = "4e8e5957-649f-477b-9e5b-f1f75b21c03c", ("a", "b")
QUERY = "/allocation_candidates?resources_CPU=PCPU:1&resources_GPU=VGPU:1&group_policy=none"


def uuid_of(node: str) -> str:
    return HOST[:-1] + node


def answered(tmp_path: Path, order: str | None) -> list[dict[str, Any]]:
    """The candidates of a host with two nodes, in the order of the answer."""
    url = f"sqlite:///{tmp_path}/placement.sqlite"
    migration.upgrade(url)
    conf = new_config(config_files=())
    conf.set_override("connection", url, "placement_database")
    conf.set_override("auth_strategy", "noauth2", "api")
    if order is not None:
        conf.set_override("candidate_order", order, "placement")
    admin = Admin(build_application(conf))
    admin("POST", "/resource_providers", json={"name": "host", "uuid": HOST})
    for node in NODES:
        body: dict[str, Any] = {"name": node, "uuid": uuid_of(node), "parent_provider_uuid": HOST}
        admin("POST", "/resource_providers", json=body)
        inventories = {"PCPU": {"total": 4}, "VGPU": {"total": 1}}
        body = {"resource_provider_generation": 0, "inventories": inventories}
        assert admin("PUT", f"/resource_providers/{uuid_of(node)}/inventories", json=body).status_code == 200
    found: list[dict[str, Any]] = admin("GET", QUERY).json["allocation_requests"]
    return found


def crossing(candidates: list[dict[str, Any]]) -> list[bool]:
    return [len(each["allocations"]) > 1 for each in candidates]


@pytest.mark.parametrize("order", [None, "topology"])
def test_what_keeps_to_one_node_comes_first(tmp_path: Path, order: str | None) -> None:
    assert crossing(answered(tmp_path, order)) == [False, False, True, True]


def test_or_ids_alone_decide(tmp_path: Path) -> None:
    found = answered(tmp_path, "id")
    assert crossing(found) == [False, True, True, False]
