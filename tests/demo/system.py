"""An installed placement service and an installed compute agent that run in a temporary folder.

The demo uses only console scripts, configuration files and REST, like an operator. It imports nothing from
the two packages, so it runs the installed code.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import requests

from tests.ports import free_port

SCRIPTS = Path(sysconfig.get_path("scripts"))
MICROVERSION = "placement 1.39"
TOKEN = "admin"  # the administrator's token with auth_strategy=noauth2
START_SECONDS = 30
STOP_SECONDS = 10
# Every process of the demo and its descendants have this variable with the name of our folder.
MARK = "PLACEMENT_COMPUTE_DEMO"


class DemoError(Exception):
    """A step failed; the text says which, with the end of the log."""


@dataclass(frozen=True)
class CpuSets:
    """CPU numbers of this machine that back PCPU and VCPU."""

    dedicated: tuple[int, ...]
    shared: tuple[int, ...]

    @classmethod
    def of_this_machine(cls) -> CpuSets:
        """Share the first half of the CPUs of our affinity, and dedicate the second half; dedicate a single
        CPU.
        """
        cpus = sorted(os.sched_getaffinity(0))
        half = len(cpus) // 2
        return cls(dedicated=tuple(cpus[half:]), shared=tuple(cpus[:half]))

    def options(self) -> str:
        """Return the lines of the `[compute]` section."""
        lines = [f"cpu_dedicated_set = {cpu_list(self.dedicated)}"]
        if self.shared:
            lines.append(f"cpu_shared_set = {cpu_list(self.shared)}")
        return "\n".join(lines)


def cpu_list(cpus: Iterable[int]) -> str:
    """Format CPU numbers like the kernel, as `0-3,8`."""
    text: list[str] = []
    ordered = sorted(cpus)
    while ordered:
        run = 1
        while run < len(ordered) and ordered[run] == ordered[0] + run:
            run += 1
        text.append(str(ordered[0]) if run == 1 else f"{ordered[0]}-{ordered[run - 1]}")
        del ordered[:run]
    return ",".join(text)


def allowed_cpus(pid: int) -> str:
    """Return the CPUs that the process may run on (`Cpus_allowed_list` of proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return value.strip()
    raise DemoError(f"/proc/{pid}/status has no Cpus_allowed_list")


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class System:
    """One temporary installation, which is removed at the end unless `keep()` was called."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="placement-demo-"))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.agent_port = free_port()
        self.service_ini = self.folder / "placement.ini"
        self.agent_ini = self.folder / "compute-agent.ini"
        self.database = f"sqlite:///{self.folder / 'placement.db'}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kept = False
        self._environment = os.environ | {
            MARK: str(self.folder),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        self._http = requests.Session()
        self._http.trust_env = False
        self._http.headers.update({"X-Auth-Token": TOKEN, "OpenStack-API-Version": MICROVERSION})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if not self.kept:
            self.close()

    def keep(self) -> None:
        """Leave everything running and in place at the end."""
        self.kept = True

    # The service

    def configure_service(self, database_options: str = "") -> None:
        """Write the service's ini file: SQLite, no Keystone."""
        self.service_ini.write_text(
            f"[api]\nauth_strategy = noauth2\n\n[console]\nenabled = true\n\n"
            f"[placement_database]\nconnection = {self.database}\n{database_options}\n"
        )

    def manage(self, *arguments: str) -> str:
        """Run a `placement-manage` command and return its output."""
        return self._run("placement-manage", "--config-file", self.service_ini, *arguments)

    def start_service(self, workers: int = 2) -> None:
        """Start the service under gunicorn and wait until it answers."""
        self.launch_service(workers)
        self.wait_for_service()

    def launch_service(self, workers: int) -> None:
        """Start the service without waiting."""
        bind = self.url.removeprefix("http://")
        self._start(
            "placement-api", "--config-file", self.service_ini, "--bind", bind, "--workers", str(workers)
        )

    def wait_for_service(self) -> None:
        """Wait until the service answers."""
        self.wait("placement-api", "answer", self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return self._http.get(f"{self.url}/", timeout=2).status_code == 200
        return False

    def call(self, method: str, path: str, *, body: object = None) -> Any:
        """Send a request and return the decoded JSON, None if empty.

        :raises DemoError: the status is 400 or above
        """
        response = self._http.request(method, f"{self.url}{path}", json=body, timeout=30)
        if response.status_code >= 400:
            raise DemoError(f"{method} {path} -> {response.status_code} {response.text}")
        return response.json() if response.content else None

    # The agent

    def configure_agent(self, compute_options: str) -> None:
        """Write the agent's ini file, with the given lines in its `[compute]` section."""
        self.agent_ini.write_text(
            f"[DEFAULT]\nstate_path = {self.folder / 'agent'}\n\n"
            f"[placement]\nauth_type = admin_token\nendpoint = {self.url}\ntoken = {TOKEN}\n\n"
            "[guests]\ndriver = process\n\n"
            f"[compute]\n{compute_options}\n\n"
            f"[daemon]\nhttp_port = {self.agent_port}\n"
        )

    def start_agent(self) -> None:
        """Start the agent and wait until it answers and its reports are complete."""
        self._start("compute-agent", "--config-file", self.agent_ini, "run")
        self.wait("compute-agent", "report", self._has_reported)

    def _has_reported(self) -> bool:
        with contextlib.suppress(DemoError):
            status = self.agent("status")
            return status["last_report_seconds_ago"] is not None and not status["refused"]
        return False

    def providers(self) -> list[Any]:
        """Return all resource providers."""
        providers: list[Any] = self.call("GET", "/resource_providers")["resource_providers"]
        return providers

    def agent(self, *arguments: str) -> Any:
        """Run a `compute-agent` command and return its decoded JSON."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        command = [*arguments[:at], "-f", "json", *arguments[at:]]
        return json.loads(self._run("compute-agent", "--config-file", self.agent_ini, *command))

    # Processes

    def _run(self, script: str, *arguments: str | Path) -> str:
        command = [self._script(script), *map(str, arguments)]
        done = subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise DemoError(
                f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def _start(self, script: str, *arguments: str | Path) -> None:
        with self.log(script).open("ab") as log:
            self.processes[script] = subprocess.Popen(
                [self._script(script), *map(str, arguments)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # only the demo gets Ctrl-C, and stops the servers in order
            )

    @staticmethod
    def _script(name: str) -> str:
        path = SCRIPTS / name
        if not path.exists():
            raise DemoError(f"{path} does not exist: the distribution is not installed")
        return str(path)

    def log(self, script: str) -> Path:
        """Return the file with the output of a server."""
        return self.folder / f"{script}.log"

    def wait(
        self, script: str, verb: str, condition: Callable[[], bool], seconds: float = START_SECONDS
    ) -> None:
        """Wait until the condition holds.

        :raises DemoError: the server ends or the time is over first
        """
        deadline = time.monotonic() + seconds
        while not condition():
            status = self.processes[script].poll()
            if status is not None:
                raise DemoError(f"{script} ended with status {status}:\n{self._log_end(script)}")
            if time.monotonic() > deadline:
                raise DemoError(f"{script} did not {verb} within {seconds} s:\n{self._log_end(script)}")
            time.sleep(0.1)

    def _log_end(self, script: str, lines: int = 30) -> str:
        return "\n".join(self.log(script).read_text(errors="replace").splitlines()[-lines:])

    def stop(self, script: str) -> int:
        """End a server with SIGTERM and return its exit status."""
        process = self.processes.pop(script)
        process.terminate()
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise DemoError(
                f"{script} did not stop within {STOP_SECONDS} s of SIGTERM:\n{self._log_end(script)}"
            ) from None

    def kill(self, script: str) -> None:
        """End a server with SIGKILL."""
        process = self.processes.pop(script)
        process.kill()
        process.wait()

    def close(self) -> None:
        """Stop the servers, end all processes of this installation, and remove the folder. Never raises."""
        interrupts = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, signal.SIG_IGN) for number in interrupts]
        for script in reversed(list(self.processes)):
            with contextlib.suppress(DemoError):
                self.stop(script)
        for pid in self._marked():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        for number, handler in zip(interrupts, before, strict=True):
            signal.signal(number, handler)

    def _marked(self) -> list[int]:
        """Find processes of this installation: guests survive the agent, and workers a killed gunicorn."""
        mark = f"{MARK}={self.folder}".encode()
        pids = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in environ.read_bytes().split(b"\0"):
                    pids.append(int(environ.parent.name))
        return pids
