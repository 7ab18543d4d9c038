"""Compares the answers of the two services, and recognises documented differences.

The file ``doc/reference/deviations.yaml`` documents the differences between the two services. This module
recognises the differences that occur in answers. For example, after a refused claim OpenStack Placement keeps
the consumer of the claim, and later answers show the type of this consumer.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from placement_extras.shadow.exchange import AskedRequest, ShadowAnswer, ShadowExchange, forget_oldest

# Nova, osc-placement, their functional tests, and the tests of OpenStack Placement search for these texts in
# errors. All other words of an error are allowed to differ.
MATCHED_TEXTS: Final = tuple(
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
_GENERAL_STATUSES: Final = (400, 403, 404, 409)
"""Statuses of errors that begin with a general sentence, such as "Access was denied ...", which is the same
in both services.
"""
_COMPARED_HEADERS: Final = ("openstack-api-version", "content-type", "cache-control", "allow")
CandidateAmounts = dict[str, dict[str, int]]
"""Amounts of an allocation candidate, by the uuid of the provider and the resource class."""


@dataclass(frozen=True)
class AnswerDifference:
    """A difference between the two services' answers to one request.

    :param what: the name of a header, or of another part of the answer, such as ``status``.
    :param there: the value in the answer of OpenStack Placement.
    :param here: the value in the answer of our service.
    """

    what: str
    there: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.what}: {self.there} there, {self.here} here"


def find_differences(exchange: ShadowExchange) -> list[AnswerDifference]:
    """Return the differences between the two answers that matter to clients."""
    theirs, ours = exchange.theirs, exchange.ours
    # if the statuses differ, all other parts differ, too, so only the status is reported
    if theirs.status != ours.status:
        return [
            AnswerDifference(
                "status", f"{theirs.status} {_quote_detail(theirs)}", f"{ours.status} {_quote_detail(ours)}"
            )
        ]
    rest = _compare_errors(theirs, ours) if theirs.status >= 400 else _compare_bodies(exchange)
    every = [*_compare_headers(theirs, ours), *rest]
    return [AnswerDifference(what, there, here) for what, there, here in every if there != here]


def _quote_detail(answer: ShadowAnswer) -> str:
    return repr(answer.first_error.get("detail", answer.body))


ComparedParts = Iterator[tuple[str, Any, Any]]
"""The compared parts of two answers: the name, the value of OpenStack Placement, and the value of our
service.
"""


def _compare_headers(theirs: ShadowAnswer, ours: ShadowAnswer) -> ComparedParts:
    for name in _COMPARED_HEADERS:
        yield name, _header_value(theirs, name), _header_value(ours, name)
    # only the presence of this header is compared, because the two services write at different times
    yield "last-modified", "last-modified" in theirs.headers, "last-modified" in ours.headers
    yield "location", _location_path(theirs), _location_path(ours)  # hosts and ports always differ


def _header_value(answer: ShadowAnswer, name: str) -> Any:
    value = answer.headers.get(name)
    if value is None:
        return None
    # the order of the methods does not matter
    if name == "allow":
        return {each.strip() for each in value.split(",")}
    return value.partition(";")[0]  # parameters such as the charset are cut off


def _location_path(answer: ShadowAnswer) -> str:
    return urlsplit(answer.headers.get("location", "")).path


def _compare_errors(theirs: ShadowAnswer, ours: ShadowAnswer) -> ComparedParts:
    yield "keys of the error", sorted(theirs.first_error), sorted(ours.first_error)
    for name in ("status", "title", "code", "max_version", "min_version"):
        yield name, theirs.first_error.get(name), ours.first_error.get(name)
    there, here = theirs.first_error.get("detail", ""), ours.first_error.get("detail", "")
    for match in filter(None, (pattern.search(there) for pattern in MATCHED_TEXTS)):
        # clients such as Nova search for these words; the rest of the sentence is allowed to differ
        if match[0] not in here:
            yield "words", f"{match[0]!r} in {there!r}", repr(here)
    if ours.first_error:
        message = here.rpartition("\n\n")[2]
        # osc-placement shows only the last line of a message
        yield "lines of the message", 1, len(message.splitlines()) or 1
        if theirs.status in _GENERAL_STATUSES:
            yield "general sentence", there.partition("\n")[0], here.partition("\n")[0]


def _compare_bodies(exchange: ShadowExchange) -> ComparedParts:
    there, here = (
        comparable_body(exchange.request.path, each.body) for each in (exchange.theirs, exchange.ours)
    )
    yield "body", there, here


def comparable_body(path: str, document: Any) -> Any:
    """Return a document in a form in which it can be compared: with sorted lists.

    If the path asks for a limited number of allocation candidates, return only the number of candidates,
    because each service can choose other candidates.
    """
    limited = path.startswith("/allocation_candidates?") and "limit=" in path
    if limited and isinstance(document, dict) and "allocation_requests" in document:
        return len(document["allocation_requests"])
    return _sort_lists(document)


def _sort_lists(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _sort_lists(each) for name, each in document.items()}
    if isinstance(document, list):
        # the order of lists in answers does not matter. Items of all types can be sorted as JSON texts.
        return sorted(map(_sort_lists, document), key=lambda each: json.dumps(each, sort_keys=True))
    return document


def candidate_amounts(document: Any) -> list[CandidateAmounts]:
    """Return the amounts of each allocation candidate, from a document of any microversion."""
    found = []
    for each in document["allocation_requests"]:
        allocations = each["allocations"]
        if isinstance(allocations, list):
            found.append({item["resource_provider"]["uuid"]: item["resources"] for item in allocations})
        else:
            found.append({uuid: item["resources"] for uuid, item in allocations.items()})
    return found


# maximum number of consumers that are remembered, because a trial runs for weeks
_REMEMBERED: Final = 100_000
_UNKNOWN: Final = "unknown"
_CONSUMER: Final = "/allocations/"


@dataclass
class OrphanConsumers:
    """Consumers that OpenStack Placement keeps although it has refused their claims.

    A claim with a microversion before 1.38 has no consumer type. If such a claim follows for one of these
    consumers, OpenStack Placement shows the type in the refused claim, and our service shows ``unknown``.
    """

    _types: dict[str, set[str]] = field(default_factory=dict)
    """Consumer types in refused claims, by the uuid of the consumer."""
    _projects: dict[str, str | None] = field(default_factory=dict)
    """Projects in accepted claims without a consumer type, by the uuid of the consumer."""

    def record_write(self, method: str, path: str, body: Any, status: int) -> None:
        """Record the claims in a write, with the status of OpenStack Placement's answer.

        The caller records writes in the order of their answers.

        :param body: the parsed body; a body without claims is ignored.
        """
        for consumer, claim in named_claims(method, urlsplit(path).path, body):
            if status >= 400:
                if stated := claim.get("consumer_type"):
                    self._types.setdefault(consumer, set()).add(str(stated))
            elif claim.get("allocations") and "consumer_type" not in claim:
                self._projects[consumer] = claim.get("project_id")
            else:
                self._types.pop(consumer, None)
                self._projects.pop(consumer, None)
        forget_oldest(self._types, _REMEMBERED)
        forget_oldest(self._projects, _REMEMBERED)

    def explains_difference(self, exchange: ShadowExchange, difference: AnswerDifference) -> bool:
        """Return whether a difference is only the type of a consumer that was kept after a refused claim."""
        url = urlsplit(exchange.request.path)
        if difference.what != "body":
            return False
        if url.path.startswith(_CONSUMER):
            there, here = exchange.theirs.body, exchange.ours.body
            return (
                isinstance(there, dict)
                and isinstance(here, dict)
                and here.get("consumer_type") == _UNKNOWN
                and there.get("consumer_type") in self._types.get(url.path.removeprefix(_CONSUMER), ())
                and {**there, "consumer_type": _UNKNOWN} == here
            )
        if url.path == "/usages":
            # the usages of a project are grouped by consumer type, so they can differ if the project has such
            # a consumer
            project = parse_qs(url.query).get("project_id", [None])[0]
            return any(
                consumer in self._types and of in (None, project) for consumer, of in self._projects.items()
            )
        return False


def named_claims(method: str, path: str, body: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the uuid of each consumer in a write, with its claim in the body."""
    named: Any = None
    if path.startswith(_CONSUMER):
        named = {path.removeprefix(_CONSUMER): {} if method == "DELETE" else body}
    elif path == "/allocations":
        named = body
    elif path == "/reshaper" and isinstance(body, dict):
        named = body.get("allocations")
    for consumer, claim in named.items() if isinstance(named, dict) else ():
        if isinstance(claim, dict):
            yield consumer, claim


