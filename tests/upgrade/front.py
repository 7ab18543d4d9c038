"""A stand-in for a proxy before several machines: it connects each client to the first one that accepts.

Only a refused connection sends a client to the next machine. A request that a machine has begun to read is
never repeated, so a service that drops one loses it.
"""

import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tests.databases.balancer import pump
from tests.listener import ClientListener
from tests.waits import wait_for

_SECONDS: Final = 120.0


class Front(ClientListener):
    """Listens on a loopback port. For threads of the test; connections end with their clients."""

    def __init__(self, ports: Sequence[int]) -> None:
        """Keep the ports of the machines, in the order of preference."""
        self._ports = ports
        self._taken_out: set[int] = set()
        self._open: Counter[int] = Counter()
        self._lock = threading.Lock()
        super().__init__(backlog=128)

    @property
    def base(self) -> str:
        """The URL of the service behind it."""
        return f"http://127.0.0.1:{self.port}"

    def take_out(self, port: int) -> None:
        """Send no new client to a machine, and wait until its clients have left."""
        with self._lock:
            self._taken_out.add(port)
        wait_for(lambda: not self._open[port], f"the clients of port {port} leave")

    def put_back(self, port: int) -> None:
        """Send clients to a machine again."""
        with self._lock:
            self._taken_out.discard(port)

    def serve_client(self, client: socket.socket) -> None:
        """Connect a client to the first machine that accepts, until either leaves."""
        for port in self._ports:
            if not self._enter(port):
                continue
            try:
                with suppress(ConnectionRefusedError):
                    _connect_both(client, port)
                    return
            finally:
                self._leave(port)
        client.close()

    def _enter(self, port: int) -> bool:
        """Count a client of a machine, unless the machine is taken out."""
        with self._lock:
            if port in self._taken_out:
                return False
            self._open[port] += 1
            return True

    def _leave(self, port: int) -> None:
        with self._lock:
            self._open[port] -= 1


def _connect_both(client: socket.socket, port: int) -> None:
    """Pass bytes between a client and a machine until either leaves.

    :raises ConnectionRefusedError: the machine does not accept.
    """
    server = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
    server.settimeout(None)
    threading.Thread(target=pump, args=(server, client), daemon=True).start()
    pump(client, server)
