"""Posts documents to a webhook; each attempt has a time limit, and the server cannot extend it."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

from placement.conf import installed_version
from placement.exceptions import InvalidRequest

TIMEOUT: Final = 30.0
"""The number of seconds after which an attempt has failed."""
_MAX_REASON: Final = 200
"""The maximum number of characters of an error's text in the log."""


class DeliveryFailed(Exception):
    """The webhook has not accepted a document; the text of the exception has the reason."""


@dataclass(slots=True)
class _PostAttempt:
    """An attempt to post a document in a separate thread; ``failure`` has the reason if the attempt fails."""

    connection: HTTPConnection
    failure: str = "it did not answer in time"
    is_over: threading.Event = field(default_factory=threading.Event)


class EventWebhook:
    """A webhook that takes JSON by POST; each status from 200 to 299 means that it accepts the document.

    The client does not follow redirections, so a server cannot send events to another address.

    :param timeout: the number of seconds after which an attempt has failed.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        """Check the URL.

        :raises InvalidRequest: the URL is invalid, or has a user or a password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"--url {url!r} is no URL: {error}.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"--url has to be an http or https URL, not {url!r}.")
        if parts.username is not None or parts.password is not None:
            raise InvalidRequest("--url takes no user and no password: give a secret as a part of its path.")
        if not url.isascii() or not url.isprintable() or " " in url:
            raise InvalidRequest(f"--url has characters that no URL can have: {url!r}.")
        self._is_secure = parts.scheme == "https"
        self._host, self._port, self._timeout = parts.hostname, port, timeout
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._last: _PostAttempt | None = None

    def post_document(self, document: Mapping[str, Any]) -> None:
        """Send a document.

        :raises DeliveryFailed: the webhook did not accept the document in time.
        """
        if not self.wait_ended(0):
            # in most cases, the attempt before waits for a name server that does not answer, and a further
            # thread would wait too
            raise DeliveryFailed("the attempt before has not ended yet")
        attempt = _PostAttempt(self._make_connection())
        self._last = attempt
        body = json.dumps(document).encode()
        # the thread is a daemon, so that the process can end although the thread still runs
        thread = threading.Thread(target=self._post_aside, args=(attempt, body), daemon=True)
        thread.start()
        attempt.is_over.wait(self._timeout)
        if not attempt.is_over.is_set():
            # a socket's timeout begins again with each byte, so only a shutdown ends a slow answer
            with suppress(OSError, AttributeError):
                attempt.connection.sock.shutdown(socket.SHUT_RDWR)
            raise DeliveryFailed(f"it did not answer within {self._timeout:g} seconds")
        if attempt.failure:
            raise DeliveryFailed(attempt.failure)

    def wait_ended(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the end of the last attempt; return whether the attempt has ended."""
        return self._last is None or self._last.is_over.wait(seconds)

    def _make_connection(self) -> HTTPConnection:
        if self._is_secure:
            context = ssl.create_default_context()
            return HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)
        return HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _post_aside(self, attempt: _PostAttempt, body: bytes) -> None:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"placement-manage/{installed_version()}",
            "Connection": "close",
        }
        connection = attempt.connection
        try:
            connection.request("POST", self._path, body, headers)
            # the body of the answer is not read, because it does not matter and can be endless
            status = connection.getresponse().status
            attempt.failure = "" if 200 <= status < 300 else f"it answered with status {status}"
        except HTTPException as error:
            # the server determines the text of this error, so the text can have control characters or secrets
            attempt.failure = type(error).__name__
        except (OSError, ValueError, UnicodeError) as error:
            attempt.failure = f"{type(error).__name__}: {repr(str(error))[:_MAX_REASON]}"
        finally:
            connection.close()
            attempt.is_over.set()
