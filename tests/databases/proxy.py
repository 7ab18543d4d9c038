"""A network between clients and a database server that can stop to carry data."""

import socket
import threading
from contextlib import suppress

from sqlalchemy.engine import make_url

from tests.listener import ClientListener

_CHUNK = 65_536


class Proxy(ClientListener):
    """Listens on a loopback port and carries data to a server and back, until :meth:`swallow`.

    Then the proxy still accepts connections and acknowledges data, but carries no data. The swallowed data
    arrives after :meth:`carry`.
    """

    def __init__(self, url: str) -> None:
        """Keep the ``url`` of a database on loopback."""
        self._url = make_url(url)
        self._carries = threading.Event()
        self._carries.set()
        self._open: list[socket.socket] = []
        super().__init__()

    @property
    def url(self) -> str:
        """URL of the database through this proxy."""
        return self._url.set(host="127.0.0.1", port=self.port).render_as_string(hide_password=False)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
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

    def serve_client(self, client: socket.socket) -> None:
        """Connect a client to the server as soon as data is carried, until either leaves."""
        self._open.append(client)
        self._carries.wait()
        try:
            server = socket.create_connection((self._url.host or "", self._url.port or 0))
        except OSError:
            client.close()
            return
        self._open.append(server)
        threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
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
