"""Process guests in the cgroup v2 groups of real kernels, by the test module that a fake folder has."""

import xml.etree.ElementTree as ElementTree

import pytest

from tests.vm import machine

pytestmark = pytest.mark.slow

MODULE = "tests/compute_agent/drivers/test_kernel.py"
HERE = "/sys/fs/cgroup/guests"
SMP = ("--smp", "sockets=2,cores=2,threads=1")


@pytest.mark.parametrize("kernel", ["6.1.", "6.12."])
def test_guests_are_limited_bound_and_adopted_by_a_real_kernel(kernel, tmp_path, record_property):
    try:
        machine.find()
    except machine.MachineMissing as missing:
        pytest.skip(str(missing))
    if not any(version.startswith(kernel) for version in machine.kernels()):
        pytest.skip(f"the machine has no kernel {kernel}")
    machine.stage(tmp_path)
    # Memory on two NUMA nodes, one for each socket.
    result = machine.run(
        f"mkdir {HERE} && {machine.pytest_command(MODULE, 'result.xml')}",
        tmp_path,
        *SMP,
        *("--kernel", kernel, "--no-rdt", "--env", f"CGROUP_ROOT={HERE}"),
    )
    print(result.output)
    assert result.status == 0, result.output
    suite = ElementTree.parse(tmp_path / "result.xml").getroot().find("testsuite")
    totals = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
    record_property("totals", totals)
    assert totals["failures"] == totals["errors"] == totals["skipped"] == 0
    assert totals["tests"] >= 20
