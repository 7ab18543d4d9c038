"""Commands of ``openstack`` for claims, reservations and free windows, which osc-placement does not have."""

import argparse
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.flavors import (
    add_source_arguments,
    add_topology,
    given_strict,
    given_topology,
    request_source,
)
from placement_extras.openstack.requests import (
    HostNames,
    amounts_text,
    parse_pairs,
    print_warnings,
    read_pages,
    request_extension,
    root_uuids,
    send_request,
)

_CLAIMS: Final = "/ext/v1/claims"
_RESERVATIONS: Final = "/ext/v1/reservations"
_AVAILABILITY: Final = "/ext/v1/availability"
_PAGE_SIZE: Final = 1000  # reservations in an answer, the maximum of the service
_CONFLICT_TEXT: Final = "consumer generation conflict"
"""Text in the service's error for a wrong generation."""
_GENERATIONS_VERSION: Final = "1.28"
"""First microversion that shows allocations together with the generation of their consumer."""
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
    *("starts_at", "state", "degraded", "movable"),
)
"""The columns of the list of reservations."""
CLAIM_COLUMNS: Final = (
    *("#", "host", "resource_provider", "resources", "score"),
    *("consumer", "generation", "expires_at"),
)
"""The columns of a claim and of its alternates (further choices)."""
AVAILABILITY_COLUMNS: Final = (
    *("starts_at", "ends_at", "free_until"),
    *("host", "root_provider", "resources"),
)
"""Columns of a free window; with several consumers, each consumer has a line."""

TableRow = tuple[Any, ...]


