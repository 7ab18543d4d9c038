"""Tests of the metrics that a running agent serves to Prometheus."""

import os
import shutil
import subprocess

import pytest

from tests.compute_agent.cmd.agents import scrape_metrics


@pytest.fixture
def scrape(write_ini, agent, claim, uid, metrics_port):
    """A function that reads /metrics of an agent with a guest. The agent has already repaired a setting."""
    agent.kill()
    write_ini(
        daemon=f"http_address = 127.0.0.1\nhttp_port = {metrics_port}",
        guests="drivers = process\nreconcile_interval = 0.2",
    )
    agent.start()
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    os.sched_setaffinity(guest["pid"], {0, 1})

    def scrape():
        return scrape_metrics(metrics_port)

    agent.wait_for(lambda: 'compute_agent_drift_repairs_total{controller="cpuset"} 1.0' in scrape())
    return scrape


def test_promtool_accepts_the_metrics(scrape):
    """https://prometheus.io/docs/practices/naming, as `promtool check metrics` has it."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=scrape(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_agents_own_cost_is_a_metric(scrape):
    names = {line.split("{")[0].split(" ")[0] for line in scrape().splitlines() if line[0] != "#"}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"} <= names
