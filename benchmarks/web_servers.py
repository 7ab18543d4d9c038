"""The service under web servers that operators may choose: CPU, latency, slow clients, the end of a process.

    python -m benchmarks.web_servers
    python -m benchmarks.web_servers --servers ours,granian --seconds 2 --databases sqlite,postgresql

Each server serves the same application on a separate database, with two workers of four threads, or with one
process of eight threads if a server has no workers.
"""

import argparse
import os
import signal
import socket
import statistics
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.clients import ClientPool
from benchmarks.http import NoAnswer, ServiceConnection
from benchmarks.reference import ReferenceMissing, install_environment
from benchmarks.servers import (
    MeasuredService,
    OurService,
    ServiceFailed,
    create_database_server,
    exit_on_sigterm,
)
from benchmarks.world_loader import load_directly
from benchmarks.worlds import WORLDS

_REQUIREMENTS: Final = Path(__file__).with_name("web-servers-requirements.txt")
_APPLICATION: Final = "placement.wsgi.api:application"
_WORKERS: Final = 2
_THREADS: Final = 4
_HOSTS: Final = 200
_QUESTION: Final = "/allocation_candidates?resources=PCPU:2&limit=1"
_SLOW_CLIENTS: Final = 200
_WAITING: Final = "/ext/v1/changes?since={cursor}&wait=2"
_CROWDS: Final = (8, 64)
_LARGE: Final = (
    b"GET /allocation_candidates?resources=PCPU:2&limit=1000 HTTP/1.1\r\nHost: x\r\nX-Auth-Token: admin\r\n"
    b"OpenStack-API-Version: placement 1.39\r\n\r\n"
)
# the first bytes of slow clients; clients of the last kind request a large answer and never read it
_SLOW_KINDS: Final[Mapping[str, bytes]] = {
    "slow headers": b"GET / HTTP/1.1\r\nX-Slow: ",
    "slow bodies": b"POST /traits HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n[",
    "slow readers": _LARGE * 8,
}
_HEAD: Final = (
    "server",
    "database",
    "1 client: CPU ms",
    "p50 ms",
    "p99 ms",
    *(f"{count} clients: {what}" for count in _CROWDS for what in ("requests/s", "CPU ms", "p99 ms")),
    "memory MB",
    "keeps connections",
    *(f"beside {_SLOW_CLIENTS} of {kind}: p50, p99 ms" for kind in _SLOW_KINDS),
    "request in hand at SIGTERM",
)

Command = Callable[[Path, int], list[str]]


def _gunicorn_command(kind: str, *more: str) -> Command:
    def build_command(programs: Path, port: int) -> list[str]:
        return [
            *(str(programs / "gunicorn"), "--no-control-socket", "--worker-class", kind),
            *("--workers", str(_WORKERS), "--keep-alive", "75", "--limit-request-line", "8190", *more),
            *("--bind", f"127.0.0.1:{port}", _APPLICATION),
        ]

    return build_command


SERVERS: Final[Mapping[str, Command | None]] = {
    "ours": None,
    "gunicorn gthread": _gunicorn_command("gthread", "--threads", str(_THREADS)),
    "gunicorn sync": _gunicorn_command("sync"),
    "uWSGI": lambda programs, port: [
        *(str(programs / "uwsgi"), "--master", "--lazy-apps", "--enable-threads", "--die-on-term"),
        *("--hook-master-start", "unix_signal:15 gracefully_kill_them_all", "--thunder-lock"),
        *("--processes", str(_WORKERS), "--threads", str(_THREADS), "--buffer-size", "65535"),
        *("--http", f"127.0.0.1:{port}", "--http-keepalive", "--http-chunked-input", "--http-auto-chunked"),
        *("--disable-logging", "--virtualenv", sys.prefix, "--module", _APPLICATION),
    ],
    "granian": lambda programs, port: [
        *(str(programs / "granian"), "--interface", "wsgi", "--workers", str(_WORKERS)),
        *("--blocking-threads", str(_THREADS), "--host", "127.0.0.1", "--port", str(port), _APPLICATION),
    ],
    "cheroot": lambda programs, port: [
        *(str(programs / "cheroot"), "--bind", f"127.0.0.1:{port}"),
        *("--threads", str(_WORKERS * _THREADS), _APPLICATION),
    ],
    "waitress": lambda programs, port: [
        *(str(programs / "waitress-serve"), f"--listen=127.0.0.1:{port}"),
        *(f"--threads={_WORKERS * _THREADS}", _APPLICATION),
    ],
}


