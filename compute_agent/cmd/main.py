"""The entry point of ``compute-agent``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from cliff.app import App
from cliff.command import Command
from cliff.commandmanager import CommandManager, EntryPointT
from cliff.help import HelpCommand

from compute_agent.cmd.base import Commands, ConfigMixin

_MODULES: Final[Mapping[str, Sequence[str]]] = {
    "allocations": ("allocations",),
    "audit": ("audit",),
    "blockio": ("classes", "noise"),
    "capacity": ("capacity",),
    "config": ("config", "host"),
    "cpu": ("classes", "noise"),
    "event": ("event",),
    "fleet": ("fleet",),
    "guest": ("guest", "event"),
    "host": ("host",),
    "interference": ("interference",),
    "inventory": ("host",),
    "libvirt": ("libvirt",),
    "metrics": ("metrics",),
    "qos": ("classes", "noise"),
    "release": ("release",),
    "reshape": ("reshape",),
    "resctrl": ("resctrl",),
    "run": ("run",),
    "status": ("status",),
    "top": ("top",),
    "topology": ("host",),
    "watermark": ("watermark",),
}
"""Modules of this folder by the first word of their commands."""

WORDS: Final = tuple(_MODULES)
"""First words of commands."""


def commands_of(word: str) -> Commands:
    """The commands that begin with a word."""
    # By name, as most modules import a part of the agent, which takes longer than most commands.
    modules = [import_module(f"compute_agent.cmd.{name}") for name in _MODULES[word]]
    known: dict[str, type[Command]] = {}
    for module in modules:
        known |= module.COMMANDS
    return {words: one for words, one in known.items() if words.split()[0] == word}


class AgentCommandManager(CommandManager):
    """Finds commands by their words."""

    def find_command(self, argv: list[str]) -> tuple[type[Command], str, list[str]]:
        """The command at the beginning of a line.

        An abbreviated first word is searched for in all modules.
        """
        word = next(iter(argv), "")
        if word not in self.commands:  # help is registered from the start
            self._import_commands([word] if word in WORDS else WORDS)
        return super().find_command(argv)

    def __iter__(self) -> Iterator[tuple[str, EntryPointT]]:
        self._import_commands(WORDS)
        return super().__iter__()

    def _import_commands(self, words: Iterable[str]) -> None:
        for word in words:
            for name, command in commands_of(word).items():
                self.add_command(name, command)


class AgentHelp(ConfigMixin, HelpCommand):
    """Print detailed help for another command."""


class AgentShell(App):
    """The command line: global options, then a command."""

    def __init__(self) -> None:
        manager = AgentCommandManager()
        super().__init__(
            description="The host agent of the placement service: inventories, guests, pinning.",
            version=_version(),
            command_manager=manager,
            deferred_help=True,
        )
        manager.add_command("help", AgentHelp)

    def build_option_parser(self, *args: object, **kwargs: object) -> argparse.ArgumentParser:
        """Add ``--config-file`` to cliff's own options."""
        parser = super().build_option_parser(*args, **kwargs)  # type: ignore[arg-type]  # passed on
        parser.add_argument(
            "--config-file",
            action="append",
            metavar="FILE",
            help="ini file; may be given several times, and later files override earlier ones. Default:"
            " /etc/compute-agent/compute-agent.conf and similar files.",
        )
        return parser

    def initialize_app(self, argv: list[str]) -> None:
        """Refuse a line without a command: cliff's dialogue never ends after the end of its input."""
        if not argv and not self.options.deferred_help:
            self.parser.error("a command is missing; --help lists all of them")

    def clean_up(self, cmd: Command, result: int, err: BaseException | None) -> None:
        """Name an error without a text, for which cliff prints an empty line."""
        if isinstance(err, Exception) and not str(err).strip():
            self.LOG.error("%s failed with %s; --debug shows the place.", cmd.cmd_name, type(err).__name__)


def _version() -> str:
    try:
        return version("placement-compute")
    except PackageNotFoundError:
        # The program runs from its source, which was not installed.
        return "not installed"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Exit status 0: the command succeeded. 1: it failed or was refused, and standard error has the reason. 2:
    the command line is wrong.
    """
    return AgentShell().run(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
