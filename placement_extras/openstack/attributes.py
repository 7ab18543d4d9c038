"""Commands of ``openstack`` that list, set and remove attributes of resource providers."""

import argparse
import math
from collections.abc import Mapping
from typing import Any

from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.requests import (
    ShownTable,
    UuidCommand,
    add_repeated,
    parse_pairs,
    send_request,
)


class _ProviderCommand(UuidCommand):
    noun = "resource provider"


class ListAttributes(_ProviderCommand, command.Lister):
    """List the attributes of a resource provider."""

    def take_action(self, parsed_args: argparse.Namespace) -> ShownTable:
        """Show the attributes."""
        return _attributes_table(send_request(self, "GET", _attributes_path(parsed_args)))


class SetProviderAttributes(_ProviderCommand, command.Lister):
    """Set attributes of a resource provider. All its other attributes stay unchanged.

    A value of --attribute that looks like a number is stored as a number. A value of --text is always stored
    as text:

      openstack resource provider attribute set <uuid> --attribute price=0.12 --text rack=12
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super()._add_arguments(parser)
        add_repeated(parser, "--attribute", "<name>=<value>", "Attribute to set")
        add_repeated(
            parser,
            "--text",
            "<name>=<value>",
            "Attribute to set as text, even if it looks like a number",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> ShownTable:
        """Change the attributes; fail if another client changes the provider meanwhile."""
        given = {
            name: _parse_value(value)
            for name, value in parse_pairs(parsed_args.attribute, "--attribute", "<value>").items()
        }
        given |= parse_pairs(parsed_args.text, "--text", "<value>")
        if not given:
            raise exceptions.CommandError("Nothing to set: give --attribute or --text.")
        present = send_request(self, "GET", _attributes_path(parsed_args))
        return _replace(self, parsed_args, present, {**present["attributes"], **given})


class UnsetAttributes(_ProviderCommand, command.Lister):
    """Remove attributes of a resource provider."""

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super()._add_arguments(parser)
        parser.add_argument(
            "--attribute",
            metavar="<name>",
            action="append",
            required=True,
            help="Name of an attribute to remove (may be repeated)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> ShownTable:
        """Change the attributes; fail if another client changes the provider meanwhile."""
        present = send_request(self, "GET", _attributes_path(parsed_args))
        left = {
            name: value for name, value in present["attributes"].items() if name not in parsed_args.attribute
        }
        return _replace(self, parsed_args, present, left)


def _attributes_path(parsed_args: argparse.Namespace) -> str:
    return f"/ext/v1/resource_providers/{parsed_args.uuid}/attributes"


def _replace(
    asking: command.Command,
    parsed_args: argparse.Namespace,
    present: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> ShownTable:
    # PUT replaces all attributes. Because of the generation, the request fails if another client has set an
    # attribute meanwhile, so that this attribute is not lost.
    body = {
        "attributes": attributes,
        "resource_provider_generation": present["resource_provider_generation"],
    }
    return _attributes_table(send_request(asking, "PUT", _attributes_path(parsed_args), json=body))


def _attributes_table(answer: Mapping[str, Any]) -> ShownTable:
    return ("name", "value"), list(answer["attributes"].items())


def _parse_value(text: str) -> str | float:
    """Return the number for which a text stands, or the text itself if it is no number."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text  # JSON has no "nan" and no "inf"
