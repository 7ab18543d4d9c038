"""``compute-agent status``."""

from __future__ import annotations

import argparse
from typing import Any

from compute_agent.cmd.base import ShowOne, columns


class Status(ShowOne):
    """Show how the running agent does."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return columns(self.ask("status"))
