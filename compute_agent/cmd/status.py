"""``compute-agent status``."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import Commands, ShowOne, columns


class StatusCommand(ShowOne):
    """Show how the running agent does."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return columns(self.ask("status"))


COMMANDS: Final[Commands] = {"status": StatusCommand}
