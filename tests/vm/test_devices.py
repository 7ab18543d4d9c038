"""PCI devices on two NUMA nodes of a real kernel: QEMU's q35 with an expander bus for each node."""

import importlib.util
import os
import shutil
import stat
import sys

import pytest

from tests.vm import libvirt_machine, machine, modules

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=2,cores=2,threads=1", "--no-rdt", "--append", "intel_iommu=on")
STOCK = "qemu-system-x86_64"

_WRAPPER = """#!{python}
import os, sys
# The machine with resource control is a pc, which has no PCI Express.
words = sys.argv[1:]
words[words.index("-machine") + 1] = "q35,usb=off,smm=off,hpet=off"
os.execv({program!r}, [{program!r}, *words])
"""


def expander(node: int, bus: int) -> str:
    """The options for an expander bus of a node, with an accelerator and a disk behind a port each."""
    ports = "".join(
        f" -device pcie-root-port,id=port{node}{slot},bus=node{node},chassis={1 + 2 * node + slot},slot=0"
        for slot in (0, 1)
    )
    return (
        f"-device pxb-pcie,id=node{node},bus=pcie.0,bus_nr={bus},numa_node={node}{ports}"
        f" -device edu,bus=port{node}0 -device nvme,bus=port{node}1,serial=disk{node}"
    )


@pytest.fixture
def two_nodes(tmp_path):
    """The options of a machine with devices on two nodes."""
    program = shutil.which(STOCK)
    if program is None:
        pytest.skip(f"no {STOCK}")
    wrapper = tmp_path / "q35"
    wrapper.write_text(_WRAPPER.format(python=sys.executable, program=program))
    os.chmod(wrapper, stat.S_IRWXU)
    devices = f"-device intel-iommu {expander(0, 64)} {expander(1, 128)}"
    return *SMP, "--qemu", str(wrapper), "--qemu-args", devices


def test_devices_and_guests_are_on_one_node_of_a_real_kernel(share, placement, two_nodes):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    totals = machine.run_tests("tests/vm/inside_devices.py", share, *two_nodes, *placement)
    assert (totals["tests"], totals["skipped"]) == (3, 0)


def test_a_domain_is_on_the_node_of_its_passed_device(share, placement, two_nodes):
    """Domains with a device of the machine's kernel, which VFIO and libvirt pass to QEMU."""
    folders = [modules.folder_of(version) for version in machine.kernels(libvirt_machine.FOLDER)]
    if not folders or not (folders[-1] / "vfio.ko").exists():
        pytest.skip("no machine with libvirt: python -m tests.vm.libvirt_machine")
    if importlib.util.find_spec("libvirt") is None:
        pytest.skip("libvirt-python is not installed")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT, "libvirt-python"))
    shutil.copytree(folders[-1], share / "modules")
    options = (*two_nodes, "--vm", str(libvirt_machine.FOLDER), "--mem", "4G")
    totals = machine.run_tests("tests/vm/inside_hostdevs.py", share, *options, *placement, timeout=1500)
    assert (totals["tests"], totals["skipped"]) == (5, 0)
