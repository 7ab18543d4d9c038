"""Base classes of commands: the configuration, requests to the daemon, and output formats."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import stevedore
from cliff.columns import FormattableColumn
from cliff.command import Command as CliffCommand
from cliff.formatters.base import SingleFormatter
from cliff.formatters.commaseparated import CSVLister
from cliff.lister import Lister as CliffLister
from cliff.show import ShowOne as CliffShowOne
from stevedore.extension import Extension

from compute_agent.agent.protocol import call_agent, socket_path

if TYPE_CHECKING:
    from oslo_config import cfg


Commands = Mapping[str, type[CliffCommand]]
"""The commands of a module, by their words."""


class ConfigMixin:
    """Commands that need the configuration or the daemon it describes."""

    app: Any

    def get_epilog(self) -> str:
        """Return no epilog: cliff would search all installed packages for the one that has the command."""
        return ""

    def load_conf(self) -> cfg.ConfigOpts:
        """The configuration of ``--config-file``, and of the fleet below that, read again.

        :raises ConfigError: the kept revision of the fleet cannot be used.
        :raises cfg.Error: a file or a value is wrong.
        """
        own = self.load_own_conf()
        if not own.fleet.group:
            return own
        from compute_agent.fleet.configuration import with_kept  # only hosts of a fleet need it

        return with_kept(own)

    def load_own_conf(self) -> cfg.ConfigOpts:
        """The configuration of ``--config-file`` alone, which has the daemon's socket."""
        from compute_agent import conf  # takes half of the time of a help text, which needs none

        return conf.load([], self.app.options.config_file or None)

    def ask_daemon(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a request to the running daemon and return its answer."""
        return call_agent(socket_path(self.load_own_conf()), method, params)


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
    """A command that prints only messages."""


class AgentLister(ConfigMixin, CliffLister):
    """A command that prints a list."""

    def say_why_empty(self, sentence: str) -> None:
        """Print the reason for an empty list to standard error, where no program takes it for a row."""
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
    # One plugin manager serves all commands of a process, which may offer the same format.
    if name not in formatters.names():
        # This extension comes from no entry point, so there is none to pass.
        formatters.extensions.append(Extension(name, None, formatter, formatter()))  # type: ignore[arg-type]


class LinesColumn(FormattableColumn[Any]):
    """A list or mapping that tables show on several lines, one for each item."""

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


def document_columns(document: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return a document as names and values for ShowOne. Nested values keep their form in JSON and YAML."""
    values = (LinesColumn(value) if isinstance(value, list | dict) else value for value in document.values())
    return tuple(document), tuple(values)


def parse_moment(text: str) -> float:
    """Seconds since the epoch of a time that is given to a command.

    :param text: a length of time before now, or a time in ISO 8601, which without an offset is local.

    :raises ArgumentTypeError: the text is neither.
    """
    try:
        found = _epoch_seconds(text)
        # Commands show the time: one that datetime cannot represent is refused here.
        datetime.fromtimestamp(found).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a length of time, such as 90, 30m, 1h or 7d, nor a time, such as"
            " 2026-05-01T13:00"
        ) from error
    return found


def _epoch_seconds(text: str) -> float:
    # Options cost half of the time of a help text, which needs none.
    from compute_agent.conf.duration import parse_duration

    # A text that is not a duration has to be a date.
    with suppress(ValueError):
        return time.time() - parse_duration(text)
    return datetime.fromisoformat(text).timestamp()
