"""Guests of Nova keep their class after each action of Nova, and controllers act on them by their class."""

import json
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from compute_agent.events.store import FILE as EVENTS
from compute_agent.events.store import read_events
from compute_agent.reclaim.estimate import SYSTEM
from compute_agent.reclaim.offers import FILE, ZONES_FORMAT
from compute_agent.throttling.state_file import look_up_state
from tests.compute_agent.cmd.agents import run_here
from tests.compute_agent.libvirtd import CGROUP_CONTROLLERS, ENDLESS_LOOP
from tests.compute_agent.power_trees import CPUS, KernelFiles
from tests.compute_agent.reclaim.zone_states import day_of_use
from tests.openstack.cloud import wait_for_cloud
from tests.openstack.doors import AGENT_PROGRAM, GOLD, OLDER_NAME, RULES, DoorStory, door_table, walk
from tests.openstack.ground import Ground, folder_of
from tests.openstack.identity import LAB
from tests.openstack.played_use import PlayedUse
from tests.openstack.servers import Servers
from tests.openstack.two_hosts import HOSTS, STANDING, HostAgent, TwoHosts, host_agent, two_hosts

pytestmark = [pytest.mark.slow, pytest.mark.openstack]

A, B = HOSTS
_FAST: Final = "tests.openstack.agent_with_clock"
_SECTORS: Final = 2048
_SAMPLES: Final = 40
"""A time that is longer than a baseline takes."""
_INTERFERENCE: Final = """\
[qos]
highest_class = BULK
step = 40
[qos_class:BULK]
rank = 5
[interference:cpu]
signal = run_delay
mode = act
"""
_RECLAIMED: Final = """\
[capacity]
mode = act
[qos]
interval = 0.5
[watermark:cpu]
metric = cpu_usage
throttle_down = 85%
throttle_up = 70%
for_samples = 1
cool_down = 0
"""
_POWER: Final = """\
[libvirt]
cpu_power_management = true
cpu_power_management_strategy = {strategy}
"""
_LINES: Final = """\
[qos]
interval = 0.5
min_share = 1
[watermark:cpu]
metric = best_effort_cpu
throttle_down = 3%
throttle_up = 2%
for_samples = 1
cool_down = 0
"""


@pytest.fixture(scope="module")
def all_hosts(request: pytest.FixtureRequest) -> Iterator[TwoHosts]:
    if standing := request.config.stash.get(STANDING, None):
        yield standing
        return
    ground: Ground = request.getfixturevalue("openstack")
    ground.keystone.identity.user(LAB)
    with two_hosts(ground) as made:
        yield made


@pytest.fixture
def there(all_hosts: TwoHosts) -> Iterator[TwoHosts]:
    """The cloud without guests and flavors."""
    yield all_hosts
    all_hosts.servers.delete_all()
    all_hosts.servers.delete_flavors()


