"""The process that answers clients, under gunicorn."""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from placement.server.base import BundledServer
from placement.server.worker import GatheringWorker
from placement_extras.shadow.forward import RequestForwarder
from placement_extras.shadow.in_flight import InFlight
from placement_extras.shadow.outbox import MirrorOutbox

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

SECONDS_TO_STOP: Final = 30
_SECONDS_TO_SEND: Final = 5.0


@dataclass(frozen=True)
class ProxySettings:
    """What the process has to know.

    :param bind: where clients come to, ADDRESS:PORT.
    :param stock: the URL of OpenStack Placement.
    :param threads: how many requests are in flight at most.
    :param stock_seconds: how long OpenStack Placement may be silent.
    """

    bind: str
    stock: str
    threads: int
    stock_seconds: float


def serve(
    settings: ProxySettings, address: str, key: bytes, control: Connection, set_up_log: Callable[[], None]
) -> None:
    """Serve until told to stop by SIGTERM, or until the other end of ``control`` is closed.

    :param address: the UNIX socket of the comparing process, protected by ``key``.
    """
    set_up_log()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: who started us says when
    threading.Thread(target=_end_with, args=(control,), daemon=True).start()
    _ProxyServer(settings, address, key).run()


def _end_with(control: Connection) -> None:
    with suppress(EOFError, OSError):
        control.recv_bytes()
    os.kill(os.getpid(), signal.SIGTERM)


class _ProxyServer(BundledServer):
    """One process: whoever answers clients knows all that is in flight."""

    def __init__(self, settings: ProxySettings, address: str, key: bytes) -> None:
        self._settings = settings
        self._address = address
        self._key = key
        self._outbox: MirrorOutbox | None = None
        self._predecessors = -1
        super().__init__()

    def settings(self) -> Mapping[str, Any]:
        """What gunicorn is told by our options."""
        return {
            "bind": self._settings.bind,
            "workers": 1,
            "threads": self._settings.threads,
            "worker_class": GatheringWorker,
            "timeout": 0,  # no request takes longer than the stock service may be silent
            "graceful_timeout": SECONDS_TO_STOP,
            "proc_name": "placement-shadow",
            "pre_fork": self._pre_fork,
            "worker_exit": self._worker_exit,
        }

    def load(self) -> "WSGIApplication":
        """Called by gunicorn in the process that answers."""
        self._outbox = MirrorOutbox(self._address, self._key, predecessors=self._predecessors)
        in_flight = InFlight(self._outbox.put)
        self._outbox.start(in_flight.settled)
        return RequestForwarder(
            self._settings.stock, in_flight, self._settings.threads, self._settings.stock_seconds
        )

    def _pre_fork(self, server: object, worker: object) -> None:
        self._predecessors += 1

    def _worker_exit(self, server: object, worker: object) -> None:
        if self._outbox is not None:
            self._outbox.stop(_SECONDS_TO_SEND)
