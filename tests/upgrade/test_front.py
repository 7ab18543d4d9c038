"""The stand-in for a proxy, and the record of releases."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from packaging.version import Version

from tests.ports import free_port
from tests.upgrade.front import Front
from tests.upgrade.releases import read_releases


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = str(self.server.server_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Two machines that answer with their port."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Handler) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield [server.server_port for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


def test_clients_are_sent_past_machines_that_refuse_or_are_taken_out(ports: list[int]) -> None:
    one, other = ports
    with Front([free_port(), one, other]) as front:
        assert requests.get(front.base, timeout=60).text == str(one)
        front.take_out(one)
        assert requests.get(front.base, timeout=60).text == str(other)
        front.put_back(one)
        assert requests.get(front.base, timeout=60).text == str(one)


def test_recorded_releases_are_the_newest_first() -> None:
    versions = [each.version for each in read_releases()]
    assert versions == sorted(versions, reverse=True)
    assert versions[0] > Version("0")
