"""The agent on a host with `nova-compute`: neither program undoes changes of the other program."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.keystone import Caller
from tests.openstack.agent import CHILDREN, agent
from tests.openstack.cloud import REAL, cloud, real_host, wait_for_cloud
from tests.openstack.ground import Ground
from tests.openstack.identity import AGENT, NOVA
from tests.openstack.record import Record
from tests.openstack.requestlog import LoggedRequest, asked
from tests.openstack.scenario import Scene
from tests.openstack.servers import Servers

pytestmark = [pytest.mark.slow, pytest.mark.openstack]


_UPDATES: Final = 100
"""Minimum number of updates of nova-compute, and of the agent."""
_SECONDS: Final = 600.0
_ATTEMPTS: Final = 3
_CONFIG: Final = 2
"""VIR_DOMAIN_AFFECT_CONFIG: the persistent definition."""


def test_agent_and_nova_compute_do_not_change_each_others_reports(
    openstack: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    if set(os.sched_getaffinity(0)) != {0, 1}:
        pytest.skip("the agent is told of a machine with CPUs 0 and 1, and no others")
    host = real_host(interval=1)  # as often as the agent
    with cloud(openstack, "ours", host) as running:
        servers = Servers(running)
        known = Scene(running, servers).record

        def pins() -> dict[str, str]:
            domains = openstack.libvirtd.connection.listAllDomains()
            return {each.UUIDString(): str(each.vcpuPinInfo()) for each in domains}

        wait_for_cloud(lambda: "CUSTOM_LLC" in _root(known())["inventories"], "nova-compute has reported")
        servers.flavor("shared")
        servers.flavor("dedicated", hw_cpu_policy="dedicated")
        for name in ("shared", "dedicated"):
            servers.boot(name, name, REAL)
        before, pinned = known(), pins()
        with agent(openstack, host) as beside:
            status = beside.ask("status")
            assert (status["provider_is"], status["waiting_for"]) == ("nova-compute's", "")
            both = {caller: openstack.keystone.identity.user_id(caller) for caller in (NOVA, AGENT)}
            children = {f"{status['provider']}_{end}" for end in CHILDREN}
            told = known()
            assert {name for name, each in told.providers.items() if each["parent"] == REAL} == children
            assert all(told.providers[name]["inventories"] for name in children)
            (child,) = running.placement.get(f"/resource_providers?name={min(children)}")[
                "resource_providers"
            ]
            began = 0

            def updates(caller: Caller) -> int:
                """Count the updates: each reads the allocations of the tree or of the agent's providers."""
                paths = (f"/resource_providers/{child['uuid']}/allocations", "/ext/v1/trees/")
                return sum(each.user == both[caller] and each.path.startswith(paths) for each in log())

            def log() -> Sequence[LoggedRequest]:
                return asked(running.log)[began:]

            def have_updated(times: int) -> None:
                wait_for_cloud(lambda: min(map(updates, both)) >= times, f"{times} updates of both", _SECONDS)

            for _ in range(_ATTEMPTS):
                memory, began = _memory(), len(asked(running.log))
                have_updated(2)
                told, began = known(), len(asked(running.log))
                have_updated(_UPDATES // 2)
                servers.boot("passing", "shared", REAL)
                servers.delete("passing")
                have_updated(_UPDATES)
                if _memory() == memory:
                    break
            of_all = log()
            writes = [each for each in of_all if each.writes]
            with capsys.disabled():
                for caller, user in both.items():
                    own = [each for each in of_all if each.user == user]
                    print(
                        f"\n{caller.name}: {updates(caller)} updates of {REAL}; {len(own)} requests,"
                        f" writes: {[(each.method, each.path) for each in own if each.writes]}"
                    )
            assert {each.user for each in writes} == {both[NOVA]}
            passing = f"/allocations/{servers.uuid('passing')}"
            assert {each.path for each in writes} == {passing}
            assert all(each.status < 300 for each in writes)
            assert known() == told
            # Nova leaves emulator threads on dedicated CPUs, unless the flavor has a policy for them.
            [left] = beside.audit()
            assert (left["finding"], left["consumer"]) == (
                "emulator threads on dedicated CPUs",
                servers.uuid("dedicated"),
            )
            assert _root(known()) == _root(before)
            assert known().allocations == before.allocations
            assert pins() == pinned
            there = known().providers.keys()
            running.hosts[REAL].stop()
            running.start(REAL)
            assert known().providers.keys() == there
            beside.restart_with("[isolation]\nemulator = move\n")
            wait_for_cloud(lambda: beside.audit() == [], "emulator threads are on shared CPUs")
            assert pins() == pinned
            domain = openstack.libvirtd.connection.lookupByUUIDString(servers.uuid("dedicated"))
            live, nova = domain.emulatorPinInfo(), domain.emulatorPinInfo(_CONFIG)
            assert (live, nova) == ((True, False), (False, True))
            servers.delete("dedicated")
            wait_for_cloud(lambda: "dedicated" not in known().allocations, "it holds nothing")
            wait_for_cloud(lambda: beside.audit() == [], "the agent knows")


def _memory() -> list[str]:
    """Return the memory of each node; in some virtual machines it grows with usage, and Nova reports that."""
    nodes = sorted(Path("/sys/devices/system/node").glob("node*/meminfo"))
    return [node.read_text().split("\n")[0] for node in nodes]


def _root(known: Record) -> dict[str, object]:
    """Read the host's own provider, without the memory of the machine."""
    found = known.providers[REAL]
    inventories = {name: each for name, each in found["inventories"].items() if name != "MEMORY_MB"}
    return {**found, "inventories": inventories}
