"""Reads the table of documented deviations."""

from pathlib import Path
from typing import Final

import yaml

TABLE: Final = Path(__file__).parents[3] / "doc" / "reference" / "deviations.yaml"


def names() -> list[str]:
    """The names of the deviations, in the order of the table."""
    groups = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return [case["name"] for group in groups for case in group["cases"]]
