"""Quiet CPUs, and units as guests, on a host with systemd as its first process."""

import pytest

from tests.vm import libvirt_machine, machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=4,threads=1")


def run_with_systemd(module, share, *more):
    if not machine.kernels(libvirt_machine.FOLDER):
        pytest.skip("no machine with systemd: python -m tests.vm.libvirt_machine")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT, *more))
    options = (
        *SMP,
        "--vm",
        str(libvirt_machine.FOLDER),
        "--qemu",
        str(machine.FOLDER / "qemu-rdt"),
        "--no-rdt",
    )
    options += ("--mem", "4G", "--disk", "64M")
    options += ("--append", libvirt_machine.SYSTEMD, "--env", "ISOLATION_SECONDS=0")
    totals = machine.run_tests(module, share, *options, timeout=1500)
    return totals["tests"], totals["skipped"]


def test_slices_and_scopes_of_systemd_are_bound_and_given_back(share):
    assert run_with_systemd("tests/vm/inside_systemd.py", share) == (3, 0)


def test_units_are_guests(share):
    assert run_with_systemd("tests/vm/inside_units.py", share, "jeepney") == (13, 0)
