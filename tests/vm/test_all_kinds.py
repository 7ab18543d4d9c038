"""Guests of every kind on one host, with systemd as its first process."""

import importlib.util
import json

import pytest

from tests.vm import libvirt_machine, machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=4,cores=2,threads=1")
"""Each socket is a NUMA node."""


@pytest.fixture(params=[libvirt_machine.CONTAINERS, libvirt_machine.DEBIAN_13], ids=["debian12", "debian13"])
def run_module(request, share, placement):
    """Run a module of tests on a host with all kinds of guests; the numbers of tests and of skipped ones."""
    # The kernels are there first, and the file system is missing if its making has failed.
    if not (request.param / "rootfs.cpio").is_file():
        pytest.skip("no machine with Podman and Docker: python -m tests.vm.libvirt_machine")
    libvirt = ("libvirt-python",)
    if request.param == libvirt_machine.DEBIAN_13:
        # The module in C is for another Python, and the machine has its own.
        libvirt = ()
    elif importlib.util.find_spec("libvirt") is None:
        pytest.skip("libvirt-python is not installed")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT, "jeepney", *libvirt))
    folders = ("--vm", str(request.param), "--qemu", str(machine.FOLDER / "qemu-rdt"))
    options = (*SMP, *folders, "--mem", "5600M", "--disk", "64M")
    options += ("--append", libvirt_machine.SYSTEMD, *placement)
    # The agent starts many times, and nothing else measures the memory of this machine.
    options += ("--env", "PYTHONDONTWRITEBYTECODE=", "--env", "PYTHONPYCACHEPREFIX=/tmp/bytecode")

    def run_module(name, *more):
        totals = machine.run_tests(f"-s -v {name}", share, *options, *more, timeout=3000)
        return totals["tests"], totals["skipped"]

    return run_module


def test_guests_of_every_kind_share_a_host(run_module, share):
    assert run_module("tests/vm/inside_all_kinds.py", "--no-rdt") == (15, 0)
    print("seconds from start to pinned:", json.loads((share / "times.json").read_text()))


def test_the_agent_claims_for_containers_and_services(run_module):
    assert run_module("tests/vm/inside_claimed_kinds.py", "--no-rdt") == (7, 0)


def test_units_and_containers_have_caches_and_quiet_cpus(run_module):
    assert run_module("tests/vm/inside_quiet_kinds.py") == (4, 0)