def test_guests_have_their_class_after_each_door(
    there: TwoHosts, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    only = pytestconfig.getoption("doors", "")
    with ExitStack() as stack:
        agents = {
            name: stack.enter_context(
                host_agent(there.ground, there.hosts[name], RULES + more, AGENT_PROGRAM)
            )
            for name, more in ((A, OLDER_NAME), (B, ""))
        }
        story = DoorStory(there, agents)
        try:
            for row in walk(story, only):
                with capsys.disabled():
                    print(f"\n{row.door}: {dict(row.classes)}", end="", flush=True)
        finally:
            with capsys.disabled():
                print(f"\n\n{door_table(story.rows)}\n")


def test_a_watermark_limits_a_best_effort_guest_and_gives_back(there: TwoHosts) -> None:
    servers = there.servers
    busy = _busy_image(servers)
    servers.flavor("burning gold", disk=0, specs=GOLD)
    servers.flavor("burning batch", disk=0, specs={"compute_agent:qos_class": "BE"})
    with host_agent(there.ground, there.hosts[A], _LINES) as agent:
        for name in ("gold", "batch"):
            servers.start_to_boot(f"burning {name}", f"burning {name}", A, image=busy)
        for name in ("gold", "batch"):
            servers.wait(f"burning {name}", "ACTIVE")
        gold, batch = (servers.uuid(f"burning {name}") for name in ("gold", "batch"))

        def limits(uuid: str) -> dict[str, float]:
            found = agent.guest(uuid)
            return {} if found is None else dict(found["limits"])

        def is_limited() -> bool:
            quota = there.quota(A, batch)
            return quota is not None and limits(batch) == {"cpu_quota": pytest.approx(quota)}

        def is_below() -> bool:
            (line,) = (row for row in agent.ask("watermark.list") if row["action"] == "throttle_down")
            return line["usage"] is not None and line["usage"] <= line["amount"]

        def is_free() -> bool:
            return there.quota(A, batch) is None and limits(batch) == {}

        wait_for_cloud(is_limited, "the guest that burns is limited")
        wait_for_cloud(is_below, "the host is below its line")
        servers.act("burning batch", "reboot", {"type": "HARD"}, until="ACTIVE")
        wait_for_cloud(is_limited, "the guest is limited in the definition that Nova has made again")
        agent.program.kill()
        assert there.quota(A, batch) is not None
        agent.program.start()
        wait_for_cloud(is_limited, "the next agent has the limit")
        servers.act("burning batch", "pause", until="PAUSED")
        wait_for_cloud(is_free, "a guest that uses nothing gets everything back")
        assert there.quota(A, gold) is None
        assert limits(gold) == {}
        servers.act("burning batch", "unpause", until="ACTIVE")
        wait_for_cloud(is_limited, "the guest is limited again")
        servers.delete("burning batch")
        wait_for_cloud(
            lambda: look_up_state(agent.folder / "state").watermarks.throttles == (), "nothing is limited"
        )


def test_a_guest_that_disturbs_another_one_is_limited(there: TwoHosts) -> None:
    servers = there.servers
    busy = _busy_image(servers)
    servers.flavor("victim", disk=0, specs={"compute_agent:qos_class": "LS"})
    servers.flavor("culprit", disk=0, specs={"compute_agent:qos_class": "BULK"})
    with ExitStack() as stack:
        root = stack.enter_context(folder_of(there.ground, "played"))
        stack.enter_context(PlayedUse(root, there.libvirtd[A]))
        lines = f"[host]\nroot = {root}\n{_INTERFERENCE}"
        agent = stack.enter_context(host_agent(there.ground, there.hosts[A], lines, _FAST))
        for name in ("culprit", "victim"):
            servers.start_to_boot(name, name, A, image=busy)
        for name in ("culprit", "victim"):
            servers.wait(name, "ACTIVE")
        victim, culprit = servers.uuid("victim"), servers.uuid("culprit")
        servers.act("culprit", "pause", until="PAUSED")

        def samples() -> int:
            state = look_up_state(agent.folder / "state")
            tracks = state.interference.tracks
            return max(
                (track.baseline.count for key, track in tracks.items() if key.guest == victim), default=0
            )

        stack.enter_context(_guests_first())
        wait_for_cloud(lambda: samples() > _SAMPLES, "it is known what the victim usually waits")
        servers.act("culprit", "unpause", until="ACTIVE")
        wait_for_cloud(lambda: there.quota(A, culprit) is not None, "the culprit is limited")
        assert there.quota(A, victim) is None
        wait_for_cloud(lambda: bool(_events(agent, "verdict")), "the trial has a verdict")
        servers.act("culprit", "pause", until="PAUSED")
        wait_for_cloud(lambda: there.quota(A, culprit) is None, "the culprit gets everything back")


def test_a_guest_gets_a_reclaimed_cpu_and_is_limited_when_others_need_it(there: TwoHosts) -> None:
    servers, placement = there.servers, there.cloud.placement
    busy = _busy_image(servers)
    specs = {"resources:VCPU": "0", "resources:CUSTOM_RECLAIMED_VCPU": "1", "compute_agent:qos_class": "BE"}
    servers.flavor("spot", disk=0, specs=specs)
    with folder_of(there.ground, "played") as root, PlayedUse(root, there.libvirtd[A]) as use:
        lines = f"[host]\nroot = {root}\n{_RECLAIMED}"
        host = replace(there.hosts[A], shared="0-5", dedicated="7")
        with host_agent(there.ground, host, lines, _FAST) as agent:

            def zone() -> Any:
                found = [
                    each
                    for each in placement.get("/resource_providers")["resource_providers"]
                    if each["name"].startswith(A) and each["name"].endswith("RECLAIMED")
                ]
                return found[0]["uuid"] if found else None

            def free() -> int:
                path = f"/resource_providers/{zone()}/inventories"
                each = placement.get(path)["inventories"]["CUSTOM_RECLAIMED_VCPU"]
                return int(each["total"] - each["reserved"])

            wait_for_cloud(lambda: zone() is not None, "the zone has a provider")
            agent.program.stop()
            (agent.folder / "state" / FILE).write_bytes(
                ZONES_FORMAT.dump({zone(): day_of_use({SYSTEM: 0.5}, offered=3)})
            )
            agent.program.start()
            wait_for_cloud(lambda: free() == 3, "three CPUs are offered")
            servers.start_to_boot("spot", "spot", A, image=busy)
            servers.wait("spot", "ACTIVE")
            spot = servers.uuid("spot")
            held = placement.get(f"/allocations/{spot}")["allocations"]
            assert held[zone()]["resources"] == {"CUSTOM_RECLAIMED_VCPU": 1}
            wait_for_cloud(lambda: agent.guest(spot) is not None, "the agent knows the guest")
            assert agent.guest(spot)["setting_sources"]["qos_class"] == "flavor"  # type: ignore[index]
            use.cores = 6.75  # with any use of the guest this is above the line
            wait_for_cloud(lambda: there.quota(A, spot) is not None, "the watermark limits the guest")
            wait_for_cloud(lambda: free() < 0 or free() == 0, "nothing is offered")
            wait_for_cloud(lambda: bool(_events(agent, "break")), "the promise was broken")
            use.cores = 0.5
            wait_for_cloud(lambda: there.quota(A, spot) is None, "the guest gets everything back")


@pytest.mark.parametrize("strategy", ["cpu_state", "governor"])
def test_dedicated_cpus_that_nova_powers_down_stay_dedicated(there: TwoHosts, strategy: str) -> None:
    servers, cpus = there.servers, there.power / CPUS
    dedicated = there.hosts[A].dedicated

    def online() -> str:
        return (cpus / "online").read_text().strip()

    def governor() -> str:
        path = cpus / f"cpu{dedicated}/cpufreq/scaling_governor"
        return path.read_text().strip() if path.exists() else "hidden"

    idle = ("0", "hidden") if strategy == "cpu_state" else ("0-1", "powersave")
    used = ("0-1", "powersave") if strategy == "cpu_state" else ("0-1", "performance")

    def is_idle() -> bool:
        return (online(), governor()) == idle

    servers.flavor(f"gold {strategy}", disk=0, specs=GOLD)
    with host_agent(there.ground, there.hosts[A], f"[host]\nroot = {there.power}\n") as agent:

        def parked() -> str:
            status = agent.ask("status")
            assert (status["config_error"], status["refused"]) == ("", [])
            return str(status["parked_cpus"])

        there.configure_nova(A, _POWER.format(strategy=strategy))
        try:
            wait_for_cloud(is_idle, "Nova has powered the dedicated CPU down")
            wait_for_cloud(lambda: parked() == ("1" if strategy == "cpu_state" else ""), "the agent knows")
            agent.program.stop()
            agent.program.start()
            assert parked() == ("1" if strategy == "cpu_state" else "")
            ini = agent.folder / "compute-agent.conf"
            shown = json.loads(run_here(ini, "topology", "show", "-f", "json").stdout)
            assert shown["parked_cpus"] == parked()
            servers.boot("gold", f"gold {strategy}", A)
            assert (online(), governor()) == used
            uuid = servers.uuid("gold")

            def is_placed() -> bool:
                shown = agent.guest(uuid)
                return shown is not None and (
                    (shown["qos_class"], shown["dedicated_cpus"], shown["stray"]) == ("LSR", dedicated, "")
                )

            wait_for_cloud(is_placed, "the guest has its dedicated CPU")
            assert parked() == ""
            servers.act("gold", "os-stop", until="SHUTOFF")
            wait_for_cloud(is_idle, "Nova has powered the dedicated CPU down again")
            servers.act("gold", "os-start", until="ACTIVE")
            wait_for_cloud(is_placed, "the guest has its dedicated CPU again")
            servers.delete("gold")
            wait_for_cloud(is_idle, "Nova has powered the dedicated CPU down after the guest's end")
            wait_for_cloud(lambda: agent.ask("guest.list") == [], "the agent knows that it ended")
        finally:
            there.configure_nova(A, "")
            files, path = KernelFiles(there.power), f"{CPUS}/cpu{dedicated}/online"
            if files.read(path) != "1":
                files.write(path, "1")


def _busy_image(servers: Servers) -> str:
    """The id of an image that burns CPU."""
    sector = bytearray(ENDLESS_LOOP)
    # Glance refuses a boot sector without partitions: one of Linux, of all other sectors.
    sector[446:462] = struct.pack("<B3xB3xII", 0x80, 0x83, 1, _SECTORS - 1)
    return servers.upload(bytes(sector).ljust(512 * _SECTORS, b"\0"))


def _events(agent: HostAgent, kind: str) -> list[Any]:
    """The events of a kind that the agent has recorded."""
    return [each for each in read_events(agent.folder / "state" / EVENTS) if each.kind == kind]


@contextmanager
def _guests_first() -> Iterator[None]:
    """Give guests most of the machine, so that they use CPU whatever else runs."""
    shares = CGROUP_CONTROLLERS[0] / "machine/cpu.shares"
    before = shares.read_text()
    shares.write_text("102400")
    try:
        yield
    finally:
        shares.write_text(before)
