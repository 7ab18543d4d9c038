"""Nova's own functional tests pass with this service if they pass with OpenStack Placement."""

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from benchmarks.reference import ReferenceMissing, install_environment

pytestmark = [pytest.mark.slow, pytest.mark.nova]

_FOLDER: Final = Path(__file__).parent
_CHECKOUT: Final = _FOLDER.parents[1]
_SECONDS: Final = 7200
_ATTEMPTS: Final = 4
_FUNCTIONAL: Final = "nova.tests.functional"

MODULES: Final = {
    "report client": ("test_report_client",),
    "provider trees": ("test_servers_provider_tree",),
    "reshape": ("libvirt.test_reshape",),
    "PCI in Placement": ("libvirt.test_pci_in_placement",),
    "NUMA": ("libvirt.test_numa_servers", "libvirt.test_numa_live_migration"),
    "shared and nested providers": (
        *("libvirt.test_shared_resource_provider", "libvirt.test_vgpu", "libvirt.test_vpmem"),
        "libvirt.test_report_cpu_traits",
    ),
    "nova-manage placement": (
        "test_nova_manage.TestNovaManagePlacementHealAllocations",
        "test_nova_manage.TestNovaManagePlacementHealPortAllocations",
        "test_nova_manage.TestNovaManagePlacementHealPortAllocationsExtended",
        "test_nova_manage.TestNovaManagePlacementHealPortAllocationsMultiGroup",
        "test_nova_manage.TestNovaManagePlacementSyncAggregates",
        "test_nova_manage.TestNovaManagePlacementAudit",
    ),
    "live migration": (
        "libvirt.test_live_migration",
        "compute.test_live_migration",
        "test_servers.ServerLiveMigrateForceAndAbort",
        "test_servers.ServerLiveMigrateForceAndAbortWithNestedResourcesRequest",
    ),
    "cold migration": (
        "test_cold_migrate",
        "test_servers.PollUnconfirmedResizesTest",
        "test_servers.ServerRescheduleTests",
        "test_servers.ServerRescheduleTestsWithNestedResourcesRequest",
    ),
    "moves": ("test_servers.ServerMovingTests",),
    "moves between nested providers": (
        "test_servers.ServerMovingTestsWithNestedComputes",
        "test_servers.ServerMovingTestsFromFlatToNested",
        "test_servers.ServerMovingTestsWithNestedResourceRequests",
    ),
    "evacuation": ("libvirt.test_evacuate",),
    "writes at the same time": ("test_servers.ConsumerGenerationConflictTest",),
    "traits": ("test_servers.TraitsBasedSchedulingTest",),
    "resource requests": ("test_servers_resource_request",),
    "aggregates": ("test_aggregates",),
    "resource tracker": ("compute.test_resource_tracker",),
}
"""Nova's tests that use Placement."""


@pytest.fixture(scope="module")
def programs() -> Path:
    """Environment with Nova, its tests, and the requirements of both services."""
    try:
        found = install_environment("nova-functional-34.0.0", _FOLDER / "requirements.txt")
    except ReferenceMissing as error:
        pytest.skip(str(error))
    # Nova's tests expect its configuration in the place of a checkout
    (packages,) = found.parent.glob("lib/python3*/site-packages")
    if not (packages / "etc").exists():
        (packages / "etc").symlink_to(found.parent / "etc")
    return found


@pytest.mark.parametrize("about", MODULES)
def test_tests_that_pass_with_openstack_placement_pass_with_this_service(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], about: str
) -> None:
    names = [f"{_FUNCTIONAL}.{module}" for module in MODULES[about]]
    with ThreadPoolExecutor() as both:
        stock, ours = both.map(lambda kind: _passed(programs, tmp_path, kind, names), ("stock", "ours"))
    with capsys.disabled():
        print(
            f"\n{about}: {len(stock)} pass with OpenStack Placement, with ours {len(stock & ours)} of these"
        )
    assert stock, "none passes with OpenStack Placement"
    assert sorted(stock - ours) == [], _end(tmp_path / "ours.log")


def _passed(programs: Path, folder: Path, kind: str, names: Sequence[str]) -> set[str]:
    """Return the tests that pass. Failed ones run again alone: some of Nova's tests measure time or hang."""
    good: set[str] = set()
    left = list(names)
    for _ in range(_ATTEMPTS):
        if left:
            outcomes = _outcomes(programs, folder, kind, left)
            good |= {name for name, outcome in outcomes.items() if outcome == "passed"}
            left = sorted(name for name, outcome in outcomes.items() if outcome in {"failed", "waiting"})
    return good


def _outcomes(programs: Path, folder: Path, kind: str, names: Sequence[str]) -> dict[str, str]:
    """Run Nova's tests of these names on a service of this kind; return their results."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OS_"))}
    if kind == "ours":
        environ["PYTHONPATH"] = str(_CHECKOUT)  # before the installed package, which is OpenStack's
    with (folder / f"{kind}.log").open("ab") as log:
        done = subprocess.run(
            [programs / "python", "-P", _FOLDER / "inside.py", kind, *names],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=_SECONDS,
        )
    outcomes = dict(line.split("\t") for line in done.stdout.splitlines())
    assert outcomes, _end(folder / f"{kind}.log")
    return outcomes


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-8000:]
