"""Tests of guests that are plain processes."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import asdict, replace

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import ChangeKind, CpuSettings, GuestChange
from compute_agent.drivers.processes import driver as module
from compute_agent.drivers.processes.driver import ProcessDriver
from compute_agent.drivers.processes.process_table import PidWatch, ProcessTable
from compute_agent.drivers.processes.records import ProcessRecord, RecordStore
from compute_agent.model.guest_settings import (
    SETTING_NAMES,
    EmulatorPolicy,
    GuestSettings,
    IsolationLevel,
    MemoryType,
    ThreadPolicy,
)
from compute_agent.model.messages import DriverError, GuestGoneError
from tests.waits import wait_for

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})
pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs to tell apart")

PINNED = CpuSettings((ONE,), ONE)


OTHER = str(uuid.UUID(int=7))

CHOSEN = GuestSettings(
    3,
    ThreadPolicy.ISOLATE,
    EmulatorPolicy.ISOLATE,
    "BE",
    7,
    "{}",
    "bulk",
    MemoryType.DRAM,
    "fast",
    True,
    True,
    IsolationLevel.ALONE,
)


def _changed(**fields):
    return lambda record, process: json.dumps(record | fields).encode()


def _settings(**settings):
    return lambda record, process: json.dumps(record | {"settings": record["settings"] | settings}).encode()


def _identity(**fields):
    return lambda record, process: json.dumps(record | {"identity": record["identity"] | fields}).encode()


def _of_another(record, process):
    """Damage a record so that it names a process that is no guest."""
    identity = procfs.identify_process(process.pid)
    return json.dumps(record | {"uuid": OTHER, "identity": asdict(identity)}).encode()


DAMAGES = [
    *(
        pytest.param(lambda record, process, content=content: content, id=repr(content[:20]))
        for content in (b"", b"{", b"[]", b'{"format": "9"}', b"\xff\x00", b"[" * 100_000, b'{"format": 9}')
    ),
    pytest.param(_changed(uuid="x"), id="no uuid"),
    pytest.param(_changed(uuid="../../etc/passwd"), id="a path for a uuid"),
    pytest.param(_of_another, id="the uuid of another guest"),
    pytest.param(_changed(format=0), id="format 0"),
    pytest.param(_changed(command="sleep"), id="command"),
    pytest.param(_changed(cgroup="/sys/fs/cgroup/system.slice"), id="the group of the system"),
    pytest.param(_changed(whole_group=1), id="whole_group"),
    pytest.param(_settings(vcpus=0), id="vcpus 0"),
    pytest.param(_settings(vcpus=True), id="vcpus true"),
    pytest.param(_settings(priority="high"), id="priority"),
    pytest.param(_settings(qos_class=None), id="qos_class"),
    pytest.param(_identity(pid=-1), id="all processes"),
    pytest.param(_identity(pid=0), id="the own process group"),
    pytest.param(_identity(start_time=None), id="start_time"),
]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "guests"


@pytest.fixture
def make_driver(folder):
    """A function that makes drivers on one folder, as agents do that start one after the other. All guests
    end with the test.
    """
    made = []

    def make():
        driver = ProcessDriver(folder)
        made.append(driver)
        return driver

    yield make
    for driver in made:
        driver.close()
    for guest in ProcessDriver(folder).guests():
        with contextlib.suppress(ProcessLookupError):
            os.kill(guest.pid, signal.SIGKILL)


@pytest.fixture
def driver(make_driver):
    return make_driver()


def run(driver, uid, *command, settings=PINNED):
    guest = driver.create_guest(uid, uid, GuestSettings(), command)
    if settings is not None:
        driver.apply_cpu_settings(guest, settings)
    driver.release(guest)
    return guest


def test_a_guest_runs_where_it_was_pinned_from_its_first_instruction(driver, uid, tmp_path):
    seen = tmp_path / "seen"
    guest = run(driver, uid, "sh", "-c", f"grep Cpus_allowed_list /proc/self/status > {seen}; exec sleep 60")
    wait_for(lambda: procfs.command_line(guest.pid) == ("sleep", "60"))
    assert seen.read_text().split() == ["Cpus_allowed_list:", str(min(ONE))]
    assert driver.observed_cpus(guest) == ONE
    assert os.getsid(guest.pid) == guest.pid, "a session of its own"


def test_a_held_guest_has_not_run_and_can_be_discarded(driver, uid, tmp_path, folder):
    mark = tmp_path / "mark"
    guest = driver.create_guest(uid, uid, GuestSettings(), ("touch", str(mark)))
    assert [known.uuid for known in driver.guests()] == [uid]
    driver.discard(guest)
    assert not mark.exists()
    assert driver.guests() == []
    assert not (folder / f"{uid}.json").exists()


def test_a_guest_that_is_killed_before_it_is_known_leaves_no_zombie(driver, uid, folder, monkeypatch):
    start_held, children = module.launch.start_held, []

    def start_and_kill(*arguments):
        children.append(start_held(*arguments))
        children[0].kill()
        wait_for(lambda: procfs.identify_process(children[0].pid) is None)
        return children[0]

    monkeypatch.setattr(module.launch, "start_held", start_and_kill)
    with pytest.raises(DriverError, match="ended before it began"):
        driver.create_guest(uid, uid, GuestSettings(), ("true",))
    assert children[0].returncode == -signal.SIGKILL
    assert children[0].stdin.closed
    assert driver.guests() == []


def test_a_watch_does_not_take_another_process_with_the_same_pid_for_its_own(sleeper):
    ended = queue.SimpleQueue()
    watch = PidWatch(ended.put)
    try:
        identity = procfs.identify_process(sleeper.pid)
        now = ProcessRecord(OTHER, "now", identity, GuestSettings(), ("sleep",))
        assert not watch.add(replace(now, identity=replace(identity, start_time=identity.start_time - 1)))
        assert not watch.is_running(sleeper.pid)
        assert watch.add(now)
        sleeper.kill()
        assert ended.get(timeout=60) == now
        assert ended.empty()
    finally:
        watch.close()


def test_the_next_agent_knows_all_settings_of_a_guest(driver, uid, folder):
    assert CHOSEN.chosen_values.keys() == set(SETTING_NAMES)
    driver.create_guest(uid, uid, CHOSEN, ("sleep", "60"))
    assert [guest.settings for guest in ProcessDriver(folder, look_only=True).guests()] == [CHOSEN]


def test_output_goes_to_a_file(driver, uid):
    guest = run(driver, uid, "sh", "-c", "echo out; echo err >&2; read line || echo no input")
    wait_for(lambda: not procfs.identify_process(guest.pid))
    with open(guest.details["log"]) as log:
        assert log.read() == "out\nerr\nno input\n"


def test_the_end_of_a_guest_is_reported(driver, uid, folder):
    changes = queue.SimpleQueue()
    driver.watch_guests(changes.put)
    guest = run(driver, uid, "sleep", "60")
    os.kill(guest.pid, signal.SIGKILL)
    assert changes.get(timeout=10) == GuestChange(ChangeKind.STOPPED, guest, "signal 9 (SIGKILL)")
    assert driver.guests() == []
    assert not (folder / f"{uid}.json").exists()
    with pytest.raises(GuestGoneError):
        driver.observed_cpus(guest)


def test_the_end_of_a_guest_of_an_earlier_agent_is_reported(make_driver, uid):
    guest = run(make_driver(), uid, "sleep", "60")
    again, changes = make_driver(), queue.SimpleQueue()
    again.watch_guests(changes.put)
    assert again.guests() == [guest]
    os.kill(guest.pid, signal.SIGKILL)
    assert changes.get(timeout=10).guest.uuid == uid


def test_a_guest_with_many_threads_is_pinned_as_a_whole(driver, uid):
    script = (
        "import threading, time\n"
        "for _ in range(50): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "time.sleep(60)"
    )
    guest = run(driver, uid, sys.executable, "-c", script, settings=None)
    wait_for(lambda: len(driver.thread_ids(guest)) == 51)
    assert len(driver.misplaced_threads(guest, PINNED)) == 51
    assert driver.apply_cpu_settings(guest, PINNED) == 51
    assert driver.misplaced_threads(guest, PINNED) == {}


def test_children_of_a_guest_are_pinned_too(driver, uid):
    guest = run(driver, uid, "sh", "-c", "sleep 60 & sleep 60 & wait", settings=None)
    wait_for(lambda: len(driver.thread_ids(guest)) == 3)
    assert driver.apply_cpu_settings(guest, PINNED) == 3


def test_drift_is_seen(driver, uid):
    guest = run(driver, uid, "sleep", "60")
    assert driver.misplaced_threads(guest, PINNED) == {}
    os.sched_setaffinity(guest.pid, ALL)
    assert driver.misplaced_threads(guest, PINNED) == {guest.pid: ALL}


def test_cpus_that_do_not_exist_are_an_error_that_names_them(driver, uid):
    guest = run(driver, uid, "sleep", "60")
    nowhere = frozenset({1023})
    with pytest.raises(DriverError, match="1023"):
        driver.apply_cpu_settings(guest, CpuSettings((nowhere,), nowhere))


def test_stop_sends_sigterm_first(driver, uid):
    guest = run(driver, uid, "sleep", "60")
    driver.stop(guest, timeout=10)
    assert not procfs.identify_process(guest.pid)


def test_stop_kills_a_guest_that_does_not_listen(driver, uid):
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on'); time.sleep(60)"
    guest = run(driver, uid, sys.executable, "-u", "-c", script)
    wait_for(lambda: os.path.getsize(guest.details["log"]))
    driver.stop(guest, timeout=0.1)
    assert not procfs.identify_process(guest.pid)


def test_a_uuid_is_free_again_as_soon_as_its_guest_is_stopped(driver, uid):
    changes = queue.SimpleQueue()
    driver.watch_guests(changes.put)
    for _ in range(5):
        guest = run(driver, uid, "sleep", "60")
        driver.stop(guest, 10)
        assert changes.get(timeout=10).guest == guest
    last = run(driver, uid, "sleep", "60")
    time.sleep(0.1)
    assert driver.guests() == [last]
    assert changes.empty()


# In a session of its own, by a parent that is gone.
DAEMON = "(setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600' &) ; while :; do sleep 0.05; done"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_daemon_that_a_guest_leaves_behind_does_not_keep_its_cpus(
    make_driver, uid, tmp_path, caplog, restarted
):
    driver, note = make_driver(), tmp_path / "pid"
    guest = run(driver, uid, "sh", "-c", DAEMON.format(note))
    stranger = subprocess.Popen(["sleep", "600"], env={**os.environ, "COMPUTE_AGENT_GUEST": OTHER})
    try:
        wait_for(note.exists)
        left = procfs.identify_process(int(note.read_text()))
        assert left.pid not in procfs.descendants_of(guest.pid)
        if restarted:
            driver.close()
            os.kill(guest.pid, signal.SIGKILL)
            os.waitpid(guest.pid, 0)
            make_driver()
        else:
            driver.stop(guest, 5)
        wait_for(lambda: not procfs.is_alive(left))
        assert procfs.identify_process(stranger.pid) is not None
    finally:
        stranger.kill()
        stranger.wait()
    assert f"left process {left.pid} behind, which was killed" in caplog.text


def test_processes_that_a_guest_leaves_behind_do_not_keep_its_cpus(driver, uid):
    changes = queue.SimpleQueue()
    driver.watch_guests(changes.put)
    guest = run(driver, uid, "sh", "-c", "trap '' TERM; sleep 60 & wait; kill -9 $$")
    child = wait_for(lambda: procfs.descendants_of(guest.pid)[1:])[0]
    os.kill(guest.pid, signal.SIGKILL)
    changes.get(timeout=10)
    wait_for(lambda: procfs.identify_process(child) is None)


def test_stopping_a_guest_that_is_gone_is_an_error_that_says_so(driver, uid):
    changes = queue.SimpleQueue()
    driver.watch_guests(changes.put)
    guest = run(driver, uid, "true")
    changes.get(timeout=10)
    with pytest.raises(GuestGoneError):
        driver.stop(guest, 1)


@pytest.mark.parametrize(
    ("command", "cwd", "reason"),
    [
        ((), "/", "empty"),
        (("no-such-program",), "/", "no-such-program"),
        (("/etc/passwd",), "/", "not executable"),
        (("sleep", "1"), "/no/such/folder", "/no/such/folder"),
    ],
)
def test_a_command_that_cannot_start_is_an_error_with_the_reason(driver, uid, command, cwd, reason):
    with pytest.raises(DriverError, match=reason):
        driver.create_guest(uid, uid, GuestSettings(), command, cwd)
    assert driver.guests() == []


def test_a_uuid_is_used_once(driver, uid):
    run(driver, uid, "sleep", "60")
    with pytest.raises(DriverError, match="exists already"):
        driver.create_guest(uid, uid, GuestSettings(), ("sleep", "60"))


def test_a_guest_that_cannot_be_recorded_does_not_start(driver, uid, monkeypatch, tmp_path):
    def full(store, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordStore, "save", full)
    with pytest.raises(DriverError, match="No space left"):
        driver.create_guest(uid, uid, GuestSettings(), ("touch", str(tmp_path / "mark")))
    assert driver.guests() == []
    assert not (tmp_path / "mark").exists()


class TestAdopted:
    """Guests with processes that the agent did not start."""

    @pytest.fixture
    def process(self, sleeper):
        return sleeper

    def test_an_adopted_process_is_pinned_and_found_by_the_next_driver(
        self, driver, make_driver, uid, process
    ):
        guest = driver.adopt_guest(uid, "legacy", GuestSettings(vcpus=2), process.pid)
        driver.apply_cpu_settings(guest, PINNED)
        assert frozenset(os.sched_getaffinity(process.pid)) == ONE
        assert make_driver().guests() == [guest]
        assert guest.settings.vcpus == 2

    def test_control_characters_in_the_command_of_an_adopted_process_are_replaced(self, driver, uid):
        loud = subprocess.Popen(["\x1b[2J\x07evil\n" + "x" * 5000, "60"], executable="/bin/sleep")
        try:
            wait_for(lambda: len(procfs.command_line(loud.pid)) == 2)
            shown = driver.adopt_guest(uid, uid, GuestSettings(), loud.pid).details["command"]
            assert shown.startswith("\ufffd[2J\ufffdevil\ufffdxxx")
            assert len(shown) < 1100
        finally:
            loud.kill()
            loud.wait()

    def test_a_process_is_adopted_only_once(self, driver, uid, process):
        driver.adopt_guest(uid, uid, GuestSettings(), process.pid)
        with pytest.raises(DriverError, match=f"pid {process.pid} is guest {uid} already"):
            driver.adopt_guest(str(uuid.uuid4()), "again", GuestSettings(), process.pid)

    def test_adoption_of_a_missing_process_is_refused(self, driver, uid, process):
        process.kill()
        process.wait()
        with pytest.raises(DriverError, match=f"no process with pid {process.pid}"):
            driver.adopt_guest(uid, uid, GuestSettings(), process.pid)

    # the names of tests are equal in all processes that run them, so none has the pid
    @pytest.mark.parametrize(
        ("pid", "reason"), [(1, "process 1"), (os.getpid(), "the agent")], ids=["init", "agent"]
    )
    def test_the_agent_and_the_first_process_are_refused(self, driver, uid, pid, reason):
        with pytest.raises(DriverError, match=f"pid {pid} is {reason} and cannot be a guest"):
            driver.adopt_guest(uid, uid, GuestSettings(), pid)

    def test_a_child_of_a_guest_is_refused(self, driver, uid):
        shell = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
        try:
            wait_for(lambda: len(procfs.descendants_of(shell.pid)) == 2)
            child = procfs.descendants_of(shell.pid)[1]
            driver.adopt_guest(uid, uid, GuestSettings(), shell.pid)
            with pytest.raises(DriverError, match=f"pid {child} is a process of guest {uid} already"):
                driver.adopt_guest(str(uuid.uuid4()), "part", GuestSettings(), child)
        finally:
            shell.kill()
            shell.wait()
            os.kill(child, signal.SIGKILL)

    def test_a_kernel_thread_is_refused(self, driver, uid):
        kernel = [pid for pid in procfs.all_pids() if procfs.is_kernel_thread(pid)]
        if not kernel:
            pytest.skip("no kernel thread is to be seen in this pid namespace")
        with pytest.raises(DriverError, match="kernel thread"):
            driver.adopt_guest(uid, uid, GuestSettings(), kernel[0])

    def test_stop_ends_an_adopted_process_but_not_its_siblings(self, driver, uid, process):
        sibling = subprocess.Popen(["sleep", "60"])
        try:
            guest = driver.adopt_guest(uid, uid, GuestSettings(), process.pid)
            process_wait = subprocess.Popen.wait
            driver.stop(guest, 0.2)
            assert process_wait(process, 10) == -signal.SIGTERM
            assert sibling.poll() is None
        finally:
            sibling.kill()
            sibling.wait()


class TestDriverRestart:
    """A new agent reads the folder of an earlier agent."""

    def test_a_recycled_pid_is_not_the_guest(self, make_driver, uid, folder):
        run(make_driver(), uid, "sleep", "60")
        path = folder / f"{uid}.json"
        record = json.loads(path.read_bytes())
        time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # start times are in ticks; no pid comes round within one
        other = subprocess.Popen(["sleep", "60"])
        try:
            record["identity"]["pid"] = other.pid
            path.write_text(json.dumps(record))
            guests = make_driver().guests()
            assert other.pid not in [guest.pid for guest in guests]
        finally:
            other.kill()
            other.wait()

    def test_a_guest_that_ended_meanwhile_is_forgotten(self, make_driver, uid, folder):
        guest = run(make_driver(), uid, "true")
        wait_for(lambda: not procfs.identify_process(guest.pid))
        assert make_driver().guests() == []
        assert not (folder / f"{uid}.json").exists()

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_guest_with_a_damaged_record_is_reported_lost_until_it_is_adopted(
        self, make_driver, uid, folder, damage, caplog, sleeper
    ):
        guest, other = run(make_driver(), uid, "sleep", "60"), run(make_driver(), OTHER, "sleep", "60")
        path = folder / f"{uid}.json"
        content = damage(json.loads(path.read_bytes()), sleeper)
        path.write_bytes(content)
        driver = make_driver()
        assert driver.guests() == [other], "one bad record does not cost the others"
        assert list(driver.lost_guests()) == [uid]
        assert str(path) in driver.lost_guests()[uid]
        assert f"guest adopt --uuid {uid}" in caplog.text
        assert path.read_bytes() == content
        assert procfs.is_alive(procfs.identify_process(sleeper.pid))

        with pytest.raises(DriverError, match="cannot be used"):
            driver.create_guest(uid, uid, GuestSettings(), ("sleep", "60"))
        assert path.read_bytes() == content
        adopted = driver.adopt_guest(uid, "again", GuestSettings(), guest.pid)
        assert driver.lost_guests() == {}
        assert make_driver().guests() == sorted([adopted, other], key=lambda it: it.uuid)
        (aside,) = folder.glob(f"{uid}.json.damaged-*")
        assert aside.read_bytes() == content

    def test_a_record_has_only_settings_that_were_chosen_so_that_earlier_releases_read_it(
        self, make_driver, uid, folder
    ):
        """They refuse settings that they do not know, and would find the guest again without its name."""
        driver = make_driver()
        run(driver, uid, "sleep", "60")
        assert json.loads((folder / f"{uid}.json").read_bytes())["settings"] == {}
        chosen = GuestSettings(qos_class="BE", memory_type=MemoryType.DRAM)
        other = str(uuid.uuid4())
        driver.release(driver.create_guest(other, "b", chosen, ("sleep", "60"), declared=("priority",)))
        record = json.loads((folder / f"{other}.json").read_bytes())
        assert record["settings"] == {"qos_class": "BE", "memory_type": "dram"}
        found = {each.uuid: each for each in make_driver().guests()}
        assert (found[other].settings, found[uid].settings) == (chosen, GuestSettings())
        assert found[other].declared == {**chosen.chosen_values, "priority": 0}

    def test_a_record_of_a_later_release_is_used_as_far_as_it_is_understood(self, make_driver, uid, folder):
        guest = run(make_driver(), uid, "sleep", "60")
        path = folder / f"{uid}.json"
        record = json.loads(path.read_bytes())
        record |= {"format": 2, "news": [1]}
        record["settings"] |= {"colour": "blue", "qos_class": "BE"}
        content = json.dumps(record).encode()
        path.write_bytes(content)
        driver, changes = make_driver(), queue.SimpleQueue()
        driver.watch_guests(changes.put)
        (found,) = driver.guests()
        assert (found.pid, found.settings) == (guest.pid, GuestSettings(qos_class="BE"))
        assert path.read_bytes() == content
        driver.stop(found, 10)
        assert changes.get(timeout=10).kind is ChangeKind.STOPPED
        assert not path.exists()
        (aside,) = folder.glob(f"{uid}.json.damaged-*")
        assert aside.read_bytes() == content

    def test_guests_of_another_agent_are_not_taken_over(self, make_driver, uid, tmp_path):
        run(make_driver(), uid, "sleep", "60")
        assert ProcessDriver(tmp_path / "other").guests() == []

    def test_a_held_guest_dies_with_the_agent(self, uid, folder):
        """An agent that is killed between creation and release of a guest leaves no running process."""
        script = (
            "import os\n"
            "from pathlib import Path\n"
            "from compute_agent.drivers.base import GuestSettings\n"
            "from compute_agent.drivers.processes.driver import ProcessDriver\n"
            f"driver = ProcessDriver(Path({str(folder)!r}))\n"
            f"print(driver.create_guest({uid!r}, 'x', GuestSettings(), ('sleep', '60')).pid, flush=True)\n"
            "os.kill(os.getpid(), 9)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
        wait_for(lambda: procfs.identify_process(int(done.stdout)) is None)
        assert ProcessDriver(folder).guests() == []


def test_the_wait_for_a_guest_that_the_kernel_does_not_end_has_a_limit(driver, uid, monkeypatch):
    guest = run(driver, uid, "sleep", "60")
    with monkeypatch.context() as patched:
        patched.setattr(module, "_KILL_SECONDS", 0.1)
        patched.setattr(
            ProcessTable, "is_alive", lambda table, record: True
        )  # as of one that waits for a disk
        with pytest.raises(DriverError, match=r"does not end 0\.1 s after SIGKILL"):
            driver.stop(guest, 0)