class CreateClaim(command.Lister):
    """Find a candidate and claim it in one call.

    The query is the query string of GET /allocation_candidates:

      openstack allocation claim create 'resources=VCPU:4,MEMORY_MB:8192' --project-id web --user-id ann

    A flavor in options or in a file replaces the query. The service translates the flavor as Nova does:

      openstack allocation claim create --vcpus 4 --ram 8192 --project-id web --user-id ann

    The table has a line for each resource provider. Lines with the number 0 are the claim; lines with numbers
    from 1 on are alternates. The column "score" is filled if the claim has an order, and "expires_at" if the
    claim expires or has an end time. A dry run claims nothing, so its columns "consumer", "generation" and
    "expires_at" are empty. If no host fits, the command shows the reasons.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_request_arguments(parser)
        parser.add_argument("--uuid", metavar="<uuid>", help="UUID of the consumer (default: a new one)")
        parser.add_argument(
            "--consumer-type",
            metavar="<type>",
            default="INSTANCE",
            help="Type of the consumer (default: INSTANCE)",
        )
        parser.add_argument(
            "--generation",
            metavar="<number>",
            type=int,
            help="Current generation of an existing consumer; the claim then replaces the allocations"
            " of this consumer",
        )
        parser.add_argument(
            "--reservation",
            metavar="<uuid>",
            help="UUID of the reservation from which the claim gets its resources",
        )
        parser.add_argument(
            "--group",
            metavar="<name>",
            help="Name of the group that the consumer joins; --policy relates to the members of this group",
        )
        parser.add_argument(
            "--policy",
            choices=("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"),
            help="Rule for the hosts of this consumer and the other members of --group (default:"
            " anti-affinity)",
        )
        add_topology(parser)
        parser.add_argument(
            "--alternates",
            metavar="<number>",
            type=int,
            help="Number of choices on other hosts to show after the claim",
        )
        _add_expires_in(parser, "Seconds after which the claim expires, unless it is confirmed")
        parser.add_argument(
            "--ends-at",
            metavar="<time>",
            help="Time when the claim ends, such as 2026-12-24T18:00:00Z (UTC); required for a claim from a"
            " reservation with a start",
        )
        parser.add_argument(
            "--preemptible",
            dest="min_duration",
            metavar="<seconds>",
            type=int,
            help="Make a claim that lasts at least this number of seconds, and ends when a reservation needs"
            " its resources, or at --ends-at. The service chooses the host on which the claim can last"
            " longest",
        )
        _add_on_end(
            parser,
            "What happens to the guest at --ends-at: nothing, an event, or an eviction by the agent of its"
            " host (default: evict for preemptible claims, else the value of the reservation, or none)",
        )
        parser.add_argument("--dry-run", action="store_true", help="Show the claim without making it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[TableRow]]:
        """Claim, and show the allocations."""
        claim = {
            **_request_fields(self, parsed_args),
            "consumer_uuid": parsed_args.uuid or str(uuid.uuid4()),
            "consumer_generation": parsed_args.generation,
            "consumer_type": parsed_args.consumer_type,
            **given_topology(parsed_args),
            **_given_fields(parsed_args, "alternates", "expires_in"),
        }
        if parsed_args.group is not None:
            claim["group"] = {"name": parsed_args.group, "policy": parsed_args.policy or "anti-affinity"}
        elif parsed_args.policy is not None:
            raise exceptions.CommandError("--policy needs a group: give its name with --group.")
        body: dict[str, Any] = {"claims": [claim], "dry_run": parsed_args.dry_run}
        body |= _given_fields(parsed_args, "reservation", "ends_at", "on_end")
        if min_duration := _given_fields(parsed_args, "min_duration"):
            body["preemptible"] = min_duration
        try:
            (claimed,) = request_extension(self, "POST", _CLAIMS, json=body)["claims"]
        except exceptions.Conflict as error:
            # other causes have the same status, and their texts are sufficient by themselves
            if _CONFLICT_TEXT not in str(error):
                raise
            raise exceptions.CommandError(
                f"{error}. Does the consumer exist already? --generation replaces the allocations of a"
                " consumer with that generation."
            ) from None
        print_warnings(self, claimed.get("warnings", ()))
        held: TableRow = tuple(claimed[name] for name in ("consumer_uuid", "consumer_generation"))
        # an earlier service has no ends
        held += (claimed["expires_at"] or claimed.get("ends_at"),)
        if parsed_args.dry_run:
            print("Dry run: nothing was claimed.", file=self.app.stderr)
            held = None, None, None
        names = HostNames(self)
        rows = [(0, *row, *held) for row in _place_rows(claimed, names)]
        for number, alternate in enumerate(claimed["alternates"], start=1):
            rows += [(number, *row, None, None, None) for row in _place_rows(alternate, names)]
        return CLAIM_COLUMNS, rows


class ConfirmClaim(command.ShowOne):
    """Confirm a claim, so that it does not expire, or expires later.

    A claim that has already expired cannot be confirmed.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("uuid", metavar="<uuid>", help="UUID of the consumer")
        parser.add_argument(
            "--generation",
            metavar="<number>",
            type=int,
            help="Generation of the consumer, from the answer to the claim (default: the current generation)",
        )
        _add_expires_in(parser, "Seconds from now after which the claim expires (default: never)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], TableRow]:
        """Confirm the claim with the given generation, or with the current generation if none is given."""
        generation = _claim_generation(self, parsed_args)
        body = {"consumer_generation": generation, **_given_fields(parsed_args, "expires_in")}
        claim = send_request(self, "PUT", f"{_CLAIMS}/{parsed_args.uuid}", json=body)["claim"]
        columns = ("consumer", "generation", "expires_at")
        return columns, (claim["consumer_uuid"], claim["consumer_generation"], claim["expires_at"])


class SetClaim(command.ShowOne):
    """Change the end time of a claim, or the action on its guest at that time.

    The claim keeps its host and its resources. If other claims or reservations need these resources before
    the new end time, the command fails. A claim from a reservation ends with the reservation at the latest.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("uuid", metavar="<uuid>", help="UUID of the consumer")
        parser.add_argument(
            "--generation",
            metavar="<number>",
            type=int,
            help="Generation of the consumer (default: the current generation)",
        )
        parser.add_argument(
            "--ends-at",
            metavar="<time>",
            help="New end time of the claim, such as 2026-12-24T18:00:00Z (UTC; default: as before)",
        )
        _add_on_end(
            parser,
            "What happens to the guest at the end: nothing, an event, or an eviction by the agent of its host"
            " (default: as before)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], TableRow]:
        """Change the end time with the given generation, or with the current generation if none is given."""
        changes = _given_fields(parsed_args, "ends_at", "on_end")
        if not changes:
            raise exceptions.CommandError("Nothing to change: give --ends-at or --on-end.")
        body = {"consumer_generation": _claim_generation(self, parsed_args), **changes}
        claim = send_request(self, "PUT", f"{_CLAIMS}/{parsed_args.uuid}", json=body)["claim"]
        columns = ("consumer", "generation", "ends_at", "on_end")
        fields = ("consumer_uuid", "consumer_generation", "ends_at", "on_end")
        return columns, tuple(claim[name] for name in fields)


def _claim_generation(asking: command.Command, parsed_args: argparse.Namespace) -> int:
    """Return the given generation of a consumer, or its current one."""
    if parsed_args.generation is not None:
        given: int = parsed_args.generation
        return given
    held = send_request(asking, "GET", f"/allocations/{parsed_args.uuid}", version=_GENERATIONS_VERSION)
    # 0 stands for a missing consumer; the service then refuses the request and gives the reason
    current: int = held.get("consumer_generation", 0)
    return current


class CreateReservation(command.ShowOne):
    """Hold resources for a project until a given time. Claims of the project can use these resources.

    The query is the query string of GET /allocation_candidates. A flavor may replace the query. With --count
    or --and-query, one reservation holds the resources of several consumers; if one of them has no place,
    nothing is reserved. With --maintenance-of, the reservation takes a whole host away instead.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_request_arguments(parser)
        add_topology(parser)
        _add_joint_arguments(parser)
        _add_expiry(parser)
        parser.add_argument(
            "--maintenance-of",
            metavar="<host>",
            help="Reserve a whole host for a maintenance, instead of the resources of a query. The value is"
            " the name of the host, or the UUID of its root provider; needs --from and --until",
        )
        parser.add_argument(
            "--from",
            dest="starts_at",
            metavar="<time>",
            help="Time when the reservation begins, such as 2026-12-24T18:00:00Z (UTC); needs --until"
            " (default: now)",
        )
        _add_margins(parser)
        _add_on_end(parser, f"{_ON_END_HELP} (default: none)")
        parser.add_argument("--uuid", metavar="<uuid>", help="UUID of the reservation (default: a new one)")
        parser.add_argument(
            "--group",
            metavar="<name>",
            help="Name of a group of claims. With this option, only claims of the group can use the"
            " reservation",
        )
        parser.add_argument(
            "--fixed",
            dest="movable",
            action="store_const",
            const=False,
            help="Never move the window to another host before its start",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], TableRow]:
        """Make the reservation, and return its columns and values."""
        host = parsed_args.maintenance_of
        body = {
            **_joint_fields(self, parsed_args, needs_source=host is None),
            **_owner_fields(parsed_args),
            **_expiry_fields(parsed_args),
            **_given_fields(
                parsed_args, "uuid", "group", "starts_at", "lead_time", "cleaning_time", "on_end", "movable"
            ),
        }
        if host is not None:
            # the service refuses a query, a flavor or hosts beside it, with a reason
            (body["maintenance_of"],) = root_uuids(self, [host])
        answer = request_extension(self, "POST", _RESERVATIONS, json=body)
        print_warnings(self, answer.get("warnings", ()))
        return _reservation_columns(self, answer)


