"""Tests of the kernel's tracer of noise: after it has run for a while, the kernel has its former settings
again.
"""

import os
from pathlib import Path

import pytest

from compute_agent.isolation import osnoise
from compute_agent.isolation.osnoise import (
    ORIGINAL_FILE,
    OsNoiseTracer,
    TracedNoise,
    TracerError,
    parse_trace,
)

TRACE = """\
# tracer: osnoise
#           TASK-PID      CPU# ||||   TIMESTAMP  RUNTIME ...
  <...>-859 [002] .....    81.637220: 1000000  190  99.98100       9     18      0   1007     18      1
  <...>-860 [003] .....    81.638154: 1000000  656  99.93440      74     23      0   1006     16      3
  <...>-859 [002] .....    82.638154: 1000000  100  99.99000      12      2      0   1000      1      0
           odd line [x]
"""
INSTANCE = "instances/compute_agent_noise"
CPU2 = TracedNoise(2000000, 290, 12, 20, 0, 2007, 19, 1)


class TracefsTree:
    """A fake tracefs of plain files. The removal of an instance also removes its files, as by the kernel."""

    def __init__(self, folder, monkeypatch):
        self.root, self.kept = folder / "root", folder / ORIGINAL_FILE
        self.base = self.root / "sys/kernel/tracing"
        for path, text in {
            "trace": "",
            "available_tracers": "timerlat osnoise nop\n",
            "current_tracer": "nop\n",
            "osnoise/cpus": "0-7\n",
        }.items():
            self.put(path, text)
        (self.base / "instances").mkdir()
        self.slept, self.seen, self.refused = [], [], {}
        self.real_rmdir = os.rmdir
        monkeypatch.setattr(osnoise.kernel_files, "write_text", self.write)
        monkeypatch.setattr(osnoise.os, "rmdir", self.remove)

    def put(self, path, text):
        (self.base / path).parent.mkdir(parents=True, exist_ok=True)
        (self.base / path).write_text(text)

    def text(self, path):
        return (self.base / path).read_text().strip()

    def write(self, path, text):
        name = str(path).removeprefix(f"{self.base}/")
        if name in self.refused:
            raise self.refused[name]
        self.seen.append((name, text))
        self.put(name, text)
        if name.endswith("current_tracer") and text == "osnoise":
            self.put(f"{INSTANCE}/trace", TRACE)

    def remove(self, folder):
        for file in Path(folder).iterdir():
            file.unlink()
        self.real_rmdir(folder)

    def tracer(self, sleep=None):
        return OsNoiseTracer(self.root, self.kept, sleep or self.slept.append)

    @property
    def is_restored(self):
        instances = list((self.base / "instances").iterdir())
        return (self.text("osnoise/cpus"), instances, self.kept.exists()) == ("0-7", [], False)


@pytest.fixture
def tracefs(tmp_path, monkeypatch):
    return TracefsTree(tmp_path, monkeypatch)


def test_samples_of_a_cpu_are_added():
    assert parse_trace(TRACE) == {2: CPU2, 3: TracedNoise(1000000, 656, 74, 23, 0, 1006, 16, 3)}
    assert parse_trace("") == {}


def test_the_tracer_runs_on_the_given_cpus_for_a_limited_time(tracefs):
    assert tracefs.tracer().trace_cpus(frozenset({2}), 5) == {2: CPU2}
    assert tracefs.slept == [5]
    assert ("osnoise/cpus", "2") in tracefs.seen
    assert tracefs.is_restored
    tracefs.tracer().trace_cpus(frozenset({2}), 10**6)
    assert tracefs.slept[-1] == osnoise.MAX_SECONDS


def test_settings_are_restored_after_an_interruption(tracefs):
    def interrupt(seconds):
        assert tracefs.text("osnoise/cpus") == "2"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tracefs.tracer(interrupt).trace_cpus(frozenset({2}), 5)
    assert tracefs.is_restored


def test_a_killed_run_is_ended_by_the_next(tracefs):
    tracefs.put("osnoise/cpus", "2\n")
    tracefs.put(f"{INSTANCE}/current_tracer", "osnoise\n")
    tracefs.kept.write_text('{"cpus": "0-7"}')
    tracefs.tracer().stop_leftover()
    assert tracefs.is_restored
    tracefs.tracer().stop_leftover()
    assert tracefs.is_restored


def test_a_damaged_file_of_a_killed_run_ends_it_all_the_same(tracefs):
    tracefs.put(f"{INSTANCE}/current_tracer", "osnoise\n")
    tracefs.kept.write_text("{")
    tracefs.tracer().stop_leftover()
    assert tracefs.is_restored


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("available_tracers", "function nop\n", "no tracer osnoise"),
        ("current_tracer", "timerlat\n", "another program uses the tracer"),
        ("instances/rtla/current_tracer", "osnoise\n", "another program uses the tracer"),
    ],
)
def test_a_kernel_that_cannot_or_is_busy_is_left_alone(tracefs, path, text, reason):
    tracefs.put(path, text)
    with pytest.raises(TracerError, match=reason):
        tracefs.tracer().trace_cpus(frozenset({2}), 5)
    assert tracefs.text("osnoise/cpus") == "0-7"
    assert tracefs.slept == []


def test_a_refusal_of_the_kernel_is_told_and_undone(tracefs):
    tracefs.refused = {f"{INSTANCE}/current_tracer": OSError(22, "Invalid argument")}
    with pytest.raises(TracerError, match="the kernel refuses the tracer"):
        tracefs.tracer().trace_cpus(frozenset({2}), 5)
    assert tracefs.is_restored


def test_a_host_without_tracefs_says_so(tmp_path):
    with pytest.raises(TracerError, match="no tracefs"):
        OsNoiseTracer(tmp_path, tmp_path / ORIGINAL_FILE).trace_cpus(frozenset({2}), 5)


def test_two_commands_do_not_trace_at_once(tracefs):
    def trace_again(seconds):
        with pytest.raises(TracerError, match="another command uses the tracer"):
            tracefs.tracer().trace_cpus(frozenset({3}), 5)

    tracefs.tracer(trace_again).trace_cpus(frozenset({2}), 5)
    assert tracefs.is_restored
