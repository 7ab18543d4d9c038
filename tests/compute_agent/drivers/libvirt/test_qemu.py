"""Which thread of a QEMU process is what, and which process a domain has."""

import os
import subprocess
import sys
import time
import uuid

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuSettings
from compute_agent.drivers.libvirt.qemu import EMULATOR, ThreadSpec, find_process, role, wanted_cpus

A, B, EM = frozenset({2}), frozenset({3}), frozenset({7})
SETTINGS = CpuSettings((A, B), EM)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CPU 0/KVM", ThreadSpec(vcpu=0)),
        ("CPU 12/TCG", ThreadSpec(vcpu=12)),
        ("ALL CPUs/TCG", ThreadSpec(all_vcpus=True)),
        ("IO iothread3", ThreadSpec(iothread=3)),
        ("IO mon_iothread", EMULATOR),
        ("qemu-system-x86", EMULATOR),
        ("vhost-1234", EMULATOR),
        ("", EMULATOR),
    ],
)
def test_a_thread_is_known_by_its_name(name, expected):
    assert role(name) == expected


@pytest.mark.parametrize(
    ("it", "cpus"),
    [
        (ThreadSpec(vcpu=0), A),
        (ThreadSpec(vcpu=1), B),
        (ThreadSpec(vcpu=2), A | B),  # plugged in later
        (ThreadSpec(all_vcpus=True), A | B),
        (ThreadSpec(iothread=1), EM),
        (EMULATOR, EM),
    ],
)
def test_every_thread_has_its_place(it, cpus):
    assert wanted_cpus(it, SETTINGS) == cpus


@pytest.fixture
def impostor():
    """A process with the words of QEMU's command line."""
    guest_uuid = str(uuid.uuid4())
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "-uuid", guest_uuid])
    while guest_uuid not in procfs.command_line(process.pid):
        time.sleep(0.001)  # exec(2) is not over yet
    yield guest_uuid, process.pid
    process.kill()
    process.wait()


def test_the_process_of_a_domain_is_found_by_uuid_and_user(impostor):
    guest_uuid, pid = impostor
    assert find_process(guest_uuid, "").identity.pid == pid
    assert find_process(guest_uuid, f"+{os.getuid()}").identity.pid == pid
    assert find_process(str(uuid.uuid4()), "") is None


def test_a_process_of_another_user_is_not_taken_for_the_domains(impostor):
    guest_uuid, _ = impostor
    assert find_process(guest_uuid, f"+{os.getuid() + 1}") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
@pytest.mark.parametrize("owner", ["", "+0", "root", "no such user", "+x", "+٣"])
@pytest.mark.parametrize("in_part", [False, True])
def test_nobody_else_can_pass_for_the_domains_process(owner, in_part, tmp_path):
    """Whether libvirt says whose it is or not; nor can one that has been of that user in part."""
    guest_uuid = str(uuid.uuid4())
    script = "import os, time; os.setresuid(0, 65534, 0) if {} else os.setuid(65534); time.sleep(60)"
    command = [sys.executable, "-c", script.format(in_part), "-uuid", guest_uuid]
    process = subprocess.Popen(command, cwd="/")
    try:
        while not procfs.users_of(process.pid) & {65534}:
            time.sleep(0.001)
        assert procfs.command_line(process.pid)[-1] == guest_uuid
        assert find_process(guest_uuid, owner) is None
    finally:
        process.kill()
        process.wait()


def test_a_command_line_without_end_is_read_in_part(impostor, monkeypatch):
    guest_uuid, pid = impostor
    monkeypatch.setattr(procfs, "_MAX_COMMAND_LINE", 10)
    assert procfs.command_line(pid) == (sys.executable[:10],)
    assert find_process(guest_uuid, "") is None


def test_threads_that_have_no_names_may_all_be_guest_cpus(impostor):
    guest_uuid, pid = impostor
    process = find_process(guest_uuid, "")
    assert process.threads() == {pid: ThreadSpec(all_vcpus=True)}
