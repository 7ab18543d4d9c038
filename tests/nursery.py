"""Processes of a program that are forked from one that has imported it: they need not import it again.

A forked process is a process of its own, with its own arguments, variables, folder and output. It runs the
program's main function to the end. Its parent is the nursery. What a program does while it is imported is
done once, so tests of imports start the program themselves.
"""

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final, Self

_CHECKOUT: Final = Path(__file__).parents[1]
_SIZE: Final = 8  # of each number that is sent


class Nursery:
    """Starts processes of one program.

    :param modules: the module with the function ``main``, and others that it imports later.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules

    def __enter__(self) -> Self:
        with ExitStack() as made:
            folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="nursery-")))
            self._address = str(folder / "socket")
            listener = made.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(self._address)
            listener.listen()
            words = [sys.executable, "-m", __name__, str(listener.fileno()), str(os.getpid()), *self._modules]
            self._process = made.enter_context(
                subprocess.Popen(words, cwd=_CHECKOUT, stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()])
            )
            made.callback(self._process.terminate)
            self._made = made.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._made.close()

    def start(self, arguments: Sequence[object], stdout: IO[Any], stderr: IO[Any]) -> "NurseryProcess":
        """Start a process, with the variables and the folder of the caller."""
        order = {"arguments": [*map(str, arguments)], "environ": dict(os.environ), "folder": os.getcwd()}
        text = json.dumps(order).encode()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        with open(os.devnull) as nothing:
            files = [nothing.fileno(), stdout.fileno(), stderr.fileno()]
            socket.send_fds(connection, [_packed(len(text))], files)
            connection.sendall(text)
            return NurseryProcess(connection, int(connection.recv(_SIZE)))


class NurseryProcess:
    """A process with the methods of :class:`subprocess.Popen` that tests use."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit status.

        :raises subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid} of the nursery", timeout or 0)
            self.returncode = int(self._connection.recv(_SIZE))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _packed(number: int) -> bytes:
    return f"{number:{_SIZE}}".encode()


def _serve_orders(listener: socket.socket, parent: int) -> Callable[[], None] | None:
    """Fork a process for each order, and report the end of each; return in a forked process what it does."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while os.getppid() == parent:
        ready, _, _ = select.select([listener, *running], [], [], 1.0)
        for each in ready:
            if each is listener:
                connection, _ = listener.accept()
                order, files = _receive_order(connection)
                if not (pid := os.fork()):
                    for descriptor in (listener.detach(), connection.detach(), *running):
                        os.close(descriptor)
                    for _, other in running.values():
                        other.close()
                    return lambda: _become(order, files)
                for file in files:
                    os.close(file)
                running[os.pidfd_open(pid)] = pid, connection
                connection.sendall(_packed(pid))
            else:
                pid, connection = running.pop(each)
                os.close(each)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with connection:
                    connection.sendall(_packed(status))
    return None


def _receive_order(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, files, _, _ = socket.recv_fds(connection, _SIZE, 3)
    length, text = int(head), b""
    while len(text) < length:
        text += connection.recv(length - len(text))
    return json.loads(text), files


def _become(order: dict[str, Any], files: Sequence[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    sys.argv[1:] = order["arguments"]


def main() -> int:
    """Import the program and serve; in a forked process, run the program."""
    number, parent, *modules = sys.argv[1:]
    program, *_ = [importlib.import_module(name) for name in modules]
    with socket.socket(fileno=int(number)) as listener:
        prepare = _serve_orders(listener, int(parent))
    if prepare is None:
        return 0
    prepare()
    sys.argv[0] = str(program.__file__)
    status: int = program.main()
    return status


if __name__ == "__main__":
    sys.exit(main())
