"""The bundled web server: gunicorn with a worker that slow clients cannot keep busy.

One loop reads from all connections and writes to them, without waiting for any. A thread gets a request when
all of it has arrived, and leaves the answer to the loop where the client does not take it at once. So
connections that are silent, idle, or send and read byte by byte hold no thread, and each has a deadline. Of
too many waiting connections the oldest idle one ends first.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import resource
import select
import socket
import threading
import time
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from gunicorn import glogging, util
from gunicorn.app.base import BaseApplication
from gunicorn.http import wsgi
from gunicorn.workers.base import Worker

from placement.api.call import ABANDONED
from placement.server.connection import ClientConnection, TooLarge

MAX_REQUEST_LINE: Final = 8190
"""As much as Apache httpd takes by default; lists of aggregates and traits in queries get long."""


class BundledServer(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn with settings of ours: no file and no environment changes them."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """What this server does beside what all of them do."""

    def load_config(self) -> None:
        """Called by gunicorn."""
        settings: dict[str, Any] = {
            "forwarder_headers": "",  # no client says where the service is mounted (SCRIPT_NAME)
            "limit_request_line": MAX_REQUEST_LINE,
            "logger_class": _ServerLogger,
            "control_socket_disable": True,  # it would lie in the home folder, one for all servers
            **self.settings(),
        }
        if "control_socket_disable" not in self.cfg.settings:  # before gunicorn 25.1
            del settings["control_socket_disable"]
        for name, value in settings.items():
            self.cfg.set(name, value)


class _ServerLogger(glogging.Logger):  # type: ignore[misc]  # as above
    """Leaves gunicorn's log records to the handlers that oslo.log has set up."""

    def setup(self, cfg: Any) -> None:
        """Called by gunicorn."""
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.setLevel(logging.NOTSET)
        self.error_log.propagate = True


class IdleConnections:
    """Descriptors of connections, each since when it waits as it does now. Nothing here is searched for.

    Whose requests were all answered, and who asks nothing now, is at rest: it connects again without loss.
    The others owe a request, or a part of one, or take an answer slowly. Who has only just connected is about
    to ask, so those at rest end first; but of who never asks there may be any number, so they do only while
    the others have no more than half of the places.

    :param most: how many connections there may be.
    """

    def __init__(self, most: int) -> None:
        self._share = most // 2
        self._at_rest: OrderedDict[int, None] = OrderedDict()
        self._owing: OrderedDict[int, None] = OrderedDict()

    def put(self, fd: int, *, at_rest: bool) -> None:
        """A connection waits, maybe otherwise than before."""
        now, before = (self._at_rest, self._owing) if at_rest else (self._owing, self._at_rest)
        before.pop(fd, None)
        now.setdefault(fd)

    def discard(self, fd: int) -> None:
        """It waits no more."""
        self._at_rest.pop(fd, None)
        self._owing.pop(fd, None)

    def first(self) -> int | None:
        """Which one ends first, if any waits: of the like the one that has waited longest."""
        owing_end = len(self._owing) > self._share or not self._at_rest
        return next(iter(self._owing if owing_end else self._at_rest), None)


_MAX_HELD: Final = 256 * 1024 * 1024  # bytes of all clients together
_ALWAYS_HELD: Final = 64 * 1024  # bytes of one client, whatever others send
_RESERVED_FILES: Final = 256  # for databases, logs and the like
_STOP_TIMEOUT: Final = 2.0  # with a search, when the service is to stop
_TICK: Final = 1.0


