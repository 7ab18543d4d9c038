"""The installed system survives crashes and bad configuration, with real programs and a real guest."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.demo.system import SCRIPTS, CpuSets, System, allowed_cpus, is_running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SCRIPTS / "compute-agent").exists(),
        reason="the distribution is not installed beside this Python",
    ),
]


@pytest.fixture
def system() -> Iterator[System]:
    with System() as system:
        yield system


def claim_one_dedicated_cpu(system: System) -> str:
    """Return the consumer of the guest."""
    consumer = str(uuid.uuid4())
    candidate = system.call("GET", "/allocation_candidates?resources=PCPU:1&limit=1")["allocation_requests"][
        0
    ]
    claim = {"project_id": "p", "user_id": "u", "consumer_generation": None, "consumer_type": "INSTANCE"}
    system.call("PUT", f"/allocations/{consumer}", body=candidate | claim)
    return consumer


def test_a_restarted_agent_finds_its_guest_on_the_same_cpu(system: System) -> None:
    system.configure_service()
    system.manage("db", "sync")
    system.start_service()
    system.configure_agent(CpuSets.of_this_machine().options())
    system.start_agent()
    consumer = claim_one_dedicated_cpu(system)
    system.agent("guest", "run", "--uuid", consumer, "--vcpus", "1", "--", "sleep", "600")
    guest = system.agent("guest", "show", consumer)
    pid = int(guest["pid"])
    allocations = system.call("GET", f"/allocations/{consumer}")

    system.kill("compute-agent")
    assert is_running(pid)
    assert allowed_cpus(pid) == guest["cpus"]
    system.start_agent()
    again = system.agent("guest", "show", consumer)
    assert (int(again["pid"]), again["cpus"]) == (pid, guest["cpus"])
    assert allowed_cpus(pid) == guest["cpus"]
    assert system.call("GET", f"/allocations/{consumer}") == allocations
    system.agent("guest", "stop", consumer)
    assert not is_running(pid)


def test_the_agent_refuses_overlapping_cpu_sets_and_names_the_cpu(system: System) -> None:
    system.configure_agent("cpu_dedicated_set = 0-1\ncpu_shared_set = 1")
    done = subprocess.run(
        [SCRIPTS / "compute-agent", "--config-file", system.agent_ini, "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "both name CPU 1" in done.stdout
    assert "Traceback" not in done.stdout


def test_two_services_started_at_once_migrate_one_empty_database(system: System) -> None:
    with System() as other:
        other.database = system.database
        for each in (system, other):
            each.configure_service("sync_on_startup = true")
            each.launch_service(workers=2)
        for each in (system, other):
            each.wait_for_service()
        system.call("POST", "/resource_providers", body={"name": "seen by both"})
        assert [provider["name"] for provider in other.providers()] == ["seen by both"]
