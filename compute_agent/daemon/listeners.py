"""Where the agent is asked: its UNIX socket, and HTTP for whoever watches it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from oslo_config import cfg
from prometheus_client import CollectorRegistry

from compute_agent.daemon.api import OPEN_METHODS, ApiMethods
from compute_agent.daemon.http import HttpServer
from compute_agent.daemon.protocol import SocketServer, socket_path


class AgentListeners:
    """Both of them, as long as they are open."""

    def __init__(
        self,
        options: cfg.ConfigOpts,
        methods: ApiMethods,
        registry: CollectorRegistry,
        health: Callable[[], tuple[bool, dict[str, Any]]],
    ) -> None:
        """Listen.

        :raises OSError: an address or the socket cannot be had.
        """
        self._server = SocketServer(socket_path(options), methods.table(), OPEN_METHODS)
        threading.Thread(target=self._server.serve_forever, name="socket", daemon=True).start()
        self._http: HttpServer | None = None
        daemon = options.daemon
        if daemon.http_port:
            try:
                self._http = HttpServer(daemon.http_address, daemon.http_port, registry, health)
            except OSError:
                self.close()
                raise

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()
        if self._http is not None:
            self._http.close()