class GatheringWorker(Worker):  # type: ignore[misc]  # gunicorn has no types
    """What gunicorn runs in each worker process."""

    alive: bool

    def init_process(self) -> None:
        """Called by gunicorn after the fork."""
        self._loop = select.epoll()
        self._connections: dict[int, ClientConnection] = {}
        self._busy: set[int] = set()
        self._returned: deque[ClientConnection] = deque()
        self._ready: queue.SimpleQueue[ClientConnection] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop_began = 0.0
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._most = min(self.cfg.worker_connections, max(16, most - _RESERVED_FILES))
        self._waiting = IdleConnections(self._most)
        self._held = 0  # bytes of all connections, as they were counted last
        super().init_process()

    def run(self) -> None:
        """Called by gunicorn: serve until told to stop."""
        listeners = {each.fileno(): each for each in self.sockets}
        for each in self.sockets:
            each.setblocking(False)
        for fd in (*listeners, self._wake, self.PIPE[0]):
            self._loop.register(fd, select.EPOLLIN)
        for _ in range(self.cfg.threads):
            threading.Thread(target=self._answer_all, daemon=True).start()
        next_tick = 0.0
        while self.alive or self._stopping(listeners):
            for fd, _ in self._loop.poll(_TICK if self.alive else 0.1):
                if fd in listeners:
                    self._accept(listeners[fd])
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
                    self.log.info("Parent changed, shutting down: %s", self)
                    self.alive = False

    def _stopping(self, listeners: dict[int, Any]) -> bool:
        """Stop listening; whether requests are still in hand, and there is time for them."""
        if not self._stop_began:
            self._stop_began = time.monotonic()
            for fd in listeners:
                self._loop.unregister(fd)
            for each in self.sockets:
                each.close()
            listeners.clear()
        for each in [each for each in self._connections.values() if each.idle and each.fd not in self._busy]:
            self._close(each)
        return bool(self._connections) and time.monotonic() - self._stop_began < self.cfg.graceful_timeout - 1

    def _accept(self, listener: Any) -> None:
        try:
            sock, peer = listener.accept()
        except OSError:  # another worker was faster, or the client has gone again
            return
        if len(self._connections) >= self._most:
            first = self._waiting.first()
            if first is None:
                sock.close()
                return
            self._close(self._connections[first])
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = ClientConnection(self.cfg, sock, peer, listener.getsockname())
        self._connections[connection.fd] = connection
        self._loop.register(connection.fd, select.EPOLLIN)
        self._go_on(connection)

    def _go_on(self, connection: ClientConnection) -> None:
        """Send what is left, else read, and have a request answered that is complete."""
        try:
            if not connection.flush():
                self._watch(connection, select.EPOLLOUT)
                return
            if connection.closing or not connection.receive():
                self._close(connection)
                return
            self._dispatch(connection)
        except OSError:
            self._close(connection)

    def _dispatch(self, connection: ClientConnection) -> None:
        try:
            complete = connection.complete()
            self._count(connection)
            if connection.held > _ALWAYS_HELD and self._held > _MAX_HELD:
                raise TooLarge(503, "Service Unavailable", "Too much is being sent. Please try again.")
            if not complete:
                self._watch(connection, select.EPOLLIN)
                return
            # epoll tells of a lost connection whatever is asked of it; but until this
            # is answered it belongs to a thread.
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
        except Exception as error:  # no HTTP: gunicorn knows what to answer
            self.handle_error(None, connection, connection.peer or ("", -1), error)
        connection.answered(close=True)
        self._follow_up(connection)

    def _take_back(self, connection: ClientConnection) -> None:
        """Go on with a connection whose request a thread has answered."""
        self._busy.discard(connection.fd)
        try:
            self._loop.register(connection.fd, 0)
        except OSError as error:  # the kernel has no room for it
            self.log.warning(
                "Closing the connection of %s, which cannot be watched: %s", connection.client, error
            )
            self._close(connection)
            return
        self._follow_up(connection)

    def _follow_up(self, connection: ClientConnection) -> None:
        """Send the answer, and see what comes next."""
        try:
            if not connection.flush():
                self._watch(connection, select.EPOLLOUT)
            elif connection.closing or not self.alive:
                self._close(connection)
            else:
                self._dispatch(connection)
        except OSError:
            self._close(connection)

    def _watch(self, connection: ClientConnection, events: int) -> None:
        self._count(connection)
        self._waiting.put(connection.fd, at_rest=connection.at_rest)
        self._loop.modify(connection.fd, events)

    def _count(self, connection: ClientConnection) -> None:
        """Take account of what a connection holds now: whoever sends byte by byte has nobody add up all."""
        held = connection.held
        self._held += held - connection.counted
        connection.counted = held

    def _close(self, connection: ClientConnection) -> None:
        if self._connections.pop(connection.fd, None) is not None:
            self._waiting.discard(connection.fd)
            self._held -= connection.counted
            with suppress(OSError):  # where it could not be registered
                self._loop.unregister(connection.fd)
            connection.close()

    def _close_expired(self) -> None:
        now = time.monotonic()
        for fd, connection in list(self._connections.items()):
            if connection.deadline < now and fd not in self._busy:
                if connection.unsent:
                    self.log.warning(
                        "Closing the connection of %s, which took less than a MiB of its answer in time: "
                        "%d bytes were left.",
                        connection.client,
                        connection.unsent,
                    )
                self._close(connection)

    def _answer_all(self) -> None:
        """What each thread does."""
        while True:
            connection = self._ready.get()
            close = True
            try:
                close = self._answer(connection)
            except Exception as error:  # whatever goes wrong is answered and logged
                with suppress(OSError):
                    self.handle_error(connection.request, connection, connection.peer or ("", -1), error)
            connection.answered(close=close)
            self._returned.append(connection)
            os.eventfd_write(self._wake, 1)

    def _answer(self, connection: ClientConnection) -> bool:
        """Have the application answer; whether the connection ends then."""
        request = connection.request
        try:
            content = request.body.read()
        except Exception as error:  # of several kinds: chunks that are none, or end too early
            self.log.warning("Invalid body from %s: %r", connection.client, error)
            util.write_error(connection, 400, "Bad Request", "The body is not what its headers say.")
            return True
        response, environ = wsgi.create(request, connection, connection.peer, connection.server, self.cfg)
        environ["wsgi.input"] = io.BytesIO(content)
        environ["wsgi.multithread"] = True
        environ[ABANDONED] = self._abandoned(connection)
        if not self.alive:
            response.force_close()
        body = self.wsgi(environ, response.start_response)
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
        with suppress(OSError):
            connection.flush()
        return bool(response.should_close())

    def _abandoned(self, connection: ClientConnection) -> Callable[[], str | None]:
        """What a long search asks why nobody needs its answer any more."""
        poll = select.poll()
        poll.register(connection.sock, select.POLLRDHUP)

        def abandoned() -> str | None:
            if poll.poll(0):
                return "The client has closed the connection."
            if self._stop_began and time.monotonic() - self._stop_began > _STOP_TIMEOUT:
                return "The service is stopping. Please try again."
            return None

        return abandoned
