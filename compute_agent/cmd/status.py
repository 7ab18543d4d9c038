"""The command ``compute-agent status``, which shows the state of the running agent."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import Commands, ShowOne, document_columns


class StatusCommand(ShowOne):
    """Show the state of the running agent."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Request the status from the daemon. Returns the names and values to print."""
        return document_columns(self.ask_daemon("status"))


COMMANDS: Final[Commands] = {"status": StatusCommand}
