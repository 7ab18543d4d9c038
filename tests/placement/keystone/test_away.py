"""Tests of a Keystone that is unavailable, hangs, sends nonsense or rejects the service: clients get 503
until it recovers.
"""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.keystone import CALLERS, PLACEMENT, Caller, Keystone
from tests.placement.keystone.serving import KeystonePlacement, authtoken, placement, read_refusal
from tests.waits import wait_for

pytestmark = pytest.mark.slow

AWAY = (503, "The Identity service is temporarily unavailable.")


def test_only_cached_tokens_are_accepted_without_keystone(keystone: Keystone, tmp_path: Path) -> None:
    with placement(tmp_path / "before", authtoken(keystone)) as running, ExitStack() as later:
        remembered, new = (keystone.identity.token(CALLERS[name]) for name in ("admin", "service"))
        assert running.status(remembered) == 200
        with keystone.stopped():
            started = later.enter_context(placement(tmp_path / "during", authtoken(keystone)))
            assert started.status(remembered) == 503
            for _ in range(3):
                assert read_refusal(running.ask("GET", "/resource_providers", new)) == AWAY
                assert running.status("gAAAAAB-no-token") == 503
                assert running.status(remembered) == 200
                assert running.status(None) == 401
                assert running.ask("GET", "/", None).status_code == 200
        for each in (running, started):
            wait_for(partial(gets, each, new))
            assert each.status("gAAAAAB-no-token") == 401
            log = each.log.read_text()
            assert log.count("The Identity service does not answer") == 1
            assert log.count("The Identity service answers again") == 1
            assert "Traceback" not in log


def gets(running: KeystonePlacement, token: str) -> bool:
    """Whether the service accepts the token."""
    return running.status(token) == 200


def test_a_keystone_that_hangs_holds_up_one_request_at_a_time_and_not_for_long(
    keystone: Keystone, tmp_path: Path
) -> None:
    with (
        placement(tmp_path, authtoken(keystone, timeout=3), threads=4) as running,
        ThreadPoolExecutor(12) as pool,
    ):
        remembered, new = (keystone.identity.token(CALLERS[name]) for name in ("admin", "service"))
        wait_for(partial(gets, running, remembered))
        with keystone.frozen():
            # more requests than threads: the last ones fail at once, together with those that waited
            assert set(pool.map(running.status, [new] * 12)) == {503}
            held = pool.submit(running.status, new)
            assert [running.status(remembered) for _ in range(10)] == [200] * 10
            assert held.result() == 503
        wait_for(partial(gets, running, new))


def test_requests_to_a_hanging_keystone_have_a_default_timeout(keystone: Keystone, tmp_path: Path) -> None:
    sections = authtoken(keystone).replace("http_connect_timeout", "# http_connect_timeout")
    with placement(tmp_path, sections) as running:
        with keystone.frozen():
            # shorter, because a test waits for at most two minutes
            assert running.status("gAAAAAB-any-token") == 503
        wait_for(partial(gets, running, keystone.identity.token(CALLERS["admin"])))


def test_the_service_signs_in_again_after_its_user_is_back(keystone: Keystone, tmp_path: Path) -> None:
    own = Caller("placement-of-two-passwords", "service", "service")
    keystone.identity.user(own)
    sections = authtoken(keystone).replace(PLACEMENT.password, own.password)
    sections = sections.replace("username = placement", f"username = {own.name}")
    with placement(tmp_path, sections) as running:
        wait_for(partial(gets, running, keystone.identity.token(CALLERS["admin"])))
        keystone.identity.change_password(own, "another")  # this also invalidates its tokens
        token = keystone.identity.token(CALLERS["admin"])
        assert read_refusal(running.ask("GET", "/traits", token)) == AWAY
        assert running.status("gAAAAAB-no-token") == 503
        assert "the request to the Identity service failed" in running.log.read_text()
        keystone.identity.change_password(own, own.password)
        wait_for(partial(gets, running, token))


Answer = Callable[[BaseHTTPRequestHandler], object]


class Pretender:
    """Another program at Keystone's address, which sends :attr:`answer` to each request."""

    answer: Answer

    def __init__(self) -> None:
        pretender = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pretender.answer(self)

            do_POST = do_GET  # noqa: N815 # the name is part of the library's interface

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v3"

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def says(status: int, content: bytes, kind: str = "application/json") -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("X-Subject-Token", "a-token")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    return answer


NONSENSE: dict[str, Answer] = {
    "an error": says(500, b"{}"),
    "an error of a proxy": says(502, b"<html>bad gateway</html>", "text/html"),
    "a page": says(200, b"<html>welcome</html>", "text/html"),
    "an empty object": says(200, b"{}"),
    "a list": says(200, b"[]"),
    "nothing": says(200, b"null"),
    "no token": says(200, b'{"token": []}'),
    "no date": says(200, b'{"token": {"expires_at": "soon"}}'),
    "no text": says(201, b"\xff\xfe"),
    "no HTTP": lambda request: request.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "a way round": says(300, b"{}"),
    "that nobody is known": says(401, b"{}"),
    "that nothing is there": says(404, b"{}"),
    "that there is no such page": says(404, b"<html>not found</html>", "text/html"),
}
UNKNOWN_TOKEN = b'{"error": {"code": 404, "message": "Could not find token.", "title": "Not Found"}}'


def knows_no_token(request: BaseHTTPRequestHandler) -> None:
    """Answer like a Keystone that lets the service sign in but knows no token."""
    url = f"http://{request.headers['Host']}/v3"
    if request.command == "POST":
        catalog = [{"type": "identity", "endpoints": [{"interface": "internal", "url": url}]}]
        token = {"expires_at": "2099-01-01T00:00:00.000000Z", "methods": [], "catalog": catalog}
        says(201, json.dumps({"token": token}).encode())(request)
    elif request.path.startswith("/v3/auth/tokens"):
        says(404, UNKNOWN_TOKEN)(request)
    else:
        version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": url}]}
        says(200, json.dumps({"version": version}).encode())(request)


def test_no_request_is_accepted_if_another_program_answers_for_keystone(
    keystone: Keystone, tmp_path: Path
) -> None:
    pretender = Pretender()
    with pretender.serving(), placement(tmp_path, authtoken(keystone, pretender.url), threads=2) as running:
        for what, pretender.answer in NONSENSE.items():
            for _ in range(2):
                answer = running.ask("GET", "/resource_providers", "gAAAAAB-any-token")
                assert (what, read_refusal(answer)) == (what, AWAY)
        pretender.answer = knows_no_token
        assert running.status("gAAAAAB-any-token") == 401
        assert running.status(None) == 401
        assert "the request to the Identity service failed" in running.log.read_text()


def test_a_wrong_path_to_keystone_is_logged_and_tokens_are_not_rejected(
    keystone: Keystone, tmp_path: Path
) -> None:
    with placement(tmp_path, authtoken(keystone, f"{keystone.url}/identity")) as running:
        token = keystone.identity.token(CALLERS["admin"])
        assert read_refusal(running.ask("GET", "/resource_providers", token)) == AWAY
        log = running.log.read_text()
        assert "There is no Identity service at [keystone_authtoken] auth_url" in log
        assert "(HTTP 404)" in log
