"""A stand-in for a proxy before several machines: it connects each client to the first one that accepts.

Only a refused connection sends a client to the next machine. A request that a machine has begun to read is
never repeated, so a service that drops one loses it.
"""

import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from tests.databases.balancer import pump
from tests.waits import wait_for

_SECONDS: Final = 120.0


class Front:
    """Listens on a loopback port. For threads of the test; connections end with their clients."""

    def __init__(self, ports: Sequence[int]) -> None:
        """Keep the ports of the machines, in the order of preference."""
        self._ports = ports
        self._taken_out: set[int] = set()
        self._open: Counter[int] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    @property
    def base(self) -> str:
        """The URL of the service behind it."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def take_out(self, port: int) -> None:
        """Send no new client to a machine, and wait until its clients have left."""
        self._taken_out.add(port)
        wait_for(lambda: not self._open[port], f"the clients of port {port} leave")

    def put_back(self, port: int) -> None:
        """Send clients to a machine again."""
        self._taken_out.discard(port)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        for port in [each for each in self._ports if each not in self._taken_out]:
            with suppress(ConnectionRefusedError):
                server = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
                break
        else:
            client.close()
            return
        server.settimeout(None)
        self._open[port] += 1
        threading.Thread(target=pump, args=(server, client), daemon=True).start()
        pump(client, server)
        self._open[port] -= 1
