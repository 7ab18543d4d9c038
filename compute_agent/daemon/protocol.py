"""What the command line and the daemon say to each other on the UNIX socket: a line of JSON each.

Request ``{"method": "guest.list", "params": {...}}``, answer ``{"result": ...}`` or ``{"error": "what went
wrong"}``.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LOG = logging.getLogger(__name__)

MAX_LINE = 4 << 20
IDLE_SECONDS = 30.0

Method = Callable[[Mapping[str, Any]], Any]


class RequestError(Exception):
    """A request that the daemon cannot serve; the text goes to whoever asked."""


class DaemonUnreachableError(Exception):
    """No daemon answers on the socket."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = IDLE_SECONDS
    server: SocketServer

    def handle(self) -> None:
        try:
            line = self.rfile.readline(MAX_LINE + 1)
        except OSError:
            return  # said nothing, or went away in the middle
        if not line:
            return
        try:
            self.wfile.write(json.dumps(self.server.answer(line)).encode() + b"\n")
        except OSError:
            LOG.info("Somebody asked and did not wait for the answer")


class SocketServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers requests on a UNIX socket of mode 0660, each in a thread of its own."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, methods: Mapping[str, Method]) -> None:
        """Listen on ``path``. Call this only as the owner of the state folder: a socket left there is
        replaced.

        Raises OSError naming the path.
        """
        self._path = path
        self._methods = methods
        path.unlink(missing_ok=True)
        old = os.umask(0o117)
        try:
            super().__init__(str(path), _Handler)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {path}: {error.strerror or error}") from error
        finally:
            os.umask(old)

    def server_close(self) -> None:
        """Stop listening and remove the socket."""
        super().server_close()
        self._path.unlink(missing_ok=True)

    def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to one request line."""
        if len(line) > MAX_LINE:
            return {"error": f"the request is longer than {MAX_LINE} bytes"}
        try:
            request = json.loads(line)
            method, params = request["method"], request.get("params", {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {"error": f"the request is not a JSON object with a method: {error}"}
        serve = self._methods.get(method) if isinstance(method, str) else None
        if serve is None or not isinstance(params, dict):
            return {"error": f"there is no method {method!r} with such parameters"}
        try:
            return {"result": serve(params)}
        except RequestError as error:
            return {"error": str(error)}
        except Exception as error:
            LOG.exception("Method %s failed", method)
            return {"error": f"internal error: {type(error).__name__}: {error}"}


def ask(path: Path, method: str, params: Mapping[str, Any] | None = None, timeout: float = 60.0) -> Any:
    """The daemon's answer. Raises DaemonUnreachableError, or RequestError with the daemon's own words."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(json.dumps({"method": method, "params": params or {}}).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline()
    except OSError as error:
        raise DaemonUnreachableError(f"no agent answers on {path}: {error}; is it running?") from error
    if not line:
        raise DaemonUnreachableError(f"the agent on {path} hung up without an answer")
    answer = json.loads(line)
    if "error" in answer:
        raise RequestError(answer["error"])
    return answer["result"]
