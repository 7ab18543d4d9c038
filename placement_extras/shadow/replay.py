"""Replays the requests of OpenStack Placement's clients on our service, in order, and judges the answers."""

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
from urllib3._collections import HTTPHeaderDict  # urllib3 1.26 does not export it
from urllib3.exceptions import HTTPError

from placement_extras.shadow.ambiguous_writes import AmbiguousWrites
from placement_extras.shadow.comparison import (
    AnswerDifference,
    OrphanConsumers,
    explain_difference,
    find_differences,
    known_here_only,
    refused_there_only,
)
from placement_extras.shadow.exchange import (
    JSON,
    MirroredRequest,
    ShadowAnswer,
    ShadowExchange,
    forget_oldest,
    parse_body,
)

LOG = logging.getLogger(__name__)

AWAY: Final = "our service did not answer"
BROKEN_OFF: Final = "our service stopped answering while it handled the request"
_TIMEOUT_SECONDS: Final = 60.0
_MAX_PAUSE: Final = 2.0
"""Maximum pause, in seconds, between two attempts to send a write while our service does not answer."""
# a proxy in front of our service sends these statuses if the service does not answer, and the service itself
# sends 503 while it starts
_AWAY_STATUSES: Final = frozenset({502, 503, 504})
_TOKEN_HEADER: Final = "x-auth-token"
# headers that urllib3 sets itself
_OWN_HEADERS: Final = frozenset({"host", "content-length", "connection", "accept-encoding"})


@dataclass
class ReplayClient:
    """A client of our service.

    If our service does not answer a read, the read is left out. A write is sent again until our service
    answers, because all later answers depend on this write.

    :param url: the URL of our service.
    :param token: the token that is sent; if it is None, the tokens of the clients are sent.
    :param stopped: an event that is set when the program ends. Writes are then not sent again.
    :param seconds: maximum seconds of one attempt to send a request.
    :param answers: whether our service has answered the last attempt.
    """

    url: str
    token: str | None
    stopped: threading.Event
    seconds: float = _TIMEOUT_SECONDS
    answers: bool = True
    _prefix: str = field(init=False)
    _pool: urllib3.HTTPConnectionPool = field(init=False)

    def __post_init__(self) -> None:
        self._prefix = urlsplit(self.url).path.rstrip("/")
        self._pool = urllib3.connection_from_url(
            # one connection is enough, because one thread replays all requests one after the other
            self.url,
            maxsize=1,
            timeout=urllib3.Timeout(self.seconds),
            retries=False,
        )

    def __call__(self, copy: MirroredRequest) -> tuple[ShadowAnswer, float]:
        """Send the request of a copy; return the answer, and the seconds until the answer came.

        :raises UnansweredRequest: our service did not answer, and the request is not sent again.
        """
        pause, tries = 0.05, 0
        while True:
            tries += 1
            began = time.monotonic()
            try:
                answer = self._send_request(copy)
            except (HTTPError, OSError) as error:
                self._is_away(str(error))
            else:
                if answer.status not in _AWAY_STATUSES:
                    return self._check_answer(copy, answer, tries), time.monotonic() - began
                self._is_away(f"it answered {answer.status}")
            if not copy.is_write or self.stopped.wait(pause):
                raise UnansweredRequest(AWAY)
            pause = min(2 * pause, _MAX_PAUSE)

    def _check_answer(self, copy: MirroredRequest, answer: ShadowAnswer, tries: int) -> ShadowAnswer:
        if not self.answers:
            self.answers = True
            LOG.info("This service at %s answers again", self.url)
        # perhaps the service has executed an earlier attempt without answering, and therefore refuses this
        # one
        if tries > 1 and copy.received is not None and copy.received.status < 400 <= answer.status:
            raise UnansweredRequest(BROKEN_OFF)
        return answer

    def _is_away(self, why: str) -> None:
        if self.answers:
            self.answers = False
            LOG.warning(
                "This service at %s does not answer: %s; writes wait for it, reads are not compared",
                self.url,
                why,
            )

    def _send_request(self, copy: MirroredRequest) -> ShadowAnswer:
        request = copy.request
        headers = HTTPHeaderDict(
            (name, value) for name, value in request.headers if name.lower() not in _OWN_HEADERS
        )
        if self.token is not None:
            # if our service uses noauth2 or another Keystone, it does not accept the client's token
            headers.discard(_TOKEN_HEADER)
            headers[_TOKEN_HEADER] = self.token
        # a redirect is not followed, because it is compared like any other answer
        response = self._pool.urlopen(
            request.method,
            self._prefix + request.path,
            body=_replay_body(copy) or None,
            headers=headers,
            redirect=False,
            assert_same_host=False,
        )
        return ShadowAnswer.from_content(response.status, tuple(response.headers.items()), response.data)


