"""The bundled server with small limits, and an application that waits for a request.

Run as ``python -m tests.placement.server.slow_service ADDRESS LIMITS [FOLDER]``, where the limits are JSON:
values by ``module.name``, or by ``gunicorn.name`` for its settings. Before a stopping worker closes its
listening socket, it makes the file ``paused`` in the folder, and waits for the file ``go`` there. If the
folder has the file ``slow``, a new worker makes the file ``forked``, and waits for the file ``boot``.
``/wait`` is answered after ``/go``, and ``/sleep`` after three seconds; ``/big`` has 16 MiB; ``/exit`` ends
the thread; ``/state`` shows the state of the worker.
"""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from placement.server import connection, worker
from tests.waits import wait_for

MIB = 1024 * 1024
PAUSES = Path(sys.argv[3]) if len(sys.argv) > 3 else None
_MODULES = {"connection": connection, "worker": worker}


class _Known(worker.BufferingWorker):
    """The worker, with its state for the application."""

    here: "_Known"

    def init_process(self) -> None:
        """Called by gunicorn."""
        if PAUSES and (PAUSES / "slow").exists():
            (PAUSES / "forked").touch()
            wait_for((PAUSES / "boot").exists)
        super().init_process()

    def run(self) -> None:
        """Called by gunicorn."""
        _Known.here = self
        super().run()

    def _accept_last_clients(self) -> None:
        super()._accept_last_clients()
        if PAUSES:
            (PAUSES / "paused").touch()
            wait_for((PAUSES / "go").exists)


class _SlowService(worker.BundledServer):
    def __init__(self, address: str, settings: Mapping[str, Any]) -> None:
        self._settings = {
            "bind": address,
            "workers": 1,
            "threads": 4,
            "worker_class": _Known,
            "worker_connections": 8,
            **settings,
        }
        super().__init__()

    def settings(self) -> Mapping[str, Any]:
        return self._settings

    def load(self) -> Any:
        """The application."""
        go = threading.Event()
        calls: list[str] = []

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            calls.append(path)
            body = b"ok"
            if path == "/wait":
                go.wait(60)
            elif path == "/go":
                go.set()
            elif path == "/sleep":
                time.sleep(3)
            elif path == "/exit":
                raise SystemExit
            elif path == "/big":
                body = bytes(16 * MIB)
            elif path == "/state":
                known = _Known.here._clients
                connections = list(known._connections.values())  # other threads change it meanwhile
                # an answered connection has no request any more, and is taken until its thread gives it back
                requests = [each.request for each in connections if each.is_taken]
                others = [each for each in requests if each is not None and each.path != path]
                counts = {"connections": len(connections), "busy": len(others), "held": known._held}
                state = {"calls": calls, "pid": os.getpid(), **counts}
                body = json.dumps(state).encode()
            start_response("200 OK", [("Content-Length", str(len(body)))])
            return [body]

        return application


def main() -> None:
    """Serve with the limits of the command line until stopped."""
    logging.basicConfig(level=logging.INFO)
    settings = {}
    for name, value in json.loads(sys.argv[2]).items():
        module, _, attribute = name.partition(".")
        if module == "gunicorn":
            settings[attribute] = value
        else:
            setattr(_MODULES[module], attribute, value)
    _SlowService(sys.argv[1], settings).run()


if __name__ == "__main__":
    main()
