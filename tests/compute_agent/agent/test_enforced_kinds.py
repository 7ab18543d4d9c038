"""The rows of the table of enforcement that hold as for all guests: units, containers and pods."""

import os

import pytest

from compute_agent.agent import configured_controllers
from compute_agent.drivers import factory
from compute_agent.model.resource import RECLAIMED_VCPU
from compute_agent.report.answers import ConflictError
from compute_agent.resctrl.groups import read_tasks
from tests.compute_agent.agent.cache_agent import CacheAgent
from tests.compute_agent.power_trees import KernelFiles, xeon

pytest.importorskip("jeepney", reason="needs jeepney, of the extra systemd")

from tests.compute_agent.agent.peer_kinds import Containers, DockerContainers, Pods, Scopes, Services, Slices

pytestmark = pytest.mark.slow

MIB = 1 << 20
GOVERNOR = "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
SECTIONS = {
    "qos_class:gold": "rank = 30\ncpu_weight = 300\nmemory_low = 50\nmemory_high = 90\ncpu_class = slow",
    "cpu_class:fast": "governor = performance",
    "cpu_class:slow": "governor = powersave",
    "blockio_class:bulk": "weight = 50",
}


@pytest.fixture(params=[Services, Scopes, Slices, Containers, DockerContainers, Pods])
def kind(request, tmp_path, monkeypatch):
    folder = tmp_path / "peer"
    folder.mkdir()
    kind = request.param(folder, monkeypatch)
    monkeypatch.setattr(factory, "HostFolders", lambda *folders: kind.peer.folders)
    yield kind
    kind.peer.close()


@pytest.fixture
def options():
    """Lines of ``[guests]``."""
    return ""


@pytest.fixture
def sections():
    """Further sections of the configuration."""
    return {}


@pytest.fixture
def rig(write_host, client, files, kind, options, sections, tmp_path, monkeypatch):
    """An agent on a host with frequencies and a fake resctrl, with CPU 0 dedicated and CPU 1 shared."""
    xeon(tmp_path / "host", cpus=2)
    monkeypatch.setattr(configured_controllers, "KernelFiles", KernelFiles)

    def write():
        guests = f"drivers = {kind.option}, process\nreconcile_interval = 0.3\nstop_timeout = 1\n{options}"
        return write_host(guests=guests, **kind.section, **SECTIONS, **sections)

    rig = CacheAgent(write, client, files)
    yield rig
    rig.close()


def test_an_allocation_and_settings_are_enforced(rig, kind, tmp_path):
    cache = rig.l3(0)
    rig.claim_on(
        kind.uuid,
        {
            rig.node(): {"PCPU": 1, "MEMORY_MB": 64},
            cache: {"LLC": 4, "MBA": 30},
            rig.provider("testhost"): {"CUSTOM_RESCTRL_GROUP": 1},
        },
    )
    kind.start(**{"class": "gold", "cpu-class": "fast", "blockio-class": "bulk", "priority": "7"})
    rig.wait_for(lambda: {frozenset(os.sched_getaffinity(pid)) for pid in kind.pids()} == {frozenset({0})})
    # PCPU, MEMORY_MB, qos_class, blockio_class
    # A plain file is empty for an instant while the agent writes it.
    rig.wait_for(lambda: kind.group_file("memory.max").isdecimal())
    # Memory that Placement does not count is on top of the allocation.
    assert 64 * MIB <= int(kind.group_file("memory.max")) < 1 << 31
    rig.wait_for(lambda: kind.group_file("cpuset.cpus") == "0")
    rig.wait_for(lambda: kind.group_file("cpu.weight") == "300")
    rig.wait_for(lambda: kind.group_file("memory.low") == str(32 * MIB))
    rig.wait_for(lambda: kind.group_file("io.weight") == "default 50")
    # LLC, MBA, CUSTOM_RESCTRL_GROUP
    group = f"compute-agent.guest.{kind.uuid}"
    rig.wait_for(lambda: group in rig.groups())
    assert rig.groups()[group]["ways"]["0"] == 4
    assert rig.groups()[group]["bandwidth_percent"]["0"] == 30
    rig.wait_for(lambda: set(kind.pids()) <= set(read_tasks(rig.files, group)))
    # cpu_class
    rig.wait_for(lambda: (tmp_path / "host" / GOVERNOR).read_text().strip() == "performance")
    shown = rig.ask("guest.show", guest=kind.uuid)
    assert (shown["priority"], shown["qos_class"]) == (7, "gold")


@pytest.mark.parametrize("settings", [{"thread-policy": "require"}, {"isolation": "quiet"}])
def test_settings_of_the_place_are_those_of_the_guest(rig, kind, settings):
    rig.claim(kind.uuid, PCPU=1)
    kind.start(**settings)
    if "isolation" in settings:
        rig.wait_for(lambda: rig.ask("status")["quiet_cpus"] == "0")
    else:
        # The host has no hardware threads, so no CPU fits this policy.
        rig.wait_for(lambda: [one for one in rig.ask("guest.list") if "require" in str(one)])


def test_an_annotation_of_cache_is_enforced(rig, kind):
    kind.start(resctrl='{"LLC": {"schemata": {"range": [0, 25]}}}')

    def is_limited():
        groups = {row["group"]: row for row in rig.ask("resctrl.groups") if row["ways"].get("0") == 4}
        return any(set(kind.pids()) <= set(read_tasks(rig.files, group)) for group in groups)

    rig.wait_for(is_limited)


def test_a_preserved_guest_is_left_alone(rig, kind):
    rig.claim(kind.uuid, PCPU=1)
    kind.start(preserve="yes")
    before = [os.sched_getaffinity(pid) for pid in kind.pids()]
    rig.wait_for(lambda: [row for row in rig.ask("guest.list") if row["uuid"] == kind.uuid])
    rig.agent.reconcile()
    assert kind.group_file("cpuset.cpus") == ""
    assert [os.sched_getaffinity(pid) for pid in kind.pids()] == before


LISTED = "qos_class=BE, priority"


@pytest.mark.parametrize("options", [f"label_settings = {LISTED}\nunit_settings = {LISTED}"])
def test_settings_that_the_operator_does_not_list_have_no_effect(rig, kind):
    rig.claim(kind.uuid, PCPU=1)
    kind.start(**{"class": "gold", "priority": "7", "isolation": "quiet"})
    rig.wait_for(lambda: [row for row in rig.ask("guest.list") if row["kind"] == "dedicated"])
    shown = rig.ask("guest.show", guest=kind.uuid)
    assert (shown["qos_class"], shown["priority"], shown["isolation"]) == ("LS", 7, "")
    problems = " ".join(shown["setting_problems"])
    source = "unit" if kind.option == "systemd" else "label"
    assert f"{source}: qos_class = gold has no effect, because [guests] {source}_settings lists" in problems
    assert f"{source}: isolation = quiet has no effect" in problems
    assert rig.ask("status")["quiet_cpus"] == ""


def affinities(kind, *name):
    return {frozenset(os.sched_getaffinity(pid)) for pid in kind.pids(*name)}


@pytest.mark.parametrize("level", ["quiet", "alone"])
def test_a_guest_that_starts_beside_quiet_cpus_stays_off_them(rig, kind, level):
    rig.claim(kind.uuid, PCPU=1)
    kind.start(isolation=level)
    rig.wait_for(lambda: rig.ask("status")["quiet_cpus"] == "0")
    other = "web" + "".join(kind.name.partition(".")[1:])
    kind.start(other)
    rig.wait_for(lambda: affinities(kind, other) == {frozenset({1})})
    rig.agent.reconcile()
    assert (affinities(kind), affinities(kind, other)) == ({frozenset({0})}, {frozenset({1})})
    assert rig.ask("status")["quiet_cpus"] == "0"
    kind.end(other)
    rig.wait_for(lambda: [row["name"] for row in rig.ask("guest.list")] == [kind.name])
    assert affinities(kind) == {frozenset({0})}


def test_an_audit_finds_a_guest_without_allocation_and_an_allocation_without_guest(rig, kind):
    kind.start()
    rig.wait_for(lambda: rig.ask("guest.list"))
    ((finding, consumer),) = [(row["finding"], row["consumer"]) for row in rig.ask("audit")]
    assert (finding, consumer) == ("guest without allocation", kind.uuid)
    rig.claim(kind.uuid, VCPU=1)
    rig.wait_for(lambda: rig.agent.reports.report_now() and rig.ask("audit") == [])
    kind.end()
    rig.wait_for(lambda: rig.ask("guest.list") == [])
    (row,) = rig.ask("audit")
    assert (row["finding"], row["consumer"]) == ("allocation without guest", kind.uuid)


@pytest.mark.parametrize(
    "sections",
    [
        {
            "qos": "interval = 1\nmargin = 0\nevict_grace = 1",
            "metric:load": "command = echo 9\ninterval = 1",
            "watermark:load": "metric = load\nevict = 5\nfor_samples = 1",
        }
    ],
)
def test_a_watermark_evicts_only_guests_of_the_lowest_class(rig, kind):
    other = "web" + "".join(kind.name.partition(".")[1:])
    kind.start(other, **{"class": "gold"})
    kind.start(**{"class": "BE"})
    rig.claim(kind.uuid, VCPU=1)
    rig.wait_for(lambda: not kind.is_running())
    rig.wait_for(lambda: [row["name"] for row in rig.ask("guest.list")] == [other])
    assert kind.is_running(other)


def hold_reclaimed(rig, consumer):
    """Let a consumer hold one reclaimed CPU, which the agent itself reserves; return whether it holds it."""
    (zone,) = rig.agent.pipeline.host_state.tree.providers_of(RECLAIMED_VCPU)
    inventories, generation = rig.client.get_inventories(zone.uuid)
    try:
        rig.client.set_inventories(
            zone.uuid, {RECLAIMED_VCPU: {**inventories[RECLAIMED_VCPU], "reserved": 0}}, generation
        )
        rig.claim_on(consumer, {zone.uuid: {RECLAIMED_VCPU: 1}})
    except ConflictError:
        # A report of the agent has reserved the CPU again meanwhile.
        return False
    return True


@pytest.mark.parametrize("sections", [{"capacity": "mode = preview", "qos_class:BE": "reclaimed_cap = 50"}])
def test_a_guest_with_reclaimed_cpus_runs_on_shared_cpus_with_a_limit(rig, kind):
    rig.wait_for(lambda: hold_reclaimed(rig, kind.uuid))
    kind.start(**{"class": "BE"})
    rig.wait_for(lambda: affinities(kind) == {frozenset({1})})
    rig.wait_for(lambda: kind.group_file("cpu.max") == "50000 100000")
    (row,) = rig.ask("guest.list")
    assert (row["kind"], row["cpus"]) == ("shared", "1")
    assert rig.ask("audit") == []
