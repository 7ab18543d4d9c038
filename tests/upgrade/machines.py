"""Machines of a small cloud: services that share a database, and hosts with an agent and guests.

Each runs the programs of one release, and :meth:`move_to` replaces them as the page about upgrades says.
"""

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import requests

from tests.placement_extras.console.behind_keystone import AUTHTOKEN
from tests.ports import free_port
from tests.programs import environ_without_python, is_answering, run_program
from tests.upgrade.releases import InstalledRelease
from tests.waits import wait_for

TOKEN: Final = "admin"
"""A token of an administrator that the Identity service of the test knows."""

_SERVICE: Final = """\
[DEFAULT]
use_stderr = true
[api]
auth_strategy = keystone
[console]
enabled = true
[placement_database]
connection = {url}
"""
_AGENT: Final = """\
[DEFAULT]
state_path = {folder}/state
lock_path = {folder}/locks
[placement]
auth_type = admin_token
endpoint = {endpoint}
token = {token}
[guests]
driver = process
[compute]
resource_provider_name = {name}
cpu_dedicated_set = {dedicated}
cpu_shared_set = {shared}
[daemon]
http_port = 0
[qos_class:gold]
rank = 50
"""


@dataclass(frozen=True, slots=True)
class ServiceStop:
    """The moment, by ``time.monotonic``, when a service was told to stop."""

    began: float
    machine: str
    release: str


@dataclass
class ServiceMachine:
    """One machine of the service, with two workers.

    :ivar stops: the stops of all machines, to which each machine adds its own.
    """

    folder: Path
    release: InstalledRelease
    stops: list[ServiceStop]
    port: int = field(default_factory=free_port)
    _running: ExitStack = field(default_factory=ExitStack)

    def configure(self, url: str, identity: str) -> None:
        """Write the configuration: database, Identity service, and a console."""
        self.folder.mkdir()
        sections = _SERVICE.format(url=url.replace("$", "$$")) + AUTHTOKEN.format(url=identity)
        self.config.write_text(sections.replace("token_cache_time = -1\n", ""))

    @property
    def config(self) -> Path:
        return self.folder / "placement.conf"

    @property
    def log(self) -> Path:
        return self.folder / "service.log"

    def start(self) -> None:
        """Start the service, and wait until it answers."""
        words = ["--config-file", self.config, "--bind", f"127.0.0.1:{self.port}", "--workers", 2]
        log = self.folder / f"service-{self.release.name}.log"
        program = self.release.command("placement-api")
        self._running.enter_context(run_program([*program, *words], log, environ_without_python()))
        wait_for(lambda: is_answering(f"http://127.0.0.1:{self.port}/"), evidence=log.read_text)

    def stop(self) -> None:
        """End the service as systemd does."""
        release = f"{self.release.version} ({self.release.source})"
        self.stops.append(ServiceStop(time.monotonic(), self.folder.name, release))
        self._running.close()

    def move_to(self, release: InstalledRelease) -> None:
        """Replace the programs."""
        self.stop()
        self.release = release
        self.start()


def describe_moment(stops: Sequence[ServiceStop], at: float) -> str:
    """Return words about the last stop that began at most a second after a time."""
    before = [each for each in stops if each.began < at + 1.0]
    if not before:
        return "before any stop, "
    last = before[-1]
    return f"{at - last.began:+.3f} s since {last.machine} of {last.release} began to stop, "


@dataclass(frozen=True, slots=True)
class GuestFacts:
    """Facts of a running guest that an upgrade must not change: its process and its CPUs."""

    pid: int
    started: float
    cpus: tuple[int, ...]


class HostMachine:
    """A host with an agent and process guests."""

    def __init__(
        self, folder: Path, release: InstalledRelease, name: str, dedicated: int, endpoint: str
    ) -> None:
        """Write the configuration: one dedicated CPU, and another one that is shared."""
        folder.mkdir()
        self.folder, self.release, self.name = folder, release, name
        self._config = folder / "compute-agent.conf"
        shared = min(os.sched_getaffinity(0) - {dedicated})
        where = {"folder": folder, "name": name, "endpoint": endpoint, "token": TOKEN}
        self._config.write_text(_AGENT.format(**where, dedicated=dedicated, shared=shared))
        self._running = ExitStack()
        self.guests: dict[str, int] = {}

    def start(self) -> None:
        """Start the agent, and wait until it has reported the host."""
        log = self.folder / f"agent-{self.release.name}.log"
        words = (*self.release.command("compute-agent"), "--config-file", self._config, "run")
        self._running.enter_context(run_program(words, log, environ_without_python()))

        def has_reported() -> bool:
            with suppress(AssertionError):
                status = self.ask("status")
                return status["last_report_seconds_ago"] is not None and not status["refused"]
            return False

        wait_for(has_reported, "the agent reports", evidence=log.read_text, pause=0.5)

    def stop(self) -> None:
        self._running.close()

    def close(self) -> None:
        """End the agent and its guests."""
        self.stop()
        for pid in self.guests.values():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).send_signal(signal.SIGKILL)

    def move_to(self, release: InstalledRelease) -> None:
        """Replace the programs."""
        self.stop()
        self.release = release
        self.start()

    def ask(self, *words: object) -> Any:
        """Return the JSON that a command of the agent prints."""
        at = words.index("--") if "--" in words else len(words)
        command = ("--config-file", self._config, *words[:at], "-f", "json", *words[at:])
        return json.loads(self.release.run("compute-agent", *command))

    def run_guest(self, name: str, *options: object) -> None:
        made = self.ask("guest", "run", "--name", name, *options, "--", "sleep", "3600")
        self.guests[name] = made["pid"]

    def guest_facts(self) -> dict[str, GuestFacts | None]:
        """Return facts of each guest by its name; None for a guest that has ended."""
        return {name: _read_facts(pid) for name, pid in self.guests.items()}

    def damaged_files(self) -> list[str]:
        """Return the state files that an agent could not use."""
        return [path.name for path in (self.folder / "state").rglob("*.damaged*")]


def _read_facts(pid: int) -> GuestFacts | None:
    try:
        process = psutil.Process(pid)
        return GuestFacts(pid, process.create_time(), tuple(process.cpu_affinity()))
    except psutil.NoSuchProcess:
        return None


class ConsoleVisitor:
    """A browser that signed in at the console."""

    def __init__(self, base: str) -> None:
        """Sign in as the operator."""
        self._base = base
        self._cookie = ""
        fields = {"username": "operator", "password": "operator-secret", "user_domain": "Default"}
        mark = re.search(r'name="mark" value="(\w+)"', self._open("GET", "/console/sign-in").text)
        assert mark
        answer = self._open("POST", "/console/sign-in", data={"mark": mark[1], **fields})
        assert answer.status_code == 303, answer.text

    def _open(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"X-Forwarded-Proto": "https", "Cookie": self._cookie}
        answer = requests.request(
            method, self._base + path, headers=headers, timeout=60, allow_redirects=False, **options
        )
        for name, value in answer.cookies.items():
            self._cookie = f"{name}={value}"
        return answer

    def page(self) -> str:
        """Return "signed in", or the status and the address to which the console sends the visitor."""
        answer = self._open("GET", "/console/")
        signed_in = answer.status_code == 200 and "operator in cloud" in answer.text
        return "signed in" if signed_in else f"{answer.status_code} {answer.headers.get('Location', '')}"
