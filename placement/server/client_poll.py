"""Has the connections of a worker process, and waits for their events with the kernel's epoll."""

import errno
import logging
import select
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from placement.server.connection import ClientConnection

LOG = logging.getLogger(__name__)

READABLE: Final = select.EPOLLIN | select.EPOLLONESHOT
"""Wait until bytes of the client arrive."""
WRITABLE: Final = select.EPOLLOUT | select.EPOLLONESHOT
"""Wait until the socket takes bytes. If the next request of a connection is in the buffer, the connection
also waits for this event: its turn comes after other connections, and after the client has read enough of
the last answer.
"""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC)
"""The error numbers of a kernel that cannot make or watch another connection."""
_ACCEPTED_AT_ONCE: Final = 16
"""The maximum number of connections that a thread accepts at once."""


class WaitingConnections:
    """The file descriptors of connections without a complete request, by the time when their state began.

    A connection at rest has no unfinished request, so its client can connect again without a loss. All other
    connections here wait for their first request, for the rest of a request, or for a client that reads an
    answer slowly. Normally a connection at rest is closed first, because the other clients are in the middle
    of a request, or will soon send a request. But a client can open any number of connections without a
    request. So if more than half of the maximum number of connections are not at rest, a connection that is
    not at rest is closed first.

    :param most: the maximum number of connections.
    """

    def __init__(self, most: int) -> None:
        self._share = most // 2
        self._at_rest: OrderedDict[int, None] = OrderedDict()
        self._unfinished: OrderedDict[int, None] = OrderedDict()

    def put(self, fd: int, *, at_rest: bool) -> None:
        """Add a waiting connection, or change its state."""
        now, before = (self._at_rest, self._unfinished) if at_rest else (self._unfinished, self._at_rest)
        before.pop(fd, None)
        now.setdefault(fd)

    def discard(self, fd: int) -> None:
        """Remove a connection that no longer waits."""
        self._at_rest.pop(fd, None)
        self._unfinished.pop(fd, None)

    def first_to_close(self) -> int | None:
        """Return the file descriptor of the connection to close first; None if no connection waits."""
        close_unfinished = len(self._unfinished) > self._share or not self._at_rest
        return next(iter(self._unfinished if close_unfinished else self._at_rest), None)


