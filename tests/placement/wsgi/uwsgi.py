"""Runs uWSGI as kolla and devstack run services under it."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.reference import install_environment
from tests.ports import free_port
from tests.programs import wait_for_answer

_REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
_SECONDS: Final = 120.0

# The options that deployment tools set, and the address of the tests.
_SETTINGS: Final = """\
[uwsgi]
{application}
processes = {processes}
master = true
lazy-apps = true
enable-threads = true
thunder-lock = true
die-on-term = true
exit-on-reload = false
hook-master-start = unix_signal:15 gracefully_kill_them_all
worker-reload-mercy = 60
buffer-size = 65535
add-header = Connection: close
http = 127.0.0.1:{port}
http-chunked-input = true
http-auto-chunked = true
socket = {socket}
chmod-socket = 666
logto2 = {log}
virtualenv = {virtualenv}
procname-prefix = placement
"""


@dataclass
class UWSGI:
    """A running uWSGI server."""

    base: str
    socket: Path
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def address(self) -> tuple[str, int]:
        """The address at which uWSGI listens for HTTP."""
        host, _, port = self.base.removeprefix("http://").partition(":")
        return host, int(port)

    def ask_socket(
        self, method: str, path: str, headers: Mapping[str, str], *, mounted_at: str = ""
    ) -> bytes:
        """Send a request by the uwsgi protocol, as mod_proxy_uwsgi does; return the whole answer."""
        variables = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": mounted_at,
            "PATH_INFO": path,
            "REQUEST_URI": mounted_at + path,
            "QUERY_STRING": "",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "SERVER_NAME": "cloud.example.org",
            "SERVER_PORT": "80",
            "HTTP_HOST": "cloud.example.org",
            "REMOTE_ADDR": "192.0.2.1",
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()},
        }
        packed = b"".join(
            struct.pack("<H", len(text)) + text
            for pair in variables.items()
            for text in (pair[0].encode(), pair[1].encode())
        )
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(str(self.socket))
            connection.sendall(struct.pack("<BHB", 0, len(packed), 0) + packed)
            answer = b""
            while received := connection.recv(65536):
                answer += received
        return answer


@contextmanager
def uwsgi(folder: Path, application: str, environ: Mapping[str, str], processes: int = 2) -> Iterator[UWSGI]:
    """Run the application (``module = ...`` or ``wsgi-file = ...``) under uWSGI.

    :raises benchmarks.reference.ReferenceMissing: uWSGI cannot be installed.
    """
    program = (
        install_environment("uwsgi-2.0.31-python{}.{}".format(*sys.version_info[:2]), _REQUIREMENTS) / "uwsgi"
    )
    port, log = free_port(), folder / "uwsgi.log"
    settings = folder / "uwsgi.ini"
    settings.write_text(
        _SETTINGS.format(
            application=application,
            processes=processes,
            port=port,
            socket=folder / "uwsgi.sock",
            log=log,
            virtualenv=sys.prefix,
        )
    )
    process = subprocess.Popen(
        [program, "--ini", settings],
        cwd=folder,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        running = UWSGI(f"http://127.0.0.1:{port}", folder / "uwsgi.sock", log, process)
        wait_for_answer(running.base, process, log)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
