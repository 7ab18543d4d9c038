"""systemd accepts the units, and the files of users and folders."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages.confinement import settings_of

ETC = Path(__file__).parents[2] / "etc"
UNITS = {
    "placement/placement-api.service": 1.3,
    "placement/placement-shadow.service": 1.3,
    "compute-agent/compute-agent.service": 4.0,
}
"""Maximum exposure of a unit, from 0 to 10, in ``systemd-analyze security``."""

OF_ITS_OWN = {"ExecStart", "Restart", "RestartSec", "StateDirectory", "StateDirectoryMode"}
OF_ITS_OWN |= {"RuntimeDirectory", "RuntimeDirectoryMode", "SystemCallFilter"}


def run(program: str, *words: object) -> "subprocess.CompletedProcess[str]":
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (package systemd)")
    return subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_exposes_little(unit: str) -> None:
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", ETC / unit)
    found = re.search(r"exposure level for [a-z-]+\.service: ([0-9.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) < UNITS[unit], done.stdout


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_every_line(unit: str, tmp_path: Path) -> None:
    text = (ETC / unit).read_text()
    copy = tmp_path / Path(unit).name
    copy.write_text(re.sub(r"/opt/placement-compute/bin/[a-z-]+", sys.executable, text))
    done = run("systemd-analyze", "verify", "--man=no", copy)
    assert not [line for line in done.stderr.splitlines() if copy.name in line], done.stderr


def test_systemd_accepts_the_socket_which_has_the_address_of_the_service(tmp_path: Path) -> None:
    service = (ETC / "placement/placement-api.service").read_text()
    copy = tmp_path / "placement-api.service"
    copy.write_text(re.sub(r"/opt/placement-compute/bin/[a-z-]+", sys.executable, service))
    listener = tmp_path / "placement-api.socket"
    listener.write_text((ETC / "placement" / listener.name).read_text())
    done = run("systemd-analyze", "verify", "--man=no", listener)
    assert not [line for line in done.stderr.splitlines() if listener.name in line], done.stderr
    (address,) = re.findall("^ListenStream=(.+)$", listener.read_text(), re.MULTILINE)
    assert f"--bind {address} " in service


def test_the_proxy_has_no_more_than_the_service() -> None:
    api, shadow = (
        settings_of(ETC / f"placement/{name}.service") for name in ("placement-api", "placement-shadow")
    )
    assert {name: value for name, value in api.items() if name not in OF_ITS_OWN} == {
        name: value for name, value in shadow.items() if name not in OF_ITS_OWN
    }
    assert shadow["SystemCallFilter"] == [*api["SystemCallFilter"][:2], "setpriority"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Root folder of a machine with only the user root."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    return tmp_path


@pytest.mark.root
def test_sysusers_makes_the_user_of_the_service(root: Path) -> None:
    for _ in range(2):  # the second run changes nothing
        done = run("systemd-sysusers", f"--root={root}", ETC / "placement/placement.sysusers")
        assert done.returncode == 0, done.stderr
    made = (root / "etc/passwd").read_text().splitlines()[1:]
    assert [re.sub(r":\d+:\d+:", ":", line) for line in made] == [
        "placement:x:OpenStack Placement service:/var/lib/placement:/usr/sbin/nologin"
    ]
    units = [settings_of(ETC / unit) for unit in UNITS if unit.startswith("placement/")]
    assert {unit["User"][0] for unit in units} == {"placement"}


@pytest.mark.root
def test_tmpfiles_keeps_configurations_from_other_users(root: Path) -> None:
    run("systemd-sysusers", f"--root={root}", ETC / "placement/placement.sysusers")
    for name in ("placement/placement.conf", "compute-agent/compute-agent.conf"):
        (root / "etc" / name).parent.mkdir()
        (root / "etc" / name).write_text("password = secret\n")
        (root / "etc" / name).chmod(0o644)
    rules = [ETC / "placement/placement.tmpfiles", ETC / "compute-agent/compute-agent.tmpfiles"]
    done = run("systemd-tmpfiles", f"--root={root}", "--create", *rules)
    assert (done.returncode, done.stderr) == (0, "")
    modes = {
        str(path.relative_to(root)): oct(path.stat().st_mode & 0o7777)
        for path in [*root.glob("etc/*/"), *root.glob("etc/*/*"), root / "run/compute-agent"]
        if path.is_relative_to(root / "run") or path.name.startswith(("placement", "compute-agent"))
    }
    assert modes == {
        "etc/placement": "0o750",
        "etc/placement/placement.conf": "0o640",
        "etc/compute-agent": "0o750",
        "etc/compute-agent/compute-agent.conf": "0o600",
        "run/compute-agent": "0o750",
    }
