"""How many random examples a property is tried with, and how often what races or is killed does so."""

import os
from typing import Final

PERCENT: Final = int(os.environ.get("PLACEMENT_EXAMPLES_PERCENT", "100"))
"""`make check` and `make test` try a part, `make test-long` all; with more than 100 it looks further."""


def examples(number: int) -> int:
    """That many of them, or as many percent as are wanted."""
    return max(1, number * PERCENT // 100)
