"""Each value in the columns of services and containers of the table of enforcement: set, kept, given back.

A test of the page makes sure that the page has exactly these values.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import UNLIMITED, CpuLimits, CpuSettings, MemoryLimits
from compute_agent.drivers.containers.driver import ContainerDriver
from compute_agent.drivers.foreign import editor
from compute_agent.drivers.foreign.kernel_values import FILES, IDLE_FILE
from compute_agent.drivers.foreign.records import ValueRecords
from compute_agent.drivers.foreign.values import (
    BURST,
    CPUS,
    DEFAULTS,
    FILE_NAMES,
    IO_WEIGHT,
    LATENCY,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MAX,
    MEMORY_MIN,
    NODES,
    OOM_GROUP,
    PAGE_LIMITS,
    QUOTA,
    RATES,
    WEIGHT,
)
from compute_agent.model.resource import BlockIo, DeviceRates
from tests.compute_agent.drivers.containers.fake_engine import FakeEngine
from tests.compute_agent.limitable_disk import DISK

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})
MIB = 1 << 20

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs to tell apart")


def set_cpus(driver, guest, cpus):
    driver.apply_cpu_settings(guest, CpuSettings((cpus,), cpus))


def are_cpus_kept(driver, guest, cpus):
    return driver.misplaced_threads(guest, CpuSettings((cpus,), cpus)) == {}


def set_nodes(driver, guest, nodes):
    driver.bind_memory(guest, nodes)


def are_nodes_kept(driver, guest, nodes):
    return driver.memory_nodes(guest, nodes) is None


def set_limits(driver, guest, limits):
    driver.apply_cpu_limits(guest, limits)


def are_limits_kept(driver, guest, limits):
    return driver.cpu_limits(guest, limits) is None


def set_memory(driver, guest, limits):
    driver.limit_memory(guest, limits)


def is_memory_kept(driver, guest, limits):
    return driver.memory_limits(guest, limits) is None


def set_io(driver, guest, wanted):
    driver.apply_blockio(guest, wanted)


def is_io_kept(driver, guest, wanted):
    return driver.blockio_drift(guest, wanted) == ""


CASES = {
    CPUS: (set_cpus, are_cpus_kept, ONE, ALL, str(min(ALL)), "1023"),
    NODES: (set_nodes, are_nodes_kept, frozenset({0}), frozenset(), "0", "1"),
    WEIGHT: (set_limits, are_limits_kept, CpuLimits(300), CpuLimits(100), "300", "7"),
    QUOTA: (set_limits, are_limits_kept, CpuLimits(quota=0.5), CpuLimits(), "50000 100000", "max 100000"),
    MEMORY_MAX: (set_memory, is_memory_kept, MemoryLimits(64 * MIB), MemoryLimits(UNLIMITED), 64, "max"),
    MEMORY_HIGH: (
        *(set_memory, is_memory_kept, MemoryLimits(high=32 * MIB), MemoryLimits(high=UNLIMITED)),
        *(32, "max"),
    ),
    MEMORY_LOW: (set_memory, is_memory_kept, MemoryLimits(low=16 * MIB), MemoryLimits(low=0), 16, "0"),
    MEMORY_MIN: (
        *(set_memory, is_memory_kept, MemoryLimits(minimum=8 * MIB), MemoryLimits(minimum=0)),
        *(8, "0"),
    ),
    IO_WEIGHT: (set_io, is_io_kept, BlockIo(50), None, "default 50", "default 9"),
    **{
        name: (
            *(set_io, is_io_kept, BlockIo(rates=rates, devices=frozenset({DISK})), None),
            *(f"{DISK} {' '.join(keys)}", f"{DISK} {' '.join(keys).replace('300', '700')}"),
        )
        for name, rates, keys in (
            (RATES[0], DeviceRates(read_bytes=300), ("rbps=300", "wbps=max", "riops=max", "wiops=max")),
            (RATES[1], DeviceRates(write_bytes=300), ("rbps=max", "wbps=300", "riops=max", "wiops=max")),
            (RATES[2], DeviceRates(read_operations=300), ("rbps=max", "wbps=max", "riops=300", "wiops=max")),
            (RATES[3], DeviceRates(write_operations=300), ("rbps=max", "wbps=max", "riops=max", "wiops=300")),
        )
    },
    LATENCY: (
        *(set_io, is_io_kept, BlockIo(latency_us=300, devices=frozenset({DISK})), None),
        *(f"{DISK} target=300", f"{DISK} target=700"),
    ),
    BURST: (set_limits, are_limits_kept, CpuLimits(quota=0.5, burst=0.25), CpuLimits(), "25000", "7"),
    OOM_GROUP: (
        *(set_memory, is_memory_kept, MemoryLimits(oom_group=True), MemoryLimits(oom_group=False)),
        *("1", "0"),
    ),
    **{
        name: (
            *(set_memory, is_memory_kept, MemoryLimits(huge_pages=((size, 4 * size * 1024),))),
            *(MemoryLimits(huge_pages=()), str(4 * size * 1024), "max"),
        )
        for size, names in PAGE_LIMITS.items()
        for name in names
    },
}
"""By value: how to set and to compare it, a goal, the goal that gives it back, the text in the file with the
goal (a number is one of MiB), and a text of another program."""


@pytest.fixture(params=["systemd", "podman", "docker", "pod"])
def guest_of(request, tmp_path, monkeypatch):
    """A driver and its only guest."""
    # Two nodes: to be bound to all nodes is to be bound to none.
    monkeypatch.setattr(procfs, "nodes_with_memory", lambda: frozenset({0, 1}))
    # Each comparison is one of a later round.
    monkeypatch.setattr(editor, "READING_SECONDS", -1.0)
    records = ValueRecords(tmp_path / "records", "guest")
    fake: Any
    driver: Any
    if request.param == "systemd":
        pytest.importorskip("jeepney", reason="needs jeepney, of the extra systemd")
        from compute_agent.drivers.systemd.driver import SystemdDriver
        from tests.compute_agent.drivers.systemd.fake_systemd import FakeSystemd

        fake = FakeSystemd(tmp_path)
        fake.start("db.service")
        driver = SystemdDriver(fake.path, "host", records, fake.folders)
    else:
        fake = FakeEngine(tmp_path, monkeypatch)
        if request.param == "pod":
            fake.start_pod("db")
        else:
            fake.start("db")
        engine = "docker" if request.param == "docker" else "podman"
        driver = ContainerDriver(
            *(engine, fake.path, "host", records, fake.folders),
            whole_pods=request.param == "pod",
        )
    (guest,) = driver.guests()
    yield driver, guest
    driver.close()
    fake.close()


def test_each_value_has_a_case():
    assert CASES.keys() == DEFAULTS.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_value_is_set_and_repaired_and_given_back(guest_of, name):
    driver, guest = guest_of
    if name in FILE_NAMES and driver.name == "systemd":
        pytest.skip("systemd has no such property")
    if name in (*RATES, LATENCY) and not DISK:
        pytest.skip("this machine has no block device")
    change, is_kept, goal, former, text, other = CASES[name]
    file = Path(guest.cgroup) / FILES[name]
    if not file.exists():
        # Kernels have few sizes of huge pages, and some have no targets of latency.
        file.write_text({LATENCY: "", OOM_GROUP: "0\n"}.get(name, "max\n"))
    goal_text = str(text * MIB) if isinstance(text, int) else text
    before = file.read_text().strip()
    assert not is_kept(driver, guest, goal)
    for _ in range(2):
        change(driver, guest, goal)
        assert file.read_text().strip() == goal_text
        assert is_kept(driver, guest, goal)
        # Another program changes the value.
        file.write_text(f"{other}\n")
        assert not is_kept(driver, guest, goal)
    change(driver, guest, goal)
    assert not is_kept(driver, guest, former)
    change(driver, guest, former)
    assert is_kept(driver, guest, former)
    # The kernel refuses an empty set for a group with processes, which then has the whole set.
    assert file.read_text().strip() == before or isinstance(DEFAULTS[name], frozenset)


def test_a_guest_is_made_idle_and_gets_a_weight_again(guest_of):
    driver, guest = guest_of
    idle, file = CpuLimits(idle=True), Path(guest.cgroup) / IDLE_FILE
    set_limits(driver, guest, idle)
    assert (file.read_text().strip(), are_limits_kept(driver, guest, idle)) == ("1", True)
    set_limits(driver, guest, CpuLimits(100))
    assert (file.read_text().strip(), are_limits_kept(driver, guest, CpuLimits(100))) == ("0", True)


@pytest.mark.parametrize("name", [BURST, OOM_GROUP, *PAGE_LIMITS[2048]])
def test_a_value_without_a_property_of_systemd_stays(guest_of, name):
    driver, guest = guest_of
    if driver.name != "systemd":
        pytest.skip("the agent writes the files of containers")
    change, _is_kept, goal, _former, _text, _other = CASES[name]
    file = Path(guest.cgroup) / FILES[name]
    before = file.read_text() if file.exists() else ""
    change(driver, guest, goal)
    assert (file.read_text() if file.exists() else "") == before
