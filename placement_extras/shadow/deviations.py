"""By what a difference is recognised that is known.

The names are those in ``doc/reference/deviations.yaml``; only those are
recognised that requests at random run into.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from placement_extras.shadow.compare import AnswerDifference, candidates
from placement_extras.shadow.exchange import AskedRequest, ShadowAnswer, ShadowExchange
from placement_extras.shadow.left_behind import LeftBehind

_ORPHANS: Final = "orphans"
_EXTENSIONS: Final = "extensions"


def explain(exchange: ShadowExchange, difference: AnswerDifference, left_behind: LeftBehind) -> str | None:
    """The name of the deviation that the difference is, if it is one."""
    if left_behind.shows(exchange, difference):
        return _ORPHANS
    return next((name for name, is_this in _RECOGNISED.items() if is_this(exchange, difference)), None)


def refused_there_only(theirs: ShadowAnswer) -> str | None:
    """The name of the deviation by which a write was refused there, and would not be by ours."""
    return _ORPHANS if "expected 0 but got" in _said(theirs) else None


def known_here_only(request: AskedRequest, theirs: ShadowAnswer) -> str | None:
    """The name of the deviation by which there is no such thing there, where ours might do what is asked."""
    path = unquote(urlsplit(request.path).path)
    return _EXTENSIONS if theirs.status == 404 and (path + "/").startswith("/ext/") else None


def _said(answer: ShadowAnswer) -> str:
    return str(answer.error.get("detail", ""))


def _last_modified(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    return difference.what == "last-modified" and "cache-control" in exchange.ours.headers


def _method_of_older_versions(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    return difference.what == "allow" and "allow" not in exchange.theirs.headers


def _status_500(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    return difference.what == "status" and exchange.theirs.status == 500 and exchange.ours.status < 500


def _unknown_names(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    return (
        difference.what == "status"
        and (exchange.theirs.status, exchange.ours.status) == (200, 400)
        and "No such " in _said(exchange.ours)
        and isinstance(exchange.theirs.body, dict)
        and not any(exchange.theirs.body.values())
    )


def _orphans(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    return difference.what in ("status", "code", "words") and refused_there_only(exchange.theirs) is not None


def _classes(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    said = _said(exchange.ours)
    return (
        difference.what == "words"
        and exchange.ours.status == 400
        and "['inventories']" in said
        and "does not match any of the regexes: '^[A-Z0-9_]+$'" in said
    )


def _mappings(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    return exchange.ours.status == 400 and "['mappings']" in _said(exchange.ours)


def _sums(exchange: ShadowExchange, difference: AnswerDifference) -> bool:
    """Candidates that only they have are of wrong amounts, those that only we have of right ones."""
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
            wanted.update(_amounts(value))
    there, here = (candidates(each.body) for each in (exchange.theirs, exchange.ours))
    return (
        groups > 1
        and all(_total(each) != wanted for each in there if each not in here)
        and all(_total(each) == wanted for each in here)
    )


def _amounts(text: str) -> dict[str, int]:
    return {name: int(amount) for name, _, amount in (part.partition(":") for part in text.split(","))}


def _total(candidate: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for resources in candidate.values():
        total.update(resources)
    return total


_RECOGNISED: Final[dict[str, Callable[[ShadowExchange, AnswerDifference], Any]]] = {
    "last-modified": _last_modified,
    "method-of-older-versions": _method_of_older_versions,
    "status-500": _status_500,
    "unknown-names": _unknown_names,
    _ORPHANS: _orphans,
    "classes": _classes,
    "mappings": _mappings,
    "sums": _sums,
}
