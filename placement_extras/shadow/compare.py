"""What of two answers has to be the same, and whether it is."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from placement_extras.shadow.exchange import ShadowAnswer, ShadowExchange

#: What clients look for in the text of errors: Nova, osc-placement, the functional tests of both and of
#: OpenStack Placement itself. The rest of an error may be in other words.
MATCHED: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"JSON does not validate",
        r"Invalid query string parameters",
        r"is not a 'uuid'",
        r"is a required property",
        r"should be non-empty",
        r"is not of type '\w+'",
        r"Malformed JSON",
        r"update conflict: Inventory for '.+' on resource provider '.+' in use\.",
        r"Unable to delete inventory of class \w+: Inventory for '.+' on resource provider '.+' in use\.",
        r"Update conflict: ",
        r"generation conflict",
        r"Resource provider's generation already changed\. Please update the generation and try again\.",
        r"consumer generation conflict - expected \w+ but got",
        r"Unable to allocate inventory: ",
        r"Allocation for resource provider '.+' that does not exist\.",
        r"Conflicting resource provider (name|uuid): ",
        r"No resource provider with uuid \S+ found",
        r"No allocations for consumer '.+'",
        r"No inventory of class \w+ (for|found)",
        r"(?<!for delete: )No such resource class \w+",
        r"No such trait",
        r"Invalid resource class in resources parameter",
        r"Unknown resource class in inventory",
        r"Cannot delete standard (resource class|trait) \w+",
        r"Class is in use in inventory",
        r"is in use by a resource provider",
        r"It has child resource providers",
        r"Resource provider has allocations",
        r"parent provider UUID (does not exist|cannot be same as UUID)",
        r"(un|re)-parenting a provider is not currently allowed",
        r"creating loop in the provider tree is not allowed",
        r"The reserved value is greater than (or equal to )?total",
        r"The trait is invalid",
        r"Malformed consumer_uuid",
        r"Badly formed resources parameter",
        r"Badly formatted name parameter",
        r"expected positive integer amount",
        r"requires amount >= 1",
        r"Got an empty trait in",
        r'The "group_policy" parameter is required',
        r"Conflicting required and forbidden traits",
        r"Unacceptable version header: \S+",
        r"invalid version string: [^\s;]+",
        r"Policy does not allow placement:\S+ to be performed",
        r"Only application/json is provided",
        r"The method \w+ is not allowed for this resource",
    )
)
_GENERAL: Final = (400, 403, 404, 409)
"""Statuses of which both say a general sentence before the message."""
_HEADERS: Final = ("openstack-api-version", "content-type", "cache-control", "allow")
Candidate = dict[str, dict[str, int]]


@dataclass(frozen=True)
class AnswerDifference:
    """One thing that differs: the name of a header or part of the answer, and how it differs."""

    what: str
    there: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.what}: {self.there} there, {self.here} here"


def differences(exchange: ShadowExchange) -> list[AnswerDifference]:
    """What differs; nothing if the answers are as good as the same."""
    theirs, ours = exchange.theirs, exchange.ours
    if theirs.status != ours.status:
        return [
            AnswerDifference("status", f"{theirs.status} {_said(theirs)}", f"{ours.status} {_said(ours)}")
        ]
    rest = _errors(theirs, ours) if theirs.status >= 400 else _bodies(exchange)
    every = [*_headers(theirs, ours), *rest]
    return [AnswerDifference(what, there, here) for what, there, here in every if there != here]


def _said(answer: ShadowAnswer) -> str:
    return repr(answer.error.get("detail", answer.body))


Compared = Iterator[tuple[str, Any, Any]]


def _headers(theirs: ShadowAnswer, ours: ShadowAnswer) -> Compared:
    for name in _HEADERS:
        yield name, _value(theirs, name), _value(ours, name)
    yield "last-modified", "last-modified" in theirs.headers, "last-modified" in ours.headers
    yield "location", _path(theirs), _path(ours)


def _value(answer: ShadowAnswer, name: str) -> Any:
    value = answer.headers.get(name)
    if value is None:
        return None
    if name == "allow":
        return {each.strip() for each in value.split(",")}
    return value.partition(";")[0]


def _path(answer: ShadowAnswer) -> str:
    return urlsplit(answer.headers.get("location", "")).path


def _errors(theirs: ShadowAnswer, ours: ShadowAnswer) -> Compared:
    yield "keys of the error", sorted(theirs.error), sorted(ours.error)
    for name in ("status", "title", "code", "max_version", "min_version"):
        yield name, theirs.error.get(name), ours.error.get(name)
    there, here = theirs.error.get("detail", ""), ours.error.get("detail", "")
    for match in filter(None, (pattern.search(there) for pattern in MATCHED)):
        if match[0] not in here:
            yield "words", f"{match[0]!r} in {there!r}", repr(here)
    if ours.error:
        message = here.rpartition("\n\n")[2]
        yield "lines of the message", 1, len(message.splitlines()) or 1
        if theirs.status in _GENERAL:
            yield "general sentence", there.partition("\n")[0], here.partition("\n")[0]


def _bodies(exchange: ShadowExchange) -> Compared:
    there, here = (comparable(exchange.request.path, each.body) for each in (exchange.theirs, exchange.ours))
    yield "body", there, here


def comparable(path: str, document: Any) -> Any:
    """The document with all lists in one order; of candidates with a limit only how many they are."""
    limited = path.startswith("/allocation_candidates?") and "limit=" in path
    if limited and isinstance(document, dict) and "allocation_requests" in document:
        return len(document["allocation_requests"])
    return _ordered(document)


def _ordered(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _ordered(each) for name, each in document.items()}
    if isinstance(document, list):
        return sorted(map(_ordered, document), key=lambda each: json.dumps(each, sort_keys=True))
    return document


def candidates(document: Any) -> list[Candidate]:
    """What each allocation candidate takes of which provider, whatever version the answer is of."""
    found = []
    for each in document["allocation_requests"]:
        allocations = each["allocations"]
        if isinstance(allocations, list):
            found.append({item["resource_provider"]["uuid"]: item["resources"] for item in allocations})
        else:
            found.append({uuid: item["resources"] for uuid, item in allocations.items()})
    return found
