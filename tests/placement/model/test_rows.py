"""Reading providers out of the database."""

from dataclasses import fields

from placement.model.provider import Inventory
from placement.model.rows import INVENTORY_COLUMNS, Fingerprint


def test_columns_are_in_the_order_in_which_an_inventory_takes_them() -> None:
    assert [column.name for column in INVENTORY_COLUMNS] == [
        each.name for each in fields(Inventory) if each.init
    ]


def test_a_fingerprint_sums_32_bits_of_each_stamp() -> None:
    assert Fingerprint.of([2**32 + 5, 2**63 + 7]) == (2, 12)
