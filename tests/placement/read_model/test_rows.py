"""Tests of reading providers from the database."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from placement.read_model import rows as module
from placement.read_model.provider import Inventory
from placement.read_model.rows import INVENTORY_COLUMNS, SharedValues, fingerprint_summand, read_changed


def inventory(total: int) -> Inventory:
    return Inventory(total, 0, 1, total, 1, 1.0)


def test_columns_are_in_the_order_of_the_fields_of_an_inventory() -> None:
    assert [column.name for column in INVENTORY_COLUMNS] == [
        each.name for each in fields(Inventory) if each.init
    ]


def test_a_fingerprint_sums_32_bits_of_each_stamp() -> None:
    assert [fingerprint_summand(each) for each in (2**32 + 5, 2**63 + 7)] == [5, 7]


def test_equal_values_of_providers_are_kept_once() -> None:
    shared = SharedValues()
    first = shared.shared_inventories(("VCPU", inventory(8), "MEMORY_MB", inventory(64)))
    assert first == {"VCPU": inventory(8), "MEMORY_MB": inventory(64)}
    assert shared.shared_inventories(("VCPU", inventory(8), "MEMORY_MB", inventory(64))) is first
    other = shared.shared_inventories(("VCPU", inventory(9), "MEMORY_MB", inventory(64)))
    assert other == {"VCPU": inventory(9), "MEMORY_MB": inventory(64)}
    assert other["MEMORY_MB"] is first["MEMORY_MB"]
    assert shared.shared_inventories(()) == {}


def test_values_without_providers_are_not_kept_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SHARED", 100)
    shared = SharedValues()
    for total in range(1, 1000):
        found = shared.shared_inventories(("VCPU", inventory(total), "DISK_GB", inventory(total)))
        assert found == {"VCPU": inventory(total), "DISK_GB": inventory(total)}
        assert len(shared) <= 200


class RecordingBatch:
    """A batch that sends nothing, and keeps what it was given."""

    rows = ()

    def __init__(self) -> None:
        self.added: list[tuple[Any, Mapping[str, Any]]] = []

    def add(self, statement: Any, values: Mapping[str, Any]) -> "RecordingBatch":
        self.added.append((statement, values))
        return self


def test_numbers_of_changed_buckets_up_to_a_power_of_two_share_their_statements() -> None:
    found = set()
    for count in range(33, 65):
        batch = RecordingBatch()
        read_changed(batch, dict.fromkeys(range(count), 7))  # type: ignore[arg-type]  # the same methods
        assert [len(values) for _, values in batch.added] == [128] * 3
        found.update([statement for statement, _ in batch.added])
    assert len(found) == 3
