"""Flavors as options, named as those of ``openstack flavor create``, and files, for our commands."""

import argparse
import json
from collections.abc import Mapping
from typing import Any, Final

from osc_lib import exceptions

from placement_extras.openstack.requests import pairs

_SIZES: Final = {
    "vcpus": ("<vcpus>", "CPUs"),
    "ram": ("<size-mb>", "Memory in MiB"),
    "disk": ("<size-gb>", "Root disk in GiB"),
    "ephemeral": ("<size-gb>", "Ephemeral disk in GiB"),
    "swap": ("<size-mb>", "Swap in MiB"),
}
TOPOLOGIES: Final = ("single-numa-node", "restricted", "best-effort", "spread")
"""The ways to split dedicated CPUs and memory over NUMA nodes."""
_MAX_FILE: Final = 1 << 20
_SHOWN: Final = {"OS-FLV-EXT-DATA:ephemeral": "ephemeral", "properties": "extra_specs"}
"""What `openstack flavor show` calls otherwise."""


def add_wanted(parser: argparse.ArgumentParser) -> None:
    """Arguments of who asks for something: a query, or a flavor by its sizes, or in a file."""
    add_by_options(parser)
    parser.add_argument(
        "--flavor-file",
        metavar="<file>",
        help="File with a flavor in JSON, as POST /ext/v1/claims takes it, or as "
        "`openstack flavor show -f json` shows it, in place of a query",
    )


def add_by_options(parser: argparse.ArgumentParser) -> None:
    """Those of them that need no file."""
    parser.add_argument(
        "query", metavar="<query>", nargs="?", help="Query string of GET /allocation_candidates"
    )
    for name, (metavar, what) in _SIZES.items():
        parser.add_argument(
            f"--{name}", metavar=metavar, type=int, help=f"{what} of a flavor, in place of a query"
        )
    for option, whose in (("--property", "the flavor (its extra specs)"), ("--image-property", "its image")):
        parser.add_argument(
            option,
            metavar="<key=value>",
            action="append",
            default=[],
            help=f"Property of {whose} (may be repeated)",
        )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="Refuse a flavor of which something is not understood, in place of a warning",
    )


def add_topology(parser: argparse.ArgumentParser) -> None:
    """The option of commands that place a query or a flavor as a claim would be placed."""
    parser.add_argument(
        "--topology",
        choices=TOPOLOGIES,
        help="Split PCPU and MEMORY_MB of the query over NUMA nodes, in this way",
    )


def given_topology(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """The member ``topology`` of a body; nothing without the option."""
    return {} if parsed_args.topology is None else {"topology": parsed_args.topology}


def given_strict(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """The member ``strict`` of a body; nothing where a flavor with warnings will do."""
    return {"strict": True} if parsed_args.strict else {}


def wanted(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """The ``query`` or the ``flavor`` of a body.

    :raises CommandError: there is not exactly one of them, or it cannot be read.
    """
    flavor = by_options(parsed_args)
    given = {
        f"the query {parsed_args.query}": parsed_args.query is not None,
        "--flavor-file": parsed_args.flavor_file is not None,
        f"a flavor with {' and '.join(flavor)}": bool(flavor),
    }
    found = [what for what, is_given in given.items() if is_given]
    if len(found) != 1:
        raise exceptions.CommandError(
            "Either <query>, or --flavor-file, or a flavor by --vcpus, --ram and so on is expected; "
            f"given is {' and '.join(found) or 'none of them'}."
        )
    if parsed_args.query is not None:
        return {"query": parsed_args.query.removeprefix("?")}
    return {"flavor": flavor or read_flavor(parsed_args.flavor_file)}


def by_options(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """The flavor that options say, which is empty if they say none.

    :raises CommandError: a property is none.
    """
    flavor: dict[str, Any] = {
        name: getattr(parsed_args, name) for name in _SIZES if getattr(parsed_args, name) is not None
    }
    if parsed_args.property:
        flavor["extra_specs"] = pairs(parsed_args.property, "--property", "<value>")
    if parsed_args.image_property:
        properties = pairs(parsed_args.image_property, "--image-property", "<value>")
        flavor["image"] = {"properties": properties}
    return flavor


def read_flavor(path: str) -> dict[str, Any]:
    """The flavor in a file.

    :raises CommandError: there is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_FILE + 1)
        found = json.loads(text) if len(text) <= _MAX_FILE else None
    except OSError as error:
        raise exceptions.CommandError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise exceptions.CommandError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise exceptions.CommandError(f"{path}: a flavor as a JSON object is expected, of 1 MiB at most.")
    return _as_shown(found) if _SHOWN.keys() & found.keys() else found


def _as_shown(shown: Mapping[str, Any]) -> dict[str, Any]:
    """A flavor as `openstack flavor show` shows it; Nova has an empty text for no swap."""
    flavor = {_SHOWN.get(name, name): value for name, value in shown.items()}
    return {name: flavor[name] or 0 for name in _SIZES if name in flavor} | {
        "extra_specs": flavor.get("extra_specs") or {}
    }
