"""The output formats ``svg`` and ``tree``, for commands that draw pictures."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import stevedore
from cliff.formatters.base import ListFormatter, SingleFormatter

from compute_agent.cmd.base import offer_format


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


def offer_formats(formatters: stevedore.ExtensionManager[Any], *names: str) -> None:
    """Add formats to a command. For each format, the action of the command returns a complete document."""
    for name in names:
        offer_format(formatters, name, AsItIsFormatter)
