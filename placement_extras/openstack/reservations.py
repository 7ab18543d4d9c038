"""Commands of ``openstack`` for reservations and free windows, which osc-placement does not have.

Further commands make the secret address at which calendar programs read the windows of a project.
"""

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cliff.columns import FormattableColumn
from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.arguments import (
    add_joint_arguments,
    add_on_end,
    add_place_arguments,
    add_request_arguments,
    add_topology,
    given_fields,
    joint_fields,
    owner_fields,
)
from placement_extras.openstack.requests import (
    HostNames,
    PlacementCommand,
    ProviderAmounts,
    ShownObject,
    ShownTable,
    TableRow,
    UuidCommand,
    amounts_text,
    parse_pairs,
    print_warnings,
    read_pages,
    request_extension,
    root_uuids,
    send_request,
    sum_amounts,
    total_text,
)

_RESERVATIONS: Final = "/ext/v1/reservations"
_AVAILABILITY: Final = "/ext/v1/availability"
_CALENDAR: Final = "/ext/v1/reservation_calendar"
_PAGE_SIZE: Final = 1000  # number of reservations in an answer; the service allows no larger number
RESERVATION_COLUMNS: Final = (
    "uuid",
    "project_id",
    "user_id",
    "group",
    "generation",
    "starts_at",
    "expires_at",
    "lead_time",
    "cleaning_time",
    "on_end",
    "movable",
    "state",
    "degraded",
    "allocations",
    "claimed",
)
"""The columns of a reservation."""
_LISTED_COLUMNS: Final = (
    *("uuid", "project_id", "group", "expires_at", "resources"),
    *("starts_at", "state", "degraded", "movable", "claimed", "on_end"),
)
"""The columns of the list of reservations."""
AVAILABILITY_COLUMNS: Final = (
    *("starts_at", "ends_at", "free_until"),
    *("host", "root_provider", "resources"),
)
"""Columns of a free window. If a window is for several consumers, each consumer has a line."""


