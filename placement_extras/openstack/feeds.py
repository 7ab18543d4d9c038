"""Commands of ``openstack`` for the secret address of a project's calendar."""

import argparse
from typing import Any, Final

from osc_lib.command import command

from placement_extras.openstack.arguments import given_fields
from placement_extras.openstack.requests import request_extension, send_request

_PATH: Final = "/ext/v1/reservation_calendar"


class CreateCalendar(command.ShowOne):
    """Make a secret address, at which calendar programs can read the windows of a project without a token.

    The address is shown only now. A former address of the project is revoked.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        return _add_project(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Make the address."""
        return _calendar_columns(request_extension(self, "POST", _PATH, params=_project_query(parsed_args)))


class ShowCalendar(command.ShowOne):
    """Show when the calendar address of a project was made."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        return _add_project(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Show the address's project and time."""
        return _calendar_columns(send_request(self, "GET", _PATH, params=_project_query(parsed_args)))


class DeleteCalendar(command.Command):
    """Revoke the calendar address of a project."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        return _add_project(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Revoke the address."""
        send_request(self, "DELETE", _PATH, params=_project_query(parsed_args))


def _add_project(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--project-id", metavar="<project>", help="The project (default: your project)")
    return parser


def _project_query(arguments: argparse.Namespace) -> dict[str, Any]:
    return given_fields(arguments, "project_id")


def _calendar_columns(answer: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = answer["calendar"]
    return tuple(found), tuple(found.values())
