"""The resctrl library on real kernels, by the test module that fake trees have; and the fake against them."""

import json
from dataclasses import replace

import pytest

from tests.compute_agent.resctrl import fake, replay
from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

MODULES = "tests/compute_agent/resctrl/test_kernel.py tests/compute_agent/monitoring/test_kernel.py"
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

FAKES = {
    "intel": (fake.INTEL, 1),
    "amd": (replace(fake.AMD, way_bytes=2**21), 2),
    "intel-cdp": (fake.INTEL_CDP, 3),
}
"""The fake tree of the machine, and the seed of the commands for both trees."""


@pytest.mark.parametrize("name", MACHINES)
def test_the_library_works_with_a_real_kernel(name, share, record_property):
    like, seed = FAKES.get(name, (None, 0))
    machine.stage(share)
    before = ""
    if like is not None:
        todo = replay.commands(seed, 600, like.l3, like.l3, like.ways, like.mb, like.cdp)
        (share / "commands.json").write_text(json.dumps(todo))
        # This test is first, as other tests leave RMIDs behind that are busy for a while.
        before = f"python3 -m {replay.__name__} /sys/fs/resctrl commands.json outcomes.json"
    options = (*SMP, *MACHINES[name], "--env", "RESCTRL_MOUNT=/sys/fs/resctrl")
    totals = machine.run_tests(MODULES, share, *options, before=before)
    record_property("totals", totals)
    assert totals["tests"] - totals["skipped"] >= 25
    if like is not None:
        compare(todo, replay.play(fake.FakeResctrl.of(like, share / "fake"), todo), share / "outcomes.json")


def compare(todo, expected, outcomes):
    """The fake has to answer random commands as the kernel did, with the same files after each."""
    found = json.loads(outcomes.read_text())
    assert len(found) == len(todo)
    assert sum(1 for outcome in found if outcome["errno"] == 0) > 100
    for one, ours, kernels in zip(todo, expected, found, strict=True):
        assert ours == kernels, one
