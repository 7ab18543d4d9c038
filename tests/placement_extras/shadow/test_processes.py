"""Tests of the shadow in front of OpenStack Placement: our service follows, and the report shows the
differences.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks.reference import ReferenceInstall
from benchmarks.servers import MeasuredService
from placement_extras.shadow import command
from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.differential import generator
from tests.placement.differential.conftest import reference  # noqa: F401  # a fixture
from tests.placement.differential.generator import Generator
from tests.placement.differential.play import Names
from tests.placement.differential.services import Request, ServiceClient
from tests.placement_extras.shadow.processes import RunningShadow, ShadowTalk, services, shadow
from tests.waits import wait_for

pytestmark = pytest.mark.slow

CLIENTS = 3
#: the first two clients work on the same things
WORLDS = (Names(1), Names(2))
REQUESTS = examples(60)


@pytest.fixture(scope="module")
def both(
    database_server: DatabaseServer,
    tmp_path_factory: pytest.TempPathFactory,
    reference: ReferenceInstall,  # noqa: F811  # a fixture has the name of its import
) -> Iterator[tuple[MeasuredService, MeasuredService]]:
    """OpenStack Placement and our service, for all tests on one kind of database."""
    with services(database_server, tmp_path_factory.mktemp("shadow"), reference) as both:
        yield both


@pytest.fixture(scope="module")
def on_sqlite(
    request: pytest.FixtureRequest, database_server: DatabaseServer
) -> tuple[MeasuredService, MeasuredService]:
    """Both services on SQLite, for behaviour that does not depend on the database."""
    if database_server.kind != "sqlite":
        pytest.skip("the database makes no difference here")
    both: tuple[MeasuredService, MeasuredService] = request.getfixturevalue("both")
    return both


@pytest.fixture
def small(on_sqlite: tuple[MeasuredService, MeasuredService], tmp_path: Path) -> Iterator[RunningShadow]:
    """A shadow for a test that ends one of its processes, or reads all differences of its life."""
    with shadow(*on_sqlite, tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def standing(
    on_sqlite: tuple[MeasuredService, MeasuredService], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningShadow]:
    """A shadow that tests share. Each of them waits until all its requests are compared."""
    with shadow(*on_sqlite, tmp_path_factory.mktemp("standing")) as started:
        yield started


@pytest.fixture
def sensible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate only valid requests."""
    for name in ("MUTATED", "UNKNOWN"):
        monkeypatch.setattr(generator, name, 0.0)


def work(shadow: RunningShadow, seed: int, number: int, counts: list[int]) -> None:
    """Send random requests about the names that belong to a number."""
    with ServiceClient(shadow.port) as client:
        talk = ShadowTalk(client)
        requests = Generator(seed, Names(number), talk)  # type: ignore[arg-type]  # the generator uses the generations only
        for request in requests.setting():
            talk.ask(request)
        for _ in range(REQUESTS):
            assert talk.ask(requests.request()).status != 502
        counts.append(talk.requests)


