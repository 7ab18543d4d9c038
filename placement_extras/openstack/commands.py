"""Commands of ``openstack`` that osc-placement does not have: a plugin for the same client, loaded by it.

osc-placement makes the connection and says which service is meant; these commands stand beside its own, in
the entry point group ``openstack.placement.v1``.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.flavors import (
    add_by_options,
    add_topology,
    add_wanted,
    by_options,
    given_strict,
    given_topology,
    read_flavor,
    wanted,
)
from placement_extras.openstack.requests import in_words, pairs, request_ours, roots, warn

_EXPLANATIONS: Final = "/ext/v1/explanations"
_CAPACITY: Final = "/ext/v1/capacity"
_GUEST: Final = "guest"
"""What a flavor without a name is called."""

Row = tuple[Any, ...]
Parts = Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Iterable[Row]]]]
"""By what a table may show: its columns, and its rows of an answer."""


class ExplainAllocationCandidates(command.Lister):
    """Explain why a request has few allocation candidates, or none.

    The query is the query string of GET /allocation_candidates, as the log of the service has it:

      openstack allocation candidate explain 'resources=MEMORY_MB:4096&resources_CPU=PCPU:30'

    Instead there may be a flavor, by options or in a file:

      openstack allocation candidate explain --vcpus 30 --ram 4096 --property hw:cpu_policy=dedicated

    The explanation as a sentence goes to the standard error, the table shows a part of it: with which
    conditions how many providers and hosts are left (conditions), why the other hosts are not (reasons),
    which smallest changes would help (relaxations), and the largest amounts that fit (max-amounts). With a
    --topology the sentence and the relaxations are of a claim with that topology.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_wanted(parser)
        add_topology(parser)
        _add_options(parser, _PARTS, "the query is")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[Row]]:
        """Ask, say it in a sentence, and show the part as a table."""
        body = {**wanted(parsed_args), **given_topology(parsed_args)}
        answer = _ask(self, _EXPLANATIONS, body, parsed_args)
        print(f"{answer['summary']}.", file=self.app.stderr)
        warn(self, answer.get("warnings", ()))
        columns, rows = _PARTS[parsed_args.part]
        return columns, [tuple(row) for row in rows(answer)]


