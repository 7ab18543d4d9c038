"""An example of a collector: the number of licences that a server has for this host, from a file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from compute_agent.reclaim.collectors import ClassMeasurement


class Licences:
    """Measures licences. One in ten is not offered, because people use it."""

    resource_classes = ("CUSTOM_LICENCE",)

    def collect(self) -> Iterator[ClassMeasurement]:
        """Read the file, which has a zone and a number on each line."""
        for line in Path(os.environ["LICENCES"]).read_text().splitlines():
            zone, amount = line.split()
            yield ClassMeasurement(
                "CUSTOM_LICENCE", zone, float(amount), 0.1 * float(amount), time.time() + 600.0
            )
