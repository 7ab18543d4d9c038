"""A network service without networks, because Nova requests the ports of guests without ports."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class _Nothing(BaseHTTPRequestHandler):
    """Answers each request for a list with an empty list."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = urlsplit(self.path).path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".json")
        body = json.dumps({name.replace("-", "_"): []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def neutron() -> Iterator[str]:
    """The URL of the service."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Nothing)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
