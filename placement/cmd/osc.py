"""Commands of ``openstack`` that osc-placement does not have: a plugin for the same client, loaded by it.

osc-placement makes the connection and says which service is meant; these commands stand beside its own, in
the entry point group ``openstack.placement.v1``.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.command import command

_PATH: Final = "/ext/v1/explanations"

Row = tuple[Any, ...]


class ExplainAllocationCandidates(command.Lister):
    """Explain why a request has few allocation candidates, or none.

    The query is the query string of GET /allocation_candidates, as the log of the service has it::

      openstack allocation candidate explain 'resources=MEMORY_MB:4096&resources_CPU=PCPU:30'

    The explanation as a sentence goes to the standard error, the table shows a part of it: with which
    conditions how many providers and hosts are left (conditions), why the other hosts are not (reasons),
    which smallest changes would help (relaxations), and the largest amounts that fit (largest).
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("query", metavar="<query>", help="Query string of GET /allocation_candidates")
        parser.add_argument(
            "--part",
            choices=tuple(_PARTS),
            default="conditions",
            help="What the table shows (default: conditions)",
        )
        parser.add_argument(
            "--query-version",
            metavar="<version>",
            help="Microversion in whose grammar the query is (default: the newest)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[Row]]:
        """Ask, say it in a sentence, and show the part as a table."""
        body = {"query": parsed_args.query.removeprefix("?")}
        if parsed_args.query_version is not None:
            body["microversion"] = parsed_args.query_version
        client: Any = self.app.client_manager.placement  # type: ignore[attr-defined]  # osc-placement puts it there
        try:
            answer = client.request("POST", _PATH, json=body).json()
        except exceptions.NotFound:
            raise exceptions.CommandError(
                "This Placement service explains nothing: it has no /ext/v1/explanations."
            ) from None
        print(f"{answer['sentence']}.", file=self.app.stderr)
        columns, rows = _PARTS[parsed_args.part]
        return columns, [tuple(row) for row in rows(answer)]


def _conditions(answer: Mapping[str, Any]) -> Iterable[Row]:
    for step in [*(step for group in answer["groups"] for step in group["conditions"]), *answer["request"]]:
        yield (*_condition(step), step.get("providers"), step["hosts"])


def _reasons(answer: Mapping[str, Any]) -> Iterable[Row]:
    for reason in answer["reasons"]:
        examples = (
            each["host"] if each["found"] is None else f"{each['host']} ({each['found']})"
            for each in reason["examples"]
        )
        yield (*_condition(reason), reason["hosts"], ", ".join(examples))


def _relaxations(answer: Mapping[str, Any]) -> Iterable[Row]:
    for number, relaxation in enumerate(answer["relaxations"], start=1):
        for change in relaxation["changes"]:
            yield (number, *_condition(change), relaxation["hosts"])


def _largest(answer: Mapping[str, Any]) -> Iterable[Row]:
    for each in answer["largest"]:
        yield (each["group"], each["resource_class"], each["asked"], each["fits"])


def _condition(clause: Mapping[str, Any]) -> Row:
    return clause["condition"], clause["group"], ",".join(clause["names"]), clause["amount"]


_CONDITION: Final = ("condition", "group", "names", "amount")
_PARTS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Iterable[Row]]]]] = {
    "conditions": ((*_CONDITION, "providers", "hosts"), _conditions),
    "reasons": ((*_CONDITION, "hosts", "nearest"), _reasons),
    "relaxations": (("#", *_CONDITION, "hosts"), _relaxations),
    "largest": (("group", "resource_class", "asked", "fits"), _largest),
}
