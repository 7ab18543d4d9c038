"""Tests that domains that are about to start are found as soon as they have a process."""

import os
import subprocess
import sys
import uuid
from dataclasses import replace

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.libvirt import domain_table, qemu
from compute_agent.drivers.libvirt.domain_table import ExpectedDomains
from compute_agent.drivers.libvirt.running_domain import DomainGroup
from compute_agent.model.messages import DriverError

XML = """
<domain id='1'><uuid>{uuid}</uuid><name>web</name><vcpu>2</vcpu>
<seclabel model='dac'><label>+{user}:+0</label></seclabel></domain>
"""
WORDS = [sys.executable, "-c", "import time; time.sleep(60)", "-uuid"]


@pytest.fixture
def owners():
    """The answers of libvirtd about the usual owner of QEMU processes: texts, or errors."""
    return [""]


@pytest.fixture
def domains(owners):
    def usual_owner():
        if isinstance(owners[0], Exception):
            raise owners[0]
        return owners[0]

    return ExpectedDomains(usual_owner)


@pytest.fixture
def start():
    """A function that starts a process with the words of QEMU's command line."""
    processes = []

    def start(guest_uuid):
        processes.append(subprocess.Popen([*WORDS, guest_uuid]))
        while guest_uuid not in procfs.command_line(processes[-1].pid):
            pass  # exec(2) is not over yet
        return processes[-1].pid

    yield start
    for process in processes:
        process.kill()
        process.wait()


def described(guest_uuid, user=None):
    return XML.format(uuid=guest_uuid, user=os.getuid() if user is None else user)


def test_an_expected_process_is_reported_once_with_its_threads(domains, start):
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    guest = domains.expect_guest(described(one))
    assert (guest.uuid, guest.name, guest.pid, guest.settings.vcpus) == (one, "web", 0, 2)
    assert domains.find_appeared() == ([], True)
    domains.expect_guest(described(other))
    pid = start(one)
    (found,), others = domains.find_appeared()
    assert (found.uuid, found.pid, others) == (one, pid, True)
    assert domains.find_appeared() == ([], True)
    assert domains.thread_ids(found) == procfs.thread_ids(pid)
    assert domains.thread_ids(guest) == frozenset()


def test_a_start_that_is_announced_while_another_is_looked_for_is_waited_for(domains, start, monkeypatch):
    one = str(uuid.uuid4())
    domains.expect_guest(described(one))
    pid = start(one)
    find = qemu.find_process

    def announced_meanwhile(*args):
        monkeypatch.setattr(qemu, "find_process", find)
        domains.expect_guest(described(one).replace("web", "again"))
        return find(*args)

    monkeypatch.setattr(qemu, "find_process", announced_meanwhile)
    assert domains.find_appeared() == ([], True)
    other = start(one)
    (found,), others = domains.find_appeared()
    assert (found.name, found.pid, others) == ("again", other, False)
    assert other != pid


def test_earlier_processes_and_those_of_other_users_are_not_expected_ones(domains, start):
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    start(one)
    domains.expect_guest(described(one))
    domains.expect_guest(described(other, user=12345))
    start(other)
    assert domains.find_appeared() == ([], True)


def test_no_process_is_found_or_lost_while_the_owner_of_processes_is_unknown(domains, owners, start):
    one, other = str(uuid.uuid4()), str(uuid.uuid4())
    domains.expect_guest(described(one))
    domains.expect_guest(described(other).replace("<label>", "<none>").replace("</label>", "</none>"))
    pid = start(one)
    start(other)
    owners[0] = DriverError("libvirtd is away")
    with pytest.raises(DriverError):
        domains.find_appeared()
    owners[0] = ""
    found, others = domains.find_appeared()
    assert ({guest.uuid for guest in found}, others) == ({one, other}, False)
    assert pid in {guest.pid for guest in found}


def test_the_wait_for_an_expected_process_has_a_limit(domains, monkeypatch):
    monkeypatch.setattr(domain_table, "EXPECTED_SECONDS", 0.0)
    domains.expect_guest(described(str(uuid.uuid4())))
    assert domains.find_appeared() == ((), False)


def test_too_many_expected_guests_and_invalid_xml_are_refused(domains, monkeypatch):
    for text in ("", "<domain/>", described("no uuid"), "<!DOCTYPE a><domain/>"):
        with pytest.raises(ValueError):  # noqa: PT011  # whatever it says of such text
            domains.expect_guest(text)
    monkeypatch.setattr(domain_table, "MAX_EXPECTED", 1)
    domains.expect_guest(described(str(uuid.uuid4())))
    with pytest.raises(ValueError, match="about to start already"):
        domains.expect_guest(described(str(uuid.uuid4())))


def test_the_pins_that_libvirt_is_about_to_set_are_known(domains):
    """A power manager brings these CPUs online before, because libvirt cannot pin a thread to an
    offline CPU.
    """
    tune = "<cputune><vcpupin vcpu='1' cpuset='5'/><emulatorpin cpuset='6-7'/></cputune></domain>"
    guest = domains.expect_guest(described(str(uuid.uuid4())).replace("</domain>", tune))
    assert guest.constraints.pins == ((1, frozenset({5})),)
    assert guest.constraints.emulator == {6, 7}


@pytest.fixture
def mems(monkeypatch, tmp_path):
    """The path of ``cpuset.mems`` of the main threads of all domains. The file does not exist yet."""
    (tmp_path / "emulator").mkdir()
    monkeypatch.setattr(domain_table, "find_group", lambda pid: DomainGroup((tmp_path,), True))
    return tmp_path / "emulator/cpuset.mems"


@pytest.mark.parametrize(
    ("before", "tuning", "after"),
    [
        ("\n", "", "1"),
        ("0\n", "", "0\n"),
        ("\n", "<numatune><memory mode='preferred' nodeset='0'/></numatune>", "\n"),
    ],
    ids=("as created", "bound by libvirt", "with a mode of which libvirt writes nothing"),
)
def test_the_memory_of_an_expected_process_is_bound_unless_libvirt_binds_it(
    domains, start, mems, before, tuning, after
):
    mems.write_text(before)
    one = str(uuid.uuid4())
    guest = domains.expect_guest(described(one).replace("<seclabel", f"{tuning}<seclabel"))
    assert not domains.bind_memory(guest, frozenset({1}))  # it has no process yet
    start(one)
    ((found,), _) = domains.find_appeared()
    assert not domains.bind_memory(replace(found, pid=found.pid + 1), frozenset({1}))
    assert domains.bind_memory(found, frozenset({1})) == (after == "1")
    assert mems.read_text().strip() == after.strip()


def test_memory_is_not_bound_without_the_controller_cpuset(domains, start, mems):
    one = str(uuid.uuid4())
    domains.expect_guest(described(one))
    start(one)
    ((found,), _) = domains.find_appeared()
    assert not domains.bind_memory(found, frozenset({1}))
    assert not mems.exists()
