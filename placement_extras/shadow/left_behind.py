"""What refused claims leave behind in OpenStack Placement: consumers, whose type shows later."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from placement_extras.shadow.compare import AnswerDifference
from placement_extras.shadow.exchange import ShadowExchange

_REMEMBERED: Final = 100_000
_UNKNOWN: Final = "unknown"
_CONSUMER: Final = "/allocations/"


@dataclass
class LeftBehind:
    """Consumers of refused claims, whose type is there that of a later claim without one, as before 1.38."""

    _types: dict[str, set[str]] = field(default_factory=dict)
    _projects: dict[str, str | None] = field(default_factory=dict)

    def take(self, method: str, path: str, body: Any, status: int) -> None:
        """A write and what OpenStack Placement answered, in the order of the answers.

        :param body: the document; what is none that the API knows is passed over.
        """
        for consumer, claim in claims(method, urlsplit(path).path, body):
            if status >= 400:
                if stated := claim.get("consumer_type"):
                    self._types.setdefault(consumer, set()).add(str(stated))
            elif claim.get("allocations") and "consumer_type" not in claim:
                self._projects[consumer] = claim.get("project_id")
            else:
                self._types.pop(consumer, None)
                self._projects.pop(consumer, None)
        _forget_oldest(self._types)
        _forget_oldest(self._projects)

    def shows(self, exchange: ShadowExchange, difference: AnswerDifference) -> bool:
        """Whether the answers differ by the type of such a consumer."""
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
            project = parse_qs(url.query).get("project_id", [None])[0]
            return any(
                consumer in self._types and of in (None, project) for consumer, of in self._projects.items()
            )
        return False


def claims(method: str, path: str, body: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The consumers that a write names, and what it says of each."""
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


def _forget_oldest(known: dict[str, Any]) -> None:
    while len(known) > _REMEMBERED:
        del known[next(iter(known))]
