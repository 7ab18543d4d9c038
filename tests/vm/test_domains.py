"""Workers of vhost, helpers and the idle schedule of domains on real kernels."""

import os
import shutil

import pytest

from tests.vm import kernel, machine, modules

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=4,threads=1")


@pytest.mark.parametrize(
    ("booted", "skipped"), [("6.1.", 1), ("6.12.", 1), (str(kernel.KERNEL), 0)], ids=["6.1", "6.12", "core"]
)
def test_threads_beside_guest_cpus_are_on_shared_cpus(booted, skipped, share):
    versions = [version for version in machine.kernels() if version.startswith(booted)]
    folders = [modules.folder_of(version) for version in versions if modules.folder_of(version).is_dir()]
    if not (os.path.exists(booted) or folders):
        pytest.skip(f"the machine has no kernel {booted} with vhost: python -m tests.vm.modules")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    if folders:
        shutil.copytree(folders[-1], share / "modules")
    totals = machine.run_tests("tests/vm/inside_domains.py", share, *SMP, "--no-rdt", "--kernel", booted)
    # Some builds of 6.12 can choose between kernel threads and threads of QEMU.
    assert totals["tests"] == 5
    assert totals["skipped"] <= skipped
