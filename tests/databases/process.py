"""Servers that are processes, which run as an unprivileged user and are ended by their id."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from tests.databases.base import DatabaseServer, ServerMissing
from tests.ports import free_port

_PORTS_TO_TRY: Final = 5
_RESTARTS_TO_TRY: Final = 40
_SECONDS_TO_START: Final = 60.0
_SECONDS_TO_STOP: Final = 30.0


class ServerFailed(Exception):
    """The server did not start; the message ends with its log."""


class ProcessServer(DatabaseServer):
    """A database server that is one child process, listening on one loopback port."""

    stop_signal: ClassVar[signal.Signals]
    users: ClassVar[tuple[str, ...]]
    """Users that run the server when the tests run as root; the first existing one is used."""

    def __init__(self, *, durable: bool) -> None:
        super().__init__(durable=durable)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._user = _unprivileged(self.users)

    def _make_folder(self) -> Path:
        folder = super()._make_folder()
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        return folder

    @abstractmethod
    def _initialise(self) -> None:
        """Create the data folder of a new server."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """Return the command that runs the server in the foreground on :attr:`port`."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server accepts connections."""

    def start(self) -> None:
        """Start the server and wait until it answers.

        :raises ServerFailed: with the end of the server's log.
        """
        if self.port:
            # memory and children of a killed server may live a moment longer than the server
            self._attempt(_RESTARTS_TO_TRY)
            return
        self._initialise()
        for remaining in reversed(range(_PORTS_TO_TRY)):
            self.port = free_port()
            try:
                self._attempt(1)
                return
            except ServerFailed:
                if not remaining:  # else another process may have taken the port meanwhile
                    raise

    def stop(self) -> None:
        """Send SIGTERM and wait; kill a process that does not end."""
        if self._process is None:
            return
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(_SECONDS_TO_STOP)
            self._process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _attempt(self, times: int) -> None:
        for remaining in reversed(range(times)):
            try:
                self._launch()
                return
            except ServerFailed:
                if not remaining:
                    raise
                time.sleep(0.25)

    def _launch(self) -> None:
        log = self.folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._bound_to_us(), *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # only the tests get Ctrl-C, and then stop the server
                **self._as_user(),
            )
        deadline = time.monotonic() + _SECONDS_TO_START
        while not self._answers():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.kill()
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                raise ServerFailed(f"{self.kind} {'ended' if ended else 'does not answer'}:\n{tail}")
            time.sleep(0.02)

    def _bound_to_us(self) -> Sequence[str]:
        """Return the prefix of a command that has to end with the tests in any case."""
        setpriv = shutil.which("setpriv")
        return [setpriv, "--pdeathsig", self.stop_signal.name.removeprefix("SIG")] if setpriv else []

    def _run(self, *command: str | Path) -> None:
        """Run a program of the server to its end, as the server's user."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **self._as_user(),
        )
        if done.returncode:
            raise ServerFailed(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}")

    def _as_user(self) -> dict[str, Any]:
        path, folder = os.environ.get("PATH", os.defpath), str(self.folder)
        # MariaDB removes temporary tables from TMPDIR when it starts, those of other running servers as well
        environment = {"PATH": path, "HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8"}
        options: dict[str, Any] = {"cwd": self.folder, "env": environment}
        if self._user is not None:
            options |= {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        return options


def program(name: str, package: str, *, folders: Iterable[Path] = ()) -> Path:
    """Return the path of a program, from PATH or from one of ``folders``, which Debian leaves out of PATH.

    :raises ServerMissing: naming the package to install.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, folders)])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServerMissing(f"{name} is not installed: it is part of Debian's package {package}")
    return Path(found)


def _unprivileged(names: Iterable[str]) -> pwd.struct_passwd | None:
    """Return the user that runs servers, None if the tests do not run as root."""
    if os.geteuid() != 0:
        return None
    for name in names:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerMissing(f"database servers do not run as root, and there is no user {' or '.join(names)}")
