"""The two services, each under gunicorn with the same number of workers on a separate database."""

import argparse
import os
import resource
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil
from sqlalchemy.engine import make_url

from benchmarks.http import is_answering
from benchmarks.reference import ReferenceInstall
from tests import databases
from tests.ports import free_port
from tests.programs import environ_without_python

_SECONDS_TO_START: Final = 60.0
_SECONDS_TO_STOP: Final = 10.0
_GIB: Final = 1 << 30
_CHECKOUT: Final = Path(__file__).parents[1]


class ServiceFailed(Exception):
    """A service did not start; the message ends with its log."""


def add_database_option(parser: argparse.ArgumentParser, default: str = "postgresql") -> None:
    """Add the option ``--database``, the kind of database for :func:`create_database_server`."""
    parser.add_argument(
        "--database",
        choices=databases.KINDS,
        default=default,
        help="kind of database; default: %(default)s",
    )


def create_database_server(kind: str) -> databases.DatabaseServer:
    """Return a server of a kind of database that keeps what it commits; a context manager starts it.

    :raises SystemExit: this machine lacks the programs of the database.
    """
    try:
        return databases.create(kind, durable=True)
    except databases.ServerMissing as error:
        raise SystemExit(str(error)) from error


def exit_on_sigterm() -> None:
    """Turn SIGTERM into an exit, so that the program also stops the servers that it has started."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


class MeasuredService(ABC):
    """A running service; :meth:`restart` starts it on the same database and port again."""

    name: str
    max_memory: int | None = None

    def __init__(self, url: str, folder: Path, workers: int, threads: int) -> None:
        self._workers = workers
        self._threads = threads
        self.port = free_port()
        self._url = url
        self._folder = folder / f"{self.name}-{self.port}"
        self._folder.mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._write_config()
        self._run(self._sync_command())
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers.

        :raises ServiceFailed: the server does not answer; the message has the end of its log.
        """
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._serve_command(),
                cwd=self._working_folder(),
                env=self._process_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=self._bound_memory,  # safe, because this process has no threads
            )
        deadline = time.monotonic() + _SECONDS_TO_START
        while not is_answering(self.port):
            if not self._is_running() or time.monotonic() > deadline:
                self.stop()
                raise ServiceFailed(f"{self.name} does not answer:\n{self._end_of_log()}")
            time.sleep(0.01)

    def add_settings(self, text: str) -> None:
        """Append to the configuration, which the next start reads."""
        with self._config_path.open("a") as config:
            config.write(text)

    def stop(self) -> None:
        """End the server and its workers, also while they compute."""
        if self._process is None:
            return
        family = psutil.Process(self._process.pid).children(recursive=True) if self._is_running() else []
        self._process.terminate()
        try:
            self._process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            for worker in family:
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
        self._process = None

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def restart_service(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def worker_processes(self) -> list[psutil.Process]:
        """Return the worker processes."""
        assert self._process is not None
        found: list[psutil.Process] = psutil.Process(self._process.pid).children()
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU time of the current workers, to the nanosecond."""
        return sum(
            int(thread.read_text().split()[0]) / 1e9
            for worker in self.worker_processes()
            for thread in Path(f"/proc/{worker.pid}/task").glob("*/schedstat")
        )

    @property
    def _config_path(self) -> Path:
        return self._folder / "placement.conf"

    @property
    def log_path(self) -> Path:
        """Return the path of its log."""
        return self._folder / "log"

    def _write_config(self) -> None:
        self._config_path.write_text(
            "[api]\nauth_strategy = noauth2\n"
            f"[placement_database]\nconnection = {self._connection_url().replace('$', '$$')}\n"
        )

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self._working_folder(),
            env=self._process_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ServiceFailed(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")

    def _end_of_log(self) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-20:])

    def _bound_memory(self) -> None:
        if self.max_memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (self.max_memory, self.max_memory))

    def _process_environment(self) -> Mapping[str, str]:
        return os.environ

    def _connection_url(self) -> str:
        return self._url

    def _working_folder(self) -> Path:
        return _CHECKOUT

    @abstractmethod
    def _sync_command(self) -> list[str]:
        """Return the command that creates the tables."""

    @abstractmethod
    def _serve_command(self) -> list[str]:
        """Return the command that serves."""


class OurService(MeasuredService):
    """The service of this checkout.

    :param model_file: the file from which its workers start.
    """

    name = "ours"

    def __init__(
        self, url: str, folder: Path, workers: int, threads: int, model_file: Path | None = None
    ) -> None:
        super().__init__(url, folder, workers, threads)
        self.model_file = model_file

    def _write_config(self) -> None:
        super()._write_config()
        if self.model_file is not None:
            self.add_settings(f"[placement]\nmodel_file = {self.model_file}\n")

    def _sync_command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "placement.cmd.manage",
            "--config-file",
            str(self._config_path),
            "db",
            "sync",
        ]

    def _serve_command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "placement.cmd.api", "--config-file", str(self._config_path)),
            *("--bind", f"127.0.0.1:{self.port}", "--workers", str(self._workers)),
            *("--threads", str(self._threads)),
        ]


class OpenStack(MeasuredService):
    """OpenStack Placement, with the worker class and keep-alive of our service, and a limit of memory."""

    name = "reference"
    max_memory = 4 * _GIB

    def __init__(
        self, url: str, folder: Path, workers: int, threads: int, reference: ReferenceInstall
    ) -> None:
        super().__init__(url, folder, workers, threads)
        self._reference = reference

    def _working_folder(self) -> Path:
        return self._folder  # in the checkout it would import our package, which has the same name

    def _connection_url(self) -> str:
        url = make_url(self._url)
        if url.get_backend_name() == "postgresql":
            url = url.set(drivername="postgresql+psycopg2")
        if url.get_backend_name() == "mysql":
            url = url.set(query={"charset": "utf8mb4"})
        return url.render_as_string(hide_password=False)

    def _process_environment(self) -> Mapping[str, str]:
        return {**environ_without_python(), "OS_PLACEMENT_CONFIG_DIR": str(self._folder)}

    def _sync_command(self) -> list[str]:
        return [
            self._reference.program_path("placement-manage"),
            "--config-file",
            str(self._config_path),
            "db",
            "sync",
        ]

    def _serve_command(self) -> list[str]:
        return [
            *(self._reference.program_path("gunicorn"), "--no-control-socket"),
            *("--worker-class", "gthread", "--threads", str(self._threads), "--workers", str(self._workers)),
            *("--keep-alive", "75", "--limit-request-line", "8190"),
            *("--bind", f"127.0.0.1:{self.port}", "placement.wsgi.api:application"),
        ]
