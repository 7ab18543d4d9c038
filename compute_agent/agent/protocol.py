"""The protocol of the UNIX socket, and servers with threads that no client can occupy.

A request is a line of JSON, ``{"method": "guest.list", "params": {...}}``; the answer is ``{"result":
...}`` or ``{"error": "what went wrong"}``. Methods that change something are for root and the agent's own
user; other users that may open the socket can call the rest. Each connection has a thread; the number of
threads is limited, and so is the time that a connection may keep one.
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
"""The wait for a thread after its connection was closed; such a thread is rarely in a long call."""


CONNECTION_THREAD: Final = ThreadSpec(
    "connection",
    ONCE,
    "serves one connection of the UNIX socket, or one request for health or metrics",
    "that of the open connections",
    "methods of the agent: the worker, Placement, the driver, resctrl",
)


class LimitedThreads(socketserver.ThreadingMixIn):
    """Mixin for a TCP or UNIX server of socketserver that limits its threads.

    A connection may be silent for at most ``receive_timeout`` seconds, until its handler calls end_reading().
    When all threads are taken, a new connection replaces the one that has been silent for longest. So silent
    connections do not keep others out. A new connection is refused only if every thread is serving a request.
    """

    daemon_threads = True
    # socketserver's own 5 would refuse commands of a script that asks about many guests at once
    request_queue_size = 64
    max_connections = 64
    receive_timeout = 10.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._guard = threading.Condition()
        # In order of arrival, which dictionaries keep: the first entry is the one that has been silent for
        # longest.
        self._waited_for: dict[socket.socket, float] = {}
        """Until when (monotonic seconds), the oldest connection first."""
        self._open: set[socket.socket] = set()
        super().__init__(*arguments, **options)

    def end_reading(self, connection: socket.socket) -> None:
        """Wait for nothing more of a connection: its request is complete, and the answer may take long."""
        with self._guard:
            self._waited_for.pop(connection, None)

    def refuse_connection(self, connection: socket.socket) -> None:
        """Answer that all threads are busy, without waiting for anything.

        :raises OSError:
        """

    # Called by socketserver

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or refuse it."""
        with self._guard:
            admitted = self._admit_connection()
            if admitted:
                self._open.add(request)
                self._waited_for[request] = time.monotonic() + self.receive_timeout
        if admitted:
            start_thread(CONNECTION_THREAD, partial(self.process_request_thread, request, client_address))
            return
        LOG.warning("%s has %d connections and refuses another", type(self).__name__, self.max_connections)
        # The thread that accepts connections must not wait for a client.
        request.setblocking(False)
        with contextlib.suppress(OSError):
            self.refuse_connection(request)
        self.shutdown_request(request)

    def service_actions(self) -> None:
        """Hang up where nothing came in time."""
        super().service_actions()  # type: ignore[misc]  # of the server that this is mixed into
        now = time.monotonic()
        with self._guard:
            for connection, deadline in list(self._waited_for.items()):
                # All have the same time to speak, so the rest are younger.
                if deadline > now:
                    break
                self._hang_up(connection)

    def shutdown_request(self, request: Any) -> None:
        """The end of every connection, however it came."""
        with self._guard:
            self._waited_for.pop(request, None)
            self._open.discard(request)
            self._guard.notify_all()
        super().shutdown_request(request)  # type: ignore[misc]  # as above

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write an exception that a handler did not expect to the log, not to standard error."""
        LOG.exception("A connection of %s could not be served", type(self).__name__)

    # Inner parts, under the guard

    def _admit_connection(self) -> bool:
        if len(self._open) < self.max_connections:
            return True
        oldest = next(iter(self._waited_for), None)
        if oldest is None:
            return False
        self._hang_up(oldest)
        # The closed connection makes its thread end, which notifies.
        return self._guard.wait_for(lambda: len(self._open) < self.max_connections, _SECONDS_TO_END)

    def _hang_up(self, connection: socket.socket) -> None:
        """End a connection, so that its thread ends, too."""
        del self._waited_for[connection]
        # The client may have ended it already.
        with contextlib.suppress(OSError):
            # Not close(): the thread that reads it would then wait on a number that another connection may
            # get.
            connection.shutdown(socket.SHUT_RDWR)


# A request is about one guest. An answer may list all guests and providers of the host.
MAX_LINE: Final = 1 << 20
MAX_ANSWER: Final = 256 << 20
"""Bytes."""

ANSWER_SECONDS: Final = 30.0
"""The longest time that a client may take to read an answer."""

Method = Callable[[Mapping[str, Any]], Any]


_REMEDY: Final = (
    "does it run? Give the command the agent's --config-file: its socket is [daemon] socket, or"
    " agent.sock in [DEFAULT] state_path"
)

_CREDENTIALS: Final = "3i"
"""struct ucred: pid, uid, gid."""


class RequestError(Exception):
    """A request that the daemon cannot serve; the client gets the text."""


class DaemonUnreachableError(Exception):
    """No daemon answers on the socket."""


class _SocketHandler(socketserver.StreamRequestHandler):
    timeout = ANSWER_SECONDS
    server: SocketServer

    def handle(self) -> None:
        # One byte more tells a line that is too long from one that just fits.
        try:
            line = self.rfile.readline(MAX_LINE + 1)
        except OSError:
            return  # said nothing, or went away in the middle
        if not line:
            return
        self.server.end_reading(self.connection)
        try:
            self.wfile.write(self.server.answer_request(line, _user_of(self.connection)))
        except OSError:
            LOG.info("A client ended its connection before the answer")


class SocketServer(LimitedThreads, socketserver.UnixStreamServer):
    """Answers requests on a UNIX socket of mode 0660, each in a thread of its own."""

    def __init__(self, path: Path, methods: Mapping[str, Method], open_methods: Collection[str] = ()) -> None:
        """Listen on ``path``. A socket that was left there is replaced.

        ``open_methods`` are for each user that may open the socket; the others are for root and the daemon's
        own user.

        :raises OSError: naming the path.
        :raises UnsafeFileError: another user could replace the socket.
        """
        self._path = path
        self._methods = methods
        self._open_methods = frozenset(open_methods)
        check_folder(path.parent)
        _remove_left(path)
        # A chmod(2) after bind(2) would leave a moment in which any user could connect.
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
        """Say that there are too many connections."""
        connection.send(
            _answer_line({"error": f"the agent has {self.max_connections} requests in hand: try again"})
        )

    def answer_request(self, line: bytes, user: int) -> bytes:
        """The answer to one request line of a user."""
        method = ""
        try:
            method, serve, params = self._parse_request(line, user)
            return _answer_line({"result": serve(params)})
        except RequestError as error:
            return _answer_line({"error": str(error)})
        # A defect in one method costs that request alone, and its client gets an answer.
        except Exception as error:
            LOG.exception("Method %s failed", method)
            return _answer_line({"error": f"internal error: {type(error).__name__}: {error}"})

    def _parse_request(self, line: bytes, user: int) -> tuple[str, Method, dict[str, Any]]:
        """Method and parameters of a request.

        :raises RequestError: also if it is not for this user.
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
        # A new method is for root and the agent's user until it is listed as harmless.
        if method not in self._open_methods and user not in (0, os.geteuid()):
            raise RequestError(
                f"user {user} may not call {method}: only root and the agent's user ({os.geteuid()}) may"
            )
        return method, serve, params


