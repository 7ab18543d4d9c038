"""The agent's listeners: the UNIX socket for commands, and ``/healthz`` and ``/metrics`` over HTTP."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from oslo_config import cfg
from prometheus_client import CollectorRegistry, make_wsgi_app

from compute_agent.agent.api import OPEN_METHODS, ApiMethods
from compute_agent.agent.protocol import LimitedThreads, SocketServer, socket_path
from compute_agent.threads import ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

SOCKET_THREAD: Final = ThreadSpec(
    "socket",
    "when a connection comes, and each five seconds to end those that say nothing",
    "accepts connections of the UNIX socket",
    "that of the open connections",
    "nothing of the agent: each connection has a thread",
)

HTTP_THREAD: Final = ThreadSpec(
    "http",
    "when a connection comes, and each five seconds to end those that say nothing",
    "accepts connections for health and metrics",
    "that of the open connections",
    "nothing of the agent: each connection has a thread",
)

Health = Callable[[], tuple[bool, dict[str, Any]]]
"""A function that returns whether the agent is healthy, and the JSON document of ``/healthz``."""


class _MetricsServer(LimitedThreads, WSGIServer):
    """An HTTP server with at most ``max_connections`` connections and a time limit for each request."""

    max_connections = 32


class _MetricsHandler(WSGIRequestHandler):
    timeout = 10

    def handle(self) -> None:
        """Answer one request. A client that sends nothing, or disconnects, causes only a debug message."""
        try:
            super().handle()
        except OSError as error:
            LOG.debug("The connection from %s ended: %s", self.client_address[0], error)

    def get_stderr(self) -> TextIO:
        """Return a buffer that is never read. wsgiref writes there only about clients that disconnected."""
        return io.StringIO()

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)


class HttpServer:
    """Serves ``/healthz`` and ``/metrics`` over HTTP in threads of its own."""

    def __init__(self, address: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        """Listen on the address and the port, and start the thread.

        :raises OSError: listening is not possible; the error names address and port.
        """
        self._metrics = make_wsgi_app(registry)
        self._health = health
        try:
            self._server = make_server(
                address, port, self._serve_request, server_class=_MetricsServer, handler_class=_MetricsHandler
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot listen on {address} port {port}: {error.strerror or error}; change [daemon]"
                " http_port or http_address, or set http_port = 0 to disable it",
            ) from error
        self._thread = start_thread(HTTP_THREAD, self._server.serve_until_stopped)

    @property
    def port(self) -> int:
        """The TCP port on which the server listens.

        If the configured port is 0, the kernel has chosen the port.
        """
        return self._server.server_port

    def close(self) -> None:
        """Stop listening, and wait for the end of the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve_request(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return self._answer_request(environ, start_response)
        # The error is logged here, because wsgiref would write it to get_stderr(), a buffer that is never
        # read.
        except Exception:
            LOG.exception("A request for %s could not be answered", environ.get("PATH_INFO"))
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"the log of the agent tells more\n"]

    def _answer_request(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ.get("PATH_INFO"):
            case "/metrics":
                metrics: Iterable[bytes] = self._metrics(environ, start_response)
                return metrics
            case "/healthz":
                healthy, document = self._health()
                status, body = "200 OK" if healthy else "503 Service Unavailable", json.dumps(document)
                kind = "application/json"
            case path:
                status, body, kind = "404 Not Found", f"there is no {path} here\n", "text/plain"
        start_response(status, [("Content-Type", kind)])
        return [body.encode()]


class AgentListeners:
    """The open listeners of one agent: the UNIX socket, and HTTP if ``[daemon] http_port`` is not 0."""

    def __init__(
        self,
        options: cfg.ConfigOpts,
        methods: ApiMethods,
        registry: CollectorRegistry,
        health: Callable[[], tuple[bool, dict[str, Any]]],
    ) -> None:
        """Open the listeners, and start their threads.

        :raises OSError: the agent cannot listen on the UNIX socket or on the HTTP address.
        """
        self._server = SocketServer(socket_path(options), methods.list_methods(), OPEN_METHODS)
        self._http: HttpServer | None = None
        daemon = options.daemon
        if daemon.http_port:
            try:
                self._http = HttpServer(daemon.http_address, daemon.http_port, registry, health)
            except OSError:
                self._server.server_close()
                raise
        # The UNIX socket answers last, because an agent that answers there counts as started.
        start_thread(SOCKET_THREAD, self._server.serve_until_stopped)

    def close(self) -> None:
        """Stop listening on the UNIX socket and on HTTP."""
        self._server.shutdown()
        self._server.server_close()
        if self._http is not None:
            self._http.close()
