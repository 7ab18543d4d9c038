"""Has the connections of a worker process, and waits for their events with the kernel's epoll."""

import errno
import logging
import select
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from placement.server.connection import ClientConnection

LOG = logging.getLogger(__name__)

READABLE: Final = select.EPOLLIN | select.EPOLLONESHOT
"""Wait until bytes of the client arrive."""
WRITABLE: Final = select.EPOLLOUT | select.EPOLLONESHOT
"""Wait until the socket takes bytes. If the client reads its answers, this event occurs soon, but after the
events of other connections.
"""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPTED_AT_ONCE: Final = 16
"""The maximum number of connections that a thread accepts at once."""


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
        self._events = select.epoll()
        #: protects the attributes below, and which thread has taken a connection
        self._lock = threading.Lock()
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[int, ClientConnection] = {}
        self._waiting = IdleConnections(most)
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
        self._listeners[listener.fileno()] = listener
        self._events.register(listener.fileno(), READABLE)

    def watch_listeners(self) -> None:
        """Accept connections again, if the kernel could not make one before."""
        with self._lock:
            for fd in self._listeners:
                self._events.modify(fd, READABLE)

    def remove_listeners(self) -> None:
        """Accept no further connections."""
        with self._lock:
            for fd in self._listeners:
                # other processes share the socket, so the kernel would report its events after its end here
                self._events.unregister(fd)
            self._listeners = {}

    def accept_all(self) -> None:
        """Accept all connections that the kernel has made."""
        for fd in self._listeners:
            while self._accept_client(fd):
                pass

    def take_next(self) -> ClientConnection | None:
        """Wait for an event, and take its connection; return None if the event is for no connection."""
        # the thread gets one event, so that other threads get all other events
        for fd, _ in self._events.poll(maxevents=1):
            if fd in self._listeners:
                # the number is limited, because other workers accept connections of the same socket; but a
                # single one would delay new clients, because a listening socket gets its turn in a row with
                # all connections
                for _ in range(_ACCEPTED_AT_ONCE):
                    if not self._accept_client(fd):
                        break
                return None
            with self._lock:
                connection = self._connections.get(fd)
                if connection is not None and not connection.is_taken:
                    connection.is_taken = True
                    return connection
        return None

    def _accept_client(self, listener_fd: int) -> bool:
        """Accept a connection; return False if no client waits for a connection."""
        # the lock includes the call of accept(), so that is_empty is false as soon as this process has the
        # connection
        with self._lock:
            listener = self._listeners.get(listener_fd)
            if listener is None:
                return False
            try:
                sock, peer = listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:  # another attempt now would fail, too
                    LOG.warning("The kernel cannot make new connections: %s", error)
                else:  # another thread or worker has taken the connection, or the client has left
                    self._events.modify(listener_fd, READABLE)
                return False
            self._events.modify(listener_fd, READABLE)
            if len(self._connections) >= self._most:
                first = self._waiting.first_to_close()
                if first is None:
                    sock.close()
                    return True
                self._forget(self._connections[first])
            if sock.family != socket.AF_UNIX:
                # without this option, the last piece of an answer would wait for an acknowledgement by the
                # client (Nagle's algorithm)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = ClientConnection(self._cfg, sock, peer, listener.getsockname())
            try:
                self._events.register(connection.fd, READABLE)
            except OSError as error:  # the kernel has no memory to watch the connection
                LOG.warning("Closing the connection of the client %s: %s", connection.client, error)
                sock.close()
                return True
            connection.awaited = READABLE
            self._connections[connection.fd] = connection
            self._waiting.put(connection.fd, at_rest=False)
            return True

    def take_all(self, condition: Callable[[ClientConnection], bool]) -> list[ClientConnection]:
        """Take and return all connections with this condition that no thread has taken."""
        with self._lock:
            found = [each for each in self._connections.values() if not each.is_taken and condition(each)]
            for each in found:
                each.is_taken = True
        return found

    def begin_answer(self, connection: ClientConnection) -> bool:
        """Return whether a taken connection is still open; it then stays open until it is given back.

        While a thread reads from the connection, another thread can close it, to have room for a new one.
        """
        with self._lock:
            self._waiting.discard(connection.fd)
            return connection.fd in self._connections

    def count_held(self, connection: ClientConnection) -> int:
        """Count the bytes of this connection again; return the number of bytes of all connections."""
        with self._lock:
            return self._count_held(connection)

    def _count_held(self, connection: ClientConnection) -> int:
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
                self._forget(connection)
            else:
                self._count_held(connection)
                self._waiting.put(connection.fd, at_rest=connection.is_at_rest)
                connection.awaited = events
                self._events.modify(connection.fd, events)

    def _forget(self, connection: ClientConnection) -> None:
        """Remove a connection, and close it; if a thread has taken it, the thread closes it."""
        if self._connections.pop(connection.fd, None) is not None:
            self._waiting.discard(connection.fd)
            self._held -= connection.counted
        if not connection.is_taken:
            connection.close()
