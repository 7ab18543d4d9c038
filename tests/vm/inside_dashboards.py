"""Dashboards have something to show on this host: guests that work, a neighbour that burns CPU and memory
bandwidth for a while, and watermarks that limit it.

Runs in the virtual machine only: `test_dashboards.py` starts it there. PLACEMENT is the service's address,
and RELAY that of the relay for the metrics.
"""

import os
import subprocess
import threading
import time
import urllib.request

import pytest

from compute_agent.agent.protocol import call_agent
from tests.vm.inside_machine import BASE_INI, CGROUP, SOCKET, SPIN, PlacementRest, make_agent, uid

CALM_SECONDS, BUSY_SECONDS = 120, 200
SCRAPE_SECONDS = 5
METRICS = "http://127.0.0.1:9101/metrics"
WORK = "while :; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; sleep 0.5; done"
"""Uses a part of a CPU."""

INI = f"""{BASE_INI.replace("http_port = 0", "http_port = 9101")}
[compute]
cpu_dedicated_set = 1-2
cpu_shared_set = 0,3
[metrics]
guests = all
[resctrl]
mount = true
memory_bandwidth_gbps = 2
[monitoring]
interval = 2
[qos]
interval = 3
[watermark:cpu]
metric = cpu_usage
throttle_down = 2
throttle_up = 1.5
disable_scheduling = 2
for_samples = 2
cool_down = 15
[watermark:memory]
metric = memory_usage
evict = 95%
[interference:bandwidth]
signal = memory_bandwidth
mode = preview
"""

GUESTS = (
    (1, "database", "LSR", WORK),
    (2, "web", "LS", WORK),
    (3, "nightly", "BE", SPIN),
    (4, "batch", "BE", SPIN),
)


def freeze(number, frozen):
    (CGROUP / f"guest-{uid(number)}/cgroup.freeze").write_text(f"{int(frozen)}\n")


def relay_metrics(ended, failures):
    """Send the agent's metrics to the relay, until an event."""
    while not ended.wait(SCRAPE_SECONDS):
        try:
            with urllib.request.urlopen(METRICS, timeout=60) as answer:
                body = answer.read()
            with urllib.request.urlopen(os.environ["RELAY"], body, timeout=60):
                pass
        except OSError as error:
            failures.append(error)


@pytest.fixture
def agent():
    agent = make_agent(INI, "+cpu +cpuset +memory +io")
    agent.start()
    yield agent
    print(agent.log()[-3000:])
    for number, *_ in GUESTS:
        group = CGROUP / f"guest-{uid(number)}"
        if group.exists():
            (group / "cgroup.freeze").write_text("0\n")
            call_agent(SOCKET, "guest.stop", {"guest": uid(number)})
    agent.process.terminate()
    try:
        agent.process.wait(120)
    except subprocess.TimeoutExpired:
        agent.kill()


def test_a_host_is_calm_then_busy_then_calm(agent):
    rest, ended, failures = PlacementRest(), threading.Event(), []
    rest.claim(uid(1), machine_NUMA_0={"PCPU": 1, "MEMORY_MB": 64})
    for number, *_ in GUESTS[1:]:
        rest.claim(uid(number), machine_NUMA_0={"VCPU": 1, "MEMORY_MB": 64})
    thread = threading.Thread(target=relay_metrics, args=(ended, failures), daemon=True)
    thread.start()
    limited = 0
    try:
        for number, name, qos_class, script in GUESTS:
            settings = {"uuid": uid(number), "name": name, "qos_class": qos_class}
            call_agent(SOCKET, "guest.run", {**settings, "command": ["sh", "-c", script]})
        for seconds, busy in ((CALM_SECONDS, False), (BUSY_SECONDS, True), (CALM_SECONDS, False)):
            for number, _, qos_class, _ in GUESTS:
                if qos_class == "BE":
                    freeze(number, not busy)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                rows = {row["action"]: row for row in call_agent(SOCKET, "watermark.list")}
                limited = max(limited, len(rows["throttle_down"]["in_force"]))
                time.sleep(5)
    finally:
        ended.set()
        thread.join(150)
    assert limited
    assert len(failures) < 5, failures
