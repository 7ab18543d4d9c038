"""Options of the commands of ``openstack`` for claims and reservations, and the fields for their requests."""

import argparse
from typing import Any

from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.flavors import (
    add_source_arguments,
    given_strict,
    given_topology,
    request_source,
)
from placement_extras.openstack.requests import add_repeated, parse_pairs, root_uuids


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a query or a flavor, the owner of the consumer, the hosts and their order."""
    add_place_arguments(parser)
    parser.add_argument("--project-id", metavar="<project>", required=True, help="Project of the consumer")
    parser.add_argument("--user-id", metavar="<user>", required=True, help="User of the consumer")
    add_repeated(
        parser,
        "--order",
        "<criterion>=<weight>",
        "Criterion for the choice of the host, with its weight, such as pack=1 or attribute:price=-2",
    )


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a query or a flavor, and for the hosts that the service can choose."""
    add_source_arguments(parser)
    parser.add_argument(
        "--query-version",
        metavar="<version>",
        help="Placement microversion that defines the syntax of the query (default: the newest)",
    )
    add_repeated(
        parser,
        "--allowed-host",
        "<host>",
        "Host that the service may choose: its name, or the UUID of its root provider",
    )
    add_repeated(
        parser,
        "--excluded-host",
        "<host>",
        "Host that the service may not choose: its name, or the UUID of its root provider",
    )


def add_joint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for claims of several consumers at the same time."""
    parser.add_argument(
        "--count", metavar="<number>", type=int, help="Number of consumers with this request (default: 1)"
    )
    add_repeated(
        parser,
        "--and-query",
        "<query>",
        "Query of a further consumer that needs its resources at the same time, with the same hosts and the"
        " same topology",
    )
    parser.add_argument(
        "--different-hosts",
        action="store_true",
        help="Choose a different host for each consumer; needs --count or --and-query",
    )


def joint_fields(
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
    claims = [asked | given_fields(parsed_args, "count")]
    claims += [
        {
            **{name: value for name, value in asked.items() if name != "flavor"},
            "query": each.removeprefix("?"),
        }
        for each in parsed_args.and_query
    ]
    return {"claims": claims, "different_hosts": parsed_args.different_hosts}


def request_fields(asking: command.Command, parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields for a query or a flavor, the hosts and their order, and the owner of the consumer."""
    return _place_fields(asking, parsed_args) | owner_fields(parsed_args)


def owner_fields(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields for the owner of a claim or a reservation, and for the order of hosts."""
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


def given_fields(parsed_args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the fields of a body for options with these names; leave out options that are not given."""
    return {name: getattr(parsed_args, name) for name in names if getattr(parsed_args, name) is not None}


def add_on_end(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option for the action at the end of a claim."""
    parser.add_argument("--on-end", choices=("none", "notify", "evict"), help=what)
