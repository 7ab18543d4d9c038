"""The command ``compute-agent interference list``, which shows guests that disturb other guests."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import AgentLister, Commands

_COLUMNS: Final = ("section", "victim", "before", "level", "suspect", "correlation", "limit", "state")


class InterferenceList(AgentLister):
    """List pairs of guests: a disturbed guest, and the guest that disturbs it according to the agent.

    The columns show the reason, and whether the second guest is limited. `compute-agent event list` has
    earlier decisions.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Request the verdicts from the daemon. Returns the columns, and a row for each pair of guests."""
        rows = self.ask_daemon("interference.list")
        if not rows:
            self.say_why_empty(self._why_empty())
        return _COLUMNS, [tuple(row[name] for name in _COLUMNS) for row in rows]

    def _why_empty(self) -> str:
        # ask_daemon() has imported the options already, so this costs no time
        from compute_agent.conf.interference import INTERFERENCE
        from compute_agent.conf.qos import family_sections

        watched = [
            f"[interference:{name}] signal = {options.signal}"
            for name, options in family_sections(self.load_conf(), INTERFERENCE)
        ]
        if not watched:
            return (
                "Not configured: no guest is watched without section [interference:NAME] with a signal, such"
                " as signal = run_delay."
            )
        return (
            f"Nothing so far: {', '.join(watched)} limits no guest now, and has judged no pair of guests."
            " The agent judges a guest after five minutes of samples; `compute-agent event list --kind"
            " verdict` has earlier verdicts."
        )


COMMANDS: Final[Commands] = {"interference list": InterferenceList}
