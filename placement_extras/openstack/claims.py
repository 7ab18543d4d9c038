"""Commands of ``openstack`` that claim and reserve, beside those of osc-placement."""

import argparse
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.flavors import add_topology, add_wanted, given_strict, given_topology, wanted
from placement_extras.openstack.requests import HostNames, in_words, pairs, request, request_ours, roots, warn

_CLAIMS: Final = "/ext/v1/claims"
_RESERVATIONS: Final = "/ext/v1/reservations"
_PAGE: Final = 1000
_CONFLICT: Final = "consumer generation conflict"
"""What the service says where another generation is there than the one that was given."""
_GENERATIONS: Final = "1.28"
"""The microversion since which allocations are shown with the generation of their consumer."""
SHOWN: Final = ("uuid", "project_id", "user_id", "group", "generation", "expires_at", "allocations")
"""What is shown of a reservation."""
CLAIMED: Final = (
    *("#", "host", "resource_provider", "resources", "score"),
    *("consumer", "generation", "expires_at"),
)

Row = tuple[Any, ...]


class CreateClaim(command.Lister):
    """Find a candidate and claim it in one call.

    The query is the query string of GET /allocation_candidates:

      openstack allocation claim create 'resources=VCPU:4,MEMORY_MB:8192' --project-id web --user-id ann

    Instead there may be a flavor, by options or in a file, which is translated as Nova does:

      openstack allocation claim create --vcpus 4 --ram 8192 --project-id web --user-id ann

    The table has what the consumer holds now, a line for each resource provider, as number 0, with its score
    if there is an order, and with the time when it expires if it does. Alternates follow, from number 1 on.
    After a dry run nothing is held, so that there is no consumer, no generation and no such time. If there is
    no place, it is said why.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_wanted(parser)
        parser.add_argument("--uuid", metavar="<uuid>", help="UUID of the consumer (default: a new one)")
        parser.add_argument(
            "--consumer-type", metavar="<type>", default="INSTANCE", help="Its type (default: INSTANCE)"
        )
        parser.add_argument(
            "--generation",
            metavar="<number>",
            type=int,
            help="Its generation, if it is there already: what it holds is replaced",
        )
        parser.add_argument("--reservation", metavar="<uuid>", help="Reservation that it is taken from")
        parser.add_argument("--group", metavar="<name>", help="Group that the consumer is to be in")
        parser.add_argument(
            "--policy",
            choices=("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"),
            help="Where it is to be beside the others of --group (default: anti-affinity)",
        )
        add_topology(parser)
        parser.add_argument(
            "--alternates", metavar="<number>", type=int, help="Show so many other places that would do"
        )
        _add_expires_in(parser, "It is gone by itself after so many seconds, unless it is confirmed")
        parser.add_argument(
            "--dry-run", action="store_true", help="Claim nothing, and show what would be claimed"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[Row]]:
        """Claim, and show what is held."""
        claim = {
            **_wanted(self, parsed_args),
            "consumer_uuid": parsed_args.uuid or str(uuid.uuid4()),
            "consumer_generation": parsed_args.generation,
            "consumer_type": parsed_args.consumer_type,
            **given_topology(parsed_args),
            **_given(parsed_args, "alternates", "expires_in"),
        }
        if parsed_args.group is not None:
            claim["group"] = {"name": parsed_args.group, "policy": parsed_args.policy or "anti-affinity"}
        elif parsed_args.policy is not None:
            raise exceptions.CommandError("--policy says how a group is placed: give its name with --group.")
        body: dict[str, Any] = {"claims": [claim], "dry_run": parsed_args.dry_run}
        if parsed_args.reservation is not None:
            body["reservation"] = parsed_args.reservation
        try:
            (claimed,) = request_ours(self, "POST", _CLAIMS, json=body)["claims"]
        except exceptions.Conflict as error:
            if _CONFLICT not in str(error):
                raise
            raise exceptions.CommandError(
                f"{error}. Is it there already? --generation says which generation of it, whose allocations"
                " are replaced."
            ) from None
        warn(self, claimed.get("warnings", ()))
        held: Row = tuple(claimed[name] for name in ("consumer_uuid", "consumer_generation", "expires_at"))
        if parsed_args.dry_run:
            print("Nothing was claimed: this is what would be.", file=self.app.stderr)
            held = None, None, None
        names = HostNames(self)
        rows = [(0, *row, *held) for row in _places(claimed, names)]
        for number, alternate in enumerate(claimed["alternates"], start=1):
            rows += [(number, *row, None, None, None) for row in _places(alternate, names)]
        return CLAIMED, rows


class ConfirmClaim(command.ShowOne):
    """Have a claim stay that would be gone by itself, or last longer.

    One that has expired cannot be confirmed.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("uuid", metavar="<uuid>", help="UUID of the consumer")
        parser.add_argument(
            "--generation",
            metavar="<number>",
            type=int,
            help="Its generation, as the claim was answered with (default: the present one)",
        )
        _add_expires_in(parser, "It is gone after so many seconds from now (default: it stays)")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        """Read its generation if it is not given, and confirm under it."""
        generation = parsed_args.generation
        if generation is None:
            held = request(self, "GET", f"/allocations/{parsed_args.uuid}", version=_GENERATIONS)
            generation = held.get("consumer_generation", 0)  # where there is none, the service says so
        body = {"consumer_generation": generation, **_given(parsed_args, "expires_in")}
        claim = request(self, "PUT", f"{_CLAIMS}/{parsed_args.uuid}", json=body)["claim"]
        columns = ("consumer", "generation", "expires_at")
        return columns, (claim["consumer_uuid"], claim["consumer_generation"], claim["expires_at"])