@contextmanager
def clients(shadow: RunningShadow, counts: list[int], seed: int = 1) -> Iterator[None]:
    """Run all clients at the same time."""
    threads = [
        threading.Thread(target=work, args=(shadow, seed + each, max(1, each), counts))
        for each in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(300)


@pytest.mark.usefixtures("sensible")
def test_our_service_follows_several_clients(
    both: tuple[MeasuredService, MeasuredService], tmp_path: Path
) -> None:
    """The database is copied while clients already write."""
    stock, _ = both
    counts: list[int] = []
    with shadow(*both, tmp_path, "--stock-database", stock._url, "--copy-after", "1") as started:
        with clients(started, counts):
            pass
        assert len(counts) == CLIENTS
        report = started.compared(sum(counts))
        assert report["differences"] == []
        assert report["out_of_step_since"] is None
        started.assert_same(*WORLDS)
        assert report["requests"]["same"] > sum(counts) / 2


@pytest.mark.usefixtures("sensible")
def test_clients_do_not_notice_that_our_service_is_away(standing: RunningShadow) -> None:
    before = sum(standing.report()["requests"].values())
    standing.ours.stop()
    counts: list[int] = []
    with clients(standing, counts):
        pass
    assert len(counts) == CLIENTS
    assert not standing.report()["ours_answers"]
    assert "placement_shadow_up 0.0" in standing.page("/metrics")
    standing.ours.start()
    report = standing.compared(before + sum(counts))
    assert report["in_step"]
    assert report["differences"] == []
    standing.assert_same(*WORLDS)


def test_differences_are_in_the_report_and_in_the_output_at_the_end(small: RunningShadow) -> None:
    with ServiceClient(small.ours.port) as aside:
        aside.send(Request("PUT", "/traits/CUSTOM_ASIDE"))
    with ServiceClient(small.port) as client:
        assert client.send(Request("PUT", "/traits/CUSTOM_SAME")).status == 201
        assert client.send(Request("PUT", "/traits/CUSTOM_ASIDE")).status == 201
    wait_for(lambda: small.report()["operations"].get("PUT /traits/{}", {}).get("different") == 1)
    report = small.report()
    (difference,) = report["differences"]
    assert difference["request"] == "PUT /traits/CUSTOM_ASIDE"
    assert (difference["stock"]["status"], difference["ours"]["status"]) == (201, 204)
    page = small.page("/")
    assert "PUT /traits/CUSTOM_ASIDE: status: 201" in page
    metrics = small.page("/metrics")
    assert 'placement_shadow_requests_total{operation="PUT /traits/{}",verdict="different"} 1.0' in metrics
    assert "PUT /traits/CUSTOM_ASIDE: status: 201" in small.stop()


def same_answers(shadow: RunningShadow, operation: str) -> int:
    """Return the number of requests of an operation that both services answered alike."""
    return int(shadow.report()["operations"].get(operation, {}).get("same", 0))


def test_our_service_gets_the_uuid_that_the_stock_service_chose(standing: RunningShadow) -> None:
    before = same_answers(standing, "POST /resource_providers")
    with ServiceClient(standing.port) as client:
        made = client.send(Request("POST", "/resource_providers", {"name": "host"})).body["uuid"]
    wait_for(lambda: same_answers(standing, "POST /resource_providers") == before + 1)
    with ServiceClient(standing.ours.port) as ours:
        assert ours.send(Request("GET", f"/resource_providers/{made}")).body["name"] == "host"


def test_clients_are_answered_when_the_comparing_process_dies(small: RunningShadow) -> None:
    (comparing,) = (
        int(pid)
        for pid in Path(f"/proc/{small.process.pid}/task/{small.process.pid}/children").read_text().split()
        if _listens(int(pid), small.report_port)
    )
    os.kill(comparing, signal.SIGKILL)
    with ServiceClient(small.port) as client:
        for number in range(20):
            assert client.send(Request("PUT", f"/traits/CUSTOM_DEAD_{number}")).status == 201
    wait_for(
        lambda: (
            "requests are passed on, but not compared. Start placement-shadow again" in small.log.read_text()
        )
    )


def test_a_killed_proxy_answers_again_and_the_report_shows_it(small: RunningShadow) -> None:
    (worker,) = (
        process
        for process in psutil.Process(small.process.pid).children(recursive=True)
        if process.ppid() != small.process.pid and _listens(process.pid, small.port)
    )
    assert small.report()["in_step"]
    worker.kill()
    wait_for(lambda: _status(small) == 200)
    wait_for(lambda: not small.report()["in_step"])
    assert "ended, and its waiting copies are lost" in small.report()["out_of_step_since"]["difference"]


def _status(shadow: RunningShadow) -> int:
    try:
        with ServiceClient(shadow.port) as client:
            return client.send(Request("GET", "/traits?name=in:COMPUTE_NODE")).status
    except ConnectionError:
        return 0


def _listens(pid: int, port: int) -> bool:
    return any(each.laddr.port == port for each in psutil.Process(pid).net_connections() if each.laddr)


def test_a_hanging_service_of_ours_does_not_delay_clients(standing: RunningShadow) -> None:
    before = same_answers(standing, "PUT /traits/{}")
    workers = standing.ours.worker_processes()
    for worker in workers:
        worker.suspend()
    try:
        with ServiceClient(standing.port) as client:
            for number in range(5):  # the service replaces a worker that hangs for 30 seconds
                assert client.send(Request("PUT", f"/traits/CUSTOM_HANGS_{number}")).status == 201
    finally:
        for worker in workers:
            worker.resume()
    wait_for(lambda: same_answers(standing, "PUT /traits/{}") == before + 5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--stock has to be an http or https URL"),
        (["--stock", "http://me:secret@127.0.0.1:1"], "--stock takes no user and no password"),
        (["--stock", "http://127.0.0.1:1"], "--ours has to be an http or https URL"),
        (
            ["--stock", "http://127.0.0.1:1", "--ours", "http://127.0.0.1:2", "--report-bind", "x"],
            "--report-bind has to be ADDRESS:PORT",
        ),
        (
            [
                *("--stock", "http://127.0.0.1:1", "--ours", "http://127.0.0.1:2"),
                *("--stock-database", "sqlite:////nowhere/stock.sqlite"),
            ],
            "There is no SQLite database",
        ),
        (
            [
                *("--stock", "http://127.0.0.1:1", "--ours", "http://127.0.0.1:2"),
                *("--stock-database", "mysql+pymysql://me:secret@127.0.0.1:1/placement"),
            ],
            "warning: --stock-database holds a password",
        ),
        (
            [
                *("--stock", "http://127.0.0.1:1", "--ours", "http://127.0.0.1:2", "--ours-token", "secret"),
                *("--stock-database", "sqlite:////nowhere/stock.sqlite"),
            ],
            "warning: --ours-token holds a token",
        ),
    ],
)
def test_a_wrong_command_line_is_named(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    configuration = tmp_path / "placement.conf"
    configuration.write_text(f"[placement_database]\nconnection = {sqlite_url}\n")
    assert command.main(["--config-file", str(configuration), *options]) == 1
    errors = capsys.readouterr().err
    assert said in errors
    assert "secret" not in errors
