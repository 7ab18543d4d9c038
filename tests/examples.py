"""Number of random examples of property tests, and of rounds in tests with races or kills."""

import os
from typing import Final

PERCENT: Final = int(os.environ.get("PLACEMENT_EXAMPLES_PERCENT", "100"))
"""`make check` and `make test` try a part, `make test-long` all; above 100 a search goes further."""


def examples(number: int) -> int:
    """Return PERCENT percent of this number, at least 1."""
    return max(1, number * PERCENT // 100)
