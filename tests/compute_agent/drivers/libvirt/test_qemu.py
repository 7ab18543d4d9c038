"""Tests of recognising the threads of a QEMU process, and the process of a domain."""

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuSettings
from compute_agent.drivers.libvirt.qemu import EMULATOR, ThreadRole, find_process, thread_role, wanted_cpus

A, B, EM = frozenset({2}), frozenset({3}), frozenset({7})
SETTINGS = CpuSettings((A, B), EM)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CPU 0/KVM", ThreadRole(vcpu=0)),
        ("CPU 12/TCG", ThreadRole(vcpu=12)),
        ("ALL CPUs/TCG", ThreadRole(all_vcpus=True)),
        ("IO iothread3", ThreadRole(iothread=3)),
        ("IO mon_iothread", EMULATOR),
        ("qemu-system-x86", EMULATOR),
        ("vhost-1234", EMULATOR),
        ("", EMULATOR),
    ],
)
def test_a_thread_is_known_by_its_name(name, expected):
    assert thread_role(name) == expected


@pytest.mark.parametrize(
    ("it", "cpus"),
    [
        (ThreadRole(vcpu=0), A),
        (ThreadRole(vcpu=1), B),
        (ThreadRole(vcpu=2), A | B),  # plugged in later
        (ThreadRole(all_vcpus=True), A | B),
        (ThreadRole(iothread=1), EM),
        (EMULATOR, EM),
    ],
)
def test_every_thread_has_its_cpus(it, cpus):
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
def test_a_process_of_another_user_cannot_pose_as_the_domains(owner, in_part, tmp_path):
    """The same holds without an owner from libvirt, and for a process that has only some ids of the user."""
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


FORK = """
import os, time
if made := os.fork():
    print(made, flush=True)
time.sleep(60)
"""


def test_a_fork_of_the_process_is_not_the_domains():
    """The fork has QEMU's command line until it calls execve(2), and ends soon."""
    guest_uuid = str(uuid.uuid4())
    command = [sys.executable, "-c", FORK, "-uuid", guest_uuid]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    fork = int(process.stdout.readline())
    try:
        assert procfs.command_line(fork) == procfs.command_line(process.pid)
        assert find_process(guest_uuid, "").identity.pid == process.pid
        assert find_process(guest_uuid, "", (fork,)) is None
    finally:
        for pid in (fork, process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_command_line_without_end_is_read_in_part(impostor, monkeypatch):
    guest_uuid, pid = impostor
    monkeypatch.setattr(procfs, "_MAX_COMMAND_LINE", 10)
    assert procfs.command_line(pid) == (sys.executable[:10],)
    assert find_process(guest_uuid, "") is None


def test_threads_that_have_no_names_may_all_be_guest_cpus(impostor):
    guest_uuid, pid = impostor
    process = find_process(guest_uuid, "")
    assert process.thread_roles() == {pid: ThreadRole(all_vcpus=True)}