class ClientPoll:
    """All connections of a worker, which its threads share.

    A thread takes the connection of an event, and gives it back before it would have to wait for the client.
    The kernel reports one event after each time that a connection is given back (``EPOLLONESHOT`` in
    epoll_ctl(2)). Since the main thread takes connections without an event, a thread that gets an event also
    checks that the connection is not taken.

    :param cfg: the settings of gunicorn.
    :param most: the maximum number of connections.
    """

    def __init__(self, cfg: Any, most: int) -> None:
        self._cfg = cfg
        self._most = most
        self._epoll = select.epoll()
        #: protects the attributes below, and the attribute ``is_taken`` of connections; give_back() calls
        #: count_held() with this lock, so a thread can take the lock twice
        self._lock = threading.RLock()
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[int, ClientConnection] = {}
        self._waiting = WaitingConnections(most)
        self._held = 0  # total bytes of all connections, as last counted

    @property
    def is_empty(self) -> bool:
        """Return whether there are no connections."""
        with self._lock:
            return not self._connections

    def add_listener(self, listener: socket.socket) -> None:
        """Accept connections of this socket from now on."""
        # the socket must not block, because several threads and workers share it, and only one of them gets a
        # new connection
        listener.setblocking(False)
        with self._lock:
            self._listeners[listener.fileno()] = listener
            self._epoll.register(listener.fileno(), READABLE)

    def watch_listeners(self) -> None:
        """Accept connections again, if the kernel could not make one before."""
        with self._lock:
            for fd in self._listeners:
                self._epoll.modify(fd, READABLE)

    def remove_listeners(self) -> None:
        """Accept no further connections."""
        with self._lock:
            for fd in self._listeners:
                # other processes share the socket, so the kernel would report its events after its end here
                self._epoll.unregister(fd)
            self._listeners.clear()

    def accept_all(self) -> None:
        """Accept all connections that the kernel has made."""
        for fd in tuple(self._listeners):
            with suppress(OSError):
                while True:
                    self._accept_client(fd)

    def take_next(self) -> ClientConnection | None:
        """Wait for an event, and take its connection; return None if the event is for no connection."""
        # the thread gets one event, so that other threads get all other events
        for fd, _ in self._epoll.poll(maxevents=1):
            if fd in self._listeners:
                self._accept_some(fd)
                return None
            with self._lock:
                connection = self._connections.get(fd)
                if connection is not None and not connection.is_taken:
                    connection.is_taken = True
                    return connection
        return None

    def _accept_some(self, listener_fd: int) -> None:
        try:
            # with one connection for each event, new clients would wait long, because the next event of the
            # socket comes after the events of all connections; but other workers shall get connections, too
            for _ in range(_ACCEPTED_AT_ONCE):
                self._accept_client(listener_fd)
        except OSError as error:  # usually, another thread or worker has taken the connection
            if error.errno in _EXHAUSTED:
                # another attempt now would fail, too, so the worker tries again at its next tick
                LOG.warning("The kernel cannot make a new connection: %s", error)
                return
        with self._lock:
            if listener_fd in self._listeners:
                self._epoll.modify(listener_fd, READABLE)

    def _accept_client(self, listener_fd: int) -> None:
        """Accept a connection.

        :raises OSError: no client waits for a connection, or the kernel cannot make one.
        """
        # the lock includes the call of accept(), so that is_empty is false as soon as this process has the
        # connection
        with self._lock:
            listener = self._listeners.get(listener_fd)
            if listener is None:
                raise BlockingIOError
            sock, peer = listener.accept()
            try:
                if len(self._connections) >= self._most:
                    first = self._waiting.first_to_close()
                    if first is None:
                        sock.close()
                        return
                    self._remove(self._connections[first])
                if sock.family != socket.AF_UNIX:
                    # without this option, the last piece of an answer would wait for an acknowledgement by
                    # the client (Nagle's algorithm)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = ClientConnection(self._cfg, sock, peer, listener.getsockname())
                self._epoll.register(connection.fd, READABLE)
            except OSError:
                sock.close()
                raise
            connection.awaited = READABLE
            self._connections[connection.fd] = connection
            self._waiting.put(connection.fd, at_rest=False)

    def take_all(self, condition: Callable[[ClientConnection], bool]) -> list[ClientConnection]:
        """Take and return all connections with this condition that no thread has taken."""
        with self._lock:
            found = [each for each in self._connections.values() if not each.is_taken and condition(each)]
            for each in found:
                each.is_taken = True
        return found

    def begin_answer(self, connection: ClientConnection) -> bool:
        """Return whether a taken connection was not removed; it then stays until it is given back.

        While a thread reads from a connection, another thread can remove the connection, to make room for a
        new one. The thread that has taken the connection then closes it.
        """
        with self._lock:
            self._waiting.discard(connection.fd)
            return connection.fd in self._connections

    def count_held(self, connection: ClientConnection) -> int:
        """Count the bytes of this connection again; return the number of bytes of all connections."""
        with self._lock:
            if connection.fd in self._connections:
                # the change is added to the total, because a new sum would take longer
                held = connection.held_bytes
                self._held += held - connection.counted
                connection.counted = held
            return self._held

    def give_back(self, connection: ClientConnection, events: int | None) -> None:
        """Wait for events of a taken connection; if ``events`` is None, close the connection."""
        with self._lock:
            connection.is_taken = False
            if events is None or connection.fd not in self._connections:
                self._remove(connection)
            else:
                self.count_held(connection)
                self._waiting.put(connection.fd, at_rest=connection.is_at_rest)
                connection.awaited = events
                self._epoll.modify(connection.fd, events)

    def _remove(self, connection: ClientConnection) -> None:
        """Remove a connection, and close it; if a thread has taken it, :meth:`give_back` closes it."""
        if self._connections.pop(connection.fd, None) is not None:
            self._waiting.discard(connection.fd)
            self._held -= connection.counted
        if not connection.is_taken:
            connection.close()
