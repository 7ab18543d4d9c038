"""Tests of a whole agent in this process, through requests on its socket."""

import os
import signal
import socket
import subprocess
import threading
import time
import uuid

import pytest
import requests

from compute_agent import conf as agent_conf
from compute_agent.agent import assembly, host_access, reload
from compute_agent.agent.documents import health_document
from compute_agent.agent.protocol import RequestError
from compute_agent.agent.reload import host_signature
from compute_agent.agent.service import HostAgent
from compute_agent.events.store import read_events
from compute_agent.files import LockedError
from compute_agent.model.messages import ConfigError, DriverError
from compute_agent.pipeline.events import ReconcileGuests
from tests.compute_agent.agent import running
from tests.compute_agent.builders import load_options
from tests.doc.extensions import threads

pytestmark = pytest.mark.slow


def test_a_guest_from_start_to_stop(rig, uid):
    rig.claim(uid, PCPU=1)
    guest = rig.ask("guest.run", uuid=uid, name="web", command=["sleep", "60"])
    assert (guest["cpus"], guest["kind"], guest["vcpus"], guest["command"]) == (
        "0",
        "dedicated",
        1,
        "sleep 60",
    )
    assert guest["allocation"] == {rig.node(): {"PCPU": 1}}
    assert os.sched_getaffinity(guest["pid"]) == {0}
    assert rig.ask("guest.list") == [guest]
    assert rig.ask("guest.show", guest="web") == rig.ask("guest.show", guest=uid) == guest
    assert rig.ask("audit") == []
    assert rig.ask("status")["guests"] == 1
    rig.ask("guest.stop", guest="web")
    assert rig.ask("guest.list") == []
    (found,) = rig.ask("audit")
    assert (found["consumer"], found["finding"]) == (uid, "allocation without guest")
    assert found["resources"] == {"testhost_NUMA_0": {"PCPU": 1}}


def test_a_guest_is_evicted_by_hand_and_gives_back_what_it_held(rig, uid):
    rig.claim(uid, PCPU=1)
    rig.ask("guest.run", uuid=uid, command=["sleep", "60"])
    with pytest.raises(RequestError, match=r"cannot be limited to 0\.5 cores"):
        rig.ask("guest.limit", guest=uid, cpus=0.5)  # without a cgroup
    rig.ask("guest.set", guest=uid, preserve=True)
    with pytest.raises(RequestError, match="is preserved"):
        rig.ask("guest.evict", guest=uid)
    rig.ask("guest.set", guest=uid, unset=["preserve"])
    rig.ask("guest.evict", guest=uid)
    rig.wait_for(lambda: rig.client.get_allocations(uid).resources == {})
    assert rig.ask("guest.list") == []


def test_status_shows_why_process_guests_have_no_limits(rig):
    assert rig.ask("status")["process_limits"] == "off: [cgroup] root is not set"


def test_a_mixed_guest_has_its_own_and_the_shared_cpus(rig, uid):
    rig.claim(uid, PCPU=1, VCPU=1)
    guest = rig.ask("guest.run", uuid=uid, command=["sleep", "60"])
    assert (guest["kind"], guest["vcpu_cpus"], guest["cpus"]) == ("mixed", ["0", "1"], "0-1")


def test_a_guest_without_allocation_is_shared_and_reported(rig):
    guest = rig.ask("guest.run", command=["sleep", "60"])
    assert (guest["kind"], guest["cpus"]) == ("unallocated", "1")
    assert guest["reason"] == "it has no allocation on this host: see compute-agent audit"
    assert rig.ask("status")["unallocated_guests"] == [guest["uuid"]]
    assert rig.ask("audit")[0]["finding"] == "guest without allocation"


def test_a_guest_that_the_policy_does_not_place_has_the_policy_as_reason(rig, uid):
    rig.claim(uid, PCPU=1)
    rig.ask("guest.run", uuid=uid, command=["sleep", "60"])
    rig.write_ini(policy="name = none")
    rig.agent.reload()
    guest = rig.ask("guest.show", guest=uid)
    assert (guest["kind"], guest["cpus"]) == ("unplaced", "")
    assert guest["reason"] == "[policy] name = none places no guests"
    assert rig.ask("status")["reasons"] == {uid: guest["reason"]}


