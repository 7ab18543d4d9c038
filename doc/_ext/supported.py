"""A table of the versions of other software with which this release was tested."""

from pathlib import Path
from typing import Any, Final

import yaml
from markdown_table import cell

_HEAD: Final = "| software | tried | by | not tried |\n| --- | --- | --- | --- |\n"


def page(table: Path) -> str:
    """Return the table of `supported.yaml`, as markdown."""
    return _HEAD + "".join(map(_row, yaml.safe_load(table.read_text(encoding="utf-8"))))


def _row(each: dict[str, Any]) -> str:
    tried = "; ".join(each["tried"]) or "none"
    tests = ", ".join(f"`{test}`" for test in dict.fromkeys(each["tried"].values()))
    untried = "; ".join(f"{versions}: {reason}" for versions, reason in each["untried"].items())
    return f"| {cell(each['software'])} | {cell(tried)} | {cell(tests)} | {cell(untried)} |\n"
