"""Commands of ``openstack`` for attributes of resource providers, beside those of osc-placement."""

import argparse
import math
from collections.abc import Mapping
from typing import Any

from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.requests import pairs, request

Row = tuple[Any, ...]
Table = tuple[tuple[str, ...], list[Row]]


class ListAttributes(command.Lister):
    """List the attributes of a resource provider."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        return _with_uuid(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Ask and show."""
        return _table(request(self, "GET", _path(parsed_args)))


class SetProviderAttributes(command.Lister):
    """Set attributes of a resource provider; others stay as they are.

    What looks like a number is one, unless it is given with --text:

      openstack resource provider attribute set <uuid> --attribute price=0.12 --text rack=12
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser = _with_uuid(super().get_parser(prog_name))
        parser.add_argument(
            "--attribute",
            metavar="<name>=<value>",
            action="append",
            default=[],
            help="Attribute to set (may be repeated)",
        )
        parser.add_argument(
            "--text",
            metavar="<name>=<value>",
            action="append",
            default=[],
            help="Attribute to set that is no number, whatever it looks like (may be repeated)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Read, change, and write under the generation that was read."""
        given = {
            name: _value(value)
            for name, value in pairs(parsed_args.attribute, "--attribute", "<value>").items()
        }
        given |= pairs(parsed_args.text, "--text", "<value>")
        if not given:
            raise exceptions.CommandError("Nothing to set: give --attribute or --text.")
        present = request(self, "GET", _path(parsed_args))
        return _replace(self, parsed_args, present, {**present["attributes"], **given})


class UnsetAttributes(command.Lister):
    """Remove attributes of a resource provider."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser = _with_uuid(super().get_parser(prog_name))
        parser.add_argument(
            "--attribute",
            metavar="<name>",
            action="append",
            required=True,
            help="Name of an attribute to remove (may be repeated)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Read, change, and write under the generation that was read."""
        present = request(self, "GET", _path(parsed_args))
        left = {
            name: value for name, value in present["attributes"].items() if name not in parsed_args.attribute
        }
        return _replace(self, parsed_args, present, left)


def _with_uuid(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("uuid", metavar="<uuid>", help="UUID of the resource provider")
    return parser


def _path(parsed_args: argparse.Namespace) -> str:
    return f"/ext/v1/resource_providers/{parsed_args.uuid}/attributes"


def _replace(
    asking: command.Command,
    parsed_args: argparse.Namespace,
    present: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> Table:
    body = {
        "attributes": attributes,
        "resource_provider_generation": present["resource_provider_generation"],
    }
    return _table(request(asking, "PUT", _path(parsed_args), json=body))


def _table(answer: Mapping[str, Any]) -> Table:
    return ("name", "value"), list(answer["attributes"].items())


def _value(text: str) -> str | float:
    """The number that a text stands for, if it does."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