def test_an_adopted_process_is_pinned_and_released(rig, uid):
    process = subprocess.Popen(["sleep", "60"])
    try:
        guest = rig.ask("guest.adopt", uuid=uid, pid=process.pid, vcpus=2)
        assert (guest["origin"], guest["vcpus"]) == ("adopted", 2)
        assert os.sched_getaffinity(process.pid) == {1}
        with pytest.raises(RequestError, match=f"pid {process.pid} is guest {uid} already"):
            rig.ask("guest.adopt", pid=process.pid)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("method", "params", "words"),
    [
        ("guest.run", {}, "command"),
        ("guest.run", {"command": []}, "command"),
        ("guest.run", {"command": ["no-such-program"]}, "no-such-program"),
        ("guest.run", {"command": ["true"], "vcpus": 0}, "vcpus"),
        ("guest.run", {"command": ["true"], "vcpus": "2"}, "vcpus"),
        ("guest.run", {"command": ["true"], "uuid": "x"}, "uuid"),
        ("guest.run", {"command": ["true"], "thread_policy": "x"}, "thread_policy"),
        ("guest.run", {"command": ["true"], "qos_class": "a b"}, "qos_class"),
        ("guest.run", {"command": ["true"], "thread_policy": "require"}, None),
        ("guest.run", {"command": ["true"], "nonsense": 1}, "nonsense"),
        ("guest.adopt", {"pid": 1}, "pid"),
        ("guest.adopt", {}, "pid: .*either this parameter or cgroup is needed"),
        (
            "guest.adopt",
            {"pid": 2, "cgroup": "/sys/fs/cgroup/work"},
            "pid: .*either this parameter or cgroup",
        ),
        ("guest.adopt", {"cgroup": ""}, "cgroup"),
        ("guest.adopt", {"cgroup": "/work"}, r"group /work cannot be a guest: .*\[cgroup\] root"),
        ("guest.show", {"guest": "nobody"}, "there is no guest nobody"),
        ("guest.list", {"extra": 1}, "extra"),
    ],
)
def test_bad_parameters_are_named(rig, method, params, words):
    if words is None:
        assert rig.ask(method, **params)["kind"] == "unallocated"  # without PCPU there is nothing to require
        return
    with pytest.raises(RequestError, match=words):
        rig.ask(method, **params)
    assert rig.ask("guest.list") == []


def test_a_name_that_two_guests_have_is_ambiguous(rig):
    first, second = sorted(
        rig.ask("guest.run", name="twin", command=["sleep", "60"])["uuid"] for _ in range(2)
    )
    with pytest.raises(RequestError, match=f"2 guests are named twin: give the uuid: {first}, {second}$"):
        rig.ask("guest.stop", guest="twin")


def test_inventory_shows_both_sides(rig):
    answer = rig.ask("inventory")
    assert answer["derived"] == answer["reported"]
    assert answer["derived"][rig.node()]["inventories"]["PCPU"]["total"] == 1


def test_requests_that_need_placement_say_that_it_is_away(rig, live_placement, uid):
    live_placement.stop()
    for method, params in (("audit", {}), ("inventory", {}), ("guest.run", {"command": ["true"]})):
        with pytest.raises(RequestError, match="no answer"):
            rig.ask(method, **params)
    live_placement.start()


def test_unfinished_writes_of_a_killed_agent_are_removed_at_the_next_start(rig):
    folder = rig.ini.parent / "state"
    left = [folder / ".state.json.abcdefgh", folder / "guests" / f".{uuid.uuid4()}.json.abcdefgh"]
    rig.agent.stop()
    for path in left:
        path.write_text("{")
    rig.start_again()
    assert [path for path in left if path.exists()] == []


def test_no_second_agent_on_the_same_state(rig):
    with pytest.raises(LockedError, match=f"pid {os.getpid()}"):
        HostAgent(rig.load_conf)


def settled(path):
    """Make a file that was just written look as if it was written ten seconds ago."""
    os.utime(path, (time.time() - 10, time.time() - 10))


def test_an_emptied_file_changes_nothing_until_it_has_text_that_is_settled(rig):
    guest = rig.ask("guest.run", command=["sleep", "60"])
    before, cpus = rig.ini.read_text(), os.sched_getaffinity(guest["pid"])
    rig.ini.write_text("")
    rig.agent.reload_changes()
    assert rig.ask("status")["config_error"] == ""  # the file may still be written
    settled(rig.ini)
    rig.agent.reload_changes()
    error = rig.ask("status")["config_error"]
    assert f"empty, but had options before: {rig.ini};" in error
    assert "write a comment into it if it is to have no options" in error
    rig.agent.reload()
    assert "empty" in rig.ask("status")["config_error"]
    assert os.sched_getaffinity(guest["pid"]) == cpus
    rig.ini.write_text(before)
    settled(rig.ini)
    rig.agent.reload_changes()
    assert rig.ask("status")["config_error"] == ""


