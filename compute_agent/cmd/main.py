"""The entry point of ``compute-agent``: global options, and the choice of the command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from cliff.app import App
from cliff.command import Command
from cliff.commandmanager import CommandManager
from cliff.help import HelpCommand

from compute_agent import installed_version
from compute_agent.cmd.base import Commands, ConfigMixin

# the versions of cliff in OpenStack 2025.1 do not export this type
if TYPE_CHECKING:
    from cliff.commandmanager import EntryPointT

WORDS: Final = (
    *("allocations", "audit", "blockio", "capacity", "config", "cpu", "device", "event", "fleet", "guest"),
    *("host", "interference", "inventory", "libvirt", "metrics", "qos", "release", "report", "reshape"),
    *("resctrl", "run", "status", "top", "topology", "watermark"),
)
"""The first words of all commands."""


def commands_of(word: str) -> Commands:
    """The commands that begin with a word.

    Only modules with such commands are imported, because most modules import large parts of the agent.
    """
    match word:
        case "allocations" | "audit":
            from compute_agent.cmd.allocations import COMMANDS
        case "blockio" | "cpu" | "qos":
            from compute_agent.cmd import classes, noise

            return _begin_with(word, {**classes.COMMANDS, **noise.COMMANDS})
        case "capacity" | "device" | "interference" | "reshape" | "resctrl" | "status":
            from compute_agent.cmd.answers import COMMANDS
        case "event":
            from compute_agent.cmd.event import COMMANDS
        case "fleet":
            from compute_agent.cmd.fleet import COMMANDS
        case "guest":
            from compute_agent.cmd import event, guest

            return _begin_with(word, {**event.COMMANDS, **guest.COMMANDS})
        case "libvirt":
            from compute_agent.cmd.libvirt import COMMANDS
        case "metrics" | "top":
            from compute_agent.cmd.metrics import COMMANDS
        case "release":
            from compute_agent.cmd.release import COMMANDS
        case "report":
            from compute_agent.cmd.report import COMMANDS
        case "run":
            from compute_agent.cmd.run import COMMANDS
        case "watermark":
            from compute_agent.cmd.watermark import COMMANDS
        case _:  # the words config, host, inventory and topology
            from compute_agent.cmd.host import COMMANDS
    return _begin_with(word, COMMANDS)


def _begin_with(word: str, commands: Commands) -> Commands:
    return {words: one for words, one in commands.items() if words.split()[0] == word}


class AgentCommandManager(CommandManager):
    """Finds commands by their words, and imports their modules when they are needed."""

    def __init__(self) -> None:
        """Begin without the search for commands in entry points of installed packages."""
        super().__init__("")  # cliff 4.8 has no default

    def find_command(self, argv: list[str]) -> tuple[type[Command], str, list[str]]:
        """Find the command at the beginning of a command line.

        Returns the class of the command, its words and the other arguments. If the first word is abbreviated
        or unknown, all modules are imported.
        """
        word = next(iter(argv), "")
        if word not in self.commands:  # cliff has the word help from the start
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
            version=installed_version(),
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
            help="ini file; can be given several times, and later files override earlier ones. Default:"
            " /etc/compute-agent/compute-agent.conf, and the ini files in the folder compute-agent.conf.d"
            " beside it.",
        )
        return parser

    def initialize_app(self, argv: list[str]) -> None:
        """Refuse an empty command line, for which cliff would start its endless interactive mode."""
        if not argv and not self.options.deferred_help:
            self.parser.error("a command is missing; --help lists all of them")

    def clean_up(self, cmd: Command, result: int, err: BaseException | None) -> None:
        """Print the type of an error without text, for which cliff prints only an empty line."""
        if isinstance(err, Exception) and not str(err).strip():
            self.LOG.error(
                "%s failed with %s; --debug shows the traceback.", cmd.cmd_name, type(err).__name__
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of the command line.

    Exit status 0: the command succeeded. 1: the command failed or was refused, and standard error has the
    reason. 2: the command line is wrong. The help texts of some commands explain further statuses.

    :param argv: the arguments; None means the arguments of this process.
    """
    return AgentShell().run(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
