"""Sends our service what the stock service was asked: in which order, and what follows from the answers."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import urllib3
from urllib3.exceptions import HTTPError

from placement_extras.shadow.ambiguous_writes import AmbiguousWrites
from placement_extras.shadow.comparison import (
    AnswerDifference,
    LeftBehind,
    differences,
    explain,
    known_here_only,
    refused_there_only,
)
from placement_extras.shadow.exchange import JSON, MirroredRequest, ShadowAnswer, ShadowExchange, parsed

LOG = logging.getLogger(__name__)

AWAY: Final = "our service did not answer"
BROKEN_OFF: Final = "our service went away while it had the request in hand"
_SECONDS: Final = 60.0
_LONGEST_PAUSE: Final = 2.0
_UNAVAILABLE: Final = frozenset({502, 503, 504})
_TOKEN: Final = "x-auth-token"
_OURS: Final = frozenset({"host", "content-length", "connection", "accept-encoding"})


@dataclass
class ReplayClient:
    """Our service at a URL.

    A read that it does not answer is left out. A write is asked until it is answered, as all later answers
    depend on it.

    :param token: sent in the place of the client's own, if given.
    :param stopped: set when nobody waits for answers any more.
    """

    url: str
    token: str | None
    stopped: threading.Event
    seconds: float = _SECONDS
    answers: bool = True
    _prefix: str = field(init=False)
    _pool: urllib3.HTTPConnectionPool = field(init=False)

    def __post_init__(self) -> None:
        self._prefix = urlsplit(self.url).path.rstrip("/")
        self._pool = urllib3.connection_from_url(
            self.url, maxsize=1, timeout=urllib3.Timeout(self.seconds), retries=False
        )

    def __call__(self, copy: MirroredRequest) -> tuple[ShadowAnswer, float]:
        """Our answer and what it took.

        :raises Unanswered: there is none.
        """
        pause, tries = 0.05, 0
        while True:
            tries += 1
            began = time.monotonic()
            try:
                answer = self._ask(copy)
            except (HTTPError, OSError) as error:
                self._is_away(str(error))
            else:
                if answer.status not in _UNAVAILABLE:
                    return self._answered(copy, answer, tries), time.monotonic() - began
                self._is_away(f"it answered {answer.status}")
            if not copy.is_write:
                raise UnansweredRequest(AWAY)
            if self.stopped.wait(pause):
                raise UnansweredRequest(AWAY)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _answered(self, copy: MirroredRequest, answer: ShadowAnswer, tries: int) -> ShadowAnswer:
        if not self.answers:
            self.answers = True
            LOG.info("%s answers again", self.url)
        if tries > 1 and copy.received is not None and copy.received.status < 400 <= answer.status:
            raise UnansweredRequest(BROKEN_OFF)
        return answer

    def _is_away(self, why: str) -> None:
        if self.answers:
            self.answers = False
            LOG.warning("%s does not answer: %s; writes wait for it, reads are not compared", self.url, why)

    def _ask(self, copy: MirroredRequest) -> ShadowAnswer:
        request = copy.request
        headers = urllib3.HTTPHeaderDict(
            (name, value) for name, value in request.headers if name.lower() not in _OURS
        )
        if self.token is not None:
            headers.discard(_TOKEN)
            headers[_TOKEN] = self.token
        response = self._pool.urlopen(
            request.method,
            self._prefix + request.path,
            body=_body(copy) or None,
            headers=headers,
            redirect=False,
            assert_same_host=False,
        )
        return ShadowAnswer.of(response.status, tuple(response.headers.items()), response.data)


def _body(copy: MirroredRequest) -> bytes:
    """The body; a provider that the stock service has found a uuid for gets the same one."""
    request = copy.request
    if request.method != "POST" or urlsplit(request.path).path.rstrip("/") != "/resource_providers":
        return request.body
    made = _made_uuid(copy)
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        return request.body
    if made is None or not isinstance(body, dict) or "uuid" in body:
        return request.body
    return json.dumps({**body, "uuid": made}).encode()


def _made_uuid(copy: MirroredRequest) -> str | None:
    if copy.received is None:
        return None
    location = copy.received.answer().headers.get("location", "")
    try:
        return str(UUID(location.rpartition("/")[2]))
    except ValueError:
        return None


_MAX_POSTPONED: Final = 1000
_MAX_POSTPONED_BYTES: Final = 128 << 20
_REMEMBERED: Final = 100_000
# Of requests that are wrong in several ways each service names one.
ORDER: Final = "order"
DEFECT: Final = "a defect of placement-shadow, of which its log says more"


_TRAITS: Final = re.compile(r"/resource_providers/[^/?]+/traits")


class ReplayVerdict(StrEnum):
    """What came of a request."""

    SAME = "same"
    KNOWN = "known"
    """It differs as the table of deviations says."""
    DIFFERENT = "different"
    RACED = "raced"
    """Other writes were in flight with it, and nobody knows which came first."""
    DOUBTFUL = "doubtful"
    """It differs, and is about what was written by several at once before."""
    MISSED = "missed"
    """It was not compared."""


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """A verdict and what it is about.

    :param why: of MISSED the reason, of KNOWN the name of the deviation, else what differs.
    :param answer: what our service answered, None if it was not asked.
    :param seconds: what our service took.
    :param parts: whether our database holds something else from now on.
    """

    copy: MirroredRequest
    verdict: ReplayVerdict
    why: str = ""
    answer: ShadowAnswer | None = None
    seconds: float = 0.0
    parts: bool = False


class UnansweredRequest(Exception):
    """Our service did not answer a request; the message says why."""


Ask = Callable[[MirroredRequest], tuple[ShadowAnswer, float]]
"""Ask our service the same; the answer and what it took.

