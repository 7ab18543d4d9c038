"""``compute-agent host disable`` and ``host enable``."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import Commands, ShowOne, document_columns


class HostDisable(ShowOne):
    """Keep new guests away from this host until ``host enable``. Running guests stay unchanged."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--reason", required=True, help="reason, which `compute-agent status` shows")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return document_columns(self.ask_daemon("host.disable", {"reason": parsed_args.reason}))


class HostEnable(ShowOne):
    """Let new guests in again, unless another cause keeps them away."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Ask the daemon."""
        return document_columns(self.ask_daemon("host.enable"))


COMMANDS: Final[Commands] = {"host disable": HostDisable, "host enable": HostEnable}
