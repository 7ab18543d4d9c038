"""The service with a configuration from a deployment tool."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import requests

from placement.db import migration
from tests.ports import free_port
from tests.programs import run_program, wait_for_answer

_SECONDS: Final = 300


def run(*words: object, folder: Path, status: int = 0, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that has to succeed, without the variables of the tests' Python."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ANSIBLE"))}
    done = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        env={**clean, "HOME": str(folder), "LC_ALL": "C.UTF-8", **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == status, (words, done.stdout[-4000:], done.stderr[-4000:])
    return done


def assert_the_service_runs(configuration: str, database: str, folder: Path) -> None:
    """Run the commands of deployment tools with this configuration on an empty database, then the service."""
    (folder / "placement.conf").write_text(configuration)
    programs = Path(sys.executable).parent
    environ = {"OS_PLACEMENT_CONFIG_DIR": str(folder), "PATH": f"{programs}:/usr/bin:/bin"}
    run("placement-manage", "db", "sync", folder=folder, **environ)
    run("placement-manage", "db", "online_data_migrations", folder=folder, **environ)
    checked = run("placement-status", "upgrade", "check", folder=folder, status=1, **environ)
    assert checked.stdout.count("Result: Warning") == 1, checked.stdout
    assert "[keystone_authtoken]: Could not find versioned identity" in checked.stdout
    assert migration.version(database) == migration.newest_revision()
    bind = f"127.0.0.1:{free_port()}"
    words = [programs / "placement-api", "--config-file", folder / "placement.conf", "--bind", bind]
    with run_program(words, folder / "log", os.environ | environ) as process:
        wait_for_answer(f"http://{bind}/", process, folder / "log")
        assert requests.get(f"http://{bind}/healthcheck", timeout=60).status_code == 200
        assert requests.get(f"http://{bind}/resource_providers", timeout=60).status_code == 401
