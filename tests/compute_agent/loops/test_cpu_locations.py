"""Tests of finding the dedicated and shared CPUs of guests from the affinities of their threads."""

import os
import subprocess
from pathlib import Path

import pytest

from compute_agent.drivers.processes.driver import ProcessDriver
from compute_agent.host.reader import read_topology
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.loops.audit import from_affinities, locate_guests
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import EmulatorPolicy, GuestSettings, ThreadPolicy
from compute_agent.pipeline.host_state import HostState
from compute_agent.policy import POLICIES
from compute_agent.report.capacity import CpuLocation
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(cores=8, threads=2)  # the threads of a core are 2n and 2n+1
TREE = ProviderTree((ProviderNode("h", "11111111-0000-4000-8000-000000000000", None, cpus=TOPOLOGY.online),))
DEDICATED, SHARED = frozenset(range(10)), frozenset(range(10, 14))


def host_state(dedicated=DEDICATED, shared=SHARED, topology=TOPOLOGY):
    return HostState(topology, CpuSets(dedicated, shared, shared), TREE, POLICIES["none"])


def pinned_guest(*affinities, vcpus=2, **policies):
    return GuestSettings(vcpus=vcpus, **policies), frozenset(map(frozenset, affinities))


def located(here=None, **guests):
    settings = {name: settings for name, (settings, _) in guests.items()}
    return from_affinities(settings, {name: cpus for name, (_, cpus) in guests.items()}, here or host_state())


PINNED = CpuLocation(own=frozenset({2, 4}), pinned_vcpus=2)


@pytest.mark.parametrize(
    ("one", "location"),
    [
        pytest.param(pinned_guest({2}, {4}), PINNED, id="a thread on each CPU"),
        pytest.param(pinned_guest({2, 4}), PINNED, id="all threads on all of as many CPUs"),
        pytest.param(
            pinned_guest({2}, {4}, set(range(16))),
            CpuLocation(frozenset({2, 4}), frozenset(range(16)) - {2, 4}, 2),
            id="other threads may be anywhere",
        ),
        pytest.param(
            pinned_guest({2}, {4}, thread_policy=ThreadPolicy.ISOLATE),
            CpuLocation(own=frozenset({2, 3, 4, 5}), pinned_vcpus=2),
            id="siblings are kept empty",
        ),
        pytest.param(
            pinned_guest({2}, {4}, {6}, emulator_policy=EmulatorPolicy.ISOLATE),
            CpuLocation(own=frozenset({2, 4, 6}), pinned_vcpus=2),
            id="the emulator has a CPU of its own",
        ),
        pytest.param(pinned_guest({10, 11, 12, 13}), CpuLocation(floating=SHARED), id="on the shared CPUs"),
        pytest.param(pinned_guest(range(16)), CpuLocation(floating=frozenset(range(16))), id="never placed"),
        pytest.param(
            pinned_guest(DEDICATED),
            CpuLocation(own=DEDICATED),
            id="on more dedicated CPUs than it has: not pinned",
        ),
    ],
)
def test_the_location_of_one_guest(one, location):
    assert located(guest=one) == {"guest": location}


def test_guests_that_share_cpus_are_not_pinned():
    found = located(one=pinned_guest({2}, {4}), other=pinned_guest({4}, {6}), third=pinned_guest({8}, {9}))
    assert found == {
        "one": CpuLocation(floating=frozenset({2, 4})),
        "other": CpuLocation(floating=frozenset({4, 6})),
        "third": CpuLocation(own=frozenset({8, 9}), pinned_vcpus=2),
    }


def test_siblings_that_another_guest_uses_are_not_kept_empty():
    isolated = pinned_guest({2}, {4}, thread_policy=ThreadPolicy.ISOLATE)
    assert located(one=isolated, other=pinned_guest({3}, vcpus=1))["one"] == CpuLocation(
        floating=frozenset({2, 4})
    )


def test_no_guest_counts_as_pinned_where_the_sets_are_identical():
    assert located(host_state(DEDICATED, DEDICATED), one=pinned_guest({2}, {4})) == {
        "one": CpuLocation(own=frozenset({2, 4}))
    }


def test_locations_of_real_processes_are_found(two_cpus, tmp_path):
    topology = read_topology(Path("/"))
    driver = ProcessDriver(tmp_path, None)
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        for name, process, cpus in zip("ab", processes, ({0}, {0, 1}), strict=True):
            os.sched_setaffinity(process.pid, cpus)
            driver.adopt_guest(
                f"22222222-0000-4000-8000-00000000000{name}", name, GuestSettings(), process.pid
            )
        found = locate_guests(driver, host_state(frozenset({0}), frozenset({1}), topology))
    finally:
        driver.close()
        for process in processes:
            process.kill()
            process.wait()
    assert found == {
        "22222222-0000-4000-8000-00000000000a": CpuLocation(own=frozenset({0}), pinned_vcpus=1),
        "22222222-0000-4000-8000-00000000000b": CpuLocation(floating=frozenset({0, 1})),
    }
