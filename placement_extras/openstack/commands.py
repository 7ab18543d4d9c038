"""Commands of ``openstack`` for explanations and capacity, which osc-placement does not have.

osc-placement provides the connection to the service, and the options for this connection. Our commands are in
the entry point group ``openstack.placement.v1`` of osc-placement.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.command import command

from placement_extras.openstack.arguments import (
    add_flavor_arguments,
    add_query_version,
    add_source_arguments,
    add_topology,
    flavor_of_options,
    given_fields,
    read_flavor,
    reading_fields,
    request_source,
)
from placement_extras.openstack.requests import (
    PlacementCommand,
    ShownTable,
    TableRow,
    add_repeated,
    amounts_text,
    parse_pairs,
    print_warnings,
    request_extension,
    root_uuids,
)

_EXPLANATIONS: Final = "/ext/v1/explanations"
_CAPACITY: Final = "/ext/v1/capacity"
_UNNAMED_FLAVOR: Final = "guest"
"""Name that the table shows for a flavor without a name."""

AnswerParts = Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Iterable[TableRow]]]]
"""The parts of an answer that a table can show. Each part has its columns, and a function that makes its
rows.
"""


class ExplainAllocationCandidates(PlacementCommand, command.Lister):
    """Explain why a request has few allocation candidates, or none.

    The query is the query string of GET /allocation_candidates, in the form in which the service logs it:

      openstack allocation candidate explain 'resources=MEMORY_MB:4096&resources_CPU=PCPU:30'

    A flavor in options or in a file replaces the query:

      openstack allocation candidate explain --vcpus 30 --ram 4096 --property hw:cpu_policy=dedicated

    The command prints a summary to the standard error, and a table with one part of the explanation. The part
    "conditions" shows how many providers and hosts are left after each condition of the request. The part
    "reasons" shows why hosts do not fit. The part "relaxations" shows the smallest changes of the request
    with which at least one host would fit. The part "max-amounts" shows the largest amounts that fit. With
    --topology, the summary and the part "relaxations" are for a claim with that topology.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_source_arguments(parser)
        add_topology(parser)
        _add_options(parser, _EXPLANATION_PARTS, "the query")

    def take_action(self, parsed_args: argparse.Namespace) -> ShownTable:
        """Print the summary, and show the part as a table."""
        body = {**request_source(parsed_args), **given_fields(parsed_args, "topology")}
        answer = _send_query(self, _EXPLANATIONS, body, parsed_args)
        print(f"{answer['summary']}.", file=self.app.stderr)
        print_warnings(self, answer.get("warnings", ()))
        columns, rows = _EXPLANATION_PARTS[parsed_args.part]
        return columns, [tuple(row) for row in rows(answer)]


