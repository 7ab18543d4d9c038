"""The worker on a socket in the file system, with small limits, and an application that waits for a request.

Run as ``python -m tests.placement.server.slow_service SOCKET LIMITS``, where the limits are JSON: values by
``module.name``.
``/wait`` is answered after ``/go``; ``/big`` has 16 MiB; ``/state`` shows the state of the worker.
"""

import json
import sys
import threading
from collections.abc import Iterable
from typing import Any

from gunicorn.app.base import BaseApplication

from placement.server import connection, worker

MIB = 1024 * 1024
_MODULES = {"connection": connection, "worker": worker}


class _Known(worker.BufferingWorker):
    """The worker, with its state for the application."""

    here: "_Known"

    def run(self) -> None:
        """Called by gunicorn."""
        _Known.here = self
        super().run()


class _SlowService(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    def load_config(self) -> None:
        """Called by gunicorn."""
        settings = {"bind": f"unix:{sys.argv[1]}", "workers": 1, "threads": 4, "worker_class": _Known}
        for name, value in {**settings, "worker_connections": 8, "control_socket_disable": True}.items():
            self.cfg.set(name, value)

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
            elif path == "/big":
                body = bytes(16 * MIB)
            elif path == "/state":
                known = _Known.here
                connections = dict(known._connections)  # the worker's own thread changes it meanwhile
                busy = [connections[each] for each in tuple(known._busy) if each in connections]
                # an answered connection has no request any more, and is busy until the worker takes it back
                requests = [each.request for each in busy]
                others = [each for each in requests if each is not None and each.path != path]
                counts = {"connections": len(connections), "busy": len(others), "held": known._held}
                state = {"calls": calls, **counts}
                body = json.dumps(state).encode()
            start_response("200 OK", [("Content-Length", str(len(body)))])
            return [body]

        return application


if __name__ == "__main__":
    for name, value in json.loads(sys.argv[2]).items():
        module, _, attribute = name.partition(".")
        setattr(_MODULES[module], attribute, value)
    _SlowService().run()