class _ServedApplication(OurService):
    """The service of this checkout under a web server."""

    def __init__(self, url: str, folder: Path, programs: Path, command: Command | None) -> None:
        super().__init__(url, folder, _WORKERS, _THREADS)
        self._programs, self._command = programs, command

    def _write_config(self) -> None:
        super()._write_config()
        with self._config_path.open("a") as config:
            config.write("[api]\nwaiting_requests = 1\n")

    def _serve_command(self) -> list[str]:
        return super()._serve_command() if self._command is None else self._command(self._programs, self.port)

    def _process_environment(self) -> Mapping[str, str]:
        paths = [str(Path(__file__).parents[1]), sysconfig.get_path("purelib")]
        more = {"PYTHONPATH": os.pathsep.join(paths), "OS_PLACEMENT_CONFIG_DIR": str(self._folder)}
        return {**os.environ, **more}

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its processes, because some servers also have helper processes."""
        assert self._process is not None
        spent = 0
        for each in self._process_family():
            for thread in Path(f"/proc/{each.pid}/task").glob("*/schedstat"):
                with suppress(OSError):
                    spent += int(thread.read_text().split()[0])
        return spent / 1e9

    def memory_bytes(self) -> int:
        """Return the proportional set size of all its processes, which counts shared pages once."""
        return sum(each.memory_full_info().pss for each in self._process_family())

    def _process_family(self) -> Sequence[psutil.Process]:
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        return [main, *main.children(recursive=True)]

    def send_sigterm(self) -> None:
        """Send SIGTERM without waiting for the end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class _ClientLatency:
    cpu: float
    p50: float
    p99: float


def _measure_latency(service: MeasuredService, seconds: float) -> _ClientLatency:
    """Return the times of one client that repeats a request, in milliseconds."""
    times: list[float] = []
    with ServiceConnection(service.port, 20.0) as connection:
        for _ in range(20):
            connection.send("GET", _QUESTION)
        before, until = service.cpu_seconds(), time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            with suppress(NoAnswer):
                connection.send("GET", _QUESTION)
            times.append(1000 * (time.perf_counter() - began))
        cpu = 1000 * (service.cpu_seconds() - before) / len(times)
    return _ClientLatency(cpu, statistics.median(times), sorted(times)[int(0.99 * len(times))])


def _keeps_connections(service: MeasuredService) -> bool:
    with socket.create_connection(("127.0.0.1", service.port), 10) as client:
        for _ in range(2):
            try:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                if not client.recv(65536):
                    return False
            except OSError:
                return False
            time.sleep(0.2)
    return True


@contextmanager
def _slow_clients(port: int, beginning: bytes) -> Iterator[None]:
    """Run clients that send the beginning of a request, and then two bytes a second."""
    clients: list[socket.socket] = []
    stopped = threading.Event()

    def drip_bytes() -> None:
        while not stopped.wait(0.5):
            for client in clients:
                with suppress(OSError):
                    client.send(b"a")

    thread = threading.Thread(target=drip_bytes, daemon=True)
    try:
        for _ in range(_SLOW_CLIENTS):
            client = socket.create_connection(("127.0.0.1", port), 10)
            client.setblocking(False)
            clients.append(client)
            with suppress(OSError):
                client.send(beginning)
        thread.start()
        yield
    finally:
        stopped.set()
        if thread.is_alive():
            thread.join(5)
        for client in clients:
            client.close()