def _replay_body(copy: MirroredRequest) -> bytes:
    """Return the body to send. A new provider gets the same uuid as in OpenStack Placement."""
    request = copy.request
    if request.method != "POST" or urlsplit(request.path).path.rstrip("/") != "/resource_providers":
        return request.body
    # if the client has sent no uuid, our service would choose another uuid than OpenStack Placement. Later
    # requests of the client would then not find the provider.
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
    location = copy.received.parse_answer().headers.get("location", "")
    try:
        return str(UUID(location.rpartition("/")[2]))
    except ValueError:
        # the answer to a refused request has no header with the location
        return None


# maximum number and maximum memory of the copies that are tried again after each write
_MAX_POSTPONED: Final = 1000
_MAX_POSTPONED_BYTES: Final = 128 << 20
# maximum number of replayed writes that are remembered, because a trial runs for weeks
_REMEMBERED: Final = 100_000
# the name of a documented deviation: if a request has several errors, each service reports the error that it
# finds first
ORDER: Final = "order"
DEFECT: Final = "a defect of placement-shadow; its log has the cause"


_TRAITS_PATH: Final = re.compile(r"/resource_providers/[^/?]+/traits")


class ReplayVerdict(StrEnum):
    """The judgement of the two answers to one request."""

    SAME = "same"
    """The answers are equal in everything that matters to clients."""
    KNOWN = "known"
    """The answers differ, but a documented deviation explains the difference."""
    DIFFERENT = "different"
    """The answers differ, and nothing explains the difference."""
    RACED = "raced"
    """The answers differ, and overlapping writes can explain the difference; or a write that OpenStack
    Placement refused was not replayed, because it overlapped other writes.
    """
    DOUBTFUL = "doubtful"
    """The answers differ about an item with unknown content. Several clients have written this item at the
    same time.
    """
    MISSED = "missed"
    """The answers were not compared, for example because one of them is missing."""


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The verdict on the answers to one copied request.

    :param why: the reason if the verdict is MISSED, the name of the deviation if it is KNOWN, and otherwise
        the difference.
    :param answer: the answer of our service; None if our service did not get or did not answer the request.
    :param seconds: seconds until our service answered.
    :param parts: whether the databases of the two services differ from this request on.
    """

    copy: MirroredRequest
    verdict: ReplayVerdict
    why: str = ""
    answer: ShadowAnswer | None = None
    seconds: float = 0.0
    parts: bool = False


class UnansweredRequest(Exception):
    """Our service did not answer a request; the message has the reason."""


Ask = Callable[[MirroredRequest], tuple[ShadowAnswer, float]]
"""A function that sends the request of a copy to our service, and returns the answer and the time in seconds.

