"""Has the worker process of the bundled web server, which slow clients cannot keep busy.

A thread answers a request only after the whole request has arrived, and never waits for a client. If the
client does not read the whole answer at once, some thread sends the rest later. So silent, idle and slow
connections occupy no thread, and each of them has a deadline. If a worker has too many connections, it closes
a connection that waits for its client (:class:`~placement.server.client_poll.WaitingConnections`).
"""

from __future__ import annotations

import ctypes
import gc
import io
import logging
import os
import resource
import select
import signal
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

from gunicorn import glogging, util
from gunicorn.app.base import BaseApplication
from gunicorn.http import wsgi
from gunicorn.workers.base import Worker

from placement.api.call import ABANDONED, BODY
from placement.server.arbiter import STOP_SIGNALS, ServerArbiter
from placement.server.client_poll import READABLE, WRITABLE, ClientPoll
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
_LAST_TICK: Final = 0.1
"""The number of seconds between two checks while the worker stops. It ends soon after its last answer."""


_ALLOCATOR_OPTIONS: Final = (
    # threads compute in turn, so they need no memory areas of their own; with one area, less memory is unused
    (-8, 1),  # M_ARENA_MAX
    # Without the next two options, the allocator returns the memory of an answer of 1 MB to the kernel, and
    # the next answer gets it page by page. This took a tenth of the time of such an answer.
    (-3, 16 * 1024 * 1024),  # M_MMAP_THRESHOLD
    (-1, 32 * 1024 * 1024),  # M_TRIM_THRESHOLD
)
"""Options of malloc in the GNU C library, each with its value (mallopt(3))."""


def _keep_freed_memory() -> None:
    """Make the allocator keep some freed memory for the next answers."""
    # other C libraries have no such function
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, value in _ALLOCATOR_OPTIONS:
            library.mallopt(option, value)


