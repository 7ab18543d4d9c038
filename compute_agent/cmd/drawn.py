"""The output formats ``svg`` and ``tree``, for commands that can draw."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import stevedore
from cliff.formatters.base import ListFormatter, SingleFormatter

from compute_agent.cmd.base import offer_format


class AsItIsFormatter(ListFormatter, SingleFormatter):
    """Prints the only value unchanged: it is a document of its own."""

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """There are no options."""

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
    """Register formats with a command that makes a document of its own for each."""
    for name in names:
        offer_format(formatters, name, AsItIsFormatter)
