"""Tracks writes that overlapped in time, and items with unknown content because of overlapping writes.

The proxy sees only the order of the answers. OpenStack Placement can have executed overlapping writes in
another order.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from placement_extras.shadow.comparison import named_claims
from placement_extras.shadow.exchange import (
    JSON,
    MirroredRequest,
    ShadowExchange,
    ShadowRequest,
    forget_oldest,
    parse_body,
)

# maximum number of items in each dictionary below, because a trial runs for weeks. The oldest items are
# removed, because old writes no longer overlap new ones.
_REMEMBERED: Final = 50_000
_NO_NAMES: Final[frozenset[str]] = frozenset()
# maximum number of items in the report
_MAX_SHOWN: Final = 50
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.I)
_WORD: Final = re.compile(r"[\w.-]+")
# paths of writes with uuids of consumers in their bodies
_LISTS: Final = ("/allocations", "/reshaper")
_OWNERS: Final = ("project_id", "user_id")


@dataclass(frozen=True, slots=True)
class WrittenKeys:
    """The items that a write changes, and the uuids and names by which answers show these items.

    :param things: the paths of the items. An item is a consumer, a provider or a part of it, a class or a
        trait.
    :param names: the uuids and names of consumers, providers, projects and users in the write.
    :param whole: whether the write replaces the items completely, so that their old content does not matter.
    """

    request: ShadowRequest
    things: frozenset[str]
    names: frozenset[str]
    whole: bool

    @classmethod
    def of_request(cls, request: ShadowRequest) -> "WrittenKeys":
        """Collect items and names from the path and the body of a write, even of a refused write."""
        path = unquote(urlsplit(request.path).path).rstrip("/")
        body = parse_body(request.body, JSON)
        written = dict(named_claims(request.method, path, body))
        # the body of a refused write can consist of any bytes
        text = f"{path} {request.body.decode('utf-8', 'replace')}"
        owners = (claim.get(name) for claim in written.values() for name in _OWNERS)
        # all uuids in the body count, because answers about a provider, a consumer or an aggregate can show
        # the change
        names = {*map(str.lower, _UUID.findall(text)), *(each for each in owners if isinstance(each, str))}
        things = frozenset(_written_items(path, written, body))
        # a POST to a part of a provider adds to this part, and other methods replace the part
        whole = path in _LISTS or (request.method != "POST" and path in things)
        # a class or trait has no uuid, so the last part of its path is used as its name
        return cls(request, things, frozenset(names or {each.rpartition("/")[2] for each in things}), whole)

    def is_same_as(self, other: "WrittenKeys") -> bool:
        """Return whether both writes are equal, so that their order does not matter."""
        mine, theirs = self.request, other.request
        return (mine.method, mine.path, mine.body) == (theirs.method, theirs.path, theirs.body)


def _written_items(path: str, consumers: Iterable[str], body: Any) -> Iterator[str]:
    yield from (f"/allocations/{each}" for each in consumers)
    if path == "/reshaper":
        inventories = body.get("inventories") if isinstance(body, dict) else None
        if isinstance(inventories, dict):
            yield from (f"/resource_providers/{each}/inventories" for each in inventories)
    elif path in ("/resource_providers", "/resource_classes"):
        new = body if isinstance(body, dict) else {}
        # a new provider without a uuid in the body is identified by its name, like a class, which has no uuid
        yield f"{path}/{new.get('uuid') or new.get('name')}"
    elif path not in _LISTS:
        # the path of one class is shortened to that of all inventories of its provider, because writes of
        # both change the same inventories
        yield "/".join(path.split("/")[:4])


@dataclass
class AmbiguousWrites:
    """Follows writes in the order of their answers, and marks items with ambiguous content.

    If two accepted writes of one item were in flight at the same time, the item has the content of the write
    that was executed last. This write can have been answered first, so the proxy does not know the content.
    """

    _accepted: dict[int, WrittenKeys] = field(default_factory=dict)
    """Accepted writes by the number of the request."""
    _seen: dict[str, frozenset[str]] = field(default_factory=dict)
    """For each item, the names in accepted writes since its content was last known to be equal in both
    services.
    """
    _doubtful: dict[str, frozenset[str]] = field(default_factory=dict)
    """For each item with ambiguous content, the names in answers that can show this content."""

    def __len__(self) -> int:
        return len(self._doubtful)

    def to_document(self) -> dict[str, list[str]]:
        """Return the names of the 50 items that have been ambiguous for the longest time."""
        return {thing: sorted(names) for thing, names in list(self._doubtful.items())[:_MAX_SHOWN]}

    def record_write(self, copy: MirroredRequest, waiting: Iterable[int]) -> None:
        """Record an answered write, before it is replayed.

        A write that OpenStack Placement refused (4xx) is ignored. A write with an error 5xx makes all its
        items ambiguous, because it was perhaps executed before the error.

        :param waiting: numbers of postponed writes; perhaps our service accepts them after this write.
        """
        if copy.received is None or 400 <= copy.received.status < 500:
            return
        if copy.received.status >= 500:  # the change was perhaps written before the error
            self.add_doubt(copy)
            return
        written = WrittenKeys.of_request(copy.request)
        self._accepted[copy.number] = written
        forget_oldest(self._accepted, _REMEMBERED)
        for other in self._rival_writes(copy, written, waiting):
            for thing in written.things & other.things:
                self._mark_doubtful(thing, written.names | other.names)
        for thing in written.things:
            self._seen[thing] = self._seen.get(thing, _NO_NAMES) | written.names
        forget_oldest(self._seen, _REMEMBERED)

    def _rival_writes(
        self, copy: MirroredRequest, written: WrittenKeys, waiting: Iterable[int]
    ) -> list[WrittenKeys]:
        """Return accepted writes that overlapped this write and wrote other content to the same items."""
        # get() returns None for a write that was refused or is no longer remembered
        others = map(self._accepted.get, {*copy.beside, *waiting} - {copy.number})
        return [
            each for each in others if each and each.things & written.things and not each.is_same_as(written)
        ]

    def overlaps_accepted(self, copy: MirroredRequest) -> bool:
        """Return whether a write shares a name with an accepted write that was in flight at the same time."""
        names = self._written_keys(copy).names
        return any(names & other.names for other in map(self._accepted.get, copy.beside) if other)

    def _written_keys(self, copy: MirroredRequest) -> WrittenKeys:
        return self._accepted.get(copy.number) or WrittenKeys.of_request(copy.request)

    def add_doubt(self, copy: MirroredRequest) -> None:
        """Mark the items of a write as ambiguous, because perhaps only one service has executed the write."""
        written = self._written_keys(copy)
        for thing in written.things:
            self._mark_doubtful(thing, written.names)

    def settle_write(self, copy: MirroredRequest, waiting: Iterable[int]) -> None:
        """Record that both services accepted a write.

        If the write replaced its items, and no overlapping write was perhaps executed later, the content of
        these items is known again.
        """
        written = self._written_keys(copy)
        # a POST adds to the old content, which stays unknown
        if written.whole and not self._rival_writes(copy, written, waiting):
            for thing in written.things:
                self._doubtful.pop(thing, None)
                self._seen[thing] = written.names

    def find_doubt(self, exchange: ShadowExchange, request: ShadowRequest) -> str | None:
        """Return an ambiguous item that can explain why the answers to a request differ, or None."""
        if not self._doubtful:
            return None
        said = " ".join(
            (
                *(request.path, request.body.decode("utf-8", "replace")),
                *_differing_parts(exchange.theirs.body, exchange.ours.body),
            )
        )
        # words are also compared in lower case, because clients can write uuids in capitals. Words are also
        # compared unchanged, because names of resource classes are in capitals.
        words = frozenset(map(str.lower, _WORD.findall(unquote(said)))) | frozenset(_WORD.findall(said))
        return next((thing for thing, names in self._doubtful.items() if names & words), None)

    def _mark_doubtful(self, thing: str, names: frozenset[str]) -> None:
        self._doubtful[thing] = (
            # the names of earlier content count, too, because one service perhaps still has content that the
            # other service has replaced
            self._doubtful.get(thing, _NO_NAMES) | self._seen.get(thing, _NO_NAMES) | names
        )
        forget_oldest(self._doubtful, _REMEMBERED)


def _differing_parts(there: Any, here: Any) -> Iterator[str]:
    """Yield the names and values that only one of two JSON documents has."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in there.keys() | here.keys():
            if there.get(name) != here.get(name):
                yield name
                yield from _differing_parts(there.get(name), here.get(name))
    elif isinstance(there, list) and isinstance(here, list):
        # the order of items does not count, because each service can return its lists in any order
        yield from {*map(_json_text, there)} ^ {*map(_json_text, here)}
    elif there != here:
        yield from (_json_text(there), _json_text(here))


def _json_text(document: Any) -> str:
    return json.dumps(document, sort_keys=True)
