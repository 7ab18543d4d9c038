"""One persistent connection to a service, with little work between clock and socket."""

import http.client
import json
from types import TracebackType
from typing import Any, Final, Self

_HEADERS: Final = {
    "X-Auth-Token": "admin",
    "OpenStack-API-Version": "placement 1.39",
    "Accept": "application/json",
}

CLAIM_OWNER: Final = {
    "project_id": "project",
    "user_id": "user",
    "consumer_generation": None,
    "consumer_type": "INSTANCE",
}
"""Fields of a claim for a new instance, beside its allocations or its query."""


class NoAnswer(Exception):
    """The service did not answer in time, or closed the connection; the message says which."""


class RequestRefused(Exception):
    """The service answered with an error; the message has its status and text."""


class ServiceConnection:
    """Requests of an administrator at microversion 1.39, one after the other."""

    def __init__(self, port: int, seconds: float = 120.0) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._connection.close()

    @property
    def local_port(self) -> int:
        """Return the port of this end of an open connection."""
        port: int = self._connection.sock.getsockname()[1]
        return port

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a request; return the status and body of the answer.

        :raises NoAnswer: the service did not answer. The next request opens a new connection.
        """
        reused = self._connection.sock is not None
        try:
            try:
                return self._send(method, path, body)
            except (http.client.RemoteDisconnected, ConnectionError):
                if method != "GET" or not reused:
                    raise
                self.close()  # the service has closed the connection because it was idle for too long
                return self._send(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            what = "no answer in time" if isinstance(error, TimeoutError) else f"connection lost ({error!r})"
            raise NoAnswer(f"{method} {path[:200]}: {what}") from error

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers = _HEADERS if body is None else {**_HEADERS, "Content-Type": "application/json"}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def expect_success(self, method: str, path: str, body: Any = None) -> bytes:
        """Send a request; return the body of the successful answer.

        :raises NoAnswer: the service did not answer.
        :raises RequestRefused: the answer is an error.
        """
        sent = None if body is None else json.dumps(body).encode()
        status, answer = self.send(method, path, sent)
        if status >= 400:
            raise RequestRefused(f"{method} {path[:200]}: {status} {answer[:300].decode(errors='replace')}")
        return answer


def is_answering(port: int) -> bool:
    """Return whether the service on a port of this machine answers a request for its versions."""
    try:
        with ServiceConnection(port, 5.0) as connection:
            return connection.send("GET", "/")[0] == 200
    except NoAnswer:
        return False
