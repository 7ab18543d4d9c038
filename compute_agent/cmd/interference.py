"""``compute-agent interference list``."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import Commands, Lister

_COLUMNS: Final = ("section", "victim", "before", "level", "suspect", "correlation", "limit", "state")


class InterferenceList(Lister):
    """List who is limited for whom and why, and whom nothing is done about for a while.

    What was decided before is in `compute-agent event list`.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return _COLUMNS, [tuple(row[name] for name in _COLUMNS) for row in self.ask("interference.list")]


COMMANDS: Final[Commands] = {"interference list": InterferenceList}
