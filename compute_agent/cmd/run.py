"""``compute-agent run`` and ``status``."""

from __future__ import annotations

import argparse
from typing import Any

from oslo_log import log

from compute_agent.cmd.base import Command, ShowOne, columns
from compute_agent.daemon.service import Agent


class Run(Command):
    """Run the agent in the foreground until SIGTERM."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Serve until told to end."""
        log.setup(self.load_conf(), "compute-agent")
        Agent(self.load_conf).run()


class Status(ShowOne):
    """Show how the running agent does."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return columns(self.ask("status"))
