"""``/console/capacity``: how many guests still fit, what is short, and what if hosts were not there."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from flask import Blueprint, render_template, request

from placement.console.asking import Refused, ask
from placement.console.forms import texts
from placement.console.questions import query_of
from placement.console.visit import SEE_HOSTS, Visit, page
from placement.exceptions import InvalidRequest
from placement.model.snapshot import Snapshot
from placement.policies import ext
from placement.schemas.base import canonical_uuid

blueprint = Blueprint("counting", __name__)

_MAX_TEXT: Final = 16_384
EXAMPLE: Final = "small=resources=VCPU:1,MEMORY_MB:2048\nlarge=resources=VCPU:8,MEMORY_MB:16384"


@dataclass(frozen=True, slots=True)
class Asked:
    """Flavors, a line each: a name, an equals sign and a query; hosts to be left aside, by name or uuid."""

    flavors: str = ""
    without: str = ""
    displaced: bool = False
    moves: bool = False

    def body(self, snapshot: Snapshot) -> dict[str, Any]:
        """The same as REST takes it.

        :raises InvalidRequest: a line is none, or a host is not there.
        """
        flavors = []
        for line in _lines(self.flavors):
            name, equals, query = line.partition("=")
            if not equals or not query:
                raise InvalidRequest(f"A flavor is a name, an equals sign and a query, not {line[:80]!r}.")
            flavors.append({"name": name.strip(), "query": query_of(query)})
        without = []
        for line in _lines(self.without):
            provider = snapshot.get(canonical_uuid(line) or line)
            if provider is None and line in snapshot.by_name:
                provider = snapshot.providers[snapshot.by_name[line]]
            if provider is None:
                raise InvalidRequest(f"There is no host {line[:80]!r}.")
            without.append(snapshot.providers[provider.root_id].uuid)
        without = list(dict.fromkeys(without))
        return {
            "flavors": flavors,
            "without": without,
            "displaced": self.displaced and bool(without),
            "moves": self.moves,
        }


def _lines(text: str) -> Iterable[str]:
    return filter(None, map(str.strip, text.splitlines()))


@page(blueprint, "/console/capacity", *SEE_HOSTS, ext.CAPACITY)
def count(visit: Visit) -> str | tuple[str, int]:
    """The form, and what it asks for."""
    asked = Asked(
        **texts(request.args, ("flavors", "without"), _MAX_TEXT),
        displaced="displaced" in request.args,
        moves="moves" in request.args,
    )
    found: dict[str, Any] | None = None
    error = ""
    if asked.flavors:
        try:
            with visit.service.model.fresh() as view:
                body = asked.body(view.snapshot)
            found = ask("POST", "/ext/v1/capacity", body=body)
        except (InvalidRequest, Refused) as refusal:
            error = refusal.detail
    shown = render_template("capacity.html", asked=asked, found=found, error=error, example=EXAMPLE)
    return (shown, 400) if error else shown
