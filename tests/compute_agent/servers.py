"""This service and a stock OpenStack Placement, each a process of its own on SQLite and a loopback port."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.reference import install
from compute_agent import conf as agent_conf
from compute_agent.report.client import PlacementClient
from tests.ports import free_port

CHECKOUT = Path(__file__).parents[2]
SECONDS = 60


@contextlib.contextmanager
def running(kind, folder):
    """The URL of a server of kind `ours` or `stock` that works in `folder`.

    Raises ReferenceMissing if OpenStack Placement cannot be installed.
    """
    config = folder / "placement.conf"
    config.write_text(
        "[api]\nauth_strategy = noauth2\n"
        f"[oslo_policy]\npolicy_file = {folder / 'policy.yaml'}\n"
        f"[placement_database]\nconnection = sqlite:///{folder / 'placement.db'}\n"
    )
    # Where nobody is checked there is no user of role "service", who alone may reshape.
    (folder / "policy.yaml").write_text('"placement:reshaper:reshape": "role:admin"\n')
    port = free_port()
    bind = ("--bind", f"127.0.0.1:{port}", "--workers", "1")
    if kind == "ours":
        home, environment = CHECKOUT, dict(os.environ)
        manage = [sys.executable, "-m", "placement.cmd.manage"]
        serve = [sys.executable, "-m", "placement.cmd.api", "--config-file", str(config), *bind]
    else:
        reference = install()
        # Not in the checkout and not on its path, where our package of the same name is.
        home = folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["OS_PLACEMENT_CONFIG_DIR"] = str(folder)
        manage = [reference.program("placement-manage")]
        serve = [
            *(reference.program("gunicorn"), "--no-control-socket", *bind),
            "placement.wsgi.api:application",
        ]
    with (folder / "log").open("ab") as log:
        io = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        subprocess.run(
            [*manage, "--config-file", str(config), "db", "sync"], cwd=home, env=environment, check=True, **io
        )
        process = subprocess.Popen(serve, cwd=home, env=environment, **io)
    try:
        _wait(process, f"http://127.0.0.1:{port}/", folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(SECONDS)


def client_of(url, folder):
    """An agent's client of the server at `url`, configured by a file in `folder`."""
    path = folder / "agent.ini"
    path.write_text(f"[placement]\nauth_type = admin_token\nendpoint = {url}\ntoken = admin\n")
    return PlacementClient.from_conf(agent_conf.load([], [str(path)]))


def _wait(process, url, log):
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:  # refused, or too slow to answer as long as it loads
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