class CreateReservation(command.ShowOne):
    """Hold resources for a project until a time, for claims to take from.

    The query is the query string of GET /allocation_candidates. Instead there may be a flavor.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_wanted(parser)
        _add_end(parser)
        parser.add_argument("--uuid", metavar="<uuid>", help="UUID of the reservation (default: a new one)")
        parser.add_argument(
            "--group", metavar="<name>", help="Only members of this group of claims may take from it"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        """Reserve, and show it."""
        body = {**_wanted(self, parsed_args), **_end(parsed_args)}
        body |= _given(parsed_args, "uuid", "group")
        answer = request_ours(self, "POST", _RESERVATIONS, json=body)
        warn(self, answer.get("warnings", ()))
        return _one(self, answer)


class ListReservations(command.Lister):
    """List reservations that have not expired."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--project-id", metavar="<project>", help="Only those of this project")
        parser.add_argument("--group", metavar="<name>", help="Only those for this group of claims")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[Row]]:
        """Read page by page."""
        asked = {"limit": _PAGE, **_given(parsed_args, "project_id", "group")}
        rows: list[Row] = []
        while True:
            page = request_ours(self, "GET", _RESERVATIONS, params=asked)
            rows += [_row(each) for each in page["reservations"]]
            if "links" not in page:
                return ("uuid", "project_id", "group", "expires_at", "resources"), rows
            asked["marker"] = page["reservations"][-1]["uuid"]


