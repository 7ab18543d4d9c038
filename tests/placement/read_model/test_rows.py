"""Reading providers out of the database."""

from dataclasses import fields

import pytest

from placement.read_model import rows as module
from placement.read_model.provider import Inventory
from placement.read_model.rows import INVENTORY_COLUMNS, SharedValues, summand


def inventory(total: int) -> Inventory:
    return Inventory(total, 0, 1, total, 1, 1.0)


def test_columns_are_in_the_order_in_which_an_inventory_takes_them() -> None:
    assert [column.name for column in INVENTORY_COLUMNS] == [
        each.name for each in fields(Inventory) if each.init
    ]


def test_a_fingerprint_sums_32_bits_of_each_stamp() -> None:
    assert [summand(each) for each in (2**32 + 5, 2**63 + 7)] == [5, 7]


def test_what_several_providers_have_alike_is_kept_once() -> None:
    shared = SharedValues()
    first = shared.inventories(("VCPU", inventory(8), "MEMORY_MB", inventory(64)))
    assert first == {"VCPU": inventory(8), "MEMORY_MB": inventory(64)}
    assert shared.inventories(("VCPU", inventory(8), "MEMORY_MB", inventory(64))) is first
    other = shared.inventories(("VCPU", inventory(9), "MEMORY_MB", inventory(64)))
    assert other == {"VCPU": inventory(9), "MEMORY_MB": inventory(64)}
    assert other["MEMORY_MB"] is first["MEMORY_MB"]
    assert shared.inventories(()) == {}


def test_what_no_provider_has_any_more_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SHARED", 100)
    shared = SharedValues()
    for total in range(1, 1000):
        found = shared.inventories(("VCPU", inventory(total), "DISK_GB", inventory(total)))
        assert found == {"VCPU": inventory(total), "DISK_GB": inventory(total)}
        assert len(shared) <= 200