:raises UnansweredRequest: the service did not answer, and the copy must not be sent again.
"""


@dataclass
class RequestReplay:
    """Replays copies of requests on our service, in the order of OpenStack Placement's answers.

    :param ask: the function that sends a copy to our service and returns the answer.
    :param report: a function that receives exactly one outcome for each copy.
    """

    ask: Ask
    report: Callable[[ReplayOutcome], None]
    _taken: dict[int, None] = field(default_factory=dict)
    """Numbers of the writes that were replayed or left out, the oldest first."""
    _postponed: dict[int, MirroredRequest] = field(default_factory=dict)
    """Copies to try again after later writes, by number, the oldest first."""
    _postponed_bytes: int = 0
    _left_behind: OrphanConsumers = field(default_factory=OrphanConsumers)
    doubt: AmbiguousWrites = field(default_factory=AmbiguousWrites)

    def replay_copy(self, copy: MirroredRequest) -> None:
        """Replay the next copy; if overlapping writes can change the outcome, postpone it until later."""
        self._note_write(copy)
        outcome = self._try_outcome(copy)
        if outcome:
            self.report(outcome)
        else:
            self._postponed[copy.number] = copy
            self._postponed_bytes += copy.size
        while len(self._postponed) > _MAX_POSTPONED or self._postponed_bytes > _MAX_POSTPONED_BYTES:
            # a dictionary keeps the order of its items, so the first copy has waited for the longest time
            self._conclude_copy(next(iter(self._postponed.values())))
        if not copy.is_write:
            return
        self._remember_number(copy.number)
        # only a replayed write can change the answers to postponed copies
        if outcome:
            self._try_again()
        for each in list(self._postponed.values()):
            # if all writes that overlapped this copy have been replayed, further attempts would not change
            # the answer
            if not each.beside - self._taken.keys():
                self._conclude_copy(each)

    def take_around_copy(self, copy: MirroredRequest) -> None:
        """Replay a write that was in flight when the database was copied.

        Perhaps the copied database already contains this write, so the outcome is ``RACED``.
        """
        self._note_write(copy)
        outcome = self._try_outcome(copy, last=True)
        # the type checker does not know that _try_outcome() always returns an outcome if ``last`` is set
        assert outcome is not None
        self._remember_number(copy.number)
        why = "the database was copied meanwhile"
        self.report(replace(outcome, verdict=ReplayVerdict.RACED, why=why, parts=False))

    def conclude_all(self) -> None:
        """Judge all postponed copies. The caller calls this method after the last copy."""
        for copy in list(self._postponed.values()):
            self._conclude_copy(copy)

    def _note_write(self, copy: MirroredRequest) -> None:
        if copy.is_write and copy.received is not None:
            request = copy.request
            self._left_behind.record_write(
                request.method, request.path, parse_body(request.body, JSON), copy.received.status
            )
            self.doubt.record_write(copy, self._postponed)

    def _remember_number(self, number: int) -> None:
        self._taken[number] = None
        forget_oldest(self._taken, _REMEMBERED)

    def _try_again(self) -> None:
        """Replay postponed copies again, the oldest first, until no further write succeeds."""
        again = bool(self._postponed)
        while again:
            again = False
            for copy in list(self._postponed.values()):
                if outcome := self._try_outcome(copy):
                    self._drop_postponed(copy)
                    self.report(outcome)
                    again = again or copy.is_write

    def _drop_postponed(self, copy: MirroredRequest) -> None:
        del self._postponed[copy.number]
        self._postponed_bytes -= copy.size

    def _conclude_copy(self, copy: MirroredRequest) -> None:
        self._drop_postponed(copy)
        outcome = self._try_outcome(copy, last=True)
        # the type checker needs this line, as in take_around_copy()
        assert outcome is not None
        self.report(outcome)

    def _try_outcome(self, copy: MirroredRequest, *, last: bool = False) -> ReplayOutcome | None:
        """Return the outcome of a copy; None if the copy has to be tried again later.

        If the comparison raises an exception, the outcome is ``MISSED``.
        """
        try:
            return self._compare_copy(copy, last=last)
        except Exception:
            LOG.exception(
                "The answers to a request cannot be compared: %s %s", copy.request.method, copy.request.path
            )
            return ReplayOutcome(copy, ReplayVerdict.MISSED, DEFECT, parts=copy.is_write)

    def _compare_copy(self, copy: MirroredRequest, *, last: bool) -> ReplayOutcome | None:
        if copy.received is None:
            return ReplayOutcome(copy, ReplayVerdict.MISSED, copy.missed, parts=copy.is_write)
        theirs = copy.received.parse_answer()
        if name := known_here_only(copy.request, theirs):
            # the request is not sent: only our service has this path, so the answers would certainly differ
            return ReplayOutcome(copy, ReplayVerdict.KNOWN, name)
        # after an error 5xx it is unknown whether OpenStack Placement has executed the write
        if copy.is_write and theirs.status >= 500:
            return ReplayOutcome(copy, ReplayVerdict.MISSED, f"OpenStack Placement answered {theirs.status}")
        # this refused write is not sent. If the order of writes was different, our service could accept it,
        # and the databases would then differ.
        if copy.is_write and theirs.status >= 400 and (copy.beside or last):
            return ReplayOutcome(copy, ReplayVerdict.RACED, "it was refused while others were in flight")
        if copy.is_write and (name := refused_there_only(theirs)):
            # the write is not sent, because our service would accept it, and the databases would then differ
            return ReplayOutcome(copy, ReplayVerdict.KNOWN, name)
        try:
            ours, seconds = self.ask(copy)
        except UnansweredRequest as error:
            return ReplayOutcome(
                copy, ReplayVerdict.MISSED, str(error), parts=copy.is_write and theirs.status < 400
            )
        exchange = ShadowExchange(copy.request, theirs, ours)
        found = find_differences(exchange)
        if not found:
            # a later write has perhaps replaced the item of a postponed write, so its content stays unknown
            if copy.is_write and ours.status < 400 and copy.number not in self._postponed:
                self.doubt.settle_write(copy, self._postponed)
            return ReplayOutcome(copy, ReplayVerdict.SAME, "", ours, seconds)
        # if the two services refuse a write, even for different reasons, neither database changes
        parts = copy.is_write and (theirs.status < 400) != (ours.status < 400)
        parts = parts and not (copy.beside and theirs.status < 400 and self._has_traits(copy))
        applied = copy.is_write and ours.status < 400
        # a write that our service has executed must not be sent again, so only other copies are postponed
        if copy.beside and not applied and not last:
            return None
        names = [self._deviation_name(exchange, each) for each in found]
        known = [name for name in names if name]
        if len(known) == len(found):
            return ReplayOutcome(copy, ReplayVerdict.KNOWN, known[0], ours, seconds, parts)
        unknown = next(each for each, name in zip(found, names, strict=True) if not name)
        doubtful = self.doubt.find_doubt(exchange, copy.request)
        if parts and (doubtful or self.doubt.overlaps_accepted(copy)):
            self.doubt.add_doubt(copy)
            parts = False
        if copy.beside:
            return ReplayOutcome(copy, ReplayVerdict.RACED, str(unknown), ours, seconds, parts)
        if doubtful:
            why = f"{doubtful} was written by several at once; {unknown}"
            return ReplayOutcome(copy, ReplayVerdict.DOUBTFUL, why, ours, seconds)
        return ReplayOutcome(copy, ReplayVerdict.DIFFERENT, str(unknown), ours, seconds, parts)

    def _has_traits(self, copy: MirroredRequest) -> bool:
        """Return whether a provider in our service already has exactly the traits that a request sets."""
        request = copy.request
        wanted = parse_body(request.body, JSON)
        if (
            request.method != "PUT"
            or not _TRAITS_PATH.fullmatch(request.path)
            or not isinstance(wanted, dict)
        ):
            return False
        try:
            # If two equal requests with the same generation are in flight at the same time, OpenStack
            # Placement also accepts the second one, because it changes nothing. Our service refuses the
            # second one, because the generation is old. The traits are then the same in both services.
            there, _ = self.ask(replace(copy, request=replace(request, method="GET", body=b"")))
        except UnansweredRequest:
            # without an answer the traits are unknown, and count as different
            return False
        return _trait_names(there.body) is not None and _trait_names(there.body) == _trait_names(wanted)

    def _deviation_name(self, exchange: ShadowExchange, difference: AnswerDifference) -> str | None:
        name = explain_difference(exchange, difference, self._left_behind)
        return name or (ORDER if difference.what == "words" and exchange.ours.status < 500 else None)


def _trait_names(document: Any) -> frozenset[str] | None:
    """Return the names of the traits in a document; None if it has no valid list of names."""
    traits = document.get("traits") if isinstance(document, dict) else None
    if not isinstance(traits, list) or not all(isinstance(each, str) for each in traits):
        return None
    return frozenset(traits)
