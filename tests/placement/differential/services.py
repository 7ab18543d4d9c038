"""Runs the service of this checkout and OpenStack Placement, and sends both the same requests."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.reference import ReferenceInstall
from benchmarks.servers import OpenStack, OurService
from placement_extras.shadow import exchange
from placement_extras.shadow.exchange import ShadowAnswer
from tests.databases import DatabaseServer

NEWEST: Final = "1.39"
_SECONDS: Final = 60.0
_TRIES: Final = 3  # a server may have closed the idle connection
# Headers of an administrator, which noauth2 replaces.
_IDENTITY: Final = {"X-Auth-Token": "admin", "X-Roles": "admin,member,reader,service"}


@dataclass(frozen=True)
class Request:
    """One request. ``body`` is sent as JSON; if it is None, ``raw`` is sent. Without a version, the request
    has no header for it.

    ``headers`` replace the usual headers; None removes a header.
    """

    method: str
    path: str
    body: Any = None
    version: str | None = NEWEST
    headers: tuple[tuple[str, str | None], ...] = ()
    raw: bytes | None = None

    def __str__(self) -> str:
        sent = self.raw if self.body is None else json.dumps(self.body)
        return f"{self.method} {self.path} {sent or ''} (version {self.version}) {self.headers or ''}"


@dataclass(frozen=True)
class Exchange(exchange.ShadowExchange):
    """A request with the answers of both services."""

    request: Request


@dataclass
class ServicePair:
    """Both services. If their answers differ, their databases may differ, too."""

    theirs: "ServiceClient"
    ours: "ServiceClient"

    def ask(self, request: Request) -> Exchange:
        """Send the request to both services."""
        return Exchange(request, self.theirs.send(request), self.ours.send(request))


@dataclass
class ServiceClient:
    """A connection to one of the services."""

    port: int
    _connection: http.client.HTTPConnection = field(init=False)

    def __enter__(self) -> Self:
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.close()

    def send(self, request: Request) -> ShadowAnswer:
        """Send a request and read the answer."""
        for last in range(1, _TRIES + 1):
            try:
                return self._send(request)
            except (ConnectionError, http.client.RemoteDisconnected):
                self._connection.close()
                if last == _TRIES:
                    raise
        raise AssertionError("not reached")

    def _send(self, request: Request) -> ShadowAnswer:
        sent = request.raw if request.body is None else json.dumps(request.body).encode()
        self._connection.putrequest(request.method, request.path)
        headers = {**_IDENTITY, "Accept": "application/json"}
        if request.version is not None:
            headers["OpenStack-API-Version"] = f"placement {request.version}"
        if sent is not None:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(sent))}
        named = {name for name, _ in request.headers}
        kept = [(name, value) for name, value in headers.items() if name not in named]
        for name, value in (*kept, *request.headers):
            if value is not None:
                self._connection.putheader(name, value)
        self._connection.endheaders(sent)
        response = self._connection.getresponse()
        content = response.read()
        return ShadowAnswer.from_content(response.status, tuple(response.getheaders()), content)


@contextmanager
def running(server: DatabaseServer, folder: Path, reference: ReferenceInstall) -> Iterator[ServicePair]:
    """Run both services, each on a new database of the server."""
    with (
        OpenStack(server.fresh_database(), folder, 1, 1, reference) as theirs,
        OurService(server.fresh_database(), folder, 1, 1) as ours,
        ServiceClient(theirs.port) as their_client,
        ServiceClient(ours.port) as our_client,
    ):
        yield ServicePair(their_client, our_client)