_ORPHANS: Final = "orphans"
_EXTENSIONS: Final = "extensions"


def explain_difference(
    exchange: ShadowExchange, difference: AnswerDifference, left_behind: OrphanConsumers
) -> str | None:
    """Return the name of the documented deviation that explains a difference; None if no deviation does."""
    if left_behind.explains_difference(exchange, difference):
        return _ORPHANS
    return next((name for name, is_this in _RECOGNISED.items() if is_this(exchange, difference)), None)


def refused_there_only(theirs: ShadowAnswer) -> str | None:
    """Return the deviation that explains why only OpenStack Placement refuses a write, or None."""
    # this error means that OpenStack Placement has kept a consumer, which the client wants to create, after a
    # refused claim
    return _ORPHANS if "expected 0 but got" in _sentence_of(theirs) else None


def known_here_only(request: AskedRequest, theirs: ShadowAnswer) -> str | None:
    """Return the name of the deviation for a path that only our service has; None for any other path."""
    path = unquote(urlsplit(request.path).path)
    return _EXTENSIONS if theirs.status == 404 and (path + "/").startswith("/ext/") else None


def _sentence_of(answer: ShadowAnswer) -> str:
    return str(answer.first_error.get("detail", ""))


def _last_modified(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Return whether only one answer has the header ``Last-Modified``, and ours has ``Cache-Control``."""
    return difference.what == "last-modified" and "cache-control" in exchange.ours.headers


def _method_of_older_versions(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Return whether the stock service left out the header ``Allow`` in an error 405."""
    return difference.what == "allow" and "allow" not in exchange.theirs.headers


def _status_500(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Return whether the stock service failed at a request that our service answers or refuses."""
    return difference.what == "status" and exchange.theirs.status == 500 and exchange.ours.status < 500


def _unknown_names(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Return whether our service refused an unknown name in a query, and the stock service found nothing."""
    return (
        difference.what == "status"
        and (exchange.theirs.status, exchange.ours.status) == (200, 400)
        and "No such " in _sentence_of(exchange.ours)
        and isinstance(exchange.theirs.body, dict)
        and not any(exchange.theirs.body.values())
    )


def _orphan_consumer(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Return whether a claim was refused because its consumer exists only in the stock service."""
    return difference.what in ("status", "code", "words") and refused_there_only(exchange.theirs) is not None


def _lowercase_class(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Return whether our service refused an inventory of a resource class in small letters."""
    said = _sentence_of(exchange.ours)
    return (
        # our service reports this error first, so the stock service can report another error of the request
        difference.what in ("status", "code", "words")
        and exchange.theirs.status in (400, 404, 409)
        and exchange.ours.status == 400
        and "['inventories']" in said
        and "does not match any of the regexes: '^[A-Z0-9_]+$'" in said
    )


def _refused_mappings(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Return whether our service refused the ``mappings`` of a claim, which the stock service ignores."""
    return exchange.ours.status == 400 and "['mappings']" in _sentence_of(exchange.ours)


def _wrong_sums(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Return whether the stock service's candidates have wrong sums, and our candidates have right sums."""
    url = urlsplit(exchange.request.path)
    if difference.what != "body" or url.path != "/allocation_candidates":
        return False
    if not all(isinstance(each.body, dict) for each in (exchange.theirs, exchange.ours)):
        return False
    wanted: Counter[str] = Counter()
    groups = 0
    for name, value in parse_qsl(url.query):
        if name.startswith("resources"):
            groups += 1
            wanted.update(_parse_amounts(value))
    there, here = (candidate_amounts(each.body) for each in (exchange.theirs, exchange.ours))
    return (
        groups > 1
        # candidates that both services return are correct, so they are not checked
        and all(_total_amounts(each) != wanted for each in there if each not in here)
        and all(_total_amounts(each) == wanted for each in here)
    )


def _forbidding_without_resources(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Return whether a group of the request has no resources, and only forbids traits or aggregates.

    The stock service returns no candidates for such a request.
    """
    url = urlsplit(exchange.request.path)
    if difference.what != "body" or url.path != "/allocation_candidates":
        return False
    if not isinstance(exchange.theirs.body, dict) or candidate_amounts(exchange.theirs.body):
        return False
    # OpenStack Placement has no candidates for a request with such a group
    query = parse_qsl(url.query)
    asking = {name.removeprefix("resources") for name, _ in query if name.startswith("resources")}
    said: dict[str, list[str]] = {}
    for name, value in query:
        for parameter in ("required", "member_of"):
            if name.startswith(parameter):
                said.setdefault(name.removeprefix(parameter), []).extend(value.split(","))
    return any(
        suffix not in asking and all(each.startswith("!") for each in named) for suffix, named in said.items()
    )


def _parse_amounts(text: str) -> dict[str, int]:
    return {name: int(amount) for name, _, amount in (part.partition(":") for part in text.split(","))}


def _total_amounts(candidate: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for resources in candidate.values():
        total.update(resources)
    return total


_RECOGNISED: Final[dict[str, Callable[[ShadowExchange, AnswerDifference], Any]]] = {
    "last-modified": _last_modified,
    "method-of-older-versions": _method_of_older_versions,
    "status-500": _status_500,
    "unknown-names": _unknown_names,
    _ORPHANS: _orphan_consumer,
    "classes": _lowercase_class,
    "mappings": _refused_mappings,
    "sums": _wrong_sums,
    "forbidding-without-resources": _forbidding_without_resources,
}
