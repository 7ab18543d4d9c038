"""``compute-agent capacity show``."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import Commands, Lister

_COLUMNS: Final = ("provider", "term", "cores")


class CapacityShow(Lister):
    """Show what others leave unused of the shared CPUs, and how much of that is offered, term by term."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return _COLUMNS, [tuple(row[name] for name in _COLUMNS) for row in self.ask("capacity.show")]


COMMANDS: Final[Commands] = {"capacity show": CapacityShow}
