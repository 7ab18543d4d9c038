"""A relay for the metrics of an agent in the machine, which a Prometheus outside cannot reach."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _RelayHandler(BaseHTTPRequestHandler):
    timeout = 30
    server: "_RelayServer"

    def do_POST(self):
        self.server.body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(204)

    def do_GET(self):
        # 503 while the machine boots: a target that is down.
        self._answer(200 if self.server.body else 503, self.server.body)

    def _answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


class _RelayServer(ThreadingHTTPServer):
    daemon_threads = True
    body = b""


@contextlib.contextmanager
def running():
    """The port of a relay: it answers each GET with the body of the last POST."""
    server = _RelayServer(("127.0.0.1", 0), _RelayHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
