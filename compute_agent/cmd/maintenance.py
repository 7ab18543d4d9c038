"""``compute-agent host disable`` and ``host enable``."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import Commands, ShowOne, columns


class HostDisable(ShowOne):
    """Keep new guests away from this host, until ``host enable``; guests that run are not touched."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", required=True, help="why, for those who look at `status`")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return columns(self.ask("host.disable", {"reason": parsed_args.reason}))


class HostEnable(ShowOne):
    """Let new guests in again, as far as nothing else keeps them away."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return columns(self.ask("host.enable"))


COMMANDS: Final[Commands] = {"host disable": HostDisable, "host enable": HostEnable}
