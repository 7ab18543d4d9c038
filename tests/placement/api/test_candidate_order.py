"""Tests of ``[placement] candidate_order``, which decides the first candidate of a host. Clients take this
candidate.
"""

from pathlib import Path
from typing import Any

import pytest

from placement.db import migration
from tests.placement.builders import make_provider
from tests.placement.running import Admin, application

HOST, NODES = "4e8e5957-649f-477b-9e5b-f1f75b21c03c", ("a", "b")
QUERY = "/allocation_candidates?resources_CPU=PCPU:1&resources_GPU=VGPU:1&group_policy=none"


def uuid_of(node: str) -> str:
    return HOST[:-1] + node


def answered(tmp_path: Path, order: str | None) -> list[dict[str, Any]]:
    """The candidates of a host with two NUMA nodes, in the order of the answer."""
    url = f"sqlite:///{tmp_path}/placement.sqlite"
    migration.upgrade_schema(url)
    admin = Admin(application(url, placement={} if order is None else {"candidate_order": order}))
    make_provider(admin, "host", provider=HOST)
    for node in NODES:
        make_provider(admin, node, provider=uuid_of(node), parent=HOST, PCPU=4, VGPU=1)
    found: list[dict[str, Any]] = admin("GET", QUERY).json["allocation_requests"]
    return found


def crossing(candidates: list[dict[str, Any]]) -> list[bool]:
    return [len(each["allocations"]) > 1 for each in candidates]


@pytest.mark.parametrize("order", [None, "topology"])
def test_candidates_on_one_node_come_first(tmp_path: Path, order: str | None) -> None:
    assert crossing(answered(tmp_path, order)) == [False, False, True, True]


def test_candidates_are_ordered_by_id_alone_by_option(tmp_path: Path) -> None:
    found = answered(tmp_path, "id")
    assert crossing(found) == [False, True, True, False]
