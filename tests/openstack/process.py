"""The programs of a cloud: children that write into a log, are waited for, and end with the tests."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

_SECONDS_TO_START: Final = 300.0
_SECONDS_TO_END: Final = 600.0
_SECONDS_TO_STOP: Final = 60.0


class CloudFailed(Exception):
    """A program of the cloud failed; the message ends with its output."""


class Program:
    """A server that runs during the context; :meth:`stop` and :meth:`start` may be called meanwhile.

    :param is_ready: whether it serves; called repeatedly during the start
    :param options: of :class:`subprocess.Popen`, for example the user
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        is_ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [*_ending_with_us(), *command]
        self._folder = folder
        self._is_ready = is_ready
        self._environment = {**inherited(), **(environment or {})}
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it is ready.

        :raises CloudFailed: it ends, or does not become ready.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it; :meth:`wait` waits until it is ready, so that several may start at once."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # only the tests get Ctrl-C, and then stop it with its children
                **self._options,
            )

    def wait(self) -> None:
        """Wait until it is ready.

        :raises CloudFailed: it ends, or does not become ready.
        """
        deadline = time.monotonic() + _SECONDS_TO_START
        while not self._is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise CloudFailed(f"{self.name} is not ready:\n{self.last_words()}")
            time.sleep(0.2)

    def check(self) -> None:
        """Check that it runs.

        :raises CloudFailed: it has ended.
        """
        if self._process is not None and self._process.poll() is not None:
            raise CloudFailed(f"{self.name} ended:\n{self.last_words()}")

    def terminate(self) -> None:
        """Send SIGTERM without waiting, so that several may end at once."""
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> None:
        """Send SIGTERM and wait; kill it with its children if it does not end."""
        self.terminate()
        if self._process is None:
            return
        process, self._process = self._process, None
        try:
            process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill(self) -> None:
        """End it without warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-6000:]


def run(
    command: Sequence[str | Path],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    good: Sequence[int] = (0,),
) -> str:
    """Run a program to its end and return its output.

    :param good: the statuses that it may end with.
    :raises CloudFailed: it has another status, or does not end
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**inherited(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_END,
        )
    except subprocess.TimeoutExpired as error:
        raise CloudFailed(f"{' '.join(map(str, command))} does not end") from error
    if done.returncode not in good:
        words = f"{done.stdout}{done.stderr}"[-6000:]
        raise CloudFailed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{words}")
    return done.stdout


def inherited() -> dict[str, str]:
    """Return our environment without variables about imports from the checkout and other configurations."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "OS_", "GUNICORN", "RABBITMQ_"))
    }


def _ending_with_us() -> list[str]:
    """Return the prefix of a command that has to end with the tests in any case."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []
