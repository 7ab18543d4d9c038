"""Writes that were in flight together: their order, and so the content of both sides, is unknown."""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from placement_extras.shadow.comparison import claims
from placement_extras.shadow.exchange import JSON, MirroredRequest, ShadowExchange, ShadowRequest, parsed

_REMEMBERED: Final = 50_000
_NONE: Final[frozenset[str]] = frozenset()
_SHOWN: Final = 50
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.I)
_WORD: Final = re.compile(r"[\w.-]+")
_LISTS: Final = ("/allocations", "/reshaper")
_OWNERS: Final = ("project_id", "user_id")


@dataclass(frozen=True, slots=True)
class WrittenKeys:
    """What a write writes.

    :param things: what it changes: a consumer, a part of a provider, a name.
    :param names: of all that it can be seen at: consumers, providers, projects, users.
    :param whole: whether it says all of its things, so that it does not matter what was there.
    """

    request: ShadowRequest
    things: frozenset[str]
    names: frozenset[str]
    whole: bool

    @classmethod
    def of(cls, request: ShadowRequest) -> "WrittenKeys":
        """From the request alone; a body that the API does not know has names all the same."""
        path = unquote(urlsplit(request.path).path).rstrip("/")
        body = parsed(request.body, JSON)
        written = dict(claims(request.method, path, body))
        text = f"{path} {request.body.decode('utf-8', 'replace')}"
        owners = (claim.get(name) for claim in written.values() for name in _OWNERS)
        names = {*map(str.lower, _UUID.findall(text)), *(each for each in owners if isinstance(each, str))}
        things = frozenset(_things(path, written, body))
        whole = path in _LISTS or (request.method != "POST" and path in things)
        return cls(request, things, frozenset(names or {each.rpartition("/")[2] for each in things}), whole)

    def is_as(self, other: "WrittenKeys") -> bool:
        """Whether both ask for the same, so that it does not matter who came last."""
        mine, theirs = self.request, other.request
        return (mine.method, mine.path, mine.body) == (theirs.method, theirs.path, theirs.body)


def _things(path: str, consumers: Iterable[str], body: Any) -> Iterator[str]:
    yield from (f"/allocations/{each}" for each in consumers)
    if path == "/reshaper":
        inventories = body.get("inventories") if isinstance(body, dict) else None
        if isinstance(inventories, dict):
            yield from (f"/resource_providers/{each}/inventories" for each in inventories)
    elif path in ("/resource_providers", "/resource_classes"):
        new = body if isinstance(body, dict) else {}
        yield f"{path}/{new.get('uuid') or new.get('name')}"
    elif path not in _LISTS:
        yield "/".join(path.split("/")[:4])  # one class of the inventories is a part of them


@dataclass
class AmbiguousWrites:
    """Follows writes in the order of their answers.

    Two that were in flight together and were both accepted leave what the later one says. A proxy sees only
    in which order they were answered, which may be the other one.
    """

    _accepted: OrderedDict[int, WrittenKeys] = field(default_factory=OrderedDict)
    _seen: OrderedDict[str, frozenset[str]] = field(default_factory=OrderedDict)
    """What was named with each thing since both services last did the same to it."""
    _things: OrderedDict[str, frozenset[str]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._things)

    def document(self) -> dict[str, list[str]]:
        """The things in doubt that are so for longest, with all that they can be seen at."""
        return {thing: sorted(names) for thing, names in list(self._things.items())[:_SHOWN]}

    def take(self, copy: MirroredRequest, waiting: Iterable[int]) -> None:
        """A write that OpenStack Placement answered; what it refused leaves nothing.

        :param waiting: numbers of writes that our service has not done yet, and may do after this one.
        """
        if copy.received is None or 400 <= copy.received.status < 500:
            return
        if copy.received.status >= 500:  # nobody knows whether it was done
            self.spread(copy)
            return
        written = WrittenKeys.of(copy.request)
        self._accepted[copy.number] = written
        _forget_oldest(self._accepted)
        for other in self._rivals(copy, written, waiting):
            for thing in written.things & other.things:
                self._doubt(thing, written.names | other.names)
        for thing in written.things:
            self._seen[thing] = self._seen.get(thing, _NONE) | written.names
        _forget_oldest(self._seen)

    def _rivals(
        self, copy: MirroredRequest, written: WrittenKeys, waiting: Iterable[int]
    ) -> list[WrittenKeys]:
        """Accepted writes that say something else of the same, and may have come before it or after it."""
        others = map(self._accepted.get, {*copy.beside, *waiting} - {copy.number})
        return [each for each in others if each and each.things & written.things and not each.is_as(written)]

    def meets(self, copy: MirroredRequest) -> bool:
        """Whether a write shares anything with one that was accepted while it was in flight."""
        names = self._written(copy).names
        return any(names & other.names for other in map(self._accepted.get, copy.beside) if other)

    def _written(self, copy: MirroredRequest) -> WrittenKeys:
        return self._accepted.get(copy.number) or WrittenKeys.of(copy.request)

    def spread(self, copy: MirroredRequest) -> None:
        """Only one of the services may have done it, or will have."""
        written = self._written(copy)
        for thing in written.things:
            self._doubt(thing, written.names)

    def settle(self, copy: MirroredRequest, waiting: Iterable[int]) -> None:
        """Both services did a write: where nothing rivals it, what it says is there now."""
        written = self._written(copy)
        if written.whole and not self._rivals(copy, written, waiting):
            for thing in written.things:
                self._things.pop(thing, None)
                self._seen[thing] = written.names

    def about(self, exchange: ShadowExchange, request: ShadowRequest) -> str | None:
        """What is in doubt and can be why the answers to a request differ; None if nothing is."""
        if not self._things:
            return None
        said = " ".join(
            (
                *(request.path, request.body.decode("utf-8", "replace")),
                *_apart(exchange.theirs.body, exchange.ours.body),
            )
        )
        words = frozenset(map(str.lower, _WORD.findall(unquote(said)))) | frozenset(_WORD.findall(said))
        return next((thing for thing, names in self._things.items() if names & words), None)

    def _doubt(self, thing: str, names: frozenset[str]) -> None:
        self._things[thing] = self._things.get(thing, _NONE) | self._seen.get(thing, _NONE) | names
        _forget_oldest(self._things)


def _apart(there: Any, here: Any) -> Iterator[str]:
    """The parts of two documents that only one of them has."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in there.keys() | here.keys():
            if there.get(name) != here.get(name):
                yield name
                yield from _apart(there.get(name), here.get(name))
    elif isinstance(there, list) and isinstance(here, list):
        yield from {*map(_text, there)} ^ {*map(_text, here)}
    elif there != here:
        yield from (_text(there), _text(here))


def _text(document: Any) -> str:
    return json.dumps(document, sort_keys=True)


def _forget_oldest(known: OrderedDict[Any, Any]) -> None:
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
