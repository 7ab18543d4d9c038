"""Asking our service what the stock service was asked."""

import json
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import urllib3
from urllib3.exceptions import HTTPError

from placement_extras.shadow.exchange import MirroredRequest, ShadowAnswer
from placement_extras.shadow.replay import UnansweredRequest

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
