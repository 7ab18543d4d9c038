"""Options of several commands of ``openstack``, and the fields of requests that come from these options.

The options describe a flavor, a claim or a reservation. Options of flavors have the names of
``openstack flavor create``.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.requests import add_repeated, parse_pairs, root_uuids

_SIZES: Final = {
    "vcpus": ("<vcpus>", "CPUs"),
    "ram": ("<size-mb>", "Memory in MiB"),
    "disk": ("<size-gb>", "Root disk in GiB"),
    "ephemeral": ("<size-gb>", "Ephemeral disk in GiB"),
    "swap": ("<size-mb>", "Swap in MiB"),
}
TOPOLOGIES: Final = ("single-numa-node", "restricted", "best-effort", "spread")
"""The policies by which the service splits dedicated CPUs and memory over NUMA nodes."""
_MAX_FILE: Final = 1 << 20
"""Maximum number of characters of a file, because one without an end, such as /dev/zero, must not fill the
memory.
"""
_SHOWN: Final = {"OS-FLV-EXT-DATA:ephemeral": "ephemeral", "properties": "extra_specs"}
"""Fields in the output of `openstack flavor show` that have other names in our requests, with these names."""


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
    add_query_version(parser, "the query")
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
    asked = _place_fields(asking, parsed_args, needs_source=needs_source)
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
    """Return the fields for a query or a flavor, its topology, the hosts and their order, and the owner."""
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
        **reading_fields(parsed_args),
        **given_fields(parsed_args, "topology"),
        "excluded_hosts": root_uuids(asking, parsed_args.excluded_host),
    }
    if parsed_args.allowed_host:
        body["allowed_hosts"] = root_uuids(asking, parsed_args.allowed_host)
    return body


def given_fields(parsed_args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the fields of a body for options with these names; leave out options that are not given."""
    return {name: getattr(parsed_args, name) for name in names if getattr(parsed_args, name) is not None}


def add_on_end(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option for the action at the end of a claim."""
    parser.add_argument("--on-end", choices=("none", "notify", "evict"), help=what)


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a query, a flavor by its sizes, or a flavor in a file."""
    add_flavor_arguments(parser)
    parser.add_argument(
        "--flavor-file",
        metavar="<file>",
        help="File with a flavor in JSON, in the format of POST /ext/v1/claims or of "
        "`openstack flavor show -f json`, instead of a query",
    )


def add_flavor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a query or a flavor by its sizes."""
    parser.add_argument(
        "query", metavar="<query>", nargs="?", help="Query string of GET /allocation_candidates"
    )
    for name, (metavar, what) in _SIZES.items():
        parser.add_argument(
            f"--{name}", metavar=metavar, type=int, help=f"{what} of a flavor, instead of a query"
        )
    for option, whose in (("--property", "the flavor (its extra specs)"), ("--image-property", "its image")):
        add_repeated(parser, option, "<key=value>", f"Property of {whose}")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="Fail if a flavor has unknown parts; without this option the command only prints a warning",
    )


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--topology``, for commands that can split a guest over NUMA nodes, as a claim can."""
    parser.add_argument(
        "--topology",
        choices=TOPOLOGIES,
        help="Policy by which PCPU and MEMORY_MB of the query are split over NUMA nodes",
    )


def add_query_version(parser: argparse.ArgumentParser, queries: str) -> None:
    """Add the option ``--query-version``."""
    parser.add_argument(
        "--query-version",
        metavar="<version>",
        help=f"Placement microversion that defines the syntax of {queries} (default: the newest)",
    )


def reading_fields(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a body that determine how queries and flavors are read, without defaults."""
    body: dict[str, Any] = {"strict": True} if parsed_args.strict else {}
    if parsed_args.query_version is not None:
        body["microversion"] = parsed_args.query_version
    return body


def request_source(parsed_args: argparse.Namespace, *, is_needed: bool = True) -> dict[str, Any]:
    """Return the field ``query`` or ``flavor`` of a body.

    :param is_needed: whether a query or a flavor has to be given. If neither is needed or given, the result
        is empty.
    :raises CommandError: no query or flavor is given, several are given, or the file cannot be read.
    """
    flavor = flavor_of_options(parsed_args)
    given = {
        f"the query {parsed_args.query}": parsed_args.query is not None,
        "--flavor-file": parsed_args.flavor_file is not None,
        f"a flavor with {' and '.join(flavor)}": bool(flavor),
    }
    found = [what for what, is_given in given.items() if is_given]
    if not found and not is_needed:
        return {}
    if len(found) != 1:
        raise exceptions.CommandError(
            "Either <query>, or --flavor-file, or a flavor by --vcpus, --ram and so on is expected; "
            f"given is {' and '.join(found) or 'none of them'}."
        )
    if parsed_args.query is not None:
        # users sometimes copy the query from a URL, together with the question mark
        return {"query": parsed_args.query.removeprefix("?")}
    return {"flavor": flavor or read_flavor(parsed_args.flavor_file)}


def flavor_of_options(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return the flavor from the options; empty if no option names a part of a flavor.

    :raises CommandError: a property has no value.
    """
    flavor = given_fields(parsed_args, *_SIZES)
    if parsed_args.property:
        flavor["extra_specs"] = parse_pairs(parsed_args.property, "--property", "<value>")
    if parsed_args.image_property:
        properties = parse_pairs(parsed_args.image_property, "--image-property", "<value>")
        flavor["image"] = {"properties": properties}
    return flavor


def read_flavor(path: str) -> dict[str, Any]:
    """Read the flavor in a file; raise CommandError if the file is unreadable, or has no JSON object."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_FILE + 1)
        found = json.loads(text) if len(text) <= _MAX_FILE else None
    except OSError as error:
        raise exceptions.CommandError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # RecursionError: the document is nested too deeply
        raise exceptions.CommandError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise exceptions.CommandError(f"{path}: a flavor as a JSON object of at most 1 MiB is expected.")
    return _as_shown(found) if _SHOWN.keys() & found.keys() else found


def _as_shown(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the output of `openstack flavor show` to a flavor. An empty ``swap`` there means no swap."""
    flavor = {_SHOWN.get(name, name): value for name, value in shown.items()}
    return {name: flavor[name] or 0 for name in _SIZES if name in flavor} | {
        "extra_specs": flavor.get("extra_specs") or {}
    }
