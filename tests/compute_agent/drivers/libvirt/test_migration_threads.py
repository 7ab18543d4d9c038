"""Tests of threads that QEMU makes for a migration, with real domains between two libvirtd on one machine."""

import contextlib
import os
import signal
import threading

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuSettings
from compute_agent.drivers.libvirt.driver import LibvirtDriver
from compute_agent.model.messages import DriverError
from tests.compute_agent import libvirtd as servers
from tests.waits import wait_for

ZERO, ONE = frozenset({0}), frozenset({1})
PINS = "<cputune><vcpupin vcpu='0' cpuset='1'/><emulatorpin cpuset='1'/></cputune>"
"""Nova's definition without shared CPUs: all threads are on the guest's dedicated CPU."""
CONNECTIONS = 2

pytestmark = pytest.mark.skipif(not os.sched_getaffinity(0) >= ZERO | ONE, reason="needs CPUs 0 and 1")


@pytest.fixture
def driver(libvirtd):
    state = libvirtd.folder / "root/run/libvirt/qemu"
    driver = LibvirtDriver(libvirtd.uri, state_folder=state if libvirtd.is_system else state / "run")
    yield driver
    driver.close()


@pytest.fixture
def destination():
    server = servers.Libvirtd()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def domain(libvirtd):
    xml = libvirtd.xml(vcpus=1).replace("<iothreads>1</iothreads>", "").replace("<os>", f"{PINS}<os>")
    domain = libvirtd.connection.defineXML(xml)
    domain.create()
    return domain


@contextlib.contextmanager
def migrating(source, destination, domain):
    """A migration over several connections that does not end, because the process at the destination is
    stopped.
    """
    libvirt, errors = source.libvirt, []
    flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PARALLEL
    wanted = {
        libvirt.VIR_MIGRATE_PARAM_URI: f"unix://{destination.folder / 'migration'}",
        libvirt.VIR_MIGRATE_PARAM_PARALLEL_CONNECTIONS: CONNECTIONS,
        libvirt.VIR_MIGRATE_PARAM_BANDWIDTH: 1,
    }

    def send():
        try:
            domain.migrate3(destination.connection, wanted, flags)
        except libvirt.libvirtError as error:
            errors.append(str(error))

    def abort():
        # QEMU sometimes accepts an abort without effect while it opens the connections
        while thread.is_alive():
            with contextlib.suppress(libvirt.libvirtError):
                domain.abortJob()
            thread.join(1)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    receiver = 0
    try:
        pid = source.process(domain)
        wait_for(lambda: len(senders(pid)) > CONNECTIONS, evidence=lambda: str(errors))
        receiver = destination.process(domain)
        os.kill(receiver, signal.SIGSTOP)
        assert len(senders(pid)) > CONNECTIONS
        yield
    finally:
        aborting = threading.Thread(target=abort, daemon=True)
        aborting.start()
        # sometimes QEMU answers only after the process at the destination has continued
        aborting.join(5)
        if receiver:
            with contextlib.suppress(ProcessLookupError):  # the process has ended with the migration
                os.kill(receiver, signal.SIGCONT)
        for each in (aborting, thread):
            each.join(servers.SECONDS)
            assert not each.is_alive()


def senders(pid):
    """The CPUs of the threads that send the memory of the guest, by thread id."""
    return {
        tid: procfs.thread_affinity(tid)
        for tid in procfs.thread_ids(pid)
        if procfs.thread_name(pid, tid).startswith(("multifdsend", "live_migration"))
    }


@pytest.fixture
def guest(driver, domain):
    [guest] = wait_for(driver.guests, "the guest is seen")
    wait_for(lambda: len(driver.vcpu_affinity(guest)) == 1, "the thread of the guest CPU has its name")
    return guest


def on_dedicated(driver, guest):
    return {tid for tid, cpus in driver.emulator_threads(guest).items() if cpus & ONE}


def test_threads_of_a_migration_are_born_on_the_cpus_of_a_moved_emulator(
    libvirtd, destination, driver, domain, guest
):
    assert driver.move_emulator(guest, on_dedicated(driver, guest), ZERO) > 0
    for _ in range(2):
        with migrating(libvirtd, destination, domain):
            assert {*senders(guest.pid).values()} == {ZERO}
            assert on_dedicated(driver, guest) == set()
            assert driver.misplaced_threads(guest, CpuSettings((ONE,), ZERO)) == {}


def test_an_emulator_is_moved_after_its_migration_and_the_agent_does_not_wait(
    libvirtd, destination, driver, domain, guest
):
    with migrating(libvirtd, destination, domain):
        assert {*senders(guest.pid).values()} == {ONE}
        found = on_dedicated(driver, guest)
        assert senders(guest.pid).keys() <= found
        # libvirt itself would let the call wait until the migration ends
        with pytest.raises(DriverError, match="cannot be pinned while libvirt migrates, saves or copies it"):
            driver.move_emulator(guest, found, ZERO)
        assert domain.jobInfo()[0] != libvirtd.libvirt.VIR_DOMAIN_JOB_NONE
    assert driver.move_emulator(guest, on_dedicated(driver, guest), ZERO) > 0
    assert on_dedicated(driver, guest) == set()
