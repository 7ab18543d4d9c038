"""The command ``compute-agent capacity show``, which shows how the offered capacity is computed."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import AgentLister, Commands

_COLUMNS: Final = ("provider", "term", "amount", "unit")


class CapacityShow(AgentLister):
    """Show unused shared CPUs and memory, how much of them the agent offers, and why."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Request the terms of the capacity from the daemon. Returns the columns, and a row for each term."""
        rows = self.ask_daemon("capacity.show")
        if not rows:
            self.say_why_empty(self._why_empty())
        return _COLUMNS, [tuple(row[name] for name in _COLUMNS) for row in rows]

    def _why_empty(self) -> str:
        options = self.load_conf().capacity
        if options.mode == options.steal == "off" and not options.collectors:
            return (
                "Not configured: nothing is measured without [capacity] mode, steal or collectors. mode ="
                " preview measures what guests leave unused, and offers nothing."
            )
        return (
            "There is nothing to measure: [capacity] mode and steal need shared CPUs ([compute]"
            " cpu_shared_set), and collectors need an inventory of their resource classes."
        )


COMMANDS: Final[Commands] = {"capacity show": CapacityShow}
