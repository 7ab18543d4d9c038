"""Tests of the loop of interference, with threads that wait in a fake /proc. The worker, the arbiter and the
loop are real.
"""

import logging
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from compute_agent.classes.guest_classes import QosClass, QosClasses
from compute_agent.events.event import EventRecorder
from compute_agent.loops.triggers import InterferenceLoop
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import CACHE_WAYS, ThrottleControl
from compute_agent.monitoring.readings import CacheReading
from compute_agent.throttling.interference.cases import CasePhase
from compute_agent.throttling.interference.signals import SIGNALS, InterferenceWatch
from compute_agent.throttling.samplers import GuestReader
from compute_agent.throttling.settings import ThrottlingSettings
from compute_agent.throttling.state_file import FILE_NAME, ThrottlingFile, look_up_state
from compute_agent.throttling.telemetry import ThrottleTelemetry
from compute_agent.throttling.watermarks.sections import WatermarkRules
from compute_agent.usage.snapshot import GuestAllotment
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.loops.overload import Overload

CLASSES = QosClasses({"LS": QosClass("LS", 10), "BE": QosClass("BE", 0)}, 0)
WAYS = ThrottleControl(CACHE_WAYS, "0")
WATCH = InterferenceWatch("cpu", SIGNALS["run_delay"], preview=False)


