"""Commands of ``openstack`` for claims, which osc-placement does not have."""

import argparse
import uuid
from collections.abc import Mapping
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.arguments import (
    add_on_end,
    add_request_arguments,
    add_topology,
    given_fields,
    request_fields,
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
    print_warnings,
    request_extension,
    send_request,
)

_CLAIMS: Final = "/ext/v1/claims"
_CONFLICT_TEXT: Final = "consumer generation conflict"
"""Text in the error with which the service refuses a wrong generation of a consumer."""
_GENERATIONS_VERSION: Final = "1.28"
"""First microversion in which the answer with allocations also has the generation of their consumer."""
CLAIM_COLUMNS: Final = (
    *("#", "host", "resource_provider", "resources", "score"),
    *("consumer", "generation", "expires_at"),
)
"""The columns of a claim and of its alternates, which are choices on other hosts."""


class CreateClaim(PlacementCommand, command.Lister):
    """Find an allocation candidate and claim it in one call.

    The query is the query string of GET /allocation_candidates:

      openstack allocation claim create 'resources=VCPU:4,MEMORY_MB:8192' --project-id web --user-id ann

    A flavor in options or in a file replaces the query. The service translates the flavor as Nova does:

      openstack allocation claim create --vcpus 4 --ram 8192 --project-id web --user-id ann

    The table has a line for each resource provider. Lines with the number 0 are the claim. Lines with numbers
    from 1 on are alternates, which are choices on other hosts. The column "score" has a value if the claim
    has an order or a soft policy. The column "expires_at" has a value if the claim expires or has an end
    time. A dry run claims nothing, so its columns "consumer", "generation" and "expires_at" are empty. If no
    host fits, the command shows the reasons.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_request_arguments(parser)
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
            help="Current generation of an existing consumer; the claim replaces the allocations of this"
            " consumer. Without this option, the consumer must not have allocations yet",
        )
        parser.add_argument(
            "--reservation",
            metavar="<uuid>",
            help="UUID of the reservation from which the claim takes its resources",
        )
        parser.add_argument(
            "--group",
            metavar="<name>",
            help="Name of the group that the consumer joins; --policy is a rule for the hosts of this group",
        )
        parser.add_argument(
            "--policy",
            choices=("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"),
            help="Whether the consumer gets the same host as other members of --group, or another host"
            " (default: anti-affinity)",
        )
        add_topology(parser)
        parser.add_argument(
            "--alternates",
            metavar="<number>",
            type=int,
            help="Number of choices on other hosts that the command shows below the claim",
        )
        _add_expires_in(parser, "Seconds after which the claim expires, unless it is confirmed")
        parser.add_argument(
            "--ends-at",
            metavar="<time>",
            help="Time when the claim ends, such as 2026-12-24T18:00:00Z (UTC). A claim from a reservation"
            " with a start needs this option",
        )
        parser.add_argument(
            "--preemptible",
            dest="min_duration",
            metavar="<seconds>",
            type=int,
            help="Make a claim that keeps its resources for at least this number of seconds. Afterwards, the"
            " claim ends when a reservation needs these resources, at --ends-at at the latest. The service"
            " chooses the host on which the claim can last longest",
        )
        add_on_end(
            parser,
            "What happens to the guest at --ends-at: nothing, an event, or an eviction by the agent of its"
            " host (default: evict for preemptible claims, else the value of the reservation, or none)",
        )
        parser.add_argument("--dry-run", action="store_true", help="Show the claim without making it")

    def take_action(self, parsed_args: argparse.Namespace) -> ShownTable:
        """Claim, and show the allocations."""
        claim = {
            **request_fields(self, parsed_args),
            "consumer_uuid": parsed_args.uuid or str(uuid.uuid4()),
            "consumer_generation": parsed_args.generation,
            "consumer_type": parsed_args.consumer_type,
            **given_fields(parsed_args, "alternates", "expires_in"),
        }
        if parsed_args.group is not None:
            claim["group"] = {"name": parsed_args.group, "policy": parsed_args.policy or "anti-affinity"}
        elif parsed_args.policy is not None:
            raise exceptions.CommandError("--policy needs a group: give its name with --group.")
        body: dict[str, Any] = {"claims": [claim], "dry_run": parsed_args.dry_run}
        body |= given_fields(parsed_args, "reservation", "ends_at", "on_end")
        if min_duration := given_fields(parsed_args, "min_duration"):
            body["preemptible"] = min_duration
        try:
            (claimed,) = request_extension(self, "POST", _CLAIMS, json=body)["claims"]
        except exceptions.Conflict as error:
            # conflicts of other kinds have the same status, and their texts need no addition
            if _CONFLICT_TEXT not in str(error):
                raise
            raise exceptions.CommandError(
                f"{error}. Does the consumer exist already? --generation replaces the allocations of a"
                " consumer with that generation."
            ) from None
        print_warnings(self, claimed.get("warnings", ()))
        held: TableRow = tuple(claimed[name] for name in ("consumer_uuid", "consumer_generation"))
        # a service of an earlier release sends no field "ends_at"
        held += (claimed["expires_at"] or claimed.get("ends_at"),)
        if parsed_args.dry_run:
            print("Dry run: nothing was claimed.", file=self.app.stderr)
            held = None, None, None
        names = HostNames(self)
        rows = [(0, *row, *held) for row in _place_rows(claimed, names)]
        for number, alternate in enumerate(claimed["alternates"], start=1):
            rows += [(number, *row, None, None, None) for row in _place_rows(alternate, names)]
        return CLAIM_COLUMNS, rows


class _ClaimCommand(UuidCommand):
    noun = "consumer"


class ShowClaim(_ClaimCommand, command.ShowOne):
    """Show a claim that expires or ends: its resources, and the reservation from which it has taken them.

    The field "allocations" has a line for each resource provider.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> ShownObject:
        """Show the claim."""
        claim = send_request(self, "GET", f"{_CLAIMS}/{parsed_args.uuid}")["claim"]
        names = HostNames(self)
        # a service of an earlier release sends no amounts
        amounts = claim.get("allocations", {})
        times = ("expires_at", "ends_at", "on_end", "kept_until", "reservation")
        return ("consumer", "generation", *times, "hosts", "allocations"), (
            claim["consumer_uuid"],
            claim["consumer_generation"],
            *(claim.get(name) for name in times),
            names.host_names(amounts),
            ProviderAmounts(amounts, names),
        )