class ShowReservation(command.ShowOne):
    """Show a reservation, and what it still holds."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        return _with_uuid(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        """Ask and show."""
        return _one(self, request(self, "GET", f"{_RESERVATIONS}/{parsed_args.uuid}"))


class SetReservation(command.ShowOne):
    """Change when a reservation expires."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser = _with_uuid(super().get_parser(prog_name))
        _add_end(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        """Read its generation, and write."""
        path = f"{_RESERVATIONS}/{parsed_args.uuid}"
        generation = request(self, "GET", path)["reservation"]["generation"]
        return _one(self, request(self, "PUT", path, json={"generation": generation, **_end(parsed_args)}))


class DeleteReservation(command.Command):
    """Give back what a reservation still holds."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        return _with_uuid(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete it."""
        request(self, "DELETE", f"{_RESERVATIONS}/{parsed_args.uuid}")


def _with_uuid(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("uuid", metavar="<uuid>", help="UUID of the reservation")
    return parser


def _add_wanted(parser: argparse.ArgumentParser) -> None:
    """What is to be found, and for whom."""
    add_wanted(parser)
    parser.add_argument(
        "--query-version",
        metavar="<version>",
        help="Microversion in whose grammar the query is (default: the newest)",
    )
    parser.add_argument("--project-id", metavar="<project>", required=True, help="Project that it belongs to")
    parser.add_argument("--user-id", metavar="<user>", required=True, help="User that it belongs to")
    parser.add_argument(
        "--allowed-host",
        metavar="<host>",
        action="append",
        default=[],
        help="Name or root provider's UUID of a host that may be chosen (may be repeated)",
    )
    parser.add_argument(
        "--excluded-host",
        metavar="<host>",
        action="append",
        default=[],
        help="Name or root provider's UUID of a host of which nothing is to be taken (may be repeated)",
    )
    parser.add_argument(
        "--order",
        metavar="<criterion>=<weight>",
        action="append",
        default=[],
        help="By what the best one is chosen, such as pack=1 or attribute:price=-2 (may be repeated)",
    )


def _wanted(asking: command.Command, parsed_args: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {
        **wanted(parsed_args),
        **given_strict(parsed_args),
        "project_id": parsed_args.project_id,
        "user_id": parsed_args.user_id,
        "excluded_hosts": roots(asking, parsed_args.excluded_host),
    }
    if parsed_args.query_version is not None:
        body["microversion"] = parsed_args.query_version
    if parsed_args.allowed_host:
        body["allowed_hosts"] = roots(asking, parsed_args.allowed_host)
    try:
        weights = pairs(parsed_args.order, "--order", "<weight>")
        body["order"] = {name: float(weight) for name, weight in weights.items()}
    except ValueError:
        raise exceptions.CommandError("--order: a weight is a number.") from None
    return body


def _given(parsed_args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The fields of a body that are options of the same names, those that were given."""
    return {name: getattr(parsed_args, name) for name in names if getattr(parsed_args, name) is not None}


def _places(choice: Mapping[str, Any], names: HostNames) -> list[Row]:
    """Of a claim, or an alternate: hosts and providers, what is taken of each, and what it scores."""
    total = None if choice["score"] is None else choice["score"]["total"]
    return [
        (names.of(provider), provider, in_words(each["resources"]), total)
        for provider, each in choice["allocations"].items()
    ]


def _add_expires_in(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--expires-in", metavar="<seconds>", type=float, help=what)


def _add_end(parser: argparse.ArgumentParser) -> None:
    end = parser.add_mutually_exclusive_group(required=True)
    end.add_argument(
        "--for", dest="seconds", metavar="<seconds>", type=float, help="Expires in so many seconds"
    )
    end.add_argument("--until", metavar="<time>", help="When it expires, such as 2026-12-24T18:00:00Z (UTC)")


def _end(parsed_args: argparse.Namespace) -> dict[str, Any]:
    return {"expires_at": parsed_args.until} if parsed_args.until else {"expires_in": parsed_args.seconds}


def _one(asking: command.Command, answer: Mapping[str, Any]) -> tuple[tuple[str, ...], Row]:
    reservation = answer["reservation"]
    names = HostNames(asking)
    hosts = sorted({name for provider in reservation["allocations"] if (name := names.of(provider))})
    return (*SHOWN, "hosts"), (*(reservation[name] for name in SHOWN), hosts)


def _row(reservation: Mapping[str, Any]) -> Row:
    held = _sum(each["resources"] for each in reservation["allocations"].values())
    return (*(reservation[name] for name in ("uuid", "project_id", "group", "expires_at")), in_words(held))


def _sum(parts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for each in parts:
        total.update(each)
    return total