def _answer_line(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _user_of(connection: socket.socket) -> int:
    """The user at the other end of a connection, from the kernel (SO_PEERCRED, unix(7))."""
    size = struct.calcsize(_CREDENTIALS)
    # By the kernel, as of connect(2): a client cannot claim to be another user (unix(7)).
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack(_CREDENTIALS, raw)[1])


def _remove_left(path: Path) -> None:
    """Remove a socket that an agent left behind, and nothing else.

    :raises OSError:
    """
    try:
        # lstat(2), because a symbolic link is not a socket that an agent has left.
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
        # A full queue must not hold up the start, and says as well that something listens.
        connection.setblocking(False)
        try:
            connection.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            # Nothing listens: an agent that was killed has left its socket.
            return False
        except BlockingIOError:
            return True  # the queue of the listener is full
    return True


def socket_path(conf: cfg.ConfigOpts) -> Path:
    """Where the daemon listens, and where the command line asks."""
    return Path(conf.daemon.socket) if conf.daemon.socket else Path(conf.state_path) / "agent.sock"


def call_agent(
    path: Path, method: str, params: Mapping[str, Any] | None = None, timeout: float = 60.0
) -> Any:
    """The daemon's answer.

    :raises DaemonUnreachableError:
    :raises RequestError: with the daemon's own words.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            with contextlib.suppress(BrokenPipeError):  # refused, and the answer says why
                connection.sendall(json.dumps({"method": method, "params": params or {}}).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline(MAX_ANSWER)
    except OSError as error:
        raise DaemonUnreachableError(f"no agent answers on {path}: {error}; {_REMEDY}") from error
    # The end of the line is the end of the answer: an agent that ends meanwhile leaves a part of one.
    if not line.endswith(b"\n"):
        raise DaemonUnreachableError(f"the agent on {path} ended the connection without an answer")
    answer = json.loads(line)
    if "error" in answer:
        raise RequestError(answer["error"])
    return answer["result"]
