"""A port on loopback for stand-ins of proxies."""

import socket
import threading
from abc import ABC, abstractmethod
from typing import Self


class ClientListener(ABC):
    """Listens on a loopback port, and handles each client in a thread of its own."""

    def __init__(self, backlog: int | None = None) -> None:
        """Open the port; ``backlog`` is the number of clients that may wait."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)

    @property
    def port(self) -> int:
        """The number of the port."""
        number: int = self._listener.getsockname()[1]
        return number

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @abstractmethod
    def serve_client(self, client: socket.socket) -> None:
        """Handle one client."""

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self.serve_client, args=(client,), daemon=True).start()