class ShowCapacity(command.Lister):
    """Show how many guests of each flavor fit, and what is in the way of more.

    A flavor is a name, and what one guest takes as a query string of GET /allocation_candidates:

      openstack resource capacity show --flavor 'm1.small=resources=VCPU:1,MEMORY_MB:2048,DISK_GB:20'

    A single flavor needs no name: a query, or its sizes and properties, as other commands take them, are
    counted as "guest":

      openstack resource capacity show --vcpus 4 --ram 8192 --property hw:cpu_policy=dedicated

    A --flavor-file is a name, and a file with a flavor in Nova's words. Each is counted alone. Those with a
    --proportion are counted together, too, which goes to the standard error. The table shows a part of the
    rest: how many fit in all, and after the failure of the worst host (flavors), how many in each aggregate
    (aggregates), the shortages of hosts where none fits, and how much of the rest is stranded there
    (shortages), the fewest moves of consumers that make room for a guest (moves), and the consumers on the
    hosts of --excluded-host that have no place on the others (drain).
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_by_options(parser)
        parser.add_argument(
            "--flavor",
            metavar="<name>=<query>",
            action="append",
            default=[],
            help="Name, and query string of GET /allocation_candidates (may be repeated)",
        )
        parser.add_argument(
            "--flavor-file",
            metavar="<name>=<file>",
            action="append",
            default=[],
            help="Name, and file with a flavor in JSON, as POST /ext/v1/capacity takes it, or as "
            "`openstack flavor show -f json` shows it (may be repeated)",
        )
        parser.add_argument(
            "--proportion",
            metavar="<name>=<number>",
            action="append",
            default=[],
            help="So many guests of a flavor for the proportions of others, to count how many of all fit at "
            "once (may be repeated)",
        )
        parser.add_argument(
            "--excluded-host",
            metavar="<host>",
            action="append",
            default=[],
            help="Name or root provider's UUID of a host that is to be drained, or fails (may be repeated)",
        )
        parser.add_argument(
            "--drain",
            action="store_true",
            help="Count the consumers on the hosts of --excluded-host that have a place on the others",
        )
        _add_options(parser, _CAPACITY_PARTS, "the queries are")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[Row]]:
        """Ask, and show the part as a table."""
        body: dict[str, Any] = {"flavors": [], "excluded_hosts": roots(self, parsed_args.excluded_host)}
        body |= {"drain": True} if parsed_args.drain or parsed_args.part == "drain" else {}
        body |= {"moves": True} if parsed_args.part == "moves" else {}
        for flavor in parsed_args.flavor:
            name, found, query = flavor.partition("=")
            if not found:
                raise exceptions.CommandError(f"--flavor {flavor}: <name>=<query> is expected.")
            body["flavors"].append({"name": name, "query": query.removeprefix("?")})
        if parsed_args.query is not None:
            body["flavors"].append({"name": _GUEST, "query": parsed_args.query.removeprefix("?")})
        if guest := by_options(parsed_args):
            body["flavors"].append({"name": _GUEST, "flavor": guest})
        for name, path in pairs(parsed_args.flavor_file, "--flavor-file", "<file>").items():
            body["flavors"].append({"name": name, "flavor": read_flavor(path)})
        if not body["flavors"]:
            raise exceptions.CommandError(
                "Nothing to count: give a query, --flavor, --flavor-file, or --vcpus, --ram and so on."
            )
        for proportion in parsed_args.proportion:
            name, _, number = proportion.rpartition("=")
            flavors = [each for each in body["flavors"] if each["name"] == name]
            if not flavors or not (number.isascii() and number.isdigit()):
                raise exceptions.CommandError(
                    f"--proportion {proportion}: <name>=<number> is expected, with the name of a flavor."
                )
            flavors[0]["proportion"] = int(number)
        answer = _ask(self, _CAPACITY, body, parsed_args)
        for each in answer["flavors"]:
            warn(self, [f"{each['name']}: {warning}" for warning in each.get("warnings", ())])
        if answer["combined"] is not None:
            guests = " and ".join(f"{number} {name}" for name, number in answer["combined"]["guests"].items())
            sets = _bounds(answer["combined"])
            print(f"At once {guests} fit: {sets} times the proportions.", file=self.app.stderr)
        if answer.get("drain") is not None:
            drain = answer["drain"]
            print(
                f"Of {drain['consumers']} consumers on excluded hosts {_bounds(drain)} have a place "
                "on the others.",
                file=self.app.stderr,
            )
        columns, rows = _CAPACITY_PARTS[parsed_args.part]
        about = [answer] if parsed_args.part == "drain" else answer["flavors"]
        return columns, [tuple(row) for each in about for row in rows(each)]


def _add_options(parser: argparse.ArgumentParser, parts: Parts, queries_are: str) -> None:
    """Those for what the table shows, of which the first part is the default, and for the queries."""
    usual, *_ = parts
    parser.add_argument(
        "--part", choices=tuple(parts), default=usual, help=f"What the table shows (default: {usual})"
    )
    parser.add_argument(
        "--query-version",
        metavar="<version>",
        help=f"Microversion in whose grammar {queries_are} (default: the newest)",
    )


def _ask(asking: command.Command, path: str, body: Mapping[str, Any], parsed_args: argparse.Namespace) -> Any:
    """What the service answers; the queries are of a microversion, or of the newest."""
    version = parsed_args.query_version
    shown = {**body, **given_strict(parsed_args), **({} if version is None else {"microversion": version})}
    return request_ours(asking, "POST", path, json=shown)


def _flavors(flavor: Mapping[str, Any]) -> Iterable[Row]:
    worst = flavor["worst_host_failure"]
    yield (
        flavor["name"],
        _bounds(flavor),
        flavor["candidate_hosts"],
        flavor["capable_hosts"],
        *(("", "") if worst is None else (_bounds(worst), worst["host"])),
    )
    fallback = flavor.get("fallback")
    if fallback is not None:
        name = f"{flavor['name']} on shared CPUs"
        yield name, _bounds(fallback), fallback["candidate_hosts"], fallback["capable_hosts"], "", ""


def _aggregates(flavor: Mapping[str, Any]) -> Iterable[Row]:
    return ((flavor["name"], each["uuid"], _bounds(each)) for each in flavor["aggregates"])


def _shortages(flavor: Mapping[str, Any]) -> Iterable[Row]:
    for shortage in flavor["shortages"]:
        stranded = ", ".join(f"{amount} {name}" for name, amount in shortage["stranded"].items())
        examples = ", ".join(f"{each['host']} ({each['stranded_guests']})" for each in shortage["examples"])
        classes = ", ".join(shortage["resource_classes"])
        yield flavor["name"], classes, shortage["hosts"], stranded, shortage["stranded_guests"], examples


def _drain(answer: Mapping[str, Any]) -> Iterable[Row]:
    for each in answer["drain"]["unplaced"]:
        held = in_words(each["resources"])
        why = "others need it" if each["placeable_alone"] else "there is none for it alone"
        yield each["host"], each["consumer_uuid"], each["consumer_type"], held, why


def _moves(flavor: Mapping[str, Any]) -> Iterable[Row]:
    moves = flavor["moves"]
    name, least = flavor["name"], moves["lower_bound"]
    if moves["steps"] is None:
        told = "no moves make room" if least is None else f"none found (at least {least})"
        yield name, "", told, "", ""
        return
    for number, move in enumerate(moves["steps"], start=1):
        yield name, number, move["consumer_uuid"], move["source"]["host"], move["destination"]["host"]
    proved = "" if least == len(moves["steps"]) else f" (perhaps fewer moves do, at least {least})"
    yield name, "", f"then it fits on {moves['host']}{proved}", "", ""


def _bounds(each: Mapping[str, int]) -> int | str:
    """The number; where more could fit than was found out, up to which."""
    lower, upper = each["lower_bound"], each["upper_bound"]
    return lower if lower == upper else f"{lower} to {upper}"


def _conditions(answer: Mapping[str, Any]) -> Iterable[Row]:
    for step in [
        *(step for group in answer["groups"] for step in group["conditions"]),
        *answer["host_conditions"],
    ]:
        yield (*_condition(step), step.get("providers"), step["hosts"])


def _reasons(answer: Mapping[str, Any]) -> Iterable[Row]:
    for reason in answer["reasons"]:
        examples = (
            each["host"] if each["actual"] is None else f"{each['host']} ({each['actual']})"
            for each in reason["examples"]
        )
        yield (*_condition(reason), reason["hosts"], ", ".join(examples))


def _relaxations(answer: Mapping[str, Any]) -> Iterable[Row]:
    for number, relaxation in enumerate(answer["relaxations"], start=1):
        for change in relaxation["changes"]:
            *clause, amount = _condition(change)
            yield (number, *clause, "left out" if amount is None else amount, relaxation["hosts"])


def _max_amounts(answer: Mapping[str, Any]) -> Iterable[Row]:
    for each in answer["max_amounts"]:
        yield (each["group"], each["resource_class"], each["requested_amount"], each["max_amount"])


def _condition(clause: Mapping[str, Any]) -> Row:
    return clause["condition"], clause["group"], ",".join(clause["names"]), clause["amount"]


_CONDITION: Final = ("condition", "group", "names", "amount")
_PARTS: Final[Parts] = {
    "conditions": ((*_CONDITION, "providers", "hosts"), _conditions),
    "reasons": ((*_CONDITION, "hosts", "nearest"), _reasons),
    "relaxations": (("#", *_CONDITION, "hosts"), _relaxations),
    "max-amounts": (("group", "resource_class", "requested_amount", "max_amount"), _max_amounts),
}
_CAPACITY_PARTS: Final[Parts] = {
    "flavors": (
        ("flavor", "guests", "candidate hosts", "capable hosts", "after host failure", "worst host"),
        _flavors,
    ),
    "aggregates": (("flavor", "aggregate", "guests"), _aggregates),
    "shortages": (
        ("flavor", "resource classes", "hosts", "stranded", "stranded guests", "most on"),
        _shortages,
    ),
    "drain": (("host", "consumer", "type", "resources", "no place as"), _drain),
    "moves": (("flavor", "#", "consumer", "source", "destination"), _moves),
}