class ListReservations(command.Lister):
    """List the reservations that have not expired yet."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
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
            " hosts no longer have the reserved amounts. An active one has failed if none of its amounts is"
            " available. Ended and cancelled reservations are listed for 90 days",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[TableRow]]:
        """List reservations, page by page."""
        asked = {"limit": _PAGE_SIZE, **_given_fields(parsed_args, "project_id", "group", "state")}
        return _LISTED_COLUMNS, [
            _reservation_row(each) for each in read_pages(self, _RESERVATIONS, asked, "reservations")
        ]


class ShowReservation(command.ShowOne):
    """Show a reservation, and the allocations that claims have not used yet."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        return _with_uuid(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], TableRow]:
        """Show the reservation."""
        return _reservation_columns(self, send_request(self, "GET", f"{_RESERVATIONS}/{parsed_args.uuid}"))


class SetReservation(command.ShowOne):
    """Change the time when a reservation expires, or what happens at the end of claims from it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser = _with_uuid(super().get_parser(prog_name))
        _add_expiry(parser, is_required=False)
        _add_on_end(parser, f"{_ON_END_HELP} (default: as before)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], TableRow]:
        """Write the changes with the current generation."""
        changes = {**_expiry_fields(parsed_args), **_given_fields(parsed_args, "on_end")}
        if not changes:
            raise exceptions.CommandError("Nothing to change: give --until, --for or --on-end.")
        path = f"{_RESERVATIONS}/{parsed_args.uuid}"
        generation = send_request(self, "GET", path)["reservation"]["generation"]
        return _reservation_columns(
            self,
            send_request(self, "PUT", path, json={"generation": generation, **changes}),
        )


class DeleteReservation(command.Command):
    """Delete a reservation, and the allocations that claims have not used yet."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        return _with_uuid(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the reservation."""
        send_request(self, "DELETE", f"{_RESERVATIONS}/{parsed_args.uuid}")