class BufferingWorker(Worker):  # type: ignore[misc]  # gunicorn has no types
    """A worker process of gunicorn; its threads wait together for the events of all connections.

    The thread that gets an event reads, answers and sends until it would have to wait for the client. So no
    thread hands a request over to another thread.
    """

    alive: bool

    def init_process(self) -> None:
        """Set up the worker after the fork. gunicorn calls this method."""
        # the limit of open files is raised to the maximum, because each connection needs a file descriptor
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        connections = min(self.cfg.worker_connections, max(16, most - _RESERVED_FILES))
        self._clients = ClientPoll(self.cfg, connections)
        self._stop_began = 0.0
        _keep_freed_memory()
        super().init_process()

    def init_signals(self) -> None:
        """Set the signal handlers, and get the signals since the fork. gunicorn calls this method."""
        super().init_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def run(self) -> None:
        """Serve requests until the worker has to stop. gunicorn calls this method."""
        for each in self.sockets:
            self._clients.add_listener(each)
        for _ in range(self.cfg.threads):
            threading.Thread(target=self._serve_clients, daemon=True).start()
        signals = select.poll()
        signals.register(self.PIPE[0], select.POLLIN)
        while self.alive or self._is_stopping():
            if signals.poll(1000 * (_TICK if self.alive else _LAST_TICK)):
                os.read(self.PIPE[0], 4096)
            self.notify()
            self._close_expired()
            self._clients.watch_listeners()
            if self.alive and self.ppid != os.getppid():
                self.log.info("The parent process has ended, so this worker stops: %s", self)
                self.alive = False

    def _is_stopping(self) -> bool:
        """Stop listening; return whether connections remain, and the worker still has time for them."""
        if not self._stop_began:
            self._stop_began = time.monotonic()
            self._accept_last_clients()
            self._clients.remove_listeners()
            for each in self.sockets:
                each.close()
        unused_since = time.monotonic() - _LAST_REQUEST_TIMEOUT
        for each in self._clients.take_all(lambda one: one.is_idle and one.last_used < unused_since):
            # perhaps a request has arrived, and no thread has got its event yet
            self._clients.give_back(each, WRITABLE if each.has_arrivals() else None)
        # the worker ends one second before the time at which gunicorn would kill it
        return not self._clients.is_empty and (
            time.monotonic() - self._stop_began < self.cfg.graceful_timeout - 1
        )

    def _accept_last_clients(self) -> None:
        # the kernel would reset those connections that it has accepted, but that no worker has taken
        self._clients.accept_all()

    def _close_expired(self) -> None:
        now = time.monotonic()
        for each in self._clients.take_all(lambda one: one.deadline < now):
            # the client is not late if its connection waits for a thread, which then continues with it
            if each.is_ready:
                each.deadline = now + 2 * _TICK
                self._clients.give_back(each, each.awaited)
                continue
            if each.unsent_bytes:
                self.log.warning(
                    "Closing the connection of the client %s, which reads its answer too slowly: %d bytes are"
                    " unsent.",
                    each.client,
                    each.unsent_bytes,
                )
            self._clients.give_back(each, None)

    def _serve_clients(self) -> None:
        """Handle events until the worker ends. Each thread of the worker runs this method."""
        connection = None
        try:
            while True:
                connection = self._clients.take_next()
                if connection is not None:
                    self._clients.give_back(connection, self._handle_event(connection))
                    connection = None
        except BaseException:
            self.alive = False
            self.log.exception("The worker %s stops, because one of its threads has failed", self)
            if connection is not None:
                self._clients.give_back(connection, None)

    def _handle_event(self, connection: ClientConnection) -> int | None:
        """Continue with a connection, and return the next events; None if the connection has to be closed."""
        try:
            return self._go_on(connection)
        except OSError:
            pass  # the connection is lost
        except Exception:
            self.log.exception("Closing the connection of the client %s", connection.client)
        return None

    def _go_on(self, connection: ClientConnection) -> int | None:
        """Send unsent bytes, read the bytes that have arrived, and answer at most one request.

        Return the events for which the connection has to wait; None if it has to be closed.
        """
        if not connection.flush():
            return WRITABLE
        if connection.closing:
            return None
        close = True
        try:
            # the next request can already be in the buffer, as a client can send several requests at once
            if not connection.is_complete():
                if not connection.receive():
                    return None
                complete = connection.is_complete()
                if self._clients.count_held(connection) > _MAX_HELD and connection.held_bytes > _ALWAYS_HELD:
                    raise TooLarge(
                        503, "Service Unavailable", "Clients are sending too much at once. Please try again."
                    )
                if not complete:
                    # the client can wait for "100 Continue"
                    return WRITABLE if connection.unsent_bytes else READABLE
            if not self._clients.begin_answer(connection):
                return None
        except TooLarge as error:
            self.log.warning("Refused a request from %s: %d %s. %s", connection.client, *error.args)
            util.write_error(connection, *error.args)
        except OSError:
            raise
        except Exception as error:  # the request is not HTTP, so gunicorn answers with an error
            self.handle_error(None, connection, connection.peer or ("", -1), error)
        else:
            close = self._answer_request(connection)
        connection.end_request(close=close)
        if connection.flush() and close:
            return None
        # bytes that remain are a part of this answer, or of the next request
        return WRITABLE if connection.held_bytes else READABLE

    def _answer_request(self, connection: ClientConnection) -> bool:
        """Answer a request; return whether to close the connection after the answer."""
        try:
            return self._call_application(connection)
        except Exception as error:  # each error is logged, and the client gets an answer
            with suppress(OSError):
                self.handle_error(connection.request, connection, connection.peer or ("", -1), error)
            return True

    def _call_application(self, connection: ClientConnection) -> bool:
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
        environ[BODY] = content
        environ["wsgi.multithread"] = True
        environ[ABANDONED] = self._abandoned_check(connection)
        body = self.wsgi(environ, response.start_response)
        # the headers are sent with the first write, so they can still say that the connection closes, also if
        # a stop began while the application ran; so the client connects again for its next request
        if not self.alive:
            response.force_close()
        try:
            try:
                for item in body:
                    response.write(item)
                response.close()
            finally:
                if hasattr(body, "close"):
                    body.close()
        except Exception:
            connection.take_back()
            raise
        return bool(response.should_close())

    def _abandoned_check(self, connection: ClientConnection) -> Callable[[], str | None]:
        """Return a function that returns why the answer is no longer needed, or None if it is needed."""

        def abandoned_reason() -> str | None:
            # the poll is made only when this function is called, because most requests end without a call
            if connection.has_event(select.POLLRDHUP):
                return "The client has closed the connection."
            if self._stop_began and time.monotonic() - self._stop_began > _STOP_TIMEOUT:
                return "The service is stopping. Please try again."
            return None

        return abandoned_reason
