"""Fixtures: a Placement service, the configuration of an agent for it, and a libvirtd with QEMU guests."""

import os
import threading
import uuid
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from compute_agent.report.client import PlacementClient
from tests.compute_agent.builders import load_options, load_text
from tests.compute_agent.libvirtd import Libvirtd, LibvirtMissing
from tests.placement.running import application

_STARTED = {"agent", "libvirtd"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests that start the daemon or libvirtd as slow."""
    for item in items:
        if _STARTED & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


class LivePlacement:
    """The real Placement service in a thread, on a loopback port. Tests can stop it and start it again on the
    same port.
    """

    def __init__(self, application):
        self.application = application
        self.requests = []
        self.port = 0
        self._server = None
        self._unanswered = 0
        self._answered = threading.Condition()
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        self._server = server = make_server("127.0.0.1", self.port, self._note_request, threaded=True)
        self.port = server.server_port
        # a connection counts from its acceptance on, because its request is read in a thread of its own
        accept, close = server.process_request, server.shutdown_request

        def accept_counted(request, address):
            self._count_connection(1)
            accept(request, address)

        def close_counted(request):
            try:
                close(request)
            finally:
                self._count_connection(-1)

        server.process_request, server.shutdown_request = accept_counted, close_counted
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def wait_for_answers(self):
        """Wait until all accepted requests are answered; stop() comes first, so that no more are accepted.

        The process would crash if their SQLite connections were closed before.
        """
        with self._answered:
            assert self._answered.wait_for(lambda: not self._unanswered, 20), "requests without an answer"

    def _note_request(self, environ, start_response):
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        return self.application(environ, start_response)

    def _count_connection(self, change):
        with self._answered:
            self._unanswered += change
            self._answered.notify_all()

    def writes(self):
        """The requests since the last call that may change something (all methods but GET)."""
        found = [request for request in self.requests if request[0] != "GET"]
        self.requests.clear()
        return found


@pytest.fixture
def placement_application(sqlite_url):
    return application(sqlite_url)


@pytest.fixture
def live_placement(placement_application):
    server = LivePlacement(placement_application)
    yield server
    server.stop()
    server.wait_for_answers()


@pytest.fixture
def write_ini(tmp_path, live_placement):
    """A function that writes an agent's ini file. Keyword arguments are the lines of its sections."""

    def write(name="agent.ini", **sections):
        sections = {
            "DEFAULT": f"state_path = {tmp_path / 'state'}\nlock_path = {tmp_path / 'locks'}",
            "compute": "cpu_dedicated_set = 0\ncpu_shared_set = 1\nresource_provider_name = testhost",
            "placement": f"auth_type = admin_token\nendpoint = {live_placement.url}\ntoken = admin\n"
            "connect_retries = 0\nstatus_code_retries = 0\nreport_retry_maximum = 1",
            "daemon": "http_port = 0",
            "guests": "drivers = process\nreconcile_interval = 0.3",
        } | sections
        if "update_resources_interval" not in sections["compute"]:
            # An interval above the time limit of each wait of a test: each earlier report has a reason.
            sections["compute"] += "\nupdate_resources_interval = 3600"
        path = Path(tmp_path / name)
        path.write_text("".join(f"[{group}]\n{lines}\n\n" for group, lines in sections.items()))
        return path

    return write


@pytest.fixture
def two_cpus():
    """Skip the test unless this machine has CPUs 0 and 1, to which the test pins processes."""
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs CPUs 0 and 1")


@pytest.fixture
def load(tmp_path):
    """A function that loads a configuration from its text."""
    return lambda text="": load_text(tmp_path, text)


@pytest.fixture
def uid():
    """The uuid of a consumer."""
    return str(uuid.uuid4())


@pytest.fixture
def client(write_ini):
    return PlacementClient.from_conf(load_options(write_ini()))


@pytest.fixture(scope="session")
def libvirtd_of_session():
    try:
        server = Libvirtd()
    except LibvirtMissing as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def libvirtd(libvirtd_of_session):
    """A real libvirtd. The guests of a test end with the test."""
    yield libvirtd_of_session
    libvirtd_of_session.end_guests()