def _stop_outcome(service: _ServedApplication) -> str:
    """Return the outcome of a request that waits for two seconds while the server receives SIGTERM."""
    with ServiceConnection(service.port, 20.0) as connection:
        _, answer = connection.send("GET", "/ext/v1/changes")
        cursor = answer.decode().split('"cursor":"')[1].split('"')[0]
        timer = threading.Timer(0.5, service.send_sigterm)
        timer.start()
        try:
            status, _ = connection.send("GET", _WAITING.format(cursor=cursor))
        except NoAnswer:
            return "lost"
        finally:
            timer.join()
    return "answered" if status == 200 else f"status {status}"


def _measure_crowd(service: _ServedApplication, count: int, seconds: float) -> Sequence[str]:
    """Return requests a second, CPU of each and the 99th percentile, for many clients at once."""
    with ClientPool(count) as clients:
        clients.warm_up(service.port)
        before = service.cpu_seconds()
        work = clients.ask_repeatedly(service.port, _QUESTION, seconds)
        cpu = 1000 * (service.cpu_seconds() - before) / max(1, sum(each.success_count for each in work))
    times = sorted(time for each in work for time in each.latencies)
    p99 = f"{1000 * times[int(0.99 * len(times))]:.1f}" if times else "no answer"
    return f"{sum(each.success_rate for each in work):,.0f}", f"{cpu:.2f}", p99


def _measure_beside(service: _ServedApplication, beginning: bytes, seconds: float) -> str:
    """Return the latency of one client beside slow clients."""
    try:
        with _slow_clients(service.port, beginning):
            found = _measure_latency(service, seconds)
    except (OSError, NoAnswer):
        return "no answer"
    return f"{found.p50:.2f}, {found.p99:.2f}"


def measure_server(service: _ServedApplication, seconds: float) -> Sequence[str]:
    """Return a row of the table."""
    alone = _measure_latency(service, seconds)
    crowds = [cell for count in _CROWDS for cell in _measure_crowd(service, count, seconds)]
    memory = f"{service.memory_bytes() / 1e6:.0f}"
    keeps = "yes" if _keeps_connections(service) else "no"
    slow = [_measure_beside(service, beginning, min(seconds, 2.0)) for beginning in _SLOW_KINDS.values()]
    one = (f"{alone.cpu:.2f}", f"{alone.p50:.2f}", f"{alone.p99:.2f}")
    return (*one, *crowds, memory, keeps, *slow, _stop_outcome(service))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web_servers", description=__doc__)
    parser.add_argument(
        "--servers", default=",".join(SERVERS), help="names of web servers; default: %(default)s"
    )
    parser.add_argument(
        "--databases", default="postgresql", help="some of sqlite, postgresql; default: %(default)s"
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="seconds of each measurement; default: %(default)s"
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="repeats of all servers, in turns; default: %(default)s"
    )
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    rows: list[Sequence[str]] = []
    try:
        programs = install_environment("web-servers", _REQUIREMENTS)
        for database in options.databases.split(","):
            with create_database_server(database) as server:
                for name in options.servers.split(",") * options.repeats:
                    row = (
                        name,
                        database,
                        *_measure_fresh(server.fresh_database(), programs, name, options.seconds),
                    )
                    print(" | ".join(row), file=sys.stderr, flush=True)
                    rows.append(row)
    except ReferenceMissing as error:
        print(error, file=sys.stderr)
        return 1
    print("| " + " | ".join(_HEAD) + " |\n|" + " --- |" * len(_HEAD))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return 0


def _measure_fresh(url: str, programs: Path, name: str, seconds: float) -> Sequence[str]:
    """Return the cells of a server that serves a new database."""
    with tempfile.TemporaryDirectory(prefix="placement-web-servers-") as folder:
        try:
            with _ServedApplication(url, Path(folder), programs, SERVERS[name]) as service:
                load_directly(url, WORLDS["numa"], _HOSTS)
                service.restart_service()
                return measure_server(service, seconds)
        except ServiceFailed as error:
            print(error, file=sys.stderr)
            return ("did not start",)


if __name__ == "__main__":
    sys.exit(main())