class ListAvailability(command.Lister):
    """List the earliest windows in which a request fits. Nothing is reserved.

    The query is the query string of GET /allocation_candidates:

      openstack resource availability list 'resources=VCPU:4,MEMORY_MB:8192' --for 86400

    A flavor in options or in a file replaces the query. To book a window, give its start to --from of
    "openstack resource reservation create", its end to --until, and its host to --allowed-host. An empty
    "free_until" means that nothing is planned afterwards.

    With --count or --and-query, each window is for several consumers, and has a line for each of them.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_place_arguments(parser)
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
            help="Latest end time (UTC); default: any end time of a stay that starts within 366 days",
        )
        _add_joint_arguments(parser)
        _add_margins(parser)
        parser.add_argument(
            "--limit", metavar="<number>", type=int, help="Maximum number of windows (default: 5)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[TableRow]]:
        """List the windows; if there are no windows, fail with the reason."""
        body = {
            **_joint_fields(self, parsed_args),
            **_given_fields(parsed_args, "duration", "not_before", "deadline", "limit"),
            **_given_fields(parsed_args, "lead_time", "cleaning_time"),
            # reasons cost the service more than the search does, but a person needs them
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
                amounts_text(_sum_amounts(some["resources"] for some in choice["allocations"].values())),
            )
            for each in answer["windows"]
            for choice in each.get("claims", [each])
        ]
        return AVAILABILITY_COLUMNS, rows


def _with_uuid(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("uuid", metavar="<uuid>", help="UUID of the reservation")
    return parser


def _add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a query or a flavor, its owner, the hosts and the order."""
    _add_place_arguments(parser)
    parser.add_argument("--project-id", metavar="<project>", required=True, help="Project of the consumer")
    parser.add_argument("--user-id", metavar="<user>", required=True, help="User of the consumer")
    parser.add_argument(
        "--order",
        metavar="<criterion>=<weight>",
        action="append",
        default=[],
        help="Criterion for the choice of the host, with its weight, such as pack=1 or attribute:price=-2"
        " (may be repeated)",
    )


def _add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a query or a flavor, and the hosts."""
    add_source_arguments(parser)
    parser.add_argument(
        "--query-version",
        metavar="<version>",
        help="Placement microversion that defines the syntax of the query (default: the newest)",
    )
    parser.add_argument(
        "--allowed-host",
        metavar="<host>",
        action="append",
        default=[],
        help="Host that the service may choose: its name, or the UUID of its root provider (may be repeated)",
    )
    parser.add_argument(
        "--excluded-host",
        metavar="<host>",
        action="append",
        default=[],
        help="Host that the service may not choose: its name, or the UUID of its root provider (may be"
        " repeated)",
    )


def _add_joint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for claims of several consumers at the same time."""
    parser.add_argument(
        "--count", metavar="<number>", type=int, help="Number of consumers with this request (default: 1)"
    )
    parser.add_argument(
        "--and-query",
        metavar="<query>",
        action="append",
        default=[],
        help="Query of a further consumer that needs its resources at the same time, with the same hosts and"
        " the same topology (may be repeated)",
    )
    parser.add_argument(
        "--different-hosts",
        action="store_true",
        help="Choose a different host for each consumer; needs --count or --and-query",
    )


def _joint_fields(
    asking: command.Command, parsed_args: argparse.Namespace, *, needs_source: bool = True
) -> dict[str, Any]:
    """Return the fields for one request, or for the requests of several consumers."""
    asked = _place_fields(asking, parsed_args, needs_source=needs_source) | given_topology(parsed_args)
    if parsed_args.count is None and not parsed_args.and_query:
        if parsed_args.different_hosts:
            raise exceptions.CommandError(
                "--different-hosts needs several consumers: give --count or --and-query."
            )
        return asked
    claims = [asked | _given_fields(parsed_args, "count")]
    claims += [
        {
            **{name: value for name, value in asked.items() if name != "flavor"},
            "query": each.removeprefix("?"),
        }
        for each in parsed_args.and_query
    ]
    return {"claims": claims, "different_hosts": parsed_args.different_hosts}


