"""The command ``compute-agent reshape``, which moves allocations to the current providers."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import AgentLister, Commands

_COLUMNS: Final = (
    "kind",
    "guest",
    "from_provider",
    "from_class",
    "from_amount",
    "to_provider",
    "to_class",
    "to_amount",
)


class ReshapeCommand(AgentLister):
    """Move allocations of guests to the current providers of their resources, in one atomic request.

    The command lists the moved allocations.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the command's options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--dry-run", action="store_true", help="list the allocations to move, and move none"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Request the daemon to move the allocations.

        Returns the columns, a row for each moved allocation, and a row for each changed inventory.
        """
        answer = self.ask_daemon("reshape", {"dry_run": parsed_args.dry_run})
        moves = [("allocation", move["guest"], *move["from"], *move["to"]) for move in answer["moves"]]
        inventories = [_inventory_change(change) for change in answer["inventories"]]
        return _COLUMNS, [*moves, *inventories]


def _inventory_change(change: dict[str, Any]) -> tuple[Any, ...]:
    """A row about the change of an inventory's total.

    For a new inventory the columns of the old total are empty. For a removed inventory the columns of the new
    total are empty.
    """
    where = (change["provider"], change["resource_class"])
    before, after = change["before"], change["after"]
    return (
        "inventory",
        "",
        *(("", "", "") if before is None else (*where, before)),
        *(("", "", "") if after is None else (*where, after)),
    )


COMMANDS: Final[Commands] = {"reshape": ReshapeCommand}
