"""Commands of ``openstack`` that list events, claims with an end time, and limits on reservations."""

import argparse
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

from osc_lib.command import command

from placement_extras.openstack.arguments import given_fields
from placement_extras.openstack.requests import (
    HostNames,
    PlacementCommand,
    ShownTable,
    TableRow,
    read_pages,
    request_extension,
    root_uuids,
    total_text,
)

EVENT_COLUMNS: Final = ("time", "kind", "consumer", "project_id", "starts_at", "ends_at", "on_end", "hosts")
"""The columns of a time event."""
ENDING_COLUMNS: Final = (
    *("consumer", "generation", "project_id", "consumer_type"),
    *("ends_at", "on_end", "kept_until", "hosts", "reservation", "resources"),
)
"""The columns of a claim with an end time."""
LIMIT_COLUMNS: Final = ("limit", "resource_class", "maximum", "used")
"""The columns of a limit on the reservations of a project."""


class ListTimeEvents(PlacementCommand, command.Lister):
    """List events by time: starts and ends of reservations, and ends of claims with an action at their end.

    If --until is in the future, the list also has the events that will happen if nothing changes. The column
    "hosts" is empty for a reservation that is over. For a claim that is over, it has the last hosts of the
    claim.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--since",
            metavar="<time>",
            required=True,
            help="Start of the interval, such as 2026-12-24T18:00:00Z (UTC)",
        )
        parser.add_argument(
            "--until",
            metavar="<time>",
            help="End of the interval, at most seven days after its start (UTC; default: now)",
        )
        parser.add_argument(
            "--notice",
            metavar="<seconds>",
            type=int,
            help="Seconds by which an announcement precedes the start or the end (default: 3600)",
        )
        parser.add_argument("--project-id", metavar="<project>", help="List events of this project only")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[TableRow]]:
        """List events, page by page."""
        asked = given_fields(parsed_args, "since", "until", "notice", "project_id")
        names = HostNames(self)
        return EVENT_COLUMNS, (
            (
                *(each[name] for name in ("time", "kind", "consumer_uuid", "project_id")),
                *(each[name] for name in ("starts_at", "ends_at", "on_end")),
                _host_names(names, each),
            )
            for each in read_pages(self, "/ext/v1/time_events", asked, "events")
        )


class ListEndingClaims(PlacementCommand, command.Lister):
    """List the claims with an end time, on one host or on all hosts.

    The column "kept_until" is the time until which a preemptible claim keeps its resources. After that time,
    the claim ends when a reservation that needs these resources starts. The column "reservation" has the
    reservation from which the claim has taken its resources.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--root",
            metavar="<host>",
            help="Host: its name, or the UUID of its root provider (default: all hosts)",
        )
        parser.add_argument(
            "--reservation", metavar="<uuid>", help="List claims from the reservation with this UUID only"
        )
        parser.add_argument("--preemptible", action="store_true", help="List preemptible claims only")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[TableRow]]:
        """List claims, page by page."""
        asked, roots = given_fields(parsed_args, "reservation"), list[str]()
        if parsed_args.root is not None:
            roots = root_uuids(self, [parsed_args.root])
            asked["root"] = roots[0]
        if parsed_args.preemptible:
            asked["preemptible"] = "true"
        names = HostNames(self)
        claims = read_pages(self, "/ext/v1/claims", asked, "claims")
        first = [*islice(claims, 1)]
        if not first:
            print("No claim with an end time was found; other claims are not listed.", file=self.app.stderr)
        return ENDING_COLUMNS, (
            (
                *(each[name] for name in ("consumer_uuid", "consumer_generation", "project_id")),
                *(each[name] for name in ("consumer_type", "ends_at", "on_end")),
                # a service of an earlier release sends none of the fields that are read with get()
                each.get("kept_until"),
                _host_names(names, {"root_provider_uuids": roots, **each}),
                each.get("reservation"),
                total_text(each.get("allocations", {})),
            )
            for each in chain(first, claims)
        )


class ListReservationLimits(PlacementCommand, command.Lister):
    """List the limits on the reservations of a project, each with the amount that the project uses.

    The reserved amounts of a project change over time. The column "used" has the largest amount at any time
    from now on. An empty "maximum" means that there is no limit.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--project-id", metavar="<project>", help="Project of the reservations (default: your project)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> ShownTable:
        """List the limits."""
        asked = given_fields(parsed_args, "project_id")
        found = request_extension(self, "GET", "/ext/v1/reservation_limits", params=asked)["limits"]
        period = f"hours within {found['hours_period'] / 86_400:g} days"
        return LIMIT_COLUMNS, [
            ("seconds of a reservation", None, found["max_duration"], None),
            ("seconds until its start", None, found["max_ahead"], None),
            ("reservations", None, found["reservations"]["limit"], found["reservations"]["used"]),
            *(("amount at once", name, *each) for name, each in _limit_uses(found["amounts"])),
            *((period, name, *each) for name, each in _limit_uses(found["hours"])),
        ]


def _limit_uses(by_class: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    return ((name, (each["limit"], each["used"])) for name, each in by_class.items())


def _host_names(names: HostNames, document: Mapping[str, Any]) -> str:
    """Return the names of the hosts in an answer; for a host with an unknown name, return its uuid."""
    # a service of an earlier release sends no hosts
    return ",".join(names.host_name(each) or each for each in document.get("root_provider_uuids", ()))
