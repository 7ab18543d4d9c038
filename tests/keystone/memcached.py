"""A memcached for tests, on loopback."""

import os
import shutil
import socket
import subprocess
from contextlib import suppress
from typing import Self
from urllib.parse import unquote_to_bytes

from tests.ports import free_port
from tests.waits import wait_for


class MemcachedMissing(Exception):
    """The program is not installed; the message names the package."""


class Memcached:
    """The cache of tokens that all workers share.

    :raises MemcachedMissing: the program is not installed.
    """

    def __init__(self) -> None:
        program = shutil.which("memcached")
        if program is None:
            raise MemcachedMissing("memcached is not installed: it is Debian's package memcached")
        self._port = free_port()
        self._command = [program, "-l", "127.0.0.1", "-p", str(self._port), "-U", "0", "-m", "16"]
        if os.geteuid() == 0:
            self._command += ["-u", "nobody"]
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start an empty memcached, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        wait_for(self._answers, "memcached answers")

    def stop(self) -> None:
        """End the process, and lose its content."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def content(self) -> bytes:
        """Return keys and values as soon as there are any: the list of keys lags behind."""
        return wait_for(self._listed, "memcached remembers something")

    def _listed(self) -> bytes:
        with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
            lines = _ask(connection, b"lru_crawler metadump all\r\n").splitlines()
            keys = [line.split()[0].removeprefix(b"key=") for line in lines if line.startswith(b"key=")]
            values = [_ask(connection, b"get " + unquote_to_bytes(key) + b"\r\n") for key in keys]
        return b"\n".join(values)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
            connection.sendall(b"version\r\n")
            return connection.recv(100).startswith(b"VERSION")
        return False


def _ask(connection: socket.socket, command: bytes) -> bytes:
    connection.sendall(command)
    answer = b""
    while not answer.endswith(b"END\r\n"):
        received = connection.recv(65536)
        assert received, "memcached closed the connection"
        answer += received
    return answer
