"""Base classes of commands: they load the configuration, send requests, and format the output."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import stevedore
from cliff.columns import FormattableColumn
from cliff.command import Command as CliffCommand
from cliff.formatters.base import ListFormatter, SingleFormatter
from cliff.formatters.commaseparated import CSVLister
from cliff.lister import Lister as CliffLister
from cliff.show import ShowOne as CliffShowOne
from stevedore.extension import Extension

from compute_agent.agent.protocol import DaemonUnreachableError, RequestError, call_agent, socket_path

if TYPE_CHECKING:
    from oslo_config import cfg

    AnyColumn = FormattableColumn[Any]
else:
    # cliff 4.8 has no type parameter here
    AnyColumn = FormattableColumn


Commands = Mapping[str, type[CliffCommand]]
"""The commands of a module by their words, such as ``guest list``."""


class ConfigMixin:
    """Base class of commands that need the configuration, or the daemon that it describes.

    :cvar METHOD: the request that the command sends to the daemon; empty for commands with other actions.
    :cvar PARAMS: the names of the arguments that are the parameters of this request.
    """

    METHOD: ClassVar[str] = ""
    PARAMS: ClassVar[tuple[str, ...]] = ()
    app: Any
    exit_status = 0
    """The exit status of a command without an error. An action can set another status."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The parser of the command line, with the options of cliff and of the command."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)  # type: ignore[misc]  # of cliff's
        self._add_options(parser)
        return parser

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own options and arguments; this base class has none."""

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command. Returns its exit status."""
        return super().run(parsed_args) or self.exit_status  # type: ignore[misc]  # of cliff's

    def get_epilog(self) -> str:
        """Return no epilog, because cliff would search all installed packages to write one."""
        return ""

    def load_conf(self) -> cfg.ConfigOpts:
        """The configuration. The files of ``--config-file`` override the applied revision of fleet settings.

        Each call reads the files again.

        :raises ConfigError: the applied revision of fleet settings cannot be used.
        :raises cfg.Error: a file or a value is wrong.
        """
        own = self.load_own_conf()
        if not own.fleet.group:
            return own
        from compute_agent.fleet.configuration import with_kept  # only hosts of a fleet need this module

        return with_kept(own)

    def load_own_conf(self) -> cfg.ConfigOpts:
        """The configuration without fleet settings. Fleet settings cannot change the daemon's socket."""
        # the package is imported here, because this import takes half of the time of printing a help text,
        # which needs no options
        from compute_agent import conf

        return conf.load([], self.app.options.config_file or None)

    def ask_daemon(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a request to the running daemon, and return its answer.

        :raises DaemonUnreachableError: no daemon answers.
        :raises RequestError: the daemon refuses the request.
        """
        return call_agent(socket_path(self.load_own_conf()), method, params)

    def ask_if_running(self, method: str) -> Any:
        """The answer of the daemon to a request; None if no daemon answers, or if it refuses the request."""
        with suppress(DaemonUnreachableError, RequestError):
            return self.ask_daemon(method)
        return None

    def send_request(self, parsed_args: argparse.Namespace) -> Any:
        """Send the request of the command to the daemon, and return its answer."""
        return self.ask_daemon(self.METHOD, self.request_params(parsed_args))

    def request_params(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        """The parameters of the request, from the arguments of the command."""
        return {name: getattr(parsed_args, name) for name in self.PARAMS}


class _CsvOne(CSVLister, SingleFormatter):
    """Prints one object as CSV: a header and a row."""

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        self.emit_list(column_names, [data], stdout, parsed_args)


class AsItIsFormatter(ListFormatter, SingleFormatter):
    """Prints the single value of a command unchanged, because the value is a complete document."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Add no options, because the format has none."""

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Print the only column of the only row."""
        for row in data:
            self.emit_one(column_names, row, stdout, parsed_args)

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Print the only column."""
        stdout.write(str(data[0]))


class AgentCommand(ConfigMixin, CliffCommand):
    """Base class of commands that print only messages."""


class AgentLister(ConfigMixin, CliffLister):
    """Base class of commands that print a list, unless they do more: the rows of one answer of the daemon.

    :cvar COLUMNS: the names of the columns. Each row of the answer has a value for each of them.
    :cvar EMPTY: a sentence with the reason for an empty list; empty if the list needs no explanation.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ()
    EMPTY: ClassVar[str] = ""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Request the rows from the daemon. Returns the columns and the rows."""
        rows = self.request_rows(parsed_args)
        if not rows and (reason := self.why_empty()):
            self.say_why_empty(reason)
        return self.COLUMNS, [tuple(_cell_value(row[name]) for name in self.COLUMNS) for row in rows]

    def request_rows(self, parsed_args: argparse.Namespace) -> list[Mapping[str, Any]]:
        """The rows of the daemon's answer."""
        rows: list[Mapping[str, Any]] = self.send_request(parsed_args)
        return rows

    def why_empty(self) -> str:
        """A sentence with the reason for an empty list; empty if the list needs no explanation."""
        return self.EMPTY

    def say_why_empty(self, sentence: str) -> None:
        """Print the reason for an empty list to standard error, where programs do not read it as a row."""
        self.app.stderr.write(f"{sentence}\n")


class ShowOne(ConfigMixin, CliffShowOne):
    """Base class of commands that print one object, unless they do more: one answer of the daemon.

    Such commands also have the format ``csv``, which cliff has only for lists.
    """

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager[SingleFormatter]:
        manager = super()._load_formatter_plugins()
        offer_formats(manager, "csv", formatter=_CsvOne)
        return manager

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Request the object from the daemon. Returns the names and values to print."""
        return document_columns(self.send_request(parsed_args))


def offer_formats(
    formatters: stevedore.ExtensionManager[Any], *names: str, formatter: Callable[[], Any] = AsItIsFormatter
) -> None:
    """Add output formats to a command. By default, its action returns a complete document for them."""
    # One plugin manager serves all commands of a process, and several commands can add the same format.
    for name in names:
        if name not in formatters.names():
            # The entry point is None, because the format comes from no entry point.
            formatters.extensions.append(Extension(name, None, formatter, formatter()))  # type: ignore[arg-type]


class LinesColumn(AnyColumn):
    """A list or mapping that tables show on several lines, one for each item."""

    def human_readable(self) -> str:
        """The value as text with one line for each item."""
        value = self._value
        if isinstance(value, Mapping):
            return "\n".join(f"{key}: {_one_line(item)}" for key, item in value.items())
        return "\n".join(_one_line(item) for item in value or ())


def _one_line(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_one_line(item)}" for key, item in value.items())
    return str(value)


def document_columns(document: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Names and values of a document for :class:`ShowOne`; JSON and YAML stay nested."""
    return tuple(document), tuple(map(_cell_value, document.values()))


def _cell_value(value: Any) -> Any:
    return LinesColumn(value) if isinstance(value, list | dict) else value


def local_time(moment: float, for_people: bool, timespec: str = "seconds") -> str:
    """A time in the zone of the host, for people or in ISO 8601.

    :param moment: seconds since the epoch.
    :param timespec: the smallest unit of a time for programs.
    """
    local = datetime.fromtimestamp(moment).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S}" if for_people else local.isoformat(timespec=timespec)


def parse_moment(text: str) -> float:
    """Parse a time in a command line, and return it in seconds since the epoch.

    :param text: a length of time before now, such as ``30m``, or a time in ISO 8601. A time without an offset
        is local.

    :raises ArgumentTypeError: the text is neither a length of time nor a time.
    """
    try:
        found = _epoch_seconds(text)
        # Commands print the time, so a time that datetime cannot represent is refused here.
        datetime.fromtimestamp(found).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a length of time, such as 90, 30m, 1h or 7d, nor a time, such as"
            " 2026-05-01T13:00"
        ) from error
    return found


def _epoch_seconds(text: str) -> float:
    # This import takes half of the time of printing a help text, which needs no options.
    from compute_agent.conf.option_types import parse_duration

    # If the text is not a length of time, it has to be a time.
    with suppress(ValueError):
        return time.time() - parse_duration(text)
    return datetime.fromisoformat(text).timestamp()