class ShowCapacity(PlacementCommand, command.Lister):
    """Show how many guests of each flavor fit, and which resources are short.

    Each --flavor has a name, and the query string of GET /allocation_candidates for one guest:

      openstack resource capacity show --flavor 'm1.small=resources=VCPU:1,MEMORY_MB:2048,DISK_GB:20'

    A flavor without a name is called "guest" in the table. The text after the name is a query, or sizes and
    properties as in other commands:

      openstack resource capacity show --vcpus 4 --ram 8192 --property hw:cpu_policy=dedicated

    Each --flavor-file has a name, and a file with a flavor in Nova's format. The command counts the guests of
    each flavor as if no guests of the other flavors were added. For flavors with a --proportion, the command
    also counts how many guests fit together, and prints this number to the standard error.

    The table shows one part of the answer. The part "flavors" shows how many guests fit in total, and how
    many fit after the failure of the host with the largest loss. The part "aggregates" shows how many fit in
    each aggregate. The part "shortages" shows the resources that full hosts lack, and the free capacity that
    no guest can use on these hosts. The part "moves" shows the smallest number of moves of consumers that
    make room for a guest. The part "drain" shows the consumers on hosts of --excluded-host that have no place
    on other hosts. The part "drain-moves" shows the new hosts of the other consumers.
    """

    def _add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_flavor_arguments(parser)
        add_topology(parser)
        add_repeated(
            parser,
            "--flavor",
            "<name>=<query>",
            "Flavor: its name, and a query string of GET /allocation_candidates",
        )
        add_repeated(
            parser,
            "--flavor-file",
            "<name>=<file>",
            "Name of a flavor, and a file with this flavor in JSON, in the format of POST /ext/v1/capacity"
            " or of `openstack flavor show -f json`",
        )
        add_repeated(
            parser,
            "--proportion",
            "<name>=<number>",
            "Number of guests of a flavor in one set of guests; the command counts the sets that fit"
            " together",
        )
        add_repeated(
            parser,
            "--excluded-host",
            "<host>",
            "Host to leave out of the count, such as a host to drain: its name, or the UUID of its root"
            " provider",
        )
        parser.add_argument(
            "--drain",
            action="store_true",
            help="Also count how many consumers of the hosts of --excluded-host fit on the other hosts",
        )
        parser.add_argument(
            "--maintenance",
            metavar="<reservation>",
            help="UUID of a reservation of whole hosts for a maintenance. The command treats these hosts like"
            " hosts of --excluded-host with --drain, but ignores consumers that end before the maintenance",
        )
        _add_options(parser, _CAPACITY_PARTS, "the queries")

    def take_action(self, parsed_args: argparse.Namespace) -> ShownTable:
        """Show the wanted part as a table; print the numbers of guests together and of drained consumers."""
        body: dict[str, Any] = {"flavors": [], "excluded_hosts": root_uuids(self, parsed_args.excluded_host)}
        body |= {"drain": True} if parsed_args.drain or parsed_args.part in _DRAIN_PARTS else {}
        body |= given_fields(parsed_args, "maintenance")
        body |= {"moves": True} if parsed_args.part == "moves" else {}
        for flavor in parsed_args.flavor:
            name, found, query = flavor.partition("=")
            if not found:
                raise exceptions.CommandError(f"--flavor {flavor}: <name>=<query> is expected.")
            body["flavors"].append({"name": name, "query": query.removeprefix("?")})
        if parsed_args.query is not None:
            body["flavors"].append({"name": _UNNAMED_FLAVOR, "query": parsed_args.query.removeprefix("?")})
        if guest := flavor_of_options(parsed_args):
            body["flavors"].append({"name": _UNNAMED_FLAVOR, "flavor": guest})
        for name, path in parse_pairs(parsed_args.flavor_file, "--flavor-file", "<file>").items():
            body["flavors"].append({"name": name, "flavor": read_flavor(path)})
        if not body["flavors"]:
            is_drain = body.keys() & {"maintenance", "drain"}
            what = "--maintenance and --drain need a flavor, too" if is_drain else "no flavor is given"
            raise exceptions.CommandError(
                f"Nothing to count: {what}. Give a query, --flavor, --flavor-file, or --vcpus, --ram and so"
                " on."
            )
        for proportion in parsed_args.proportion:
            name, _, number = proportion.rpartition("=")
            flavors = [each for each in body["flavors"] if each["name"] == name]
            if not flavors or not (number.isascii() and number.isdigit()):
                raise exceptions.CommandError(
                    f"--proportion {proportion}: <name>=<number> is expected, with the name of a flavor."
                )
            flavors[0]["proportion"] = int(number)
        if parsed_args.topology is not None and parsed_args.part == "shortages":
            raise exceptions.CommandError(
                "--part shortages cannot be combined with --topology: leave out one of the two."
            )
        for each in body["flavors"]:
            each.update(given_fields(parsed_args, "topology"))
        answer = _send_query(self, _CAPACITY, body, parsed_args)
        for each in answer["flavors"]:
            print_warnings(self, [f"{each['name']}: {warning}" for warning in each.get("warnings", ())])
        if answer["combined"] is not None:
            guests = " and ".join(f"{number} {name}" for name, number in answer["combined"]["guests"].items())
            sets = _bounds_text(answer["combined"])
            print(f"At once {guests} fit: {sets} times the proportions.", file=self.app.stderr)
        if answer.get("drain") is not None:
            drain = answer["drain"]
            print(
                f"Of {drain['consumers']} consumers on excluded hosts {_bounds_text(drain)} have a place "
                "on the others.",
                file=self.app.stderr,
            )
            if drain.get("ending_before"):
                number = drain["ending_before"]
                told = "1 further consumer ends" if number == 1 else f"{number} further consumers end"
                print(f"{told} before.", file=self.app.stderr)
            if drain.get("pending"):
                number = drain["pending"]
                told = (
                    "1 reservation there begins later, and needs"
                    if number == 1
                    else f"{number} reservations there begin later, and need"
                )
                print(f"{told} another place, too.", file=self.app.stderr)
        columns, rows = _CAPACITY_PARTS[parsed_args.part]
        about = [answer] if parsed_args.part in _DRAIN_PARTS else answer["flavors"]
        return columns, [tuple(row) for each in about for row in rows(each)]


def _add_options(parser: argparse.ArgumentParser, parts: AnswerParts, queries: str) -> None:
    """Add the options --part and --query-version; the first of ``parts`` is the default of --part."""
    usual, *_ = parts
    parser.add_argument(
        "--part",
        choices=tuple(parts),
        default=usual,
        help=f"Part of the answer that the table shows (default: {usual})",
    )
    add_query_version(parser, queries)


def _send_query(
    asking: command.Command, path: str, body: Mapping[str, Any], parsed_args: argparse.Namespace
) -> Any:
    """Send a request with the options that all commands share, and return the answer."""
    return request_extension(asking, "POST", path, json={**body, **reading_fields(parsed_args)})


