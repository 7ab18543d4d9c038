"""The command ``compute-agent resctrl group list``, which shows the resctrl groups of this host."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import AgentLister, Commands, LinesColumn

_COLUMNS: Final = (
    "group",
    "kind",
    "guests",
    "threads",
    "schemata",
    "ways",
    "llc_kib",
    "bandwidth_percent",
    "mode",
)


class ResctrlGroupList(AgentLister):
    """List the resctrl groups of this host with their cache ways and bandwidth, and the guests in them.

    Groups that other programs made have the kind foreign.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Request the resctrl groups from the daemon. Returns the columns, and a row for each group."""
        return _COLUMNS, [
            tuple(_cell_value(row[name]) for name in _COLUMNS) for row in self.ask_daemon("resctrl.groups")
        ]


def _cell_value(value: Any) -> Any:
    return LinesColumn(value) if isinstance(value, list | dict) else value


COMMANDS: Final[Commands] = {"resctrl group list": ResctrlGroupList}
