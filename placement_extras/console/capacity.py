"""The page ``/console/capacity``: the number of guests that fit, scarce resources, and excluded hosts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from flask import Blueprint, current_app, render_template, request

from placement.exceptions import InvalidRequest
from placement.policies import ext
from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.base import canonical_uuid
from placement_extras.console.devices import DeviceStock, list_stocks
from placement_extras.console.fleet import HostResults
from placement_extras.console.page_request import (
    SEE_HOSTS,
    ApiRefusal,
    PageRequest,
    ask_api,
    console_page,
    field_texts,
)
from placement_extras.console.questions import GuestQuestion, query_of, words_of
from placement_extras.planner.rules import CAPACITY

blueprint = Blueprint("capacity", __name__)
CENSUS: Final = "DEVICE_CENSUS"
"""The key, in the application's configuration, of the counts of PCI devices by host."""

_MAX_TEXT: Final = 16_384
"""Maximum number of characters in a field of the form."""
_AMOUNTS: Final = ("vcpus", "ram", "disk")
# a line with a flavor of Nova has a name without "=" and ":", then a colon and a blank. In a query, no blank
# follows a colon.
_OF_NOVA: Final = re.compile(r"([^=:]+):\s+(.+)")
EXAMPLE: Final = "small=resources=VCPU:1,MEMORY_MB:2048\nlarge: vcpus=8 ram=16384 disk=40"
"""Flavors that the empty form shows as an example."""


@dataclass(frozen=True, slots=True)
class CapacityQuestion:
    """The fields of the form.

    Each line of ``flavors`` has a query or a flavor of Nova, and each line of ``excluded_hosts`` has a host.
    """

    flavors: str = ""
    excluded_hosts: str = ""
    drain: bool = False
    moves: bool = False

    def request_body(self, snapshot: ModelSnapshot) -> dict[str, Any]:
        """Return the body of the REST request; raise InvalidRequest if a line or a host is wrong."""
        flavors = [_parse_flavor(line) for line in _text_lines(self.flavors)]
        excluded = []
        for line in _text_lines(self.excluded_hosts):
            # the line is a uuid in any spelling, or the name of a provider
            provider = snapshot.get(canonical_uuid(line) or line)
            if provider is None and line in snapshot.by_name:
                provider = snapshot.providers[snapshot.by_name[line]]
            if provider is None:
                raise InvalidRequest(f"There is no host {line[:80]!r}.")
            # a line can name any provider of a host, but the API expects the root of the host
            excluded.append(snapshot.providers[provider.root_id].uuid)
        # two lines can stand for the same host, if one has the root and the other one a provider below it
        excluded = list(dict.fromkeys(excluded))
        return {
            "flavors": flavors,
            "excluded_hosts": excluded,
            # the API refuses a drain without hosts; here the box can be ticked although no host is excluded
            "drain": self.drain and bool(excluded),
            "moves": self.moves,
        }


def _parse_flavor(line: str) -> dict[str, Any]:
    """Parse ``NAME=QUERY``, or a flavor of Nova.

    A flavor has the form ``NAME: vcpus=4 ram=4096 disk=10 hw:cpu_policy=dedicated``.

    :raises InvalidRequest: the line has neither form.
    """
    if of_nova := _OF_NOVA.fullmatch(line):
        words = words_of(of_nova[2])
        known = dict(word.partition("=")[::2] for word in words if word.partition("=")[0] in _AMOUNTS)
        specs = [word for word in words if word.partition("=")[0] not in _AMOUNTS]
        return {"name": of_nova[1].strip(), **GuestQuestion(specs="\n".join(specs), **known).request_body()}
    name, equals, query = line.partition("=")
    if not equals or not query:
        raise InvalidRequest(
            f"A flavor is NAME=QUERY or NAME: vcpus=4 ram=4096 SPEC=VALUE, not {line[:80]!r}."
        )
    return {"name": name.strip(), "query": query_of(query)}


def _text_lines(text: str) -> Iterable[str]:
    return filter(None, map(str.strip, text.splitlines()))


@console_page(blueprint, "/console/capacity", *SEE_HOSTS, CAPACITY)
def count_guests(visit: PageRequest) -> str | tuple[str, int]:
    """Show the form, and the numbers of guests for the flavors in the form."""
    asked = CapacityQuestion(
        **field_texts(request.args, ("flavors", "excluded_hosts"), _MAX_TEXT),
        drain="drain" in request.args,
        moves="moves" in request.args,
    )
    body = found = None
    error = ""
    census: HostResults[tuple[DeviceStock, ...]] = current_app.config[CENSUS]
    with visit.pinned_model() as (snapshot, _):
        # only attributes show which providers are devices, so a visitor needs the right to see attributes
        devices = list_stocks(snapshot, census) if visit.may_use(ext.ATTRIBUTES) else []
        # an empty field means that the visitor has not sent the form yet
        if asked.flavors:
            try:
                # the API accepts only uuids of hosts, so names are looked up here
                body = asked.request_body(snapshot)
            except InvalidRequest as refusal:
                error = refusal.detail
    # the API is called after the pinned model is released, because the API uses a view of its own
    if body is not None:
        try:
            found = ask_api("POST", "/ext/v1/capacity", body=body)
        except ApiRefusal as refusal:
            error = refusal.detail
    shown = render_template(
        "capacity.html", asked=asked, found=found, error=error, example=EXAMPLE, devices=devices
    )
    return (shown, 400) if error else shown
