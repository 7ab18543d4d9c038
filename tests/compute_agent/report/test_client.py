"""Tests of the client of the Placement API: microversions, and errors that name the reason."""

import json
import threading

import pytest
from werkzeug.serving import make_server
from werkzeug.wrappers import Response

from compute_agent.report.answers import (
    ConcurrentUpdateError,
    ConflictError,
    CredentialsError,
    NotFoundError,
    PlacementError,
    UnavailableError,
)
from compute_agent.report.client import PlacementClient
from tests.compute_agent.builders import load_options, load_text, make_client

UUID = "11111111-0000-4000-8000-000000000001"


class ScriptedServer:
    """A server that gives the answers that a test sets."""

    def __init__(self):
        self.newest = "1.39"
        self.answers = []
        self.versions = []
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _answer(self, environ, start_response):
        if environ["PATH_INFO"] == "/":
            body = {"versions": [{"id": "v1.0", "min_version": "1.0", "max_version": self.newest}]}
            return Response(json.dumps(body))(environ, start_response)
        self.versions.append(environ.get("HTTP_OPENSTACK_API_VERSION"))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Response(body, status)(environ, start_response)

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server():
    server = ScriptedServer()
    yield server
    server.close()


def errors(code, detail):
    return json.dumps({"errors": [{"status": 0, "title": "t", "detail": detail, "code": code}]})


def test_1_39_is_asked_for(tmp_path, server):
    server.answers = [(200, '{"traits": []}')]
    make_client(tmp_path, server.url).known_traits()
    assert server.versions == ["placement 1.39"]


def test_an_older_server_gets_its_own_newest_version(tmp_path, server):
    server.newest = "1.36"
    server.answers = [(200, '{"traits": []}')]
    make_client(tmp_path, server.url).known_traits()
    assert server.versions == ["placement 1.36"]


def test_a_server_that_is_too_old_is_named(tmp_path, server):
    server.newest = "1.10"
    with pytest.raises(PlacementError, match=r"HTTP 200: .*offers microversion 1\.10.*needs 1\.28"):
        make_client(tmp_path, server.url).known_traits()


def test_the_oldest_server_that_will_do_is_used(tmp_path, server):
    server.newest = "1.28"
    server.answers = [(200, '{"traits": ["A"]}')]
    client = make_client(tmp_path, server.url)
    assert client.known_traits() == {"A"}
    assert server.versions == ["placement 1.28"]
    assert not client.knows_consumer_types()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "placement.undefined_code", PlacementError),
        (401, None, CredentialsError),
        (403, None, CredentialsError),
        (404, "placement.undefined_code", NotFoundError),
        (409, "placement.concurrent_update", ConcurrentUpdateError),
        (409, "placement.inventory.inuse", ConflictError),
        (500, None, PlacementError),
        (503, None, UnavailableError),
    ],
)
def test_an_error_says_request_status_and_detail(tmp_path, server, status, code, kind):
    server.answers = [(status, errors(code, "so it is:\n  no"))]
    with pytest.raises(PlacementError) as caught:
        make_client(tmp_path, server.url).get_inventories(UUID)
    assert type(caught.value) is kind
    told, _, remedy = str(caught.value).partition("; ")
    assert told == f"GET /resource_providers/{UUID}/inventories: HTTP {status}: so it is: no"
    assert ("check username and password, or token, in [placement]" in remedy) == (kind is CredentialsError)
    assert caught.value.code == code


def test_advice_follows_a_refusal_without_its_full_stop(tmp_path, server):
    server.answers = [(403, errors(None, "Policy does not allow this to be performed."))]
    with pytest.raises(CredentialsError, match=r" to be performed; check username and password"):
        make_client(tmp_path, server.url).get_inventories(UUID)


def test_the_general_sentence_of_a_conflict_is_left_out(tmp_path, server):
    server.answers = [(409, errors(None, "There was a conflict.\n\n it is\n in use  "))]
    with pytest.raises(ConflictError, match=r"HTTP 409: it is in use(;|$)"):
        make_client(tmp_path, server.url).get_inventories(UUID)


def test_an_error_of_a_proxy_is_told_in_its_own_words(tmp_path, server):
    server.answers = [(502, "<h1>Bad Gateway</h1>")]
    with pytest.raises(UnavailableError, match="Bad Gateway"):
        make_client(tmp_path, server.url).known_traits()


def test_an_answer_that_is_not_json_is_an_error(tmp_path, server):
    server.answers = [(200, "hello")]
    with pytest.raises(PlacementError, match="not JSON"):
        make_client(tmp_path, server.url).known_traits()


def test_503_is_tried_again(tmp_path, server):
    server.answers = [(503, "later"), (200, '{"traits": ["A"]}')]
    more = "status_code_retries = 1\nstatus_code_retry_delay = 0.01"
    assert make_client(tmp_path, server.url, more).known_traits() == {"A"}


def test_a_server_that_does_not_answer_is_unavailable(tmp_path):
    with pytest.raises(UnavailableError, match="no answer"):
        make_client(tmp_path, "http://127.0.0.1:1").known_traits()


def test_authentication_options_that_cannot_work_are_named(tmp_path):
    conf = load_text(tmp_path, "[placement]\nauth_type = no_such_plugin\n")
    with pytest.raises(CredentialsError, match="no_such_plugin"):
        PlacementClient.from_conf(conf)


def test_http_basic_credentials_are_sent(tmp_path, live_placement):
    path = tmp_path / "basic.ini"
    path.write_text(
        f"[placement]\nauth_type = http_basic\nendpoint = {live_placement.url}\nusername = u\npassword = p\n"
    )
    seen = []
    application = live_placement.application
    live_placement.application = lambda environ, start: (
        seen.append(environ.get("HTTP_AUTHORIZATION")) or application(environ, start)
    )
    with pytest.raises(CredentialsError):  # the service knows tokens only
        PlacementClient.from_conf(load_options(path)).known_traits()
    assert seen[-1].startswith("Basic ")
