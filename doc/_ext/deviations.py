"""Tables of the differences between the service and OpenStack Placement."""

from pathlib import Path
from typing import Any, Final

import yaml
from markdown_table import cell

_HEAD: Final = "| OpenStack Placement 16.0.0 | here | why |\n| --- | --- | --- |\n"


def page(table: Path) -> str:
    """Return a section with a table for each group of `deviations.yaml`."""
    groups = yaml.safe_load(table.read_text(encoding="utf-8"))
    return "\n".join(f"## {group['about']}\n\n{_HEAD}{_rows(group['cases'])}" for group in groups)


def _rows(cases: list[dict[str, Any]]) -> str:
    return "".join(
        f"| {cell(each['theirs'])} | {cell(each['ours'])} | {cell(each['why'])} |\n" for each in cases
    )
