"""Runs the service under its bundled web server on a loopback port, as in production."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests

from tests.ports import free_port
from tests.programs import run_program
from tests.waits import wait_for

HEADERS = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"}


@contextmanager
def service(
    url: str,
    folder: Path,
    workers: int,
    api_options: str = "",
    *,
    database_options: str = "",
    ready: int = 200,
) -> Iterator["RunningService"]:
    """Run the service under its bundled web server, as a child process.

    :param ready: the status of answers from which on the service counts as started
    """
    config = folder / "placement.conf"
    config.write_text(
        f"[api]\nauth_strategy = noauth2\n{api_options}\n"
        f"[placement_database]\nconnection = {url.replace('$', '$$')}\n{database_options}\n"
    )
    port = free_port()
    command = [sys.executable, "-m", "placement.cmd.api", "--config-file", str(config)]
    command += ["--bind", f"127.0.0.1:{port}", "--workers", str(workers)]
    with run_program(command, folder / "service.log") as process:
        running = RunningService(f"http://127.0.0.1:{port}", process.pid)
        running.wait(ready)
        yield running


@dataclass
class RunningService:
    """The URL and the master process of a service."""

    base: str
    master: int

    def wait(self, status: int) -> None:
        """Wait until a request gets this status."""

        def answers() -> bool:
            try:
                path = f"{self.base}/resource_providers"
                return requests.get(path, headers=HEADERS, timeout=60).status_code == status
            except requests.RequestException:
                return False

        wait_for(answers, f"the service answers with {status}")

    def workers(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.master).children()]

    def get(self, path: str) -> Any:
        """Send a GET and return the decoded answer; repeat it if the worker was killed meanwhile."""
        for _ in range(200):
            try:
                response = requests.get(self.base + path, headers=HEADERS, timeout=30)
            except requests.RequestException:
                time.sleep(0.05)
                continue
            assert response.ok, (path, response.status_code, response.text)
            return response.json()
        raise AssertionError(f"no answer to GET {path}")
