"""The protocol of the UNIX socket, and servers that limit their threads and the time for silent clients.

A request is a line of JSON, ``{"method": "guest.list", "params": {...}}``. The answer is ``{"result": ...}``
or ``{"error": "what went wrong"}``. Root and the agent's own user can call each method. Other users with
access to the socket can call some of the methods that change nothing. Each connection has a thread. The
server limits the number of threads. It also limits the time for which a connection keeps its thread without a
complete request.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import socketserver
import stat
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compute_agent.files import check_folder
from compute_agent.threads import ONCE, ThreadSpec, start_thread

if TYPE_CHECKING:
    from oslo_config import cfg

LOG = logging.getLogger(__name__)

_SECONDS_TO_END: Final = 1.0
"""Seconds to wait for the end of a thread after its silent connection was shut down."""

_IDLE_SECONDS: Final = 5.0
"""Seconds between two checks for connections that sent no request in time, if no client connects."""


CONNECTION_THREAD: Final = ThreadSpec(
    "connection",
    ONCE,
    "serves one connection of the UNIX socket, or one request for health or metrics",
    "that of the open connections",
    "methods of the agent: the worker, Placement, the driver, resctrl",
)


class LimitedThreads(socketserver.ThreadingMixIn):
    """Mixin for a TCP or UNIX server of socketserver that limits its threads.

    A client must send its request within ``receive_timeout`` seconds; the handler calls end_reading() when
    the request is complete. The server waits at most ``answer_timeout`` seconds for a client that does not
    read its answer. If all threads are in use, the server ends the connection that has waited longest
    without a complete request, and accepts the new one. If each thread is serving a complete request, the
    server refuses the new connection.
    """

    daemon_threads = True
    # The default of 5 would refuse connections of a script that asks about many guests at once.
    request_queue_size = 64
    max_connections = 64
    receive_timeout = 10.0
    answer_timeout = 30.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._guard = threading.Condition()
        # A dictionary keeps the order of arrival, so its first entry is the connection that has been silent
        # for longest.
        self._waited_for: dict[socket.socket, float] = {}
        """The time, in monotonic seconds, until which each connection can send its request; the oldest
        connection first.
        """
        self._open: set[socket.socket] = set()
        super().__init__(*arguments, **options)

    def end_reading(self, connection: socket.socket) -> None:
        """Note that the request of a connection is complete: from now on, no time limit applies."""
        with self._guard:
            self._waited_for.pop(connection, None)

    def refuse_connection(self, connection: socket.socket) -> None:
        """Tell a refused client that all threads are busy, without waiting. This base class sends nothing.

        :raises OSError: the answer cannot be sent.
        """

    def serve_until_stopped(self) -> None:
        """Accept connections until shutdown()."""
        # The half second that socketserver waits by default wakes an idle host 120 times a minute.
        self.serve_forever(_IDLE_SECONDS)  # type: ignore[attr-defined]  # the server class defines it

    def shutdown(self) -> None:
        """Stop accepting connections, and wait for the end of the thread that accepts them."""
        # This call ends the wait of the accepting thread at once; otherwise the wait would last for seconds.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]  # as above
        super().shutdown()  # type: ignore[misc]  # as above

    # Methods that socketserver calls

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or refuse it."""
        with self._guard:
            admitted = self._admit_connection()
            if admitted:
                self._open.add(request)
                self._waited_for[request] = time.monotonic() + self.receive_timeout
        if admitted:
            request.settimeout(self.answer_timeout)
            start_thread(CONNECTION_THREAD, partial(self.process_request_thread, request, client_address))
            return
        LOG.warning(
            "The listener %s already has %d connections, the maximum, and refuses another one",
            type(self).__name__,
            self.max_connections,
        )
        # The thread that accepts connections must not wait for a client.
        request.setblocking(False)
        with contextlib.suppress(OSError):
            self.refuse_connection(request)
        self.shutdown_request(request)

    def service_actions(self) -> None:
        """Shut down connections that sent no request in time; socketserver calls this between two waits."""
        super().service_actions()  # type: ignore[misc]  # the server class defines it
        now = time.monotonic()
        with self._guard:
            for connection, deadline in list(self._waited_for.items()):
                # All connections have the same time limit, so the entries are in the order of their time
                # limits.
                if deadline > now:
                    break
                self._hang_up(connection)

    def shutdown_request(self, request: Any) -> None:
        """End a connection and forget it. socketserver calls this for each connection."""
        with self._guard:
            self._waited_for.pop(request, None)
            self._open.discard(request)
            self._guard.notify_all()
        super().shutdown_request(request)  # type: ignore[misc]  # as above

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an unexpected exception of a handler, which socketserver would write to standard error."""
        LOG.exception("A connection of %s could not be served", type(self).__name__)

    # Methods that are called while the guard is held

    def _admit_connection(self) -> bool:
        if len(self._open) < self.max_connections:
            return True
        oldest = next(iter(self._waited_for), None)
        if oldest is None:
            return False
        self._hang_up(oldest)
        # The thread of the oldest connection now ends, and its call of shutdown_request() notifies this
        # condition.
        return self._guard.wait_for(lambda: len(self._open) < self.max_connections, _SECONDS_TO_END)

    def _hang_up(self, connection: socket.socket) -> None:
        """Shut down a connection, so that its thread ends."""
        del self._waited_for[connection]
        # An OSError means that the client has ended the connection already.
        with contextlib.suppress(OSError):
            # The connection is shut down and not closed, because another connection could get the number of
            # the descriptor, from which the thread still reads.
            connection.shutdown(socket.SHUT_RDWR)


MAX_LINE: Final = 1 << 20
"""Maximum number of bytes of a request. A request concerns at most one guest."""
MAX_ANSWER: Final = 256 << 20
"""Maximum number of bytes of an answer, which can list all guests and providers of the host."""

Method = Callable[[Mapping[str, Any]], Any]
"""Serves a request: takes its parameters, and returns a result that JSON can represent."""


_REMEDY: Final = (
    "does it run? Give the command the agent's --config-file: its socket is [daemon] socket, or"
    " agent.sock in [DEFAULT] state_path"
)

_CREDENTIALS: Final = "3i"
"""Format of ``struct ucred`` of the kernel: pid, uid, gid."""


class RequestError(Exception):
    """The agent cannot serve a request; the client gets the text of the error."""


class DaemonUnreachableError(Exception):
    """No agent answers on the socket."""


class _SocketHandler(socketserver.StreamRequestHandler):
    server: SocketServer

    def handle(self) -> None:
        # One byte more than the maximum is read, so that a longer line is recognised.
        try:
            line = self.rfile.readline(MAX_LINE + 1)
        except OSError:
            return  # the client sent nothing in time, or closed the connection
        if not line:
            return
        self.server.end_reading(self.connection)
        try:
            self.wfile.write(self.server.answer_request(line, _user_of(self.connection)))
        except OSError:
            LOG.info("A command ended its connection to the agent before it got the answer")


class SocketServer(LimitedThreads, socketserver.UnixStreamServer):
    """Answers requests on a UNIX socket of mode 0660, each in a thread of its own."""

    def __init__(self, path: Path, methods: Mapping[str, Method], open_methods: Collection[str] = ()) -> None:
        """Listen on ``path``; a socket that an ended agent left there is replaced.

        :param methods: the functions that serve requests, by the name of the method.
        :param open_methods: the names of methods for all users with access to the socket. All other methods
            are for root and the agent's own user.
        :raises OSError: the socket cannot be made; the text has the path.
        :raises UnsafeFileError: another user could replace the socket.
        """
        self._path = path
        self._methods = methods
        self._open_methods = frozenset(open_methods)
        check_folder(path.parent)
        _remove_left(path)
        # The socket is created with mode 0660, because before a later chmod(2) any user could connect.
        old = os.umask(0o117)
        try:
            super().__init__(str(path), _SocketHandler)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {path}: {error.strerror or error}") from error
        finally:
            os.umask(old)

    def server_close(self) -> None:
        """Stop listening and remove the socket."""
        super().server_close()
        self._path.unlink(missing_ok=True)

    def refuse_connection(self, connection: socket.socket) -> None:
        """Answer that there are too many connections."""
        connection.send(
            _answer_line({"error": f"the agent has {self.max_connections} requests in hand: try again"})
        )

    def answer_request(self, line: bytes, user: int) -> bytes:
        """Serve one request; return the line of the answer.

        :param line: the request.
        :param user: the user id of the client.
        """
        method = ""
        try:
            method, serve, params = self._parse_request(line, user)
            return _answer_line({"result": serve(params)})
        except RequestError as error:
            return _answer_line({"error": str(error)})
        # If a method has a defect, the error is logged, and the client still gets an answer.
        except Exception as error:
            LOG.exception("The agent failed to answer a command, which called the method %s", method)
            return _answer_line({"error": f"internal error: {type(error).__name__}: {error}"})

    def _parse_request(self, line: bytes, user: int) -> tuple[str, Method, dict[str, Any]]:
        """Parse a request; return the name of the method, its function and the parameters.

        :raises RequestError: the request is wrong, or this user is not allowed to call the method.
        """
        if len(line) > MAX_LINE:
            raise RequestError(f"the request is longer than {MAX_LINE} bytes")
        try:
            request = json.loads(line)
            method, params = request["method"], request.get("params", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RequestError(f"the request is not a JSON object with a method: {error}") from error
        serve = self._methods.get(method) if isinstance(method, str) else None
        if serve is None or not isinstance(params, dict):
            raise RequestError(f"there is no method {str(method)[:80]!r} with such parameters")
        # Methods are restricted by default: other users can call only the listed methods.
        if method not in self._open_methods and user not in (0, os.geteuid()):
            raise RequestError(
                f"user {user} may not call {method}: only root and the agent's user ({os.geteuid()}) may"
            )
        return method, serve, params


def _answer_line(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _user_of(connection: socket.socket) -> int:
    """The user id of the client of a connection, from the kernel (SO_PEERCRED, unix(7))."""
    size = struct.calcsize(_CREDENTIALS)
    # The kernel records the user at connect(2), so that a client cannot pretend to be another user.
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack(_CREDENTIALS, raw)[1])


def _remove_left(path: Path) -> None:
    """Remove the socket of an agent that has ended. No process listens on the socket any more.

    :raises OSError: the path is no socket, or another process listens on it.
    """
    try:
        # lstat(2) is used, so that a symbolic link to a socket is not removed.
        left = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not left:
        raise OSError(errno.EEXIST, f"cannot listen on {path}: it is not a socket; move it away")
    if _is_listened_on(path):
        raise OSError(
            errno.EADDRINUSE,
            f"cannot listen on {path}, because another process does: set [daemon] socket to another path",
        )
    path.unlink(missing_ok=True)


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        # connect() does not wait: a full queue of connections also shows that a process listens.
        connection.setblocking(False)
        try:
            connection.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            # No process listens, because an agent that was killed has left its socket.
            return False
        except BlockingIOError:
            return True  # the queue of the listener is full
    return True


def socket_path(conf: cfg.ConfigOpts) -> Path:
    """The path of the agent's UNIX socket, from the configuration."""
    return Path(conf.daemon.socket) if conf.daemon.socket else Path(conf.state_path) / "agent.sock"


def call_agent(
    path: Path, method: str, params: Mapping[str, Any] | None = None, timeout: float = 60.0
) -> Any:
    """Call a method of the agent over its UNIX socket, and return the result.

    :param timeout: seconds to wait for each step: the connection, the request and the answer.
    :raises DaemonUnreachableError: no agent answers.
    :raises RequestError: the agent refuses the request; the error has the agent's text.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            with contextlib.suppress(BrokenPipeError):  # the agent has already sent a refusal
                connection.sendall(json.dumps({"method": method, "params": params or {}}).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline(MAX_ANSWER)
    except OSError as error:
        raise DaemonUnreachableError(f"no agent answers on {path}: {error}; {_REMEDY}") from error
    # Without a newline the answer is incomplete, because the agent has ended during the answer.
    if not line.endswith(b"\n"):
        raise DaemonUnreachableError(f"the agent on {path} ended the connection without an answer")
    answer = json.loads(line)
    if "error" in answer:
        raise RequestError(answer["error"])
    return answer["result"]
