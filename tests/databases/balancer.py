"""A stand-in for HAProxy before a Galera cluster: connects to running nodes and ends other connections."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from sqlalchemy.engine import make_url

from tests.databases.galera import Node
from tests.listener import ClientListener

_CHUNK: Final = 65_536
_PERIOD: Final = 0.3  # seconds between health checks


class Health:
    """Checks repeatedly which nodes are up, and records the times without any."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.up = [node.is_ready() for node in nodes]
        self.balancers: list[Balancer] = []
        #: intervals (:func:`time.monotonic`) in which no node accepted requests
        self.without_quorum: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(number,), daemon=True) for number in range(len(nodes))
        ]
        self._threads.append(threading.Thread(target=self._look_for_quorum, daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, number: int) -> None:
        while not self._ended.wait(_PERIOD):
            up = self.nodes[number].is_ready()
            was_up, self.up[number] = self.up[number], up
            if was_up and not up:
                for balancer in self.balancers:
                    balancer.cut(number)

    def _look_for_quorum(self) -> None:
        lost = None
        while not self._ended.wait(_PERIOD):
            if not any(self.up) and lost is None:
                lost = time.monotonic()
            elif any(self.up) and lost is not None:
                self.without_quorum.append((lost, time.monotonic()))
                lost = None


class Balancer(ClientListener):
    """Listens on a loopback port and connects each client to the first node in its order that is up."""

    def __init__(self, url: str, health: Health, first: int) -> None:
        """Keep the ``url`` of a database on any of the nodes."""
        self._url = make_url(url)
        self._health = health
        count = len(health.nodes)
        self._order = [(first + number) % count for number in range(count)]
        self._open: list[tuple[int, socket.socket]] = []
        super().__init__()

    @property
    def url(self) -> str:
        """URL of the database through this proxy."""
        return self._url.set(host="127.0.0.1", port=self.port).render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        self._health.balancers.append(self)
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        for number in self._order:
            self.cut(number)

    def cut(self, number: int) -> None:
        """End all connections to a node."""
        for each, end in list(self._open):
            if each == number:
                _shut(end)

    def serve_client(self, client: socket.socket) -> None:
        """Connect a client to its node, until either leaves."""
        number = next((each for each in self._order if self._health.up[each]), self._order[0])
        try:
            server = socket.create_connection(("127.0.0.1", self._health.nodes[number].port), timeout=1)
            server.settimeout(None)
        except OSError:
            client.close()
            return
        ends = [(number, client), (number, server)]
        self._open += ends
        threading.Thread(target=pump, args=(server, client), daemon=True).start()
        pump(client, server)
        for end in ends:
            self._open.remove(end)


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    _shut(source)
    _shut(target)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
