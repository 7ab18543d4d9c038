"""How many random examples a property is tried with."""

import os
from typing import Final

PERCENT: Final = int(os.environ.get("PLACEMENT_EXAMPLES_PERCENT", "100"))
"""`make check` has a fifth of what all tests try; more than 100 looks further for what nobody has seen."""


def examples(number: int) -> int:
    """That many of them, or as many percent as are wanted."""
    return max(1, number * PERCENT // 100)
