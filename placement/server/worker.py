"""Has the worker process of the bundled web server, which slow clients cannot keep busy.

One event loop reads from all connections and writes to them, and it never waits for a client. A thread gets a
request only after the whole request has arrived. If the client does not read the whole answer at once, the
loop sends the rest of the answer. So silent, idle and slow connections occupy no thread, and each of them has
a deadline. If a worker has too many connections, it closes a connection that waits for its client
(:class:`IdleConnections`).
"""

from __future__ import annotations

import gc
import io
import logging
import os
import queue
import resource
import select
import socket
import sys
import threading
import time
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

from gunicorn import glogging, util
from gunicorn.app.base import BaseApplication
from gunicorn.http import wsgi
from gunicorn.workers.base import Worker

from placement.api.call import ABANDONED
from placement.server.arbiter import ServerArbiter
from placement.server.connection import ClientConnection, TooLarge
from placement.server.plain_http import PlainRequest, PlainResponse, make_environ

MAX_REQUEST_LINE: Final = 8190
"""The maximum number of bytes of a request line, as in Apache httpd. Queries with lists of aggregates and
traits are long.
"""


class BundledServer(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn with fixed settings; neither a file nor an environment variable can change the settings."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Return the settings of this server that are not common to all bundled servers."""

    def share_with_workers(self, count: int) -> AbstractContextManager[None]:
        """Return a context in which the server starts this number of workers."""
        return nullcontext()

    def run(self) -> None:
        """Serve requests until the server is stopped."""
        # existing objects are frozen, because the garbage collector writes to each object that it visits, and
        # then the workers would no longer share the memory of modules
        gc.collect()
        gc.freeze()
        try:
            ServerArbiter(self).run()
        except RuntimeError as error:
            sys.exit(f"The server cannot start: {error}")

    def load_config(self) -> None:
        """Set the options of gunicorn. gunicorn calls this method."""
        settings: dict[str, Any] = {
            # clients must not choose the path at which the service is mounted (SCRIPT_NAME) by a header
            "forwarder_headers": "",
            "limit_request_line": MAX_REQUEST_LINE,
            "logger_class": _ServerLogger,
            # the control socket is disabled, because all servers would share one socket in the home folder
            "control_socket_disable": True,
            **self.settings(),
        }
        # versions of gunicorn before 25.1 do not have this setting
        if "control_socket_disable" not in self.cfg.settings:
            del settings["control_socket_disable"]
        for name, value in settings.items():
            self.cfg.set(name, value)


class _ServerLogger(glogging.Logger):  # type: ignore[misc]  # gunicorn has no types
    """Passes gunicorn's log records to the handlers that oslo.log has set up."""

    def setup(self, cfg: Any) -> None:
        """Remove gunicorn's own log handlers. gunicorn calls this method."""
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.setLevel(logging.NOTSET)
        self.error_log.propagate = True


class IdleConnections:
    """The file descriptors of waiting connections, ordered by the time when their current state began.

    A connection at rest has no unfinished request, so its client can connect again without a loss. All other
    waiting connections wait for a request or its rest, or for a client that reads an answer slowly. Normally
    a connection at rest is closed first, because the other clients are in the middle of a request, or will
    soon send a request. But a client can open any number of connections without a request. So if more than
    half of the maximum number of connections are not at rest, a connection that is not at rest is closed
    first.

    :param most: the maximum number of connections.
    """

    def __init__(self, most: int) -> None:
        self._share = most // 2
        self._at_rest: OrderedDict[int, None] = OrderedDict()
        self._owing: OrderedDict[int, None] = OrderedDict()

    def put(self, fd: int, *, at_rest: bool) -> None:
        """Add a waiting connection, or change its state."""
        now, before = (self._at_rest, self._owing) if at_rest else (self._owing, self._at_rest)
        before.pop(fd, None)
        now.setdefault(fd)

    def discard(self, fd: int) -> None:
        """Remove a connection that no longer waits."""
        self._at_rest.pop(fd, None)
        self._owing.pop(fd, None)

    def first_to_close(self) -> int | None:
        """Return the file descriptor of the connection to close first; None if no connection waits."""
        owing_end = len(self._owing) > self._share or not self._at_rest
        return next(iter(self._owing if owing_end else self._at_rest), None)


_MAX_HELD: Final = 256 * 1024 * 1024
"""If the buffers of all clients have more than this number of bytes, the worker refuses larger requests."""
_ALWAYS_HELD: Final = 64 * 1024
"""The number of bytes that a client's buffers can always have, even if the total size is exceeded."""
_RESERVED_FILES: Final = 256
"""The number of file descriptors that are reserved for databases, logs and other files."""
_STOP_TIMEOUT: Final = 2.0
"""The maximum number of seconds for which searches continue when the service stops."""
_LAST_REQUEST_TIMEOUT: Final = 5.0
"""A stopping service closes a connection after this number of seconds without a request. A request that
arrives at the moment of the close is lost. The next request of a busy client arrives much earlier, and its
answer has ``Connection: close``. In all cases, a stopping worker ends before ``graceful_timeout``.
"""
_TICK: Final = 1.0
"""The number of seconds between two checks of deadlines."""


class BufferingWorker(Worker):  # type: ignore[misc]  # gunicorn has no types
    """A worker process of gunicorn, with an event loop for all connections and threads for requests."""

    alive: bool

    def init_process(self) -> None:
        """Set up the worker after the fork. gunicorn calls this method."""
        self._loop = select.epoll()
        self._connections: dict[int, ClientConnection] = {}
        self._busy: set[int] = set()
        self._returned: deque[ClientConnection] = deque()
        self._ready: queue.SimpleQueue[ClientConnection] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop_began = 0.0
        # the limit of open files is raised to the maximum, because each connection needs a file descriptor
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._most = min(self.cfg.worker_connections, max(16, most - _RESERVED_FILES))
        self._waiting = IdleConnections(self._most)
        self._held = 0  # total bytes of all connections, as last counted
        super().init_process()

    def run(self) -> None:
        """Serve requests until the worker has to stop. gunicorn calls this method."""
        listeners = {each.fileno(): each for each in self.sockets}
        # a listening socket must not block, because several workers share the socket, and only one of the
        # workers gets a new connection
        for each in self.sockets:
            each.setblocking(False)
        for fd in (*listeners, self._wake, self.PIPE[0]):
            self._loop.register(fd, select.EPOLLIN)
        for _ in range(self.cfg.threads):
            threading.Thread(target=self._answer_all, daemon=True).start()
        next_tick = 0.0
        while self.alive or self._is_stopping(listeners):
            # a stopping worker waits for less time, because it ends as soon as its last request is answered
            for fd, _ in self._loop.poll(_TICK if self.alive else 0.1):
                if fd in listeners:
                    self._accept_client(listeners[fd])
                elif fd == self._wake:
                    os.eventfd_read(self._wake)
                elif fd == self.PIPE[0]:
                    os.read(fd, 4096)
                elif fd in self._connections and fd not in self._busy:
                    self._go_on(self._connections[fd])
            while self._returned:
                self._take_back(self._returned.popleft())
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + _TICK
                self.notify()
                self._close_expired()
                if self.ppid != os.getppid():
                    self.log.info("The parent process has ended, so this worker stops: %s", self)
                    self.alive = False

    def _is_stopping(self, listeners: dict[int, Any]) -> bool:
        """Stop listening; return whether connections remain, and the worker still has time for them."""
        if not self._stop_began:
            self._stop_began = time.monotonic()
            for fd, listener in listeners.items():
                # the kernel would reset those connections that it has accepted, but that no worker has taken
                while self._accept_client(listener):
                    pass
                self._loop.unregister(fd)
            for each in self.sockets:
                each.close()
            listeners.clear()
        unused_since = time.monotonic() - _LAST_REQUEST_TIMEOUT
        for each in list(self._connections.values()):
            if each.fd not in self._busy and each.is_idle and each.last_used < unused_since:
                self._go_on(each)  # perhaps a request has arrived since the last poll
                if each.fd not in self._busy and each.is_idle:
                    self._close(each)
        # the worker ends one second before the time at which gunicorn would kill it
        return bool(self._connections) and time.monotonic() - self._stop_began < self.cfg.graceful_timeout - 1

    def _accept_client(self, listener: Any) -> bool:
        """Accept a connection; return False if no client waits for a connection."""
        try:
            sock, peer = listener.accept()
        except OSError:  # another worker has taken the connection, or the client has left
            return False
        if len(self._connections) >= self._most:
            first = self._waiting.first_to_close()
            if first is None:
                sock.close()
                return True
            self._close(self._connections[first])
        if sock.family != socket.AF_UNIX:
            # without this option, the last piece of an answer would wait for an acknowledgement by the client
            # (Nagle's algorithm)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = ClientConnection(self.cfg, sock, peer, listener.getsockname())
        self._connections[connection.fd] = connection
        self._loop.register(connection.fd, select.EPOLLIN)
        self._go_on(connection)
        return True

    def _go_on(self, connection: ClientConnection) -> None:
        """Send all unsent bytes; then read, and put the request into the queue if it is complete."""
        try:
            if not connection.flush():
                self._watch_connection(connection, select.EPOLLOUT)
                return
            if connection.closing or not connection.receive():
                self._close(connection)
                return
            self._dispatch_request(connection)
        except OSError:
            self._close(connection)

    def _dispatch_request(self, connection: ClientConnection) -> None:
        try:
            complete = connection.is_complete()
            self._count_held(connection)
            if connection.held_bytes > _ALWAYS_HELD and self._held > _MAX_HELD:
                raise TooLarge(
                    503, "Service Unavailable", "Clients are sending too much at once. Please try again."
                )
            if not complete:
                self._watch_connection(connection, select.EPOLLIN)
                return
            # the connection is unregistered, because it belongs to a thread until the answer, and because
            # epoll reports a lost connection even if no events are requested
            self._loop.unregister(connection.fd)
            self._waiting.discard(connection.fd)
            self._busy.add(connection.fd)
            self._ready.put(connection)
            return
        except TooLarge as error:
            self.log.warning("Refused a request from %s: %d %s. %s", connection.client, *error.args)
            util.write_error(connection, *error.args)
        except OSError:
            raise
        except Exception as error:  # the request is not HTTP, so gunicorn answers with an error
            self.handle_error(None, connection, connection.peer or ("", -1), error)
        connection.end_request(close=True)
        self._follow_up(connection)

    def _take_back(self, connection: ClientConnection) -> None:
        """Take back a connection from the thread that has answered its request."""
        self._busy.discard(connection.fd)
        try:
            self._loop.register(connection.fd, 0)
        except OSError as error:  # the kernel has no memory to watch the connection
            self.log.warning(
                "Closing the connection of the client %s, because the kernel cannot watch this connection:"
                " %s",
                connection.client,
                error,
            )
            self._close(connection)
            return
        self._follow_up(connection)

    def _follow_up(self, connection: ClientConnection) -> None:
        """Send the answer; after its last byte, continue with the next request of the connection."""
        try:
            if not connection.flush():
                self._watch_connection(connection, select.EPOLLOUT)
            elif connection.closing:
                self._close(connection)
            else:
                self._dispatch_request(connection)
        except OSError:
            self._close(connection)

    def _watch_connection(self, connection: ClientConnection, events: int) -> None:
        self._count_held(connection)
        self._waiting.put(connection.fd, at_rest=connection.is_at_rest)
        self._loop.modify(connection.fd, events)

    def _count_held(self, connection: ClientConnection) -> None:
        """Add the change of this connection's buffers to the total, because a new sum would take longer."""
        held = connection.held_bytes
        self._held += held - connection.counted
        connection.counted = held

    def _close(self, connection: ClientConnection) -> None:
        if self._connections.pop(connection.fd, None) is not None:
            self._waiting.discard(connection.fd)
            self._held -= connection.counted
            with suppress(OSError):  # perhaps the connection is not registered
                self._loop.unregister(connection.fd)
            connection.close()

    def _close_expired(self) -> None:
        now = time.monotonic()
        for fd, connection in list(self._connections.items()):
            if connection.deadline < now and fd not in self._busy:
                if connection.unsent_bytes:
                    self.log.warning(
                        "Closing the connection of the client %s, which reads its answer too slowly: %d bytes"
                        " are unsent.",
                        connection.client,
                        connection.unsent_bytes,
                    )
                self._close(connection)

    def _answer_all(self) -> None:
        """Answer requests until the worker ends. Each thread of the worker runs this method."""
        while True:
            connection = self._ready.get()
            close = True
            try:
                close = self._answer_request(connection)
            except Exception as error:  # each error is logged, and the client gets an answer
                with suppress(OSError):
                    self.handle_error(connection.request, connection, connection.peer or ("", -1), error)
            connection.end_request(close=close)
            self._returned.append(connection)
            # the event loop waits in epoll, and an entry in the queue of returned connections does not wake
            # the loop
            os.eventfd_write(self._wake, 1)

    def _answer_request(self, connection: ClientConnection) -> bool:
        """Call the application and send its answer; return whether to close the connection after it."""
        request = connection.request
        try:
            content = connection.read_body()
        except Exception as error:  # the exception has one of many classes, for instance for invalid chunks
            self.log.warning(
                "Refused a request from %s with 400, because its body is invalid: %r",
                connection.client,
                error,
            )
            util.write_error(connection, 400, "Bad Request", "The body does not match its headers.")
            return True
        if isinstance(request, PlainRequest) and connection.base_environ is not None:
            response = PlainResponse(request, connection, self.cfg)
            environ = make_environ(request, connection.base_environ)
        else:
            response, environ = wsgi.create(request, connection, connection.peer, connection.server, self.cfg)
        environ["wsgi.input"] = io.BytesIO(content)
        environ["wsgi.multithread"] = True
        environ[ABANDONED] = self._abandoned_check(connection)
        body = self.wsgi(environ, response.start_response)
        # the headers are sent with the first write, so they can still say that the connection closes, also if
        # a stop began while the application ran; so the client connects again for its next request
        if not self.alive:
            response.force_close()
        try:
            for item in body:
                response.write(item)
            response.close()
        except Exception:
            connection.take_back()
            raise
        finally:
            if hasattr(body, "close"):
                body.close()
        # the answer is complete, so the loop sends the rest later, unless the client has closed the
        # connection
        with suppress(OSError):
            connection.flush()
        return bool(response.should_close())

    def _abandoned_check(self, connection: ClientConnection) -> Callable[[], str | None]:
        """Return a function that returns why the answer is no longer needed, or None if it is needed."""

        def abandoned_reason() -> str | None:
            # the poll is made only when this function is called, because most requests end without a call
            poll = select.poll()
            poll.register(connection.sock, select.POLLRDHUP)
            if poll.poll(0):
                return "The client has closed the connection."
            if self._stop_began and time.monotonic() - self._stop_began > _STOP_TIMEOUT:
                return "The service is stopping. Please try again."
            return None

        return abandoned_reason
