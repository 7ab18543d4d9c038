"""The entry point of ``compute-agent``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from typing import Final

from cliff.app import App
from cliff.commandmanager import CommandManager
from cliff.help import HelpCommand

from compute_agent.cmd.base import ConfigMixin

COMMANDS: Final[Mapping[str, str]] = {
    "run": "compute_agent.cmd.run:Run",
    "status": "compute_agent.cmd.status:Status",
    "host show": "compute_agent.cmd.host:HostShow",
    "host disable": "compute_agent.cmd.maintenance:HostDisable",
    "host enable": "compute_agent.cmd.maintenance:HostEnable",
    "topology show": "compute_agent.cmd.host:TopologyShow",
    "inventory show": "compute_agent.cmd.host:InventoryShow",
    "config check": "compute_agent.cmd.host:ConfigCheck",
    "guest run": "compute_agent.cmd.guest:GuestRun",
    "guest adopt": "compute_agent.cmd.guest:GuestAdopt",
    "guest list": "compute_agent.cmd.guest:GuestList",
    "guest show": "compute_agent.cmd.guest:GuestShow",
    "guest set": "compute_agent.cmd.guest:GuestSet",
    "guest move": "compute_agent.cmd.guest:GuestMove",
    "guest stop": "compute_agent.cmd.guest:GuestStop",
    "metrics show": "compute_agent.cmd.metrics:MetricsShow",
    "reshape": "compute_agent.cmd.reshape:Reshape",
    "release": "compute_agent.cmd.release:Release",
    "resctrl group list": "compute_agent.cmd.resctrl:ResctrlGroupList",
    "audit": "compute_agent.cmd.audit:Audit",
    "watermark list": "compute_agent.cmd.watermark:WatermarkList",
}
"""Where each command is. Only the one that is asked for is imported, as most need but a part of the agent."""


class Help(ConfigMixin, HelpCommand):
    """Print detailed help for another command."""


class AgentShell(App):
    """The command line: global options, then a command."""

    def __init__(self) -> None:
        manager = CommandManager("compute_agent.cli")
        manager.commands.update((name, EntryPoint(name, place, "")) for name, place in COMMANDS.items())
        super().__init__(
            description="The host agent of the placement service: inventories, guests, pinning.",
            version=_version(),
            command_manager=manager,
            deferred_help=True,
        )
        manager.add_command("help", Help)

    def build_option_parser(self, *args: object, **kwargs: object) -> argparse.ArgumentParser:
        """Add ``--config-file`` to cliff's own options."""
        parser = super().build_option_parser(*args, **kwargs)  # type: ignore[arg-type]
        parser.add_argument(
            "--config-file",
            action="append",
            metavar="FILE",
            help="ini file; may be given several times, later ones override. Without it"
            " /etc/compute-agent/compute-agent.conf and the like.",
        )
        return parser


def _version() -> str:
    try:
        return version("placement-compute")
    except PackageNotFoundError:
        return "not installed"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit status: 0 done, 1 failed or refused (the reason is on stderr), 2 wrong usage."""
    return AgentShell().run(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