class CreateReservation(PlacementCommand, command.ShowOne):
    """Hold resources for a project until a given time. Claims of the project can use these resources.

    The query is the query string of GET /allocation_candidates. A flavor in options or in a file replaces the
    query. With --count or --and-query, one reservation holds the resources of several consumers. If one of
    these consumers has no place, nothing is reserved. With --maintenance-of, the reservation holds a whole
    host for a maintenance, instead of the resources of a query.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_request_arguments(parser)
        add_topology(parser)
        add_joint_arguments(parser)
        _add_expiry(parser)
        parser.add_argument(
            "--maintenance-of",
            metavar="<host>",
            help="Reserve a whole host for a maintenance, instead of the resources of a query. The value is"
            " the name of the host, or the UUID of its root provider; needs --from",
        )
        parser.add_argument(
            "--from",
            dest="starts_at",
            metavar="<time>",
            help="Time when the reservation begins, such as 2026-12-24T18:00:00Z (UTC), or the word now, for"
            " the present time by the clock of this computer. When a claim from such a reservation ends, its"
            " resources return to the reservation. Without this option, the reservation begins at once, and"
            " resources of its claims do not return",
        )
        _add_margins(parser)
        add_on_end(parser, f"{_ON_END_HELP} (default: none)")
        parser.add_argument("--uuid", metavar="<uuid>", help="UUID of the reservation (default: a new one)")
        parser.add_argument(
            "--group",
            metavar="<name>",
            help="Name of a group of claims. With this option, only claims of this group can take resources"
            " from the reservation",
        )
        parser.add_argument(
            "--fixed",
            dest="movable",
            action="store_const",
            const=False,
            help="Never move the reservation to another host before its start",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> ShownObject:
        """Make the reservation, and return its columns and values."""
        host = parsed_args.maintenance_of
        body = {
            **joint_fields(self, parsed_args, needs_source=host is None),
            **owner_fields(parsed_args),
            **_window_fields(parsed_args),
            **given_fields(parsed_args, "uuid", "group", "lead_time", "cleaning_time", "on_end", "movable"),
        }
        if host is not None:
            # if the body also has a query, a flavor or hosts, the service refuses it and gives the reason
            (body["maintenance_of"],) = root_uuids(self, [host])
        answer = request_extension(self, "POST", _RESERVATIONS, json=body)
        print_warnings(self, answer.get("warnings", ()))
        if host is not None and answer["reservation"]["degraded"]:
            print(
                "Guests are on the host: openstack resource reservation show"
                f" {answer['reservation']['uuid']} lists them.",
                file=self.app.stderr,
            )
        return _reservation_columns(self, answer)


class ListReservations(PlacementCommand, command.Lister):
    """List the reservations that have not expired yet.

    The column "resources" has all the resources of a reservation. The column "claimed" has those resources of
    it that claims use now.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--project-id", metavar="<project>", help="List reservations of this project only"
        )
        parser.add_argument(
            "--group", metavar="<name>", help="List reservations for this group of claims only"
        )
        parser.add_argument(
            "--state",
            choices=("pending", "active", "cleaning", "failed", "degraded", "ended", "cancelled"),
            help="List reservations of this state only. A pending or active reservation is degraded if its"
            " hosts no longer have the reserved amounts. An active reservation has failed if none of its"
            " amounts is available. Ended and cancelled reservations are listed only if they have a start,"
            " and for at most 90 days",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> ShownTable:
        """List reservations, page by page."""
        asked = {"limit": _PAGE_SIZE, **given_fields(parsed_args, "project_id", "group", "state")}
        return _LISTED_COLUMNS, [
            _reservation_row(each) for each in read_pages(self, _RESERVATIONS, asked, "reservations")
        ]


class _ReservationCommand(UuidCommand):
    noun = "reservation"


class ShowReservation(_ReservationCommand, command.ShowOne):
    """Show a reservation, and the allocations that claims have not used yet."""

    def take_action(self, parsed_args: argparse.Namespace) -> ShownObject:
        """Show the reservation."""
        return _reservation_columns(self, send_request(self, "GET", f"{_RESERVATIONS}/{parsed_args.uuid}"))


class SetReservation(_ReservationCommand, command.ShowOne):
    """Change a reservation: its end, its resources, whether it can move, or what happens to its guests."""

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super()._add_arguments(parser)
        _add_expiry(parser, is_required=False)
        add_on_end(parser, f"{_ON_END_HELP} (default: as before)")
        parser.add_argument(
            "--keep",
            metavar="[<provider>:]<class>=<amount>",
            action="append",
            default=[],
            help="Amount of a resource class that the reservation keeps in addition to the resources that"
            " claims use; the reservation gives up the rest. If the reservation holds the class at several"
            " resource providers, give the name or the UUID of one of them (may be repeated; default: as"
            " before)",
        )
        moves = parser.add_mutually_exclusive_group()
        moves.add_argument(
            "--movable",
            action="store_const",
            const=True,
            help="Let the service move the reservation to an equivalent host before its start, even if"
            " --allowed-host was given when it was made (default: as before)",
        )
        moves.add_argument(
            "--fixed",
            dest="movable",
            action="store_const",
            const=False,
            help="Never move the reservation to another host before its start (default: as before)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> ShownObject:
        """Write the changes with the current generation."""
        changes = {**_expiry_fields(parsed_args), **given_fields(parsed_args, "on_end", "movable")}
        if not changes and not parsed_args.keep:
            raise exceptions.CommandError(
                "Nothing to change: give --until, --for, --on-end, --keep, --movable or --fixed."
            )
        path = f"{_RESERVATIONS}/{parsed_args.uuid}"
        reservation = send_request(self, "GET", path)["reservation"]
        if parsed_args.keep:
            kept = parse_pairs(parsed_args.keep, "--keep", "<amount>")
            changes["allocations"] = _kept_amounts(reservation["allocations"], kept, HostNames(self))
        body = {"generation": reservation["generation"], **changes}
        return _reservation_columns(self, send_request(self, "PUT", path, json=body))


class DeleteReservation(_ReservationCommand):
    """Delete a reservation, and the allocations that claims have not used yet."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the reservation."""
        send_request(self, "DELETE", f"{_RESERVATIONS}/{parsed_args.uuid}")


class ListAvailability(PlacementCommand, command.Lister):
    """List the earliest windows in which a request fits. Nothing is reserved.

    The query is the query string of GET /allocation_candidates:

      openstack resource availability list 'resources=VCPU:4,MEMORY_MB:8192' --for 86400

    A flavor in options or in a file replaces the query. The command "openstack resource reservation create"
    books a window: give the start of the window to its option --from, the end to --until, and the host to
    --allowed-host. The column "free_until" has the time until which the resources stay free. It is empty if
    no reservation follows.

    With --count or --and-query, each window is for several consumers, and has a line for each of them.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_place_arguments(parser)
        add_topology(parser)
        parser.add_argument(
            "--for",
            dest="duration",
            metavar="<seconds>",
            type=int,
            required=True,
            help="Length of the window, in seconds",
        )
        parser.add_argument(
            "--not-before",
            metavar="<time>",
            help="Earliest start, such as 2026-12-24T18:00:00Z (UTC; default: now)",
        )
        parser.add_argument(
            "--deadline",
            metavar="<time>",
            help="Latest end time of a window, in UTC. Without this option, a window can have any end,"
            " but starts within 366 days",
        )
        add_joint_arguments(parser)
        _add_margins(parser)
        parser.add_argument(
            "--limit", metavar="<number>", type=int, help="Maximum number of windows (default: 5)"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> ShownTable:
        """List the windows; if there is no window, fail with the reason."""
        body = {
            **joint_fields(self, parsed_args),
            **given_fields(parsed_args, "duration", "not_before", "deadline", "limit"),
            **given_fields(parsed_args, "lead_time", "cleaning_time"),
            # the reason takes the service more time than the search, but users of the command need it
            "explain": True,
        }
        answer = request_extension(self, "POST", _AVAILABILITY, json=body)
        print_warnings(self, answer["warnings"])
        if not answer["windows"]:
            raise exceptions.CommandError(answer["reason"])
        if not answer["is_complete"]:
            print("The search took too long: later windows are missing.", file=self.app.stderr)
        names = HostNames(self)
        rows = [
            (
                *(each[name] for name in ("starts_at", "ends_at", "free_until")),
                names.host_name(choice["root_provider_uuid"]),
                choice["root_provider_uuid"],
                total_text(choice["allocations"]),
            )
            for each in answer["windows"]
            for choice in each.get("claims", [each])
        ]
        return AVAILABILITY_COLUMNS, rows


class _CalendarCommand(PlacementCommand):
    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--project-id", metavar="<project>", help="The project (default: your project)")


class CreateCalendar(_CalendarCommand, command.ShowOne):
    """Make a secret address, at which calendar programs can read the windows of a project without a token.

    The address is shown only now. A former address of the project is revoked.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> ShownObject:
        """Make the address."""
        asked = given_fields(parsed_args, "project_id")
        return _calendar_columns(request_extension(self, "POST", _CALENDAR, params=asked))


class ShowCalendar(_CalendarCommand, command.ShowOne):
    """Show when the calendar address of a project was made."""

    def take_action(self, parsed_args: argparse.Namespace) -> ShownObject:
        """Show the address's project and time."""
        asked = given_fields(parsed_args, "project_id")
        return _calendar_columns(send_request(self, "GET", _CALENDAR, params=asked))


class DeleteCalendar(_CalendarCommand):
    """Revoke the calendar address of a project."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Revoke the address."""
        send_request(self, "DELETE", _CALENDAR, params=given_fields(parsed_args, "project_id"))


def _calendar_columns(answer: Any) -> ShownObject:
    found = answer["calendar"]
    return tuple(found), tuple(found.values())


_ON_END_HELP: Final = (
    "What happens to a guest when its claim on the reservation ends: nothing, an event, or an eviction by"
    " the agent of the host. The value applies to later claims that do not set --on-end"
)


def _add_expiry(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    end = parser.add_mutually_exclusive_group(required=is_required)
    end.add_argument(
        "--for",
        dest="seconds",
        metavar="<seconds>",
        type=float,
        help="Seconds after which the reservation expires, from --from or from now on",
    )
    end.add_argument("--until", metavar="<time>", help="Time of expiry, such as 2026-12-24T18:00:00Z (UTC)")


def _add_margins(parser: argparse.ArgumentParser) -> None:
    for option, when in (("lead", "before the start"), ("cleaning", "after the end")):
        parser.add_argument(
            f"--{option}",
            dest=f"{option}_time",
            metavar="<seconds>",
            type=int,
            help=f"Seconds {when} of the window for which its resources are held, too (default: 0)",
        )


def _expiry_fields(parsed_args: argparse.Namespace) -> dict[str, Any]:
    if parsed_args.until:
        return {"expires_at": parsed_args.until}
    return {} if parsed_args.seconds is None else {"expires_in": parsed_args.seconds}


def _window_fields(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields for the start and the end of a new reservation.

    A body with a start has the end as a time, so a number of seconds is converted to a time.
    """
    start = parsed_args.starts_at
    if start is None:
        return _expiry_fields(parsed_args)
    if start == "now":
        start = _time_text(datetime.now(UTC))
    if parsed_args.seconds is None:
        return {"starts_at": start, **_expiry_fields(parsed_args)}
    try:
        begin = datetime.fromisoformat(start)
        if begin.tzinfo is None:
            raise ValueError("no time zone")
        end = begin.astimezone(UTC) + timedelta(seconds=parsed_args.seconds)
    except (ValueError, OverflowError):
        raise exceptions.CommandError(
            f"--from {start} with --for {parsed_args.seconds:g}: a time in UTC such as 2026-12-24T18:00:00Z,"
            " or now, and a number of seconds are expected."
        ) from None
    return {"starts_at": start, "expires_at": _time_text(end)}


def _time_text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _kept_amounts(
    held: Mapping[str, Any], kept: Mapping[str, str], names: HostNames
) -> dict[str, dict[str, dict[str, int]]]:
    """Return the amounts of a reservation by provider, with the amounts of some classes replaced.

    :param kept: new amounts as texts, by resource class; a provider and a colon can stand before the class.
    :raises CommandError: a text is no number, or it is unclear which amount of the reservation it replaces.
    """
    left = {provider: {**each["resources"]} for provider, each in held.items()}
    for target, amount in kept.items():
        given, _, name = target.rpartition(":")
        if not (amount.isascii() and amount.isdigit()):
            raise exceptions.CommandError(f"--keep {target}={amount}: the amount is not a number.")
        found = [
            each
            for each, resources in left.items()
            if name in resources and given in ("", each, names.provider_name(each))
        ]
        if not found:
            raise exceptions.CommandError(f"--keep {target}: the reservation does not hold this class there.")
        if len(found) > 1:
            raise exceptions.CommandError(
                f"--keep {target}: several providers have this class. Name one, as in {found[0]}:{name}."
            )
        left[found[0]][name] = int(amount)
    found_amounts = {
        provider: {"resources": amounts}
        for provider, resources in left.items()
        if (amounts := {name: amount for name, amount in resources.items() if amount})
    }
    if not found_amounts:
        raise exceptions.CommandError("Nothing would be left: delete the reservation instead.")
    return found_amounts


class MissingAmounts(FormattableColumn[Sequence[Mapping[str, Any]]]):
    """The missing amounts of a reservation: lines for tables, and the unchanged answer for JSON or YAML."""

    def __init__(self, degraded: Sequence[Mapping[str, Any]], names: HostNames) -> None:
        super().__init__(degraded)
        self._names = names

    def human_readable(self) -> str:
        """Return a line for each amount, with its provider and the reason."""
        return "\n".join(
            f"{self._names.provider_name(each['provider']) or each['provider']}:"
            f" {amounts_text({each['resource_class']: each['missing']})} missing,"
            f" {each['reason'].replace('_', ' ')}"
            for each in self._value
        )


class GuestLines(FormattableColumn[Sequence[Mapping[str, Any]]]):
    """The guests on a host in maintenance: lines for tables, and the unchanged answer for JSON or YAML."""

    def human_readable(self) -> str:
        """Return a line for each guest: its uuid, type and project, and whether it has to move."""
        return "\n".join(
            f"{each['consumer_uuid']} ({each['consumer_type']}, project {each['project_id']}):"
            f" {'has to move' if each['has_to_move'] else 'ends before, at ' + str(each['ends_at'])}"
            for each in self._value
        )


def _reservation_columns(asking: command.Command, answer: Mapping[str, Any]) -> ShownObject:
    reservation = answer["reservation"]
    names = HostNames(asking)
    # if claims use all resources of a window, only the field "claimed" still shows its hosts
    providers = (*reservation["allocations"], *(reservation.get("claimed") or ()))
    # the answer has the guests that prevent a degraded reservation only if an administrator asks
    more: dict[str, Any] = {"guests": GuestLines(reservation["guests"])} if "guests" in reservation else {}
    if "claims" in answer:
        # the host of each consumer, in the order of the requests
        more["claims"] = [names.host_name(each["root_provider_uuid"]) for each in answer["claims"]]
    # the consumers that made room for the reservation; mostly there are none
    more |= {name: answer[name] for name in ("preempted", "moved") if answer.get(name)}
    return (*RESERVATION_COLUMNS, "hosts", *more), (
        # a service of an earlier release sends no starts, states, causes and claimed amounts
        *(reservation.get(name) for name in RESERVATION_COLUMNS[:-3]),
        MissingAmounts(reservation.get("degraded") or [], names),
        *(ProviderAmounts(reservation.get(name) or {}, names) for name in RESERVATION_COLUMNS[-2:]),
        names.host_names(providers),
        *more.values(),
    )


def _reservation_row(reservation: Mapping[str, Any]) -> TableRow:
    # a window that is over holds no allocations; the field "promised" has the amounts that it has held
    parts = [reservation["promised"]] if "promised" in reservation else None
    # a service of an earlier release sends none of the fields that are read with get()
    claimed = [each["resources"] for each in (reservation.get("claimed") or {}).values()]
    booked = parts or [*(each["resources"] for each in reservation["allocations"].values()), *claimed]
    return (
        *(reservation[name] for name in _LISTED_COLUMNS[:4]),
        amounts_text(sum_amounts(booked)),
        *(reservation.get(name) for name in ("starts_at", "state")),
        bool(reservation.get("degraded")),
        reservation.get("movable"),
        amounts_text(sum_amounts(claimed)),
        reservation.get("on_end"),
    )
