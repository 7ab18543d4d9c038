"""Guests of every kind on one host, with systemd as its first process."""

import importlib.util
import json

import pytest

from tests.vm import libvirt_machine, machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=6,threads=1")


def test_guests_of_every_kind_share_a_host(share, placement):
    if not machine.kernels(libvirt_machine.CONTAINERS):
        pytest.skip("no machine with Podman and Docker: python -m tests.vm.libvirt_machine")
    if importlib.util.find_spec("libvirt") is None:
        pytest.skip("libvirt-python is not installed")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT, "jeepney", "libvirt-python"))
    folders = ("--vm", str(libvirt_machine.CONTAINERS), "--qemu", str(machine.FOLDER / "qemu-rdt"))
    options = (*SMP, *folders, "--no-rdt", "--mem", "5G", "--append", libvirt_machine.SYSTEMD, *placement)
    # The agent starts many times, and nothing else measures the memory of this machine.
    options += ("--env", "PYTHONDONTWRITEBYTECODE=", "--env", "PYTHONPYCACHEPREFIX=/tmp/bytecode")
    totals = machine.run_tests("-s -v tests/vm/inside_all_kinds.py", share, *options, timeout=3000)
    assert (totals["tests"], totals["skipped"]) == (10, 0)
    print("seconds from start to pinned:", json.loads((share / "times.json").read_text()))