class ConfirmClaim(_ClaimCommand, command.ShowOne):
    """Confirm a claim. A confirmed claim does not expire, or expires at a new time with --expires-in.

    A claim that has already expired cannot be confirmed.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super()._add_arguments(parser)
        parser.add_argument(
            "--generation",
            metavar="<number>",
            type=int,
            help="Generation of the consumer, as the command that made the claim has shown it (default: the"
            " current generation)",
        )
        _add_expires_in(parser, "Seconds from now after which the claim expires (default: never)")

    def take_action(self, parsed_args: argparse.Namespace) -> ShownObject:
        """Confirm the claim with the given generation, or with the current generation if none is given."""
        generation = _claim_generation(self, parsed_args)
        body = {"consumer_generation": generation, **given_fields(parsed_args, "expires_in")}
        claim = send_request(self, "PUT", f"{_CLAIMS}/{parsed_args.uuid}", json=body)["claim"]
        columns = ("consumer", "generation", "expires_at")
        return columns, (claim["consumer_uuid"], claim["consumer_generation"], claim["expires_at"])


class SetClaim(_ClaimCommand, command.ShowOne):
    """Change the end time of a claim, or what happens to its guest at that time.

    The claim keeps its host and its resources. If other claims or reservations need these resources before
    the new end time, the command fails. A claim from a reservation ends with the reservation at the latest.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super()._add_arguments(parser)
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
        add_on_end(
            parser,
            "What happens to the guest at the end: nothing, an event, or an eviction by the agent of its host"
            " (default: as before)",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> ShownObject:
        """Change the end time with the given generation, or with the current generation if none is given."""
        changes = given_fields(parsed_args, "ends_at", "on_end")
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
    # without allocations, the answer has no generation. The service then refuses the generation 0, and its
    # error has the reason.
    current: int = held.get("consumer_generation", 0)
    return current


def _place_rows(choice: Mapping[str, Any], names: HostNames) -> list[TableRow]:
    """Return a row for each provider of a claim or an alternate: host, provider, amounts and score."""
    total = None if choice["score"] is None else choice["score"]["total"]
    return [
        (names.host_name(provider), provider, amounts_text(each["resources"]), total)
        for provider, each in choice["allocations"].items()
    ]


def _add_expires_in(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--expires-in", metavar="<seconds>", type=float, help=what)
