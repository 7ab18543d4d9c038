"""Quiet CPUs beside systemd as the first process: its slices, its reloads, and scopes that it has delegated.

Runs in the virtual machine only: `test_systemd.py` starts it there. The guest is in a delegated scope below
`machine.slice`, with the groups that libvirt makes there.
"""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from compute_agent.host import kernel_files
from compute_agent.isolation import control_groups
from tests.vm.inside_isolation import (
    CPU,
    NOISE,
    SCOPE,
    Domain,
    KilledError,
    demand,
    isolator,
    kernel_texts,
    without_interrupts,
)
from tests.waits import wait_for

SLICES = ("system.slice", "user.slice")
ALLOWED = frozenset({0, 1})


def systemctl(*words):
    return subprocess.run(["systemctl", *words], check=True, capture_output=True, text=True).stdout.strip()


def start_unit(name, *options):
    """Start a busy service; its process."""
    code = ("python3", "-c", NOISE)
    subprocess.run(["systemd-run", "--quiet", f"--unit={name}", *options, *code], check=True)
    return int(systemctl("show", "--value", "-p", "MainPID", f"{name}.service"))


def allowed_cpus():
    """The property of each slice as systemd has it."""
    return {name: systemctl("show", "--value", "-p", "AllowedCPUs", name) for name in SLICES}


@pytest.fixture(scope="module")
def domain():
    """The guest, and a busy service in each slice."""
    assert Path("/proc/1/comm").read_text().strip() == "systemd"
    scope = ("--scope", "--slice=machine.slice", f"--unit={SCOPE.stem}", "-p", "Delegate=yes")
    holder = subprocess.Popen(["systemd-run", "--quiet", *scope, "sleep", "infinity"])
    wait_for(lambda: SCOPE.is_dir() and (SCOPE / "cgroup.procs").read_text().split())
    # A group with processes can have no groups with controllers.
    (SCOPE / "holder").mkdir()
    for pid in (SCOPE / "cgroup.procs").read_text().split():
        (SCOPE / "holder/cgroup.procs").write_text(pid)
    domain = Domain()
    for name in SLICES:
        start_unit(f"busy-{name.partition('.')[0]}", f"--slice={name}")
    yield domain
    domain.process.kill()
    domain.process.wait()
    holder.kill()
    holder.wait()


def unit_process(name):
    return int(systemctl("show", "--value", "-p", "MainPID", f"{name}.service"))


def test_units_keep_off_a_quiet_cpu_through_reloads_and_starts(domain, tmp_path):
    before, properties = without_interrupts(kernel_texts()), allowed_cpus()
    agent = isolator(tmp_path)
    status = agent.bring_about(demand(domain, "quiet"))
    print(status)
    assert allowed_cpus() == dict.fromkeys(SLICES, "0-1")
    for name in ("busy-system", "busy-user"):
        wait_for(lambda name=name: os.sched_getaffinity(unit_process(name)) == ALLOWED)
    systemctl("daemon-reload")
    start_unit("late")
    systemctl("restart", "dbus.socket")
    for name in ("busy-system", "busy-user", "late"):
        wait_for(lambda name=name: os.sched_getaffinity(unit_process(name)) == ALLOWED)
    # The scope of the guest stays unchanged.
    assert os.sched_getaffinity(domain.thread) == {CPU}
    assert systemctl("show", "--value", "-p", "AllowedCPUs", SCOPE.name) == ""
    assert agent.bring_about(demand(domain, "quiet")).refused == status.refused
    systemctl("stop", "late")
    agent.bring_about(demand(domain, ""))
    assert allowed_cpus() == properties
    assert without_interrupts(kernel_texts()) == before
    systemctl("daemon-reload")
    assert without_interrupts(kernel_texts()) == before
    assert not [*Path("/run/systemd/system.control").glob("*.slice.d/*AllowedCPUs*")]


def test_a_domain_starts_beside_a_quiet_one(domain, tmp_path):
    """systemd gives a new scope all CPUs, although the slices of the host are bound."""
    agent = isolator(tmp_path)
    agent.bring_about(demand(domain, "quiet"))
    scope = ("--scope", "--slice=machine.slice", "--unit=machine-qemu-2", "-p", "AllowedCPUs=3")
    done = subprocess.run(
        ["systemd-run", "--quiet", *scope, "cat", "/proc/self/status"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.partition("Cpus_allowed_list:")[2].split()[0] == "3"
    agent.bring_about(demand(domain, ""))


def test_killed_at_any_write_all_is_given_back(domain, tmp_path, monkeypatch):
    before, properties, writes = kernel_texts(), allowed_cpus(), []
    limit = None

    def counted(function):
        def call(*arguments, **options):
            if limit is not None and len(writes) >= limit:
                raise KilledError
            writes.append(arguments)
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(kernel_files, "write_text", counted(kernel_files.write_text))
    monkeypatch.setattr(os, "sched_setaffinity", counted(os.sched_setaffinity))
    monkeypatch.setattr(control_groups.subprocess, "run", counted(subprocess.run))
    isolator(tmp_path).bring_about(demand(domain, "alone"))
    isolator(tmp_path).bring_about(demand(domain, ""))
    total = len(writes)
    assert kernel_texts() == before
    for number in range(0, total, max(total // 8, 1)):
        writes.clear()
        limit = number
        with contextlib.suppress(KilledError):
            isolator(tmp_path).bring_about(demand(domain, "alone"))
            isolator(tmp_path).bring_about(demand(domain, ""))
        limit = None
        isolator(tmp_path).bring_about(demand(domain, ""))
        assert kernel_texts() == before, number
        assert allowed_cpus() == properties, number