def test_a_file_that_is_written_during_a_reload_is_read_again(rig, monkeypatch):
    def read_during_a_write(path):
        options = load_options(path)
        path.write_text(f"{path.read_text()}# more to come\n")
        return options

    with monkeypatch.context() as patch:
        patch.setattr(running, "load_options", read_during_a_write)
        rig.agent.reload()
    assert "written while the agent read it" in rig.ask("status")["config_error"]
    settled(rig.ini)
    rig.agent.reload_changes()
    assert rig.ask("status")["config_error"] == ""


def test_a_timer_repairs_and_sees_a_changed_file(rig):
    guest = rig.ask("guest.run", command=["sleep", "60"])
    os.sched_setaffinity(guest["pid"], {0, 1})
    rig.write_ini(compute="cpu_shared_set = 0-1\nresource_provider_name = testhost")
    rig.reload_changes()
    rig.wait_for(lambda: "PCPU" not in rig.client.get_inventories(rig.node())[0])
    assert rig.ask("guest.show", guest=guest["uuid"])["cpus"] == "0-1"
    os.sched_setaffinity(guest["pid"], {0})
    rig.agent.pipeline.submit(ReconcileGuests())
    rig.wait_for(lambda: os.sched_getaffinity(guest["pid"]) == {0, 1})


def wait_for_reload(rig, outcome, reason):
    """Wait until the last event of a reload has this outcome, and these words in its reason."""

    def last_reload():
        found = [one for one in read_events(rig.ini.parent / "state/events.jsonl") if one.kind == "reload"]
        return found and found[-1].outcome == outcome and reason in found[-1].reason

    rig.wait_for(last_reload)


@pytest.mark.parametrize(
    ("section", "lines", "words"),
    [
        ("compute", "cpu_shared_set = 0-1\ncpu_dedicated_set = 1", "CPU 1"),
        ("policy", "name = nonsense", "nonsense"),
        ("placement", "auth_type = nonsense", "nonsense"),
        ("guests", "reconcile_interval = often", "often"),
    ],
)
def test_a_refused_configuration_changes_nothing_and_is_shown(rig, section, lines, words):
    before = rig.agent.pipeline.host_state.cpu_sets
    rig.write_ini(**{section: lines})
    rig.agent.reload()
    assert words in rig.ask("status")["config_error"]
    assert words in health_document(rig.agent.parts)[1]["config_error"]
    wait_for_reload(rig, "failed", words)
    assert rig.agent.pipeline.host_state.cpu_sets == before
    rig.write_ini()
    rig.agent.reload()
    assert rig.ask("status")["config_error"] == ""
    wait_for_reload(rig, "done", "no option has changed")
    rig.write_ini(compute="cpu_shared_set = 0-1\nupdate_resources_interval = 7")
    rig.agent.reload()
    wait_for_reload(rig, "done", "[compute] update_resources_interval = 7")


def test_a_reload_does_not_wait_long_for_a_worker_in_a_long_call(rig, monkeypatch, caplog):
    monkeypatch.setattr(reload, "WORKER_SECONDS", 0.05)
    entered, leave = threading.Event(), threading.Event()
    guests = rig.agent.driver.guests

    def hang():
        entered.set()
        leave.wait(20)
        return guests()

    monkeypatch.setattr(rig.agent.driver, "guests", hang)
    rig.agent.pipeline.submit(ReconcileGuests())
    assert entered.wait(10)
    rig.write_ini(compute="cpu_shared_set = 0\ncpu_dedicated_set = 1")
    rig.agent.reload()
    assert "applies the new configuration to guests after its current work" in caplog.text
    leave.set()
    rig.wait_for(lambda: rig.agent.pipeline.host_state.cpu_sets.dedicated == {1})


