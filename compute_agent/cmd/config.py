"""The command ``compute-agent config show``, which shows the options in force."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import AgentLister, Commands
from compute_agent.conf.origins import DEFAULT, settings
from compute_agent.fleet.configuration import file_origins


class ConfigShow(AgentLister):
    """Show the options that files or the environment set, with their values.

    Passwords and other secrets are not shown.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the command's options."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--all", action="store_true", help="also show options that have their default")
        parser.add_argument("--origin", action="store_true", help="show the file that sets each option")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the configuration. Returns the columns, and a row for each option."""
        conf = self.load_conf()
        called = file_origins(conf) if conf.fleet.group else {}
        found = [each for each in settings(conf, called) if parsed_args.all or each.origin != DEFAULT]
        if not parsed_args.origin:
            return ("section", "option", "value"), [(each.section, each.option, each.value) for each in found]
        rows = [(each.section, each.option, each.value, each.origin) for each in found]
        return ("section", "option", "value", "origin"), rows


COMMANDS: Final[Commands] = {"config show": ConfigShow}