def _flavor_rows(flavor: Mapping[str, Any]) -> Iterable[TableRow]:
    worst = flavor["worst_host_failure"]
    yield (
        flavor["name"],
        _bounds_text(flavor),
        flavor["candidate_hosts"],
        flavor["capable_hosts"],
        *(("", "") if worst is None else (_bounds_text(worst), worst["host"])),
    )
    fallback = flavor.get("fallback")
    if fallback is not None:
        name = f"{flavor['name']} on shared CPUs"
        yield name, _bounds_text(fallback), fallback["candidate_hosts"], fallback["capable_hosts"], "", ""


def _aggregate_rows(flavor: Mapping[str, Any]) -> Iterable[TableRow]:
    return ((flavor["name"], each["uuid"], _bounds_text(each)) for each in flavor["aggregates"])


def _shortage_rows(flavor: Mapping[str, Any]) -> Iterable[TableRow]:
    for shortage in flavor["shortages"]:
        stranded = ", ".join(f"{amount} {name}" for name, amount in shortage["stranded"].items())
        examples = ", ".join(f"{each['host']} ({each['stranded_guests']})" for each in shortage["examples"])
        classes = ", ".join(shortage["resource_classes"])
        yield flavor["name"], classes, shortage["hosts"], stranded, shortage["stranded_guests"], examples


def _drain_rows(answer: Mapping[str, Any]) -> Iterable[TableRow]:
    for each in answer["drain"]["unplaced"]:
        held = amounts_text(each["resources"])
        why = "others need it" if each["placeable_alone"] else "no host has room for it"
        yield each["host"], each["consumer_uuid"], each["consumer_type"], held, why


def _drain_move_rows(answer: Mapping[str, Any]) -> Iterable[TableRow]:
    drain = answer["drain"]
    for each in drain["steps"]:
        yield (
            each["consumer_uuid"],
            each["consumer_type"],
            each["source"]["host"],
            each["destination"]["host"],
        )
    for consumer in drain["ending"]:
        yield consumer, "", "", "none: it ends before"


def _move_rows(flavor: Mapping[str, Any]) -> Iterable[TableRow]:
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


def _bounds_text(each: Mapping[str, int]) -> int | str:
    """Return the number, or a range as text if the search did not find the exact number."""
    lower, upper = each["lower_bound"], each["upper_bound"]
    return lower if lower == upper else f"{lower} to {upper}"


def _condition_rows(answer: Mapping[str, Any]) -> Iterable[TableRow]:
    for step in [
        *(step for group in answer["groups"] for step in group["conditions"]),
        *answer["host_conditions"],
    ]:
        yield (*_condition_columns(step), step.get("providers"), step["hosts"])


def _reason_rows(answer: Mapping[str, Any]) -> Iterable[TableRow]:
    for reason in answer["reasons"]:
        examples = (
            each["host"] if each["actual"] is None else f"{each['host']} ({each['actual']})"
            for each in reason["examples"]
        )
        yield (*_condition_columns(reason), reason["hosts"], ", ".join(examples))


def _relaxation_rows(answer: Mapping[str, Any]) -> Iterable[TableRow]:
    for number, relaxation in enumerate(answer["relaxations"], start=1):
        for change in relaxation["changes"]:
            *clause, amount = _condition_columns(change)
            yield (number, *clause, "left out" if amount is None else amount, relaxation["hosts"])


def _max_amount_rows(answer: Mapping[str, Any]) -> Iterable[TableRow]:
    for each in answer["max_amounts"]:
        yield (each["group"], each["resource_class"], each["requested_amount"], each["max_amount"])


def _condition_columns(clause: Mapping[str, Any]) -> TableRow:
    return clause["condition"], clause["group"], ",".join(clause["names"]), clause["amount"]


_CONDITION: Final = ("condition", "group", "names", "amount")
_EXPLANATION_PARTS: Final[AnswerParts] = {
    "conditions": ((*_CONDITION, "providers", "hosts"), _condition_rows),
    "reasons": ((*_CONDITION, "hosts", "nearest"), _reason_rows),
    "relaxations": (("#", *_CONDITION, "hosts"), _relaxation_rows),
    "max-amounts": (("group", "resource_class", "requested_amount", "max_amount"), _max_amount_rows),
}
_DRAIN_PARTS: Final = ("drain", "drain-moves")
"""The parts about consumers on excluded hosts instead of flavors."""
_CAPACITY_PARTS: Final[AnswerParts] = {
    "flavors": (
        ("flavor", "guests", "candidate hosts", "capable hosts", "after host failure", "worst host"),
        _flavor_rows,
    ),
    "aggregates": (("flavor", "aggregate", "guests"), _aggregate_rows),
    "shortages": (
        ("flavor", "resource classes", "hosts", "stranded", "stranded guests", "most on"),
        _shortage_rows,
    ),
    "drain": (("host", "consumer", "type", "resources", "no place as"), _drain_rows),
    "drain-moves": (("consumer", "type", "source", "destination"), _drain_move_rows),
    "moves": (("flavor", "#", "consumer", "source", "destination"), _move_rows),
}