def test_options_that_need_a_restart_keep_their_values_and_are_named(rig, tmp_path):
    providers = {
        one.uuid for one in rig.client.providers_in_tree(rig.agent.pipeline.host_state.tree.root.uuid)
    }
    assert providers
    rig.ini = rig.write_ini(
        DEFAULT=f"state_path = {tmp_path / 'elsewhere'}\nlock_path = {tmp_path / 'locks'}\n"
        f"log_file = {tmp_path / 'log'}",
        daemon="http_port = 1\nhttp_address = 127.0.0.2",
    )
    reports = rig.reports()
    rig.agent.reload()
    rig.wait_for(lambda: rig.reports() > reports)
    status = rig.ask("status")
    assert status["config_error"] == ""
    assert [line.partition(" was changed, and takes effect when")[0] for line in status["warnings"]] == [
        "[DEFAULT] state_path",
        "[daemon] http_address",
        "[daemon] http_port",
        "[DEFAULT] log_file",
    ]
    assert not (tmp_path / "elsewhere").exists()
    root = rig.agent.pipeline.host_state.tree.root.uuid
    assert {one.uuid for one in rig.client.providers_in_tree(root)} == providers
    rig.agent.reload()  # compared with what is in force, not with what the file had last
    assert len(rig.ask("status")["warnings"]) == 4


def test_signals_end_and_reload_the_agent(rig, monkeypatch):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    calls = []
    monkeypatch.setattr(rig.agent, "reload", lambda: calls.append("reload"))
    monkeypatch.setattr(rig.agent, "stop", lambda: calls.append("stop"))
    try:
        rig.agent.catch_signals()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        rig.agent.serve_signals()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        monkeypatch.undo()
    assert calls == ["reload", "stop"]


def test_health_and_metrics_over_http(write_ini, live_placement, tmp_path):

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ini = write_ini(daemon=f"http_port = {port}")
    agent = HostAgent(lambda: load_options(ini))
    agent.start()
    try:
        answer = requests.get(f"http://127.0.0.1:{port}/healthz", timeout=10)
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        assert "compute_agent_guests 0.0" in requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
    finally:
        agent.stop()
    assert health_document(agent.parts)[0] is False


def test_a_refused_configuration_leaves_no_lock(write_ini):
    bad = write_ini(compute="cpu_dedicated_set = 0-1\ncpu_shared_set = 1")
    with pytest.raises(ConfigError, match="CPU 1"):
        HostAgent(lambda: load_options(bad))
    good = write_ini()
    agent = HostAgent(lambda: load_options(good))
    agent.start()
    agent.stop()


def test_an_agent_that_is_refused_does_not_rename_the_provider_of_the_first(rig, tmp_path):
    kept = tmp_path / "state" / "provider_name"
    before = kept.read_text()
    other = rig.write_ini("other.ini", compute="cpu_shared_set = 1\nresource_provider_name = someone-else")
    with pytest.raises(LockedError):
        HostAgent(lambda: load_options(other))
    assert kept.read_text() == before


def test_files_of_a_configuration_folder_are_looked_at_for_changes(tmp_path):
    (tmp_path / "a.conf").write_text("[DEFAULT]\n")
    conf = agent_conf.load(["--config-dir", str(tmp_path)], [])
    before = host_signature(conf)
    (tmp_path / "b.conf").write_text("[compute]\ncpu_shared_set = 1\n")
    added = host_signature(conf)
    assert added != before
    (tmp_path / "b.conf").write_text("[compute]\ncpu_shared_set = 0-1\n")
    assert host_signature(conf) != added


def test_a_guest_that_cannot_be_stopped_is_an_error_of_the_request(rig, monkeypatch):
    guest = rig.ask("guest.run", command=["sleep", "60"])

    def fail(*_):
        raise DriverError("it does not want to")

    with monkeypatch.context() as patched:
        patched.setattr(rig.agent.driver, "stop", fail)
        with pytest.raises(RequestError, match="it does not want to"):
            rig.ask("guest.stop", guest=guest["uuid"])


def test_every_thread_of_a_running_agent_has_a_role(rig):
    roles = tuple(role.name for _, role in threads.roles())
    # The service of the test is in this process, too: its server's threads have names that Python makes up.
    agents = [one.name for one in threading.enumerate() if not one.name.startswith(("MainThread", "Thread-"))]
    assert {"worker", "report", "socket", "events"} <= set(agents)
    assert [name for name in agents if not name.startswith(roles)] == []


def test_an_assembly_that_fails_closes_the_driver(tmp_path, write_ini, monkeypatch):
    closed = []
    monkeypatch.setattr(assembly, "FleetLoop", lambda *arguments: 1 / 0)
    monkeypatch.setattr(host_access.HostDriver, "close", lambda driver: closed.append(driver.driver.name))
    ini = write_ini()
    with pytest.raises(ZeroDivisionError):
        HostAgent(lambda: load_options(ini))
    assert closed == ["process"]
