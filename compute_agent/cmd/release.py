"""The command ``compute-agent release``, which ends the agent for good and undoes its changes."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from compute_agent.agent import release
from compute_agent.agent.host_access import make_state_folder
from compute_agent.agent.protocol import DaemonUnreachableError
from compute_agent.agent.release import ReleaseOptions, open_release
from compute_agent.cmd.base import AgentLister, Commands
from compute_agent.inventory import host_identity
from compute_agent.inventory.host_identity import check_owner, read_identity

_COLUMNS: Final = ("kind", "name", "detail", "outcome")

LOCK_TIMEOUT: Final = 30.0
"""Seconds that the command waits for a running agent to end."""


class ReleaseCommand(AgentLister):
    """Release this host from the agent: end the agent for good, and undo its changes. Guests continue to run.

    The command undoes CPU quotas, block I/O settings, realtime priorities, core cookies, CPU classes,
    isolation, limits of cache ways and bandwidth, and the trait that keeps new guests away. It lists the
    changes that were undone, and the changes that stay. During its work the command keeps new guests away
    from the host. If the command fails or is interrupted, new guests stay away, and you can run the command
    again. The exit status is 1 if a change could not be undone.
    """

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--pins",
            action="store_true",
            help="also remove pins, CPU weights and memory limits, so that guests can use all CPUs and the"
            " memory of all NUMA nodes",
        )
        parser.add_argument(
            "--provider",
            action="store_true",
            help="also delete the host's resource providers in Placement, except those with allocations",
        )
        parser.add_argument(
            "--claims",
            action="store_true",
            help="also give back the allocations that the agent has claimed for containers and units",
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="list the changes that the command would undo, and undo none of them; a running agent"
            " continues to run",
        )
        parser.add_argument(
            "--undo",
            action="store_true",
            help="cancel an earlier release, so that the agent can start on this host again",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """End the daemon and undo its changes, or with ``--dry-run`` list them; return the rows."""
        conf = self.load_conf()
        wanted = {"pins": parsed_args.pins, "provider": parsed_args.provider, "claims": parsed_args.claims}
        if parsed_args.dry_run:
            return self._table_rows(self._survey_host(conf, wanted))
        folder = make_state_folder(conf)
        if parsed_args.undo:
            release.remove_mark(folder, LOCK_TIMEOUT)
            return _COLUMNS, []
        check_owner(folder, read_identity(Path(conf.host.root)))
        # The release is noted in the state folder before the agent ends, so that a service manager cannot
        # restart the agent.
        release.mark_released(folder)
        # If no agent runs, there is nothing to end.
        with contextlib.suppress(DaemonUnreachableError):
            self.ask_daemon("release.retire")
        with open_release(conf, ReleaseOptions(**wanted), LOCK_TIMEOUT) as found:
            rows = found.carry_out()
        if sentence := release.how_to_open(rows):
            self.app.stderr.write(f"{sentence}\n")
        return self._table_rows([asdict(row) for row in rows])

    def _survey_host(self, conf: Any, wanted: dict[str, bool]) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = self.ask_daemon("release.survey", wanted)
        except DaemonUnreachableError:
            if host_identity.look_up(Path(conf.state_path)) is None:
                # no agent has run on this host, and open_release() would write a uuid to the state folder
                return []
            with open_release(conf, ReleaseOptions(**wanted), 0.0) as found:
                rows = [asdict(row) for row in found.list_rows()]
        return rows

    def _table_rows(self, rows: list[dict[str, Any]]) -> tuple[Any, Any]:
        self.exit_status = int(any(row["outcome"].startswith("failed") for row in rows))
        return _COLUMNS, [tuple(row[name] for name in _COLUMNS) for row in rows]


COMMANDS: Final[Commands] = {"release": ReleaseCommand}
