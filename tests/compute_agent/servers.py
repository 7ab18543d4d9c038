"""Starts this service, or OpenStack Placement, as a process on SQLite and a loopback port."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.reference import install_reference
from compute_agent.report.client import PlacementClient
from tests.compute_agent.builders import load_text
from tests.ports import free_port
from tests.programs import environ_without_python, run_program, wait_for_answer

CHECKOUT = Path(__file__).parents[2]


@contextlib.contextmanager
def running(kind, folder):
    """Run a server of kind `ours` or `stock` with its files in `folder`; yield its URL.

    :raises ReferenceMissing: OpenStack Placement cannot be installed.
    """
    config = folder / "placement.conf"
    config.write_text(
        "[api]\nauth_strategy = noauth2\n"
        f"[oslo_policy]\npolicy_file = {folder / 'policy.yaml'}\n"
        f"[placement_database]\nconnection = sqlite:///{folder / 'placement.db'}\n"
    )
    # Without authentication no user has the role "service", which reshaping needs.
    (folder / "policy.yaml").write_text('"placement:reshaper:reshape": "role:admin"\n')
    port = free_port()
    bind = ("--bind", f"127.0.0.1:{port}", "--workers", "1")
    if kind == "ours":
        home, environment = CHECKOUT, dict(os.environ)
        manage = [sys.executable, "-m", "placement.cmd.manage"]
        serve = [sys.executable, "-m", "placement.cmd.api", "--config-file", str(config), *bind]
    else:
        reference = install_reference()
        # The folder is outside of the checkout and its path, where our package of the same name is.
        home = folder
        environment = environ_without_python()
        environment["OS_PLACEMENT_CONFIG_DIR"] = str(folder)
        manage = [reference.program_path("placement-manage")]
        serve = [
            *(reference.program_path("gunicorn"), "--no-control-socket", *bind),
            "placement.wsgi.api:application",
        ]
    sync = [*manage, "--config-file", str(config), "db", "sync"]
    subprocess.run(sync, cwd=home, env=environment, check=True, stdin=subprocess.DEVNULL)
    with run_program(serve, folder / "log", environment, home) as process:
        wait_for_answer(f"http://127.0.0.1:{port}/", process, folder / "log")
        yield f"http://127.0.0.1:{port}"


def client_of(url, folder):
    """An agent's client of the server at `url`. Its configuration file is written to `folder`."""
    # The stock service retries a conflict up to ten times, which may take 10 s on a loaded machine.
    text = f"[placement]\nauth_type = admin_token\nendpoint = {url}\ntoken = admin\ntimeout = 60\n"
    return PlacementClient.from_conf(load_text(folder, text))
