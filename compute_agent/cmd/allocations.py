"""Commands for allocations after Placement lost data: ``allocations accept`` and ``allocations restore``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from compute_agent.cmd.base import AgentLister, Commands, LinesColumn
from compute_agent.model.messages import ConfigError
from compute_agent.pipeline.state import parse
from compute_agent.report.client import PlacementClient
from compute_agent.report.history import ConsumerOwner, HeldAllocation, RestoredConsumer, restore_consumers

_RESTORED: Final = ("consumer", "resources", "project", "user", "outcome")


class AllocationsAccept(AgentLister):
    """Accept the allocations of guests in Placement, even if the database of Placement is an older copy.

    Guests lose allocations that Placement no longer has. The command lists these guests.
    """

    METHOD = "allocations.accept"
    COLUMNS = ("guest", "name", "held", "holds")
    EMPTY = "No guest lost anything: see placement_history in compute-agent status."


class AllocationsRestore(AgentLister):
    """Restore allocations in Placement for guests of many hosts, from the state files of their agents.

    Run the command after the database of Placement was restored from an older copy. The command changes only
    consumers that have no allocation. Each of these consumers gets exactly its former allocation, with the
    same project and user. The command needs no daemon, but it needs the address and credentials in
    [placement]. The exit status is 1 if an allocation could not be restored.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument("--dry-run", action="store_true", help="list the changes, and make none")
        parser.add_argument(
            "files",
            nargs="+",
            type=Path,
            metavar="FILE",
            help="state.json from the [DEFAULT] state_path of an agent, or a current copy of this file",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Restore the allocations in the state files; return a row for each consumer."""
        held = [one for path in parsed_args.files for one in _held_of(path)]
        client = PlacementClient.from_conf(self.load_conf())
        rows = restore_consumers(client, held, parsed_args.dry_run)
        self.exit_status = int(any(row.has_failed for row in rows))
        return _RESTORED, [_shown_row(row) for row in rows]


def _held_of(path: Path) -> list[HeldAllocation]:
    """The allocations of a host's guests, read from the state file of its agent.

    Guests that migrate are left out.

    :raises ConfigError: the file is not the state of an agent.
    """
    try:
        state = parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used as the state of an agent: {error}") from error
    # During a migration Nova moves the allocation of the guest to the consumer of the migration.
    migrating = frozenset(state.migrations.values())
    return [
        HeldAllocation(uuid, guest.allocation, state.history.holders.get(uuid))
        for uuid, guest in state.guests.items()
        if guest.allocation and uuid not in migrating
    ]


def _shown_row(row: RestoredConsumer) -> tuple[Any, ...]:
    held, holder = row.held, row.held.holder or ConsumerOwner("", "")
    return held.consumer, LinesColumn(held.resources), holder.project_id, holder.user_id, row.outcome


COMMANDS: Final[Commands] = {
    "allocations accept": AllocationsAccept,
    "allocations restore": AllocationsRestore,
}
