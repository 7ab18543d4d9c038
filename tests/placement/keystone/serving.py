"""Runs the service with Keystone authentication."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import requests

from placement.db import migration
from tests.keystone import Keystone
from tests.ports import free_port
from tests.programs import run_program, wait_for_answer

_SECONDS: Final = 120.0

AUTHTOKEN: Final = """
[keystone_authtoken]
www_authenticate_uri = {url}
auth_url = {auth_url}
auth_type = password
username = placement
password = placement-secret
project_name = service
user_domain_name = Default
project_domain_name = Default
service_type = placement
# Keystone may be slow where tests run; those of a limit set their own.
http_connect_timeout = {timeout}
"""


def authtoken(keystone: Keystone, auth_url: str | None = None, timeout: int = 60) -> str:
    """Return the sections of ``placement.conf`` for this Keystone."""
    return AUTHTOKEN.format(url=keystone.url, auth_url=auth_url or keystone.url, timeout=timeout)


@dataclass
class KeystonePlacement:
    """A running service."""

    base: str
    log: Path

    def ask(
        self, method: str, path: str, token: str | None, body: Any = None, **headers: str
    ) -> requests.Response:
        """Send a request with the newest microversion; keywords such as ``X_Service_Token`` are headers."""
        sent = {"OpenStack-API-Version": "placement 1.39"}
        sent |= {"X-Auth-Token": token} if token is not None else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return requests.request(method, self.base + path, headers=sent, json=body, timeout=_SECONDS)

    def status(self, token: str | None, **headers: str) -> int:
        """Return the status of the answer to a list of resource providers with this token."""
        return self.ask("GET", "/resource_providers", token, **headers).status_code


@contextmanager
def placement(folder: Path, sections: str, workers: int = 1, threads: int = 4) -> Iterator[KeystonePlacement]:
    """Run the service under its own web server on an empty database, configured with these sections."""
    folder.mkdir(exist_ok=True)
    database = f"sqlite:///{folder}/placement.sqlite"
    migration.upgrade_schema(database)
    config = folder / "placement.conf"
    config.write_text(
        f"[api]\nauth_strategy = keystone\n[placement_database]\nconnection = {database}\n{sections}"
    )
    port = free_port()
    command = [sys.executable, "-m", "placement.cmd.api", "--config-file", str(config)]
    command += ["--bind", f"127.0.0.1:{port}", "--workers", str(workers), "--threads", str(threads)]
    log = folder / "log"
    with run_program(command, log) as process:
        running = KeystonePlacement(f"http://127.0.0.1:{port}", log)
        wait_for_answer(running.base, process, log)
        yield running


def read_refusal(answer: requests.Response) -> tuple[int, str]:
    """Return status and text of an error in the format of the service itself."""
    (error,) = answer.json()["errors"]
    assert error["status"] == answer.status_code
    assert error["request_id"] == answer.headers["x-openstack-request-id"]
    return answer.status_code, error["detail"]
