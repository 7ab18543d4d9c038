"""The page of the data model has every table, and the modules that write it."""

from pathlib import Path

import pytest
import yaml

from placement.db import tables

ROOT = Path(__file__).parents[2]
ABOUT = yaml.safe_load((ROOT / "doc/developer/data-model.yaml").read_text())


def test_the_page_has_every_table():
    known = {name for one in tables.all_metadata() for name in one.tables}
    assert set(ABOUT) == known


@pytest.mark.parametrize("table", ABOUT)
def test_the_writers_of_a_table_exist_and_name_it(table):
    for module in ABOUT[table]["written by"]:
        text = (ROOT / module).read_text()
        assert table in text, f"{module} does not name {table}"