class InterferenceHost(Overload):
    """The overcommitted host of the tests of watermarks, with threads that wait for CPUs, and a clock."""

    def __init__(self, folder):
        super().__init__(folder)
        self.lines = ""
        self.now, self.waited, self.ran = 1000.0, {}, {}
        self.watches, self.events, self.blamed = (WATCH,), [], []
        self.greedy = False
        self.cache = self.cycles = None

    def boot(self):
        super().boot()
        self.reader = GuestReader(
            self.driver, lambda: CLASSES, str(self.folder), self.cache, cycles=self.cycles
        )
        self.loop = InterferenceLoop(
            self.conf(),
            self.file,
            self.pipeline,
            self.reader,
            self.executor,
            self.arbiter,
            clock=lambda: self.now,
        )
        self.loop.stop()  # without a thread, also after a reload: rounds are made by hand

    def reload(self):
        """Apply the current watches."""
        self.loop.reload(self.conf())

    def state_file(self):
        return ThrottlingFile(self.folder, self.state, lambda: self.now)

    def telemetry(self):
        recorder = EventRecorder(self.events.append)
        return ThrottleTelemetry(self.metrics, recorder, lambda *one: self.blamed.append(one))

    def settings(self):
        return ThrottlingSettings(WatermarkRules(self.registry, ()), CLASSES, 1.0, 1.0, watches=self.watches)

    def conf(self):
        options = SimpleNamespace(host=SimpleNamespace(root=str(self.folder)), state_path=str(self.folder))
        return configuration(options=options, settings=self.settings())

    def view(self, uuid):
        """Return the current view of a guest."""
        return next(one for one in self.pipeline.guest_views() if one.guest.uuid == uuid)

    def crash(self):
        self.loop.stop()
        super().crash()

    def seconds(self, count):
        for _ in range(count // 10):
            self.now += 10
            used = {uuid: self._used(uuid) for uuid in self.driver.running}
            share = max(0.01, 1 - 4 / sum(used.values()))
            for uuid, cores in used.items():
                self.ran[uuid] = self.ran.get(uuid, 0.0) + 10 * cores * (1 - share)
                self.waited[uuid] = self.waited.get(uuid, 0.0) + 10 * cores * share
            self.write()
            self.loop.run_round()

    def write(self):
        for guest in self.driver.guests():
            place = self.folder / "proc" / str(guest.pid)
            place.mkdir(parents=True, exist_ok=True)
            ticks = round(self.ran[guest.uuid] * 100)
            (place / "stat").write_text(f"{guest.pid} (x) S 1 1 1 0 0 0 0 0 0 0 {ticks} 0 0 0 0 0 1 0 77 0 0")
            (place / "schedstat").write_text(f"1 {round(self.waited[guest.uuid] * 1e9)} 7\n")

    def kinds(self):
        return [(one.kind, one.outcome, one.guest) for one in self.events]


@pytest.fixture
def host(tmp_path):
    with InterferenceHost(tmp_path) as host:
        host.run("server", 1.0, qos_class="LS")
        host.run("job", 0.5)
        host.run("hog", 0.5)
        host.seconds(500)
        host.demand["hog"] = 4.0
        yield host


def test_a_guest_that_disturbs_others_is_limited_reported_and_released(host, caplog):
    with caplog.at_level(logging.INFO):
        host.seconds(110)
    assert host.limits().keys() == {"hog"}
    assert host.kinds()[:2] == [("throttle_down", "done", "hog"), ("verdict", "done", "server")]
    assert host.blamed == [("hog", "cpu_usage", "run_delay")]
    assert "Interference: hog is guilty of disturbing server (cpu)" in caplog.text
    assert "it waits for CPUs: 27" in host.events[0].reason
    (row,) = host.loop.list_rows()
    assert (row["victim"], row["suspect"], row["section"]) == ("server", "hog", "cpu")
    assert host.metrics.get_sample_value("compute_agent_interference_limited_guests") == 1
    host.demand["hog"] = 0.5
    host.seconds(1500)
    assert host.limits() == {}
    assert host.kinds()[-1][0] == "throttle_up"
    assert host.loop.list_rows()[0]["state"] == "guilty 1 times"


def test_a_preview_reports_and_limits_no_guest(host):
    host.watches = (InterferenceWatch("cpu", SIGNALS["run_delay"]),)
    host.loop.reload(host.conf())
    host.loop.stop()
    host.seconds(300)
    assert host.limits() == {}
    assert host.blamed == []
    assert host.kinds() == [("verdict", "preview", "server")]


def test_the_next_agent_goes_on_and_gives_back(host):
    host.seconds(100)
    before = host.limits()
    host.crash()
    host.boot()
    host.loop.run_round()
    assert host.limits() == before
    host.demand["hog"] = 0.5
    host.seconds(1500)
    assert host.limits() == {}


def test_an_agent_without_watches_gives_back_at_once(host):
    host.seconds(100)
    assert host.limits()
    host.crash()
    host.watches = ()
    host.boot()
    host.seconds(20)
    assert host.limits() == {}
    assert not host.loop.is_needed()


def test_an_agent_that_died_before_it_acted_limits_no_guest_for_ever(host):
    host.seconds(100)
    host.crash()
    state = look_up_state(host.folder).interference
    (case,) = state.cases
    host.file.keep_interference(replace(state, cases=(replace(case, phase=CasePhase.TRIAL),)))
    host.demand["hog"] = 0.5
    host.boot()
    host.seconds(200)
    assert host.limits() == {}


def test_a_suspect_that_cannot_be_limited_is_reported_once_and_left_alone(host, caplog):
    host.driver.unlimited.add("hog")
    with caplog.at_level(logging.INFO):
        host.seconds(300)
    assert host.limits() == {}
    assert host.kinds() == [("throttle_down", "failed", "hog")]
    assert "left alone" in host.loop.list_rows()[0]["state"]


def test_the_loop_goes_on_until_all_limits_are_released(host):
    host.seconds(100)
    apply = host.driver.apply_cpu_limits
    host.watches, host.driver.apply_cpu_limits = (), refuse
    host.reload()
    host.seconds(30)
    assert host.limits()
    assert host.loop.is_needed()
    host.driver.apply_cpu_limits = apply
    host.seconds(10)
    assert host.limits() == {}
    assert not host.loop.is_needed()


def refuse(guest, wanted):
    raise DriverError("the kernel does not take it")


def test_watermarks_leave_the_limits_of_others_alone(host):
    host.seconds(100)
    before = host.limits()
    host.watermarks.run_round()
    assert host.limits() == before


def test_a_damaged_state_is_put_aside(host, caplog):
    host.crash()
    (host.folder / FILE_NAME).write_text("{")
    host.boot()
    assert "starts empty" in caplog.text
    assert list(host.folder.glob(f"{FILE_NAME}.damaged-*"))


def test_a_full_disk_costs_no_limit_and_is_logged_once(host, caplog, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compute_agent.throttling.state_file.write_durably", full)
    host.seconds(200)
    assert host.limits()
    assert caplog.text.count("cannot be saved") == 1


def test_the_escalation_command_runs_for_a_guest_that_is_guilty_repeatedly(host):
    called, told = [], threading.Event()

    def migrate(guest):
        called.append(guest)
        told.set()

    host.watches = (
        InterferenceWatch("cpu", SIGNALS["run_delay"], preview=False, escalate_after=1, escalate=migrate),
    )
    host.reload()
    host.seconds(200)
    assert told.wait(10)
    assert called == ["hog"]


def test_a_signal_that_no_guest_has_is_logged_once(host, caplog):
    host.watches = (WATCH, InterferenceWatch("p", SIGNALS["cpu_pressure"]))
    host.reload()
    host.seconds(60)
    assert caplog.text.count("The signal cpu_pressure cannot be measured") == 1
    assert "run_delay" not in caplog.text


def test_missing_hardware_counters_are_logged_with_a_remedy(host, caplog):
    host.watches = (InterferenceWatch("c", SIGNALS["cpi"]),)
    host.cycles = SimpleNamespace(missing_reason="this host has none", read=lambda threads: {})
    host.crash()
    host.boot()
    host.seconds(60)
    (told,) = [line for line in caplog.messages if "cpi" in line]
    assert told.endswith("The signal needs hardware counters, and CAP_PERFMON; this host has none")


class Caches:
    """A cache that the guest "thief" fills, so that the guest "server" has to read its data from memory
    again.
    """

    def __init__(self, host):
        self.host = host

    def read(self):
        limit = self.host.view("thief").limits.get(WAYS, 16.0)
        held = min(limit, 14.0 if self.host.greedy else 2.0)
        misses = 1e8 + 1.5e8 * max(0.0, held - 4)
        return CacheReading(
            guest_bandwidth={"server": {"0": misses}, "thief": {"0": 3e9}},
            guest_occupancy={"server": {"0": 1e6 * (16 - held)}, "thief": {"0": 1e6 * held}},
        )


def test_a_guest_that_fills_the_cache_gets_fewer_ways_until_it_stops(tmp_path):
    host = InterferenceHost(tmp_path)
    host.watches = (InterferenceWatch("cache", SIGNALS["llc_occupancy"], preview=False),)
    host.cache = Caches(host)
    host.boot()
    host.reader.use_allotments(lambda view: {WAYS: GuestAllotment(16.0, 1.0, 1e6)})
    try:
        host.run("server", 1.0, qos_class="LS")
        host.run("thief", 1.0)
        host.seconds(500)
        host.greedy = True
        host.seconds(500)
        assert host.view("thief").limits[WAYS] <= 6
        assert host.kinds()[0] == ("throttle_down", "done", "thief")
        assert "it misses the cache: 1.62 GB/s" in host.events[0].reason
        host.greedy = False
        host.seconds(3000)
        assert host.view("thief").limits == {}
    finally:
        host.crash()
