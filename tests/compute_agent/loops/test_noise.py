"""Tests of the metrics of noise, which exist only for guests with dedicated CPUs and are limited in
number.
"""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.loops import noise
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.loops.noise import NoiseSource
from compute_agent.model.guest_settings import IsolationLevel
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.pipeline.fake_host import FakeHost

INTERRUPTS = "CPU0 CPU1 CPU2 CPU5\n 30: 1 4 2 8 IO-APIC 2-edge eth0\nLOC: 9 9 9 9 Local timer\n"


class NoisyHost(FakeHost):
    """A fake host with a source of metrics of noise."""

    def __init__(self, root):
        super().__init__()
        self.registry = CollectorRegistry()
        options = SimpleNamespace(host=SimpleNamespace(root=str(root)))
        in_force = ConfigurationInForce(configuration(options))
        self.source = NoiseSource(in_force, self.pipeline, self.driver, self.registry)


@pytest.fixture
def host(tmp_path):
    (tmp_path / "proc/100").mkdir(parents=True)
    (tmp_path / "proc/interrupts").write_text(INTERRUPTS)
    (tmp_path / "proc/softirqs").write_text("CPU0 CPU1 CPU2 CPU5\nRCU: 1 7 1 1\n")
    fields = " ".join(["0"] * 50)
    (tmp_path / "proc/100/stat").write_text(f"100 (sleep) S {fields}\n")
    (tmp_path / "proc/100/status").write_text("nonvoluntary_ctxt_switches:\t3\n")
    (tmp_path / "proc/100/schedstat").write_text("5 2500000000 7\n")
    return NoisyHost(tmp_path)


def series(host):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in host.registry.collect()
        for sample in family.samples
    }


def test_a_host_without_dedicated_guests_has_no_series(host):
    host.run("a", (0, 0, 1))
    assert series(host) == {}
    assert host.source.list_holders() == []


def test_cpus_and_guests_have_their_counters(host):
    host.run("a", (0, 1, 0))
    [holder] = host.source.list_holders()
    assert (holder.uuid, holder.cpus, holder.level) == ("a", {1}, IsolationLevel.SHARED)
    assert series(host) == {
        ("compute_agent_cpu_interrupts_total", "1"): 4,
        ("compute_agent_cpu_softirqs_total", "1"): 7,
        ("compute_agent_cpu_ticks_total", "1"): 9,
        ("compute_agent_guest_involuntary_switches_total", "a"): 3,
        ("compute_agent_guest_run_delay_seconds_total", "a"): 2.5,
    }


def test_series_are_bounded(host, monkeypatch):
    monkeypatch.setattr(noise, "MAX_GUESTS", 1)
    host.run("a", (0, 1, 0))
    host.run("b", (1, 1, 0))
    assert {key[1] for key in series(host)} == {"1", "a"}
    monkeypatch.setattr(noise, "MAX_GUESTS", 2)
    assert {key[1] for key in series(host)} == {"1", "5", "a", "b"}
    monkeypatch.setattr(noise, "MAX_CPUS", 1)
    assert {key[1] for key in series(host)} == {"1", "a", "b"}


def test_an_ended_guest_has_no_threads(host):
    host.run("a", (0, 1, 0))
    del host.driver.affinities["a"]
    [holder] = host.source.list_holders()
    assert holder.threads == frozenset()
