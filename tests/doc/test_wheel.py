"""The wheel of `make dist` works in an environment of the system's Python, as the page says."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc.pages import ROOT

SYSTEM = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
PROGRAMS = ("placement-manage", "placement-status", "placement-api", "compute-agent")

pytestmark = [pytest.mark.slow, pytest.mark.long]


def run(*command: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, cwd=cwd, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the environment. pip installs the dependencies from the index, in the pinned versions.

    pip does not compile them: the few programs of the test compile only their own imports.
    """
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    made = subprocess.run([SYSTEM, "-m", "venv", environment], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"{SYSTEM} makes no environments here: {made.stderr or made.stdout}")
    constraints = ROOT / "etc" / "constraints.txt"
    pip = (environment / "bin" / "pip", "--quiet", "--disable-pip-version-check")
    wanted = f"{wheel}[postgresql,mysql]"
    run(*pip, "install", "--no-compile", "--constraint", constraints, wanted, cwd=folder)
    return environment


def test_the_programs_run_and_have_one_version(installed: Path, tmp_path: Path) -> None:
    versions = {
        run(installed / "bin" / program, "--version", cwd=tmp_path).stdout.split()[-1]
        for program in ("placement-manage", "compute-agent")
    }
    assert len(versions) == 1
    for program in PROGRAMS:
        assert (installed / "bin" / program).exists()


def test_the_wheel_contains_units_and_samples(installed: Path) -> None:
    share = installed / "share" / "placement-compute"
    assert {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()} == {
        "compute-agent/compute-agent.conf.sample",
        "compute-agent/compute-agent.logrotate",
        "compute-agent/compute-agent.service",
        "compute-agent/compute-agent.tmpfiles",
        "compute-agent/nova-cloud.conf",
        "grafana/fleet.json",
        "grafana/caches.json",
        "grafana/guest.json",
        "grafana/host.json",
        "grafana/service.json",
        "placement/placement-api.service",
        "placement/placement-api.socket",
        "placement/placement-shadow.service",
        "placement/placement.conf.sample",
        "placement/placement.logrotate",
        "placement/placement.sysusers",
        "placement/placement.tmpfiles",
        "placement/policy.yaml.sample",
        "prometheus/placement-compute.rules.yaml",
    }
    for program, unit in (("placement-api", "placement"), ("compute-agent", "compute-agent")):
        text = (share / unit / f"{program}.service").read_text()
        assert f"ExecStart=/opt/placement-compute/bin/{program} " in text


def test_the_wheel_creates_its_schema_and_describes_this_host(installed: Path, tmp_path: Path) -> None:
    ini = tmp_path / "placement.conf"
    ini.write_text("[placement_database]\nconnection = sqlite:///made.db\n")
    done = run(installed / "bin" / "placement-manage", "--config-file", ini, "db", "sync", cwd=tmp_path)
    assert "revision" in done.stdout
    agent = tmp_path / "agent.conf"
    agent.write_text(f"[DEFAULT]\nstate_path = {tmp_path / 'state'}\n")
    run(installed / "bin" / "compute-agent", "--config-file", agent, "topology", "show", cwd=tmp_path)
