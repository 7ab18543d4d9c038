"""What the commands share: the configuration, the daemon, and the same output formats everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import stevedore
from cliff.columns import FormattableColumn
from cliff.command import Command as CliffCommand
from cliff.formatters.base import SingleFormatter
from cliff.formatters.commaseparated import CSVLister
from cliff.lister import Lister as CliffLister
from cliff.show import ShowOne as CliffShowOne
from stevedore.extension import Extension

from compute_agent.agent.protocol import ask, socket_path

if TYPE_CHECKING:
    from oslo_config import cfg


Commands = Mapping[str, type[CliffCommand]]
"""The commands of a module, by their words."""


class ConfigMixin:
    """Commands that need the configuration or the daemon it describes."""

    app: Any

    def get_epilog(self) -> str:
        """Nothing. cliff would look through all that is installed, to say which package a command is from."""
        return ""

    def load_conf(self) -> cfg.ConfigOpts:
        """The configuration of ``--config-file``, and of the fleet below that, read anew.

        :raises ConfigError: what is kept of the fleet cannot be used.
        :raises cfg.Error:
        """
        own = self.load_own_conf()
        if not own.fleet.group:
            return own
        from compute_agent.fleet.configuration import with_kept  # for those who use it

        return with_kept(own)

    def load_own_conf(self) -> cfg.ConfigOpts:
        """The configuration of ``--config-file`` alone, which is all that tells where the daemon is."""
        from compute_agent import conf  # half of what a help text would cost, which needs none

        return conf.load([], self.app.options.config_file or None)

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The running daemon's answer."""
        return ask(socket_path(self.load_own_conf()), method, params)


class _CsvOne(CSVLister, SingleFormatter):
    """One object as CSV: a header and a row."""

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        self.emit_list(column_names, [data], stdout, parsed_args)


class AgentCommand(ConfigMixin, CliffCommand):
    """A command that prints nothing but messages."""


class AgentLister(ConfigMixin, CliffLister):
    """A command that prints a list."""

    def say_why_empty(self, sentence: str) -> None:
        """Tell people why a list is empty: on standard error, where no program takes it for a row."""
        self.app.stderr.write(f"{sentence}\n")


class ShowOne(ConfigMixin, CliffShowOne):
    """A command that prints one object; cliff has no CSV for these."""

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager[SingleFormatter]:
        manager = super()._load_formatter_plugins()
        offer_format(manager, "csv", _CsvOne)
        return manager


def offer_format(
    formatters: stevedore.ExtensionManager[Any], name: str, formatter: Callable[[], Any]
) -> None:
    """Make an output format known to a command, unless it has one of that name."""
    if name not in formatters.names():
        # An extension that comes from no entry point has none to name.
        formatters.extensions.append(Extension(name, None, formatter, formatter()))  # type: ignore[arg-type]


class LinesColumn(FormattableColumn[Any]):
    """A list or mapping that is shown to people line by line."""

    def human_readable(self) -> str:
        """One line for each item."""
        value = self._value
        if isinstance(value, Mapping):
            return "\n".join(f"{key}: {_one_line(item)}" for key, item in value.items())
        return "\n".join(_one_line(item) for item in value or ())


def _one_line(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_one_line(item)}" for key, item in value.items())
    return str(value)


def columns(document: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """A document as names and values for ShowOne; what is nested keeps its form in JSON and YAML."""
    values = (LinesColumn(value) if isinstance(value, list | dict) else value for value in document.values())
    return tuple(document), tuple(values)
