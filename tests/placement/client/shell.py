"""Runs the command line client of operators against a running service."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
COMMANDS: Final = frozenset(
    entry.name.replace("_", " ") for entry in entry_points(group="openstack.placement.v1")
)
"""Command groups of the plugin osc-placement."""


class CommandFailed(Exception):
    """A command has failed. The text is its output."""


class Shell:
    """Runs `openstack` with one microversion, as administrator of the service at ``url``."""

    def __init__(self, driver: "subprocess.Popen[str]", url: str, version: str) -> None:
        self._driver = driver
        self._options = [
            *("--os-auth-type", "admin_token", "--os-token", "admin", "--os-endpoint", url),
            *("--os-placement-api-version", version),
        ]
        self.version = tuple(map(int, version.split(".")))
        self.walked: set[str] = set()
        """Commands that succeeded."""

    def __call__(self, command: str) -> Any:
        """Run a command; return its decoded JSON, None if it prints nothing.

        :raises CommandFailed: its exit status is not 0
        """
        words = shlex.split(command)
        name = max((each for each in COMMANDS if words[: len(each.split())] == each.split()), key=len)
        if _shows(name):
            words += ["--format", "json"]
        status, out, err = run(self._driver, [*self._options, *words])
        if status:
            raise CommandFailed(f"{command}: {err or out}")
        self.walked.add(name)
        return json.loads(out) if out else None


def _shows(command: str) -> bool:
    """Whether the command prints a table, and therefore also has JSON as an output format."""
    return command.split()[-1] not in ("delete",) and command not in (
        "resource class create",
        "resource class set",
        "trait create",
    )


def run(driver: "subprocess.Popen[str]", arguments: list[str]) -> tuple[int, str, str]:
    """Run `openstack` in the process of :func:`client`; return exit status and output."""
    assert driver.stdin is not None
    assert driver.stdout is not None
    print(json.dumps(arguments), file=driver.stdin, flush=True)
    answer = driver.stdout.readline()
    assert answer, f"the client ended with {driver.wait()}"
    status, out, err = json.loads(answer)
    return status, out, err


@contextmanager
def client(**variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that executes `openstack` commands, with these variables in its environment."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONPATH": str(ROOT), **variables}
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.placement.client.driver"],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield driver
    finally:
        driver.communicate(timeout=60)
