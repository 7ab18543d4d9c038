"""The entry point of ``compute-agent``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from cliff.app import App
from cliff.command import Command
from cliff.commandmanager import CommandManager

from compute_agent.cmd import (
    audit,
    guest,
    host,
    maintenance,
    metrics,
    release,
    resctrl,
    reshape,
    run,
    watermark,
)

COMMANDS: dict[str, type[Command]] = {
    "run": run.Run,
    "status": run.Status,
    "host show": host.HostShow,
    "host disable": maintenance.HostDisable,
    "host enable": maintenance.HostEnable,
    "topology show": host.TopologyShow,
    "inventory show": host.InventoryShow,
    "config check": host.ConfigCheck,
    "guest run": guest.GuestRun,
    "guest adopt": guest.GuestAdopt,
    "guest list": guest.GuestList,
    "guest show": guest.GuestShow,
    "guest set": guest.GuestSet,
    "guest move": guest.GuestMove,
    "guest stop": guest.GuestStop,
    "metrics show": metrics.MetricsShow,
    "reshape": reshape.Reshape,
    "release": release.Release,
    "resctrl group list": resctrl.ResctrlGroupList,
    "audit": audit.Audit,
    "watermark list": watermark.WatermarkList,
}


class AgentShell(App):
    """The command line: global options, then a command."""

    def __init__(self) -> None:
        manager = CommandManager("compute_agent.cli")
        for name, command in COMMANDS.items():
            manager.add_command(name, command)
        super().__init__(
            description="The host agent of the placement service: inventories, guests, pinning.",
            version=_version(),
            command_manager=manager,
            deferred_help=True,
        )

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
