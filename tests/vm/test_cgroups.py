"""Process guests in the cgroup v2 groups of real kernels, by the test module that a fake folder has."""

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

MODULE = "tests/compute_agent/drivers/test_kernel.py"
HERE = "/sys/fs/cgroup/guests"
SMP = ("--smp", "sockets=2,cores=2,threads=1")


@pytest.mark.parametrize("kernel", ["6.1.", "6.12."])
def test_guests_are_limited_bound_and_adopted_by_a_real_kernel(kernel, share, record_property):
    if not any(version.startswith(kernel) for version in machine.kernels()):
        pytest.skip(f"the machine has no kernel {kernel}")
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    # Memory on two NUMA nodes, one for each socket, and on one without CPUs.
    options = (*SMP, "--kernel", kernel, "--no-rdt", "--disk", "64M", "--env", f"CGROUP_ROOT={HERE}")
    far = "-object memory-backend-ram,id=far,size=256M -numa node,nodeid=2,memdev=far"
    pairs = [(0, 2), (2, 0), (1, 2), (2, 1)]
    far += "".join(f" -numa dist,src={one},dst={other},val=40" for one, other in pairs)
    options += ("--qemu-args", f"-m 2304M {far}")
    totals = machine.run_tests(MODULE, share, *options, before=f"mkdir {HERE}")
    record_property("totals", totals)
    assert totals["skipped"] == 0
    assert totals["tests"] >= 20
