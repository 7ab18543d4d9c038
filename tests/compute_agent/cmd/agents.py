"""Runs an agent in a process of its own, and its command line."""

import atexit
import contextlib
import functools
import io
import json
import logging
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from compute_agent.agent.protocol import DaemonUnreachableError, call_agent
from compute_agent.cmd.main import main
from compute_agent.drivers.processes.driver import ProcessDriver
from tests.compute_agent.libvirtd import thread_cpus
from tests.nursery import Nursery
from tests.waits import wait_for

QOS = "interval = 0.1\nevict_grace = 30"
# The host uses more than a thousandth of its memory, and never all of it.
FULL = "metric = memory_usage\nfor_samples = 1\ncool_down = 0\n"
MAIN = [sys.executable, "-m", "compute_agent.cmd.main"]
SECONDS = 20


def run_here(ini, *arguments):
    """Run a command in this process, which is ten times faster than in a process of its own.

    ``ini`` is the configuration file; None for a command that needs none.
    """
    configuration = () if ini is None else ("--config-file", str(ini))
    out, err = io.StringIO(), io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    services = [logging.getLogger(name) for name in ("placement", "werkzeug")]  # run here, too
    for each in services:
        each.propagate = False
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([*configuration, *map(str, arguments)])
    except SystemExit as ended:
        status = ended.code
    finally:
        for each in services:
            each.propagate = True
        root.handlers[:] = handlers
        root.setLevel(level)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


@functools.cache
def nursery():
    """The nursery of agents, which ends with this process."""
    made = contextlib.ExitStack()
    atexit.register(made.close)
    return made.enter_context(Nursery("compute_agent.cmd.main", "compute_agent.cmd.run"))


class AgentProcess:
    """Runs the daemon and commands, and leaves no process behind."""

    def __init__(self, ini):
        self.ini = ini
        self.folder = ini.parent / "state"
        self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start_reporting(self):
        """Start the daemon, and wait until it has reported to Placement."""
        self.start()
        self.wait_for_placement()

    def start(self):
        """Start the daemon and wait until it answers."""
        self.launch()

        def answers():
            assert self.process.poll() is None, self.log()
            with contextlib.suppress(DaemonUnreachableError):
                return self.status()["pid"] == self.process.pid

        self.wait_for(answers)

    def status(self):
        """The daemon's answer to a status request, without the command line."""
        return call_agent(self.folder / "agent.sock", "status")

    def launch(self):
        """Start the daemon without waiting for it. Most of its time would be imports, so it is forked."""
        with open(self.ini.parent / "agent.log", "ab") as log:
            self.process = nursery().start(["--config-file", self.ini, "run"], log, log)

    def log(self):
        return (self.ini.parent / "agent.log").read_text()

    def cli(self, *arguments, ini=None):
        """Run a command; return its exit status and output."""
        return run_here(ini or self.ini, *arguments)

    def run_in_vain(self, ini=None):
        """Run a daemon that refuses to start; return its exit status and output."""
        command = [*MAIN, "--config-file", ini or self.ini, "run"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def ask(self, *arguments):
        """The JSON that a command prints. The test fails if the command fails."""
        at = arguments.index("--") if "--" in arguments else len(arguments)
        done = self.cli(*arguments[:at], "-f", "json", *arguments[at:])
        assert done.returncode == 0, done.stderr + self.log()
        return json.loads(done.stdout)

    def audit(self, *arguments):
        """Run an audit; return its exit status and its findings."""
        done = self.cli("audit", *arguments, "-f", "json")
        return done.returncode, json.loads(done.stdout)

    def wait_for(self, condition):
        return wait_for(condition, evidence=self.log)

    def wait_for_placement(self):
        self.wait_for(lambda: self.status()["placement"] == "up")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)

    def reload(self):
        """Let the daemon read its configuration again and report at once."""
        self.process.send_signal(signal.SIGHUP)

    def close(self):
        if self.process is not None:
            self.kill()
            for guest in ProcessDriver(self.folder / "guests").guests():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(guest.pid, signal.SIGKILL)


def scrape_metrics(port):
    """The text that an agent serves on this port for Prometheus."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def scrape_sample(port, series):
    """The value of one series, by its name and labels; None without such a line."""
    lines = scrape_metrics(port).splitlines()
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{series} ")), None)


def give_to_migration(client, uid, migration):
    """Move all allocations of a guest to its migration, which is Nova's first step of a move."""
    record = client.get_allocations(uid)
    body = {"project_id": record.project_id, "user_id": record.user_id}
    moved = {provider: {"resources": amounts} for provider, amounts in record.resources.items()}
    both = {
        uid: {"allocations": {}, "consumer_generation": record.generation, **body},
        migration: {"allocations": moved, "consumer_generation": None, **body},
    }
    client.send_request("POST", "/allocations", both, "1.36")


def allowed_cpus(pid):
    """The allowed CPUs of a process, as /proc/PID/status lists them."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return line.split()[1]
    raise AssertionError(f"no affinity in the status of {pid}")


def places(pid):
    """The CPUs of the thread that runs the guest CPU, and of all other threads."""
    names = dict(thread_cpus(pid))
    return names.pop("CPU 0/TCG"), set().union(*names.values())
