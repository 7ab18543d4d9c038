"""Tests of the service under uWSGI, with the settings of deployment tools."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from benchmarks.reference import ReferenceMissing
from placement.db import migration
from tests.placement.wsgi.uwsgi import UWSGI, uwsgi
from tests.waits import wait_for

pytestmark = pytest.mark.slow

ADMIN = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"}
JSON = {"Content-Type": "application/json"}
SCRIPT = Path(__file__).parents[3] / "bin" / "placement-api"
READY = "WSGI app 0 (mountpoint='') ready"
LOADED_AS = {"module": "module = placement.wsgi.api:application", "file": f"wsgi-file = {SCRIPT}"}


@pytest.fixture(scope="module", params=LOADED_AS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UWSGI]:
    """uWSGI with the service, which is configured only by OS_PLACEMENT_CONFIG_DIR."""
    folder = tmp_path_factory.mktemp(request.param)
    database = f"sqlite:///{folder}/placement.sqlite"
    migration.upgrade_schema(database)
    (folder / "placement.conf").write_text(
        "[DEFAULT]\nstate_path = /var/lib/placement\n"
        "[api]\nauth_strategy = noauth2\n"
        f"[placement_database]\nconnection = {database}\nmax_retries = -1\nmax_overflow = 1000\n"
        "[oslo_concurrency]\nlock_path = /var/lib/placement/tmp\n"
    )
    try:
        with uwsgi(folder, LOADED_AS[request.param], {"OS_PLACEMENT_CONFIG_DIR": str(folder)}) as running:
            yield running
    except ReferenceMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(f"uWSGI cannot be built: {error}")


def worker_of(answer: requests.Response, log: str) -> str:
    """The process that answered a request. The log line of the request has its id."""
    (line,) = [
        line
        for line in log.splitlines()
        if answer.headers["x-openstack-request-id"] in line and "requestlog" in line
    ]
    return line.split()[2]


def test_every_worker_sees_the_writes_of_others_at_once(server: UWSGI) -> None:
    workers = set()
    url = f"{server.base}/resource_providers"
    for number in range(60):
        name = f"host-{number}"
        created = requests.post(url, json={"name": name}, headers=ADMIN, timeout=60)
        assert created.status_code == 200, created.text
        listed = requests.get(url, headers=ADMIN, timeout=60)
        assert name in [each["name"] for each in listed.json()["resource_providers"]]
        log = server.log.read_text()
        workers |= {worker_of(created, log), worker_of(listed, log)}
        if number > 5 and len(workers) == 2:
            break
    assert len(workers) == 2


def test_all_links_have_the_prefix(server: UWSGI) -> None:
    answer = server.ask_socket("GET", "/resource_providers/none", ADMIN, mounted_at="/placement")
    assert answer.startswith(b"HTTP/1.1 404")
    created = server.ask_socket("PUT", "/traits/CUSTOM_BELOW_A_PREFIX", ADMIN, mounted_at="/placement")
    assert created.startswith(b"HTTP/1.1 201")
    (location,) = [line for line in created.decode().splitlines() if line.lower().startswith("location:")]
    assert location.endswith("/placement/traits/CUSTOM_BELOW_A_PREFIX")
    assert server.ask_socket("GET", "", {}, mounted_at="/placement").startswith(b"HTTP/1.1 200")
    assert '"PUT /placement/traits/CUSTOM_BELOW_A_PREFIX" status: 201' in server.log.read_text()


def test_options_of_openstack_placement_are_logged(server: UWSGI) -> None:
    log = server.log.read_text()
    workers = len(psutil.Process(server.process.pid).children())
    assert workers >= 2
    for what in (
        "[DEFAULT] state_path of OpenStack Placement is not used",
        "[placement_database] max_retries of OpenStack Placement is not used",
        "section [oslo_concurrency] of OpenStack Placement is not used",
    ):
        assert log.count(what) == 1, log
    assert "max_overflow" not in log


def test_a_body_in_chunks_is_read(server: UWSGI) -> None:
    url = f"{server.base}/resource_providers"
    for chunks in ([b'{"name": "in-one-chunk"}'], [b'{"name":', b' "in-', b'two-chunks"}']):
        created = requests.post(url, data=iter(chunks), headers={**ADMIN, **JSON}, timeout=60)
        assert created.status_code == 200, created.text
        assert created.json()["name"] == json.loads(b"".join(chunks))["name"]
    with socket.create_connection(server.address, timeout=60) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in {**ADMIN, **JSON, "Host": "x"}.items())
        chunked = "Transfer-Encoding: chunked\r\n\r\n"
        connection.sendall(f"POST /resource_providers HTTP/1.1\r\n{head}{chunked}".encode())
        connection.sendall(b"no chunk\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")
    listed = requests.get(url, headers=ADMIN, timeout=60)
    names = [each["name"] for each in listed.json()["resource_providers"]]
    assert sorted(name for name in names if name.startswith("in-")) == ["in-one-chunk", "in-two-chunks"]


def test_a_killed_worker_is_replaced_by_one_with_all_data(server: UWSGI) -> None:
    url = f"{server.base}/resource_providers"
    names = {
        each["name"] for each in requests.get(url, headers=ADMIN, timeout=60).json()["resource_providers"]
    }
    started = server.log.read_text().count(READY)
    for worker in psutil.Process(server.process.pid).children():
        worker.send_signal(signal.SIGKILL)
    # uWSGI's master waits for ever for a worker that is told to end while it loads, so the test waits for
    # both workers.
    wait_for(lambda: server.log.read_text().count(READY) >= started + 2, evidence=server.log.read_text)
    answer = requests.get(url, headers=ADMIN, timeout=60)
    assert {each["name"] for each in answer.json()["resource_providers"]} == names


def test_sigterm_ends_it_and_leaves_no_process(server: UWSGI) -> None:
    workers = psutil.Process(server.process.pid).children(recursive=True)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) in (0, -signal.SIGTERM)
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert (alive, len(gone)) == ([], len(workers))
