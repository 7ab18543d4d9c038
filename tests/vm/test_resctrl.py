"""The resctrl library on real kernels, with the same test module as on fake trees."""

import xml.etree.ElementTree as ElementTree

import pytest

from tests.vm import machine

MODULE = "tests/compute_agent/resctrl/test_kernel.py"
SMP = ("--smp", "sockets=2,cores=2,threads=2")

MACHINES = {
    "intel": ("--cpu", "intel", "--mount="),
    "amd": ("--cpu", "amd", "--mount="),
    "intel-cdp": ("--cpu", "intel", "--mount=cdp"),
    "intel-mbps": ("--cpu", "intel", "--mount=mba_MBps"),
    "intel-sparse": ("--cpu", "intel", "--mount=", "--rdt", "noncontig=on,l3-ways=11,closids=10"),
    "intel-6.1": ("--cpu", "intel", "--mount=", "--kernel", "6.1."),
    "amd-6.1": ("--cpu", "amd", "--mount=", "--kernel", "6.1.", "--rdt", "rmids=6"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_the_library_works_with_a_real_kernel(name, tmp_path, record_property):
    try:
        machine.find()
    except machine.MachineMissing as missing:
        pytest.skip(str(missing))
    machine.stage(tmp_path)
    result = machine.run(
        machine.pytest_command(MODULE, "result.xml"),
        tmp_path,
        *SMP,
        *MACHINES[name],
        *("--env", "RESCTRL_MOUNT=/sys/fs/resctrl"),
    )
    print(result.output)
    assert result.status == 0, result.output
    suite = ElementTree.parse(tmp_path / "result.xml").getroot().find("testsuite")
    totals = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
    record_property("totals", totals)
    assert totals["failures"] == totals["errors"] == 0
    assert totals["tests"] - totals["skipped"] >= 25