def _request_fields(asking: command.Command, parsed_args: argparse.Namespace) -> dict[str, Any]:
    return _place_fields(asking, parsed_args) | _owner_fields(parsed_args)


def _owner_fields(parsed_args: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"project_id": parsed_args.project_id, "user_id": parsed_args.user_id}
    try:
        weights = parse_pairs(parsed_args.order, "--order", "<weight>")
        body["order"] = {name: float(weight) for name, weight in weights.items()}
    except ValueError:
        raise exceptions.CommandError("--order: a weight is a number.") from None
    return body


def _place_fields(
    asking: command.Command, parsed_args: argparse.Namespace, *, needs_source: bool = True
) -> dict[str, Any]:
    body: dict[str, Any] = {
        **request_source(parsed_args, is_needed=needs_source),
        **given_strict(parsed_args),
        "excluded_hosts": root_uuids(asking, parsed_args.excluded_host),
    }
    if parsed_args.query_version is not None:
        body["microversion"] = parsed_args.query_version
    if parsed_args.allowed_host:
        body["allowed_hosts"] = root_uuids(asking, parsed_args.allowed_host)
    return body


def _given_fields(parsed_args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those of the named options that the user has given, as fields of a body."""
    return {name: getattr(parsed_args, name) for name in names if getattr(parsed_args, name) is not None}


def _place_rows(choice: Mapping[str, Any], names: HostNames) -> list[TableRow]:
    """Return host, provider, amounts and score for each provider of a choice."""
    total = None if choice["score"] is None else choice["score"]["total"]
    return [
        (names.host_name(provider), provider, amounts_text(each["resources"]), total)
        for provider, each in choice["allocations"].items()
    ]


def _add_expires_in(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--expires-in", metavar="<seconds>", type=float, help=what)


def _add_on_end(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--on-end", choices=("none", "notify", "evict"), help=what)


_ON_END_HELP: Final = (
    "What happens to a guest when its claim on the reservation ends: nothing, an event, or an eviction by"
    " the agent of the host. The value applies to later claims that do not set --on-end"
)


def _add_expiry(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    end = parser.add_mutually_exclusive_group(required=is_required)
    end.add_argument(
        "--for", dest="seconds", metavar="<seconds>", type=float, help="Seconds until the reservation expires"
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


def _reservation_columns(
    asking: command.Command, answer: Mapping[str, Any]
) -> tuple[tuple[str, ...], TableRow]:
    reservation = answer["reservation"]
    names = HostNames(asking)
    # a window that claims use up still has hosts
    providers = (*reservation["allocations"], *(reservation.get("claimed") or ()))
    hosts = sorted({name for provider in providers if (name := names.host_name(provider))})
    # only administrators see the guests that are in the way of a degraded reservation
    more = {"guests": reservation["guests"]} if "guests" in reservation else {}
    if "claims" in answer:
        # the host of each consumer, in the order of the requests
        more["claims"] = [names.host_name(each["root_provider_uuid"]) for each in answer["claims"]]
    return (*RESERVATION_COLUMNS, "hosts", *more), (
        # an earlier service has no times of a start, no states, no causes and no claimed amounts
        *(reservation.get(name) for name in RESERVATION_COLUMNS),
        hosts,
        *more.values(),
    )


def _reservation_row(reservation: Mapping[str, Any]) -> TableRow:
    # a window that is over holds nothing
    parts = [reservation["promised"]] if "promised" in reservation else None
    held = _sum_amounts(parts or (each["resources"] for each in reservation["allocations"].values()))
    return (
        *(reservation[name] for name in _LISTED_COLUMNS[:4]),
        amounts_text(held),
        # an earlier service has none of these
        *(reservation.get(name) for name in ("starts_at", "state")),
        bool(reservation.get("degraded")),
        reservation.get("movable"),
    )


def _sum_amounts(parts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for each in parts:
        total.update(each)
    return total
