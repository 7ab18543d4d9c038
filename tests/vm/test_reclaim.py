"""Memory that runs short on a real kernel, with steps before evictions and without: QEMU guests, and swap."""

import json
import shutil
import subprocess

import pytest

from tests.vm import machine

pytestmark = [pytest.mark.slow, pytest.mark.vm]

SMP = ("--smp", "sockets=1,cores=2,threads=1")
SYSTEM = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "linux-vdso.so")
"""Libraries that the machine has."""


def stage_qemu(folder):
    """Put the emulator of the machine into a folder, with the libraries that it needs inside the machine."""
    folder.mkdir()
    shutil.copy(machine.FOLDER / "qemu-rdt", folder)
    shutil.copytree(machine.FOLDER / "firmware", folder / "firmware")
    listed = subprocess.check_output(["ldd", machine.FOLDER / "qemu-rdt"], text=True)
    for line in listed.splitlines():
        words = line.split()
        if "=>" in words and not words[0].startswith(SYSTEM):
            shutil.copy(words[2], folder / words[0])


def table(found):
    """The runs as rows of a table in Markdown, for the page on watermarks."""
    runs = found["runs"]
    rows = [f"| {found['kernel']} | {' | '.join(runs)} |", "| --- " * (len(runs) + 1) + "|"]
    for name in next(iter(runs.values())):
        rows.append(f"| {name} | " + " | ".join(f"{run.get(name, 0):.4g}" for run in runs.values()) + " |")
    return "\n".join(rows)


def test_steps_keep_guests_that_evictions_end_and_the_victim_waits_less(share, placement, record_property):
    machine.stage(share, (*machine.PYTEST, *machine.AGENT))
    stage_qemu(share / "qemu")
    try:
        totals = machine.run_tests(
            "tests/vm/inside_reclaim.py",
            share,
            *SMP,
            *("--no-rdt", "--kernel", "6.12", "--mem", "1536M", "--disk", "1500M"),
            *placement,
            timeout=2400,
        )
    finally:
        if (share / "reclaim.json").exists():
            found = json.loads((share / "reclaim.json").read_text())
            print(table(found))
    record_property("found", found)
    assert (totals["tests"], totals["skipped"]) == (3, 0)
    assert found["kernel"].startswith("6.12")
    alone, evictions, steps = found["runs"].values()
    assert evictions["evicted"] >= 1
    assert (alone["evicted"], steps["evicted"]) == (0, 0)
    assert steps["reclaims"] >= 1
    # Cold pages of others left in place of those that the victim uses.
    assert steps["refaults"] <= alone["refaults"]
    assert steps["waited"] <= alone["waited"]
