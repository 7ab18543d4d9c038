"""``compute-agent run`` and ``status``."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from oslo_config import cfg

from compute_agent.cmd.base import Command, ShowOne, columns
from compute_agent.daemon import logs
from compute_agent.daemon.service import Agent
from compute_agent.drivers.base import DriverError
from compute_agent.inventory.cpu_sets import ConfigError
from compute_agent.inventory.identity import IdentityError
from compute_agent.pipeline.state import StateLockedError
from compute_agent.report.errors import PlacementError

LOG = logging.getLogger(__name__)

REASONS_NOT_TO_START = (
    ConfigError,
    IdentityError,
    StateLockedError,
    PlacementError,
    DriverError,
    cfg.Error,
    OSError,
)


class Run(Command):
    """Run the agent in the foreground until SIGTERM."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serve until told to end; 1 if the agent refuses to start."""
        logs.set_up(self.load_conf())
        try:
            agent = Agent(self.load_conf)
            agent.catch_signals()
            agent.start()
        except REASONS_NOT_TO_START as error:
            LOG.error("The agent does not start: %s", error)
            return 1
        agent.serve()
        return 0


class Status(ShowOne):
    """Show how the running agent does."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return columns(self.ask("status"))
