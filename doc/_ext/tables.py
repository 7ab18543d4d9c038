"""The tables of the database: their columns from the schema, and their texts from `data-model.yaml`."""

from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
import yaml

from placement.db import tables

_HEAD: Final = (
    "| table | a row is | columns | written by | a write increments |\n| --- | --- | --- | --- | --- |\n"
)


def page(source: Path) -> str:
    """Return a markdown table with a row for each table of the database."""
    about: dict[str, Any] = yaml.safe_load(source.read_text(encoding="utf-8"))
    found = {name: table for one in tables.all_metadata() for name, table in one.tables.items()}
    return _HEAD + "".join(_row(name, found[name], about[name]) for name in about)


def _row(name: str, table: sa.Table, about: dict[str, Any]) -> str:
    columns = ", ".join(_column(column) for column in table.columns)
    writers = ", ".join(f"`{module}`" for module in about["written by"])
    return f"| `{name}` | {about['row']} | {columns} | {writers} | {about['counters']} |\n"


def _column(column: sa.Column[Any]) -> str:
    keys = "".join(f" → `{key.target_fullname}`" for key in column.foreign_keys)
    name = f"`{column.name}`"
    return (f"**{name}**" if column.primary_key else name) + keys
