"""Tests of workers that start with the model that their parent process has read from the model file."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import requests

from placement.db import migration
from tests import databases
from tests.placement.serving import HEADERS, RunningService, service
from tests.waits import wait_for

pytestmark = pytest.mark.slow

WORKERS = 3
HOSTS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(1, 6)]
READ = "resource providers from the model file for all workers"
TAKEN = "Took over the read model of"
ALONE = "resource providers from its file"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """A database with some hosts."""
    with databases.create("sqlite") as server:
        url = server.fresh_database()
        migration.upgrade_schema(url)
        yield url


@contextmanager
def serving(url: str, folder: Path, file: Path) -> Iterator[RunningService]:
    options = f"[placement]\nmodel_file = {file}"
    with service(url, folder, WORKERS, database_options=options) as running:
        # the first worker can answer before the last one has started
        wait_for(lambda: len(running.workers()) == WORKERS, "all workers have started")
        yield running


@pytest.fixture(scope="module")
def file(database: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model file that a worker has written, with all hosts but one."""
    folder = tmp_path_factory.mktemp("writer")
    path, filled = folder / "model", folder / "filled"
    with service(database, folder, 1) as running:
        for uuid in HOSTS[1:]:
            add_host(running, uuid)
    filled.mkdir()
    with serving(database, filled, path) as running:
        wait_for(path.exists, "a worker has written the model file")
        assert READ not in log(filled)
        add_host(running, HOSTS[0])
    return path


def add_host(running: RunningService, uuid: str) -> None:
    body = {"uuid": uuid, "name": uuid}
    answer = requests.post(f"{running.base}/resource_providers", json=body, headers=HEADERS, timeout=60)
    assert answer.ok, answer.text


def log(folder: Path) -> str:
    return (folder / "service.log").read_text()


def hosts_of_each_worker(running: RunningService) -> list[list[str]]:
    """The hosts in the answer of each worker, while the others are stopped."""
    workers, found = [psutil.Process(each) for each in running.workers()], []
    for worker in workers:
        others = [each for each in workers if each != worker]
        for each in others:
            each.suspend()
        # until the main thread has run again, the other threads of a stopped process still accept connections
        wait_for(lambda others=others: all(each.status() == psutil.STATUS_STOPPED for each in others))
        try:
            answer = requests.get(f"{running.base}/resource_providers", headers=HEADERS, timeout=60)
            found.append(sorted(each["uuid"] for each in answer.json()["resource_providers"]))
        finally:
            for each in others:
                each.resume()
    return found


def all_workers(running: RunningService, old: set[int]) -> Callable[[], bool]:
    """Return a function that tells whether the server has all workers, and none of the old ones."""

    def have_started() -> bool:
        workers = running.workers()
        return len(workers) == WORKERS and not old.intersection(workers)

    return have_started


def test_workers_share_what_their_parent_has_read_and_follow_the_database(
    database: str, file: Path, tmp_path: Path
) -> None:
    with serving(database, tmp_path, file) as running:
        assert hosts_of_each_worker(running) == [HOSTS] * WORKERS
        assert (log(tmp_path).count(READ), log(tmp_path).count(TAKEN)) == (1, WORKERS)
        # the parent has neither threads nor connections, and no model any more
        parent = psutil.Process(running.master)
        assert parent.num_threads() == 1
        assert database.removeprefix("sqlite:///") not in {each.path for each in parent.open_files()}
        # a later worker reads the file itself
        killed = running.workers()[0]
        os.kill(killed, signal.SIGKILL)
        wait_for(all_workers(running, {killed}), "a new worker has started")
        assert hosts_of_each_worker(running) == [HOSTS] * WORKERS
        assert (log(tmp_path).count(READ), log(tmp_path).count(ALONE)) == (1, 1)
        # a reload replaces all workers
        old = set(running.workers())
        os.kill(running.master, signal.SIGHUP)
        wait_for(all_workers(running, old), "all workers are new")
        assert hosts_of_each_worker(running) == [HOSTS] * WORKERS
        assert (log(tmp_path).count(READ), log(tmp_path).count(TAKEN)) == (2, 2 * WORKERS)


def test_a_server_starts_without_its_model_file(database: str, file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "model"
    broken.write_bytes(file.read_bytes()[:-1])
    with serving(database, tmp_path, broken) as running:
        assert hosts_of_each_worker(running) == [HOSTS] * WORKERS
        assert (log(tmp_path).count(READ), log(tmp_path).count(TAKEN)) == (0, 0)
        assert log(tmp_path).count("is not used: its checksum is wrong") == 1