:raises Unanswered: it did not answer, and the copy is not to be asked again.
"""


@dataclass
class RequestReplay:
    """Takes copies in the order in which they were answered.

    :param report: is given each outcome, once for every copy.
    """

    ask: Ask
    report: Callable[[ReplayOutcome], None]
    _taken: dict[int, None] = field(default_factory=dict)
    _postponed: dict[int, MirroredRequest] = field(default_factory=dict)
    _postponed_bytes: int = 0
    _left_behind: LeftBehind = field(default_factory=LeftBehind)
    doubt: AmbiguousWrites = field(default_factory=AmbiguousWrites)

    def take(self, copy: MirroredRequest) -> None:
        """The next one."""
        self._note(copy)
        outcome = self._outcome(copy)
        if outcome:
            self.report(outcome)
        else:
            self._postponed[copy.number] = copy
            self._postponed_bytes += copy.size
        while len(self._postponed) > _MAX_POSTPONED or self._postponed_bytes > _MAX_POSTPONED_BYTES:
            self._conclude(next(iter(self._postponed.values())))
        if not copy.is_write:
            return
        self._remember(copy.number)
        if outcome:
            self._try_again()
        for each in list(self._postponed.values()):
            if not each.beside - self._taken.keys():
                self._conclude(each)

    def take_around_copy(self, copy: MirroredRequest) -> None:
        """The next one, a write in flight while our database was copied: it may be in the copy already."""
        self._note(copy)
        outcome = self._outcome(copy, last=True)
        assert outcome is not None
        self._remember(copy.number)
        why = "the database was copied meanwhile"
        self.report(replace(outcome, verdict=ReplayVerdict.RACED, why=why, parts=False))

    def finish(self) -> None:
        """No more will come."""
        for copy in list(self._postponed.values()):
            self._conclude(copy)

    def _note(self, copy: MirroredRequest) -> None:
        if copy.is_write and copy.received is not None:
            request = copy.request
            self._left_behind.take(
                request.method, request.path, parsed(request.body, JSON), copy.received.status
            )
            self.doubt.take(copy, self._postponed)

    def _remember(self, number: int) -> None:
        self._taken[number] = None
        while len(self._taken) > _REMEMBERED:
            del self._taken[next(iter(self._taken))]

    def _try_again(self) -> None:
        """Ask what was postponed, the oldest first, until none of it gets another answer."""
        again = bool(self._postponed)
        while again:
            again = False
            for copy in list(self._postponed.values()):
                if outcome := self._outcome(copy):
                    self._forget(copy)
                    self.report(outcome)
                    again = again or copy.is_write

    def _forget(self, copy: MirroredRequest) -> None:
        del self._postponed[copy.number]
        self._postponed_bytes -= copy.size

    def _conclude(self, copy: MirroredRequest) -> None:
        self._forget(copy)
        outcome = self._outcome(copy, last=True)
        assert outcome is not None
        self.report(outcome)

    def _outcome(self, copy: MirroredRequest, *, last: bool = False) -> ReplayOutcome | None:
        """None if it has to be asked again later. Whatever is in it, it says nothing of the next copy."""
        try:
            return self._compared(copy, last=last)
        except Exception:
            LOG.exception("A copy cannot be compared: %s %s", copy.request.method, copy.request.path)
            return ReplayOutcome(copy, ReplayVerdict.MISSED, DEFECT, parts=copy.is_write)

    def _compared(self, copy: MirroredRequest, *, last: bool) -> ReplayOutcome | None:
        if copy.received is None:
            return ReplayOutcome(copy, ReplayVerdict.MISSED, copy.missed, parts=copy.is_write)
        theirs = copy.received.answer()
        if name := known_here_only(copy.request, theirs):
            return ReplayOutcome(copy, ReplayVerdict.KNOWN, name)  # it must not do what was not done there
        if copy.is_write and theirs.status >= 500:
            return ReplayOutcome(copy, ReplayVerdict.MISSED, f"OpenStack Placement answered {theirs.status}")
        if copy.is_write and theirs.status >= 400 and (copy.beside or last):
            return ReplayOutcome(copy, ReplayVerdict.RACED, "it was refused while others were in flight")
        if copy.is_write and (name := refused_there_only(theirs)):
            return ReplayOutcome(
                copy, ReplayVerdict.KNOWN, name
            )  # ours would accept it, and hold something else then
        try:
            ours, seconds = self.ask(copy)
        except UnansweredRequest as error:
            return ReplayOutcome(
                copy, ReplayVerdict.MISSED, str(error), parts=copy.is_write and theirs.status < 400
            )
        exchange = ShadowExchange(copy.request, theirs, ours)
        found = differences(exchange)
        if not found:
            if copy.is_write and ours.status < 400 and copy.number not in self._postponed:
                self.doubt.settle(copy, self._postponed)
            return ReplayOutcome(copy, ReplayVerdict.SAME, "", ours, seconds)
        parts = copy.is_write and (theirs.status < 400) != (ours.status < 400)
        parts = parts and not (copy.beside and theirs.status < 400 and self._has_traits(copy))
        applied = copy.is_write and ours.status < 400
        if copy.beside and not applied and not last:
            return None
        names = [self._name(exchange, each) for each in found]
        known = [name for name in names if name]
        if len(known) == len(found):
            return ReplayOutcome(copy, ReplayVerdict.KNOWN, known[0], ours, seconds, parts)
        unknown = next(each for each, name in zip(found, names, strict=True) if not name)
        doubtful = self.doubt.about(exchange, copy.request)
        if parts and (doubtful or self.doubt.meets(copy)):
            self.doubt.spread(copy)
            parts = False
        if copy.beside:
            return ReplayOutcome(copy, ReplayVerdict.RACED, str(unknown), ours, seconds, parts)
        if doubtful:
            why = f"{doubtful} was written by several at once; {unknown}"
            return ReplayOutcome(copy, ReplayVerdict.DOUBTFUL, why, ours, seconds)
        return ReplayOutcome(copy, ReplayVerdict.DIFFERENT, str(unknown), ours, seconds, parts)

    def _has_traits(self, copy: MirroredRequest) -> bool:
        """Whether our service has the traits that a request sets.

        Of two that set the same at once OpenStack Placement takes the second with an old generation, as it
        changes nothing; ours refuses it, and both hold the same.
        """
        request = copy.request
        wanted = parsed(request.body, JSON)
        if request.method != "PUT" or not _TRAITS.fullmatch(request.path) or not isinstance(wanted, dict):
            return False
        try:
            there, _ = self.ask(replace(copy, request=replace(request, method="GET", body=b"")))
        except UnansweredRequest:
            return False
        return _names(there.body) is not None and _names(there.body) == _names(wanted)

    def _name(self, exchange: ShadowExchange, difference: AnswerDifference) -> str | None:
        name = explain(exchange, difference, self._left_behind)
        return name or (ORDER if difference.what == "words" and exchange.ours.status < 500 else None)


def _names(document: Any) -> frozenset[str] | None:
    """The traits in a document, None if it has none as they should be."""
    traits = document.get("traits") if isinstance(document, dict) else None
    if not isinstance(traits, list) or not all(isinstance(each, str) for each in traits):
        return None
    return frozenset(traits)
