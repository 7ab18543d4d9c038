"""The command ``compute-agent run``, which runs the agent in the foreground."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from oslo_config import cfg

from compute_agent.agent import logs
from compute_agent.agent.dry_run import dry_run, try_configuration
from compute_agent.agent.release import ReleasedError
from compute_agent.agent.service import HostAgent
from compute_agent.cmd.base import AgentLister, Commands
from compute_agent.files import LockedError
from compute_agent.inventory.host_identity import IdentityError
from compute_agent.model.messages import ConfigError, DriverError
from compute_agent.report.answers import PlacementError

LOG = logging.getLogger(__name__)

REASONS_NOT_TO_START: Final = (
    ConfigError,
    IdentityError,
    LockedError,
    ReleasedError,
    PlacementError,
    DriverError,
    cfg.Error,
    OSError,
)


_COLUMNS: Final = ("where", "subject", "change")


class RunCommand(AgentLister):
    """Run the agent in the foreground until SIGTERM. With --dry-run, only list the changes of a start."""

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="list the changes that a start of the agent would make in Placement, in the kernel and in"
            " libvirt, and make none. The other options of the command format this list.",
        )

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the agent until a signal, or list the changes of a start.

        Returns the exit status: 1 if the agent refuses to start.
        """
        try:
            if parsed_args.dry_run:
                self._changes = dry_run(self.load_conf())
            else:
                own = self.load_own_conf()
                # The log is set up first, so that it contains the errors of the start.
                logs.set_up(own)
                with _by_fleet(own):
                    agent = HostAgent(self.load_conf)
                    agent.catch_signals()
                    agent.start()
        except REASONS_NOT_TO_START as error:
            LOG.error("The agent does not start: %s", error)
            return 1
        if parsed_args.dry_run:
            # The output is outside of the block above, because a closed pipe is an OSError, too.
            return super().run(parsed_args)
        _spare_old_objects()
        agent.serve_signals()
        return 0

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Print the changes that a start would make. Returns the columns and the rows."""
        rows = [dataclasses.astuple(each) for each in self._changes]
        self.app.stderr.write("Nothing was changed.\n" if rows else "Nothing would be changed.\n")
        return _COLUMNS, rows


_YOUNG_OBJECTS: Final = 10_000
"""Number of new objects after which Python looks for reference cycles among them."""


def _spare_old_objects() -> None:
    """Keep garbage collection away from the objects of the start, which live as long as the agent.

    These are modules, options and metrics: some 75,000 objects. A walk through them takes tens of
    milliseconds, and 100 guests would cause two walks a minute.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


def _by_fleet(own: cfg.ConfigOpts) -> AbstractContextManager[None]:
    """The context in which the agent starts.

    On a host with fleet settings, the context first provides a revision of these settings that can be used.
    """
    if not own.fleet.group:
        return nullcontext()
    from compute_agent.fleet.configuration import starting_with_fleet  # only hosts of a fleet need it

    return starting_with_fleet(own, try_configuration, but_for=(LockedError, ReleasedError))


COMMANDS: Final[Commands] = {"run": RunCommand}
