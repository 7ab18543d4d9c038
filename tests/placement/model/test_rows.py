"""Reading providers out of the database."""

from dataclasses import fields

from placement.model.provider import Inventory
from placement.model.rows import INVENTORY_COLUMNS


def test_columns_are_in_the_order_in_which_an_inventory_takes_them() -> None:
    assert [column.name for column in INVENTORY_COLUMNS] == [
        each.name for each in fields(Inventory) if each.init
    ]
