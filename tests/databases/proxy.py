"""A network between clients and a database server that can stop to carry data."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from sqlalchemy.engine import make_url

_CHUNK = 65_536


class Proxy:
    """Listens on a loopback port and carries data to a server and back, until :meth:`swallow`.

    Then it still accepts connections and acknowledges data, but carries none. The swallowed data arrives
    after :meth:`carry`.
    """

    def __init__(self, url: str) -> None:
        """Keep the ``url`` of a database on loopback."""
        self._url = make_url(url)
        self._carries = threading.Event()
        self._carries.set()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))

    @property
    def url(self) -> str:
        """URL of the database through this proxy."""
        port = self._listener.getsockname()[1]
        return self._url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        _start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.carry()
        self.cut()

    def lead_to(self, url: str) -> None:
        """Connect to another server from now on, and end current connections."""
        self._url = make_url(url)
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        open_now, self._open = self._open, []
        for each in open_now:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def swallow(self) -> None:
        """Stop carrying data."""
        self._carries.clear()

    def carry(self) -> None:
        """Carry all data again, including the swallowed."""
        self._carries.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._open.append(client)
            _start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        self._carries.wait()
        try:
            server = socket.create_connection((self._url.host or "", self._url.port or 0))
        except OSError:
            client.close()
            return
        self._open.append(server)
        _start(self._pump, server, client)
        self._pump(client, server)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                self._carries.wait()
                target.sendall(data)
        self._carries.wait()
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _start(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()
