"""The Debian packages: built, installed in a small Debian, used, upgraded, removed and purged there."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import debian, machine
from tests.packages.machine import SECONDS, BootedMachine
from tests.ports import free_port
from tests.programs import environ_without_python, is_answering
from tests.waits import wait_for

pytestmark = [pytest.mark.packages, pytest.mark.slow, pytest.mark.root]

ROOT = Path(__file__).parents[2]
NAMES = ("placement-compute-common", "placement-compute-api", "placement-compute-agent")
NEWER = "99.0-1"

# Commands to systemd from the scripts of packages.
SYSTEMCTL = '#!/bin/sh\necho "$@" >> /run/systemctl.log\n'

PLACEMENT = """\
[DEFAULT]
use_stderr = true
[api]
auth_strategy = noauth2
[placement_database]
connection = sqlite:////var/lib/placement/placement.sqlite
sync_on_startup = true
"""
AGENT = """\
[placement]
auth_type = admin_token
endpoint = http://127.0.0.1:{port}
token = admin
[guests]
driver = process
[compute]
cpu_dedicated_set = 1
cpu_shared_set = 0
[daemon]
http_port = 0
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the packages of this checkout; return them by name."""
    for program, package in (("dh", "debhelper"), ("dpkg-buildpackage", "dpkg-dev")):
        if shutil.which(program) is None:
            pytest.skip(f"{package} is not installed")
    folder = tmp_path_factory.mktemp("built")
    source = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder, ROOT]
    subprocess.run(source, check=True, capture_output=True, timeout=SECONDS)
    (sdist,) = folder.glob("*.tar.gz")
    done = subprocess.run(
        [ROOT / "etc/packages/build-deb", sdist, folder],
        env=environ_without_python(),
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return {name: next(folder.glob(f"{name}_*.deb")) for name in NAMES}


@pytest.fixture(scope="module")
def newer(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same packages with a later version, changed rules and changed units."""
    folder = tmp_path_factory.mktemp("newer")
    made = {}
    for name, package in built.items():
        tree = folder / name
        subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True, timeout=SECONDS)
        control = tree / "DEBIAN/control"
        older = re.search(r"^Version: (.*)$", control.read_text(), re.MULTILINE)
        assert older
        control.write_text(control.read_text().replace(older[1], NEWER))
        for path in [*tree.glob("etc/logrotate.d/*"), *tree.glob("usr/share/*/*.conf")]:
            path.write_text(f"# changed\n{path.read_text()}")
        made[name] = folder / f"{name}_{NEWER}.deb"
        pack = ["dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, made[name]]
        subprocess.run(pack, check=True, capture_output=True, timeout=SECONDS)
        shutil.rmtree(tree)
    return made


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[BootedMachine]:
    """A Debian with Python and systemd's tools and without our packages; it records calls of systemctl."""
    try:
        debian.make(tmp_path, ["python3", "systemd"])
        (tmp_path / "usr/bin/systemctl").unlink()
        (tmp_path / "usr/bin/systemctl").write_text(SYSTEMCTL)
        (tmp_path / "usr/bin/systemctl").chmod(0o755)
        with machine.booted(tmp_path) as running:
            yield running
    except (debian.DebianMissing, machine.BootedMachineMissing) as missing:
        pytest.skip(str(missing))


def install(here: BootedMachine, packages: dict[str, Path], *, check: bool = True) -> str:
    """Run dpkg with these packages and return its output."""
    for package in packages.values():
        shutil.copy(package, here.root / "tmp")
    names = [f"/tmp/{package.name}" for package in packages.values()]
    done = here.run("dpkg", "--install", "--force-confdef", *names, check=check)
    for name in names:
        (here.root / name.lstrip("/")).unlink()
    return done.stdout + done.stderr


def asked(here: BootedMachine) -> list[str]:
    """Return the recorded calls of systemctl about our units since the last call."""
    log = here.root / "run/systemctl.log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.write_text("")
    return [line for line in lines if "placement" in line or "compute-agent" in line]


def stat(here: BootedMachine, *paths: str) -> list[str]:
    return here.run("stat", "--format=%U:%G %a %n", *paths).stdout.splitlines()


def test_installing_makes_users_and_folders_and_starts_nothing(
    empty: BootedMachine, built: dict[str, Path]
) -> None:
    install(empty, built)
    assert stat(empty, "/etc/placement", "/etc/placement/placement.conf") == [
        "root:placement 750 /etc/placement",
        "root:placement 640 /etc/placement/placement.conf",
    ]
    assert stat(empty, "/etc/compute-agent/compute-agent.conf") == [
        "root:root 600 /etc/compute-agent/compute-agent.conf"
    ]
    assert not [line for line in asked(empty) if re.search("start|enable", line)]
    assert not [*(empty.root / "etc/systemd/system").rglob("*placement*")]

    versions = {
        empty.run(name, "--version").stdout.split()[-1] for name in ("placement-manage", "compute-agent")
    }
    assert len(versions) == 1
    for program in ("placement-api", "placement-shadow", "placement-status"):
        assert "usage:" in empty.run(program, "--help").stdout
    for unit in ("placement-api", "placement-shadow", "compute-agent"):
        text = (empty.root / f"usr/lib/systemd/system/{unit}.service").read_text()
        started = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
        assert started
        empty.run("test", "-x", started[1])

    installed = empty.root / "opt/placement-compute/lib"
    libraries = [path.relative_to(empty.root) for path in installed.rglob("*.so*") if path.is_file()]
    assert len(libraries) > 10
    linked = empty.run("ldd", *(f"/{path}" for path in libraries if not path.name.startswith("libvirtmod")))
    assert "not found" not in linked.stdout
    refused = empty.run("compute-agent", "config", "check", check=False)
    assert refused.returncode == 1
    assert "auth_url" in refused.stderr
    texts = [
        *(empty.root / "opt/placement-compute/bin").iterdir(),
        empty.root / "opt/placement-compute/pyvenv.cfg",
    ]
    assert not [path for path in texts if path.is_file() and b"/debian/placement" in path.read_bytes()]


def test_an_upgrade_keeps_guests_and_edited_files(
    empty: BootedMachine, built: dict[str, Path], newer: dict[str, Path]
) -> None:
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs CPUs 0 and 1")
    port = free_port()
    # the user of OpenStack Placement exists already
    (empty.root / "etc/placement").mkdir()
    (empty.root / "etc/placement/placement.conf").write_text(PLACEMENT)
    install(empty, built)
    assert (empty.root / "etc/placement/placement.conf").read_text() == PLACEMENT
    written = {
        "etc/placement/placement.conf": PLACEMENT,
        "etc/compute-agent/compute-agent.conf": AGENT.format(port=port),
        "etc/logrotate.d/placement-compute-api": "# ours\n",
    }
    for name, text in written.items():
        (empty.root / name).write_text(text)

    empty.run("install", "--directory", "--owner=placement", "/var/lib/placement")
    as_placement = ("setpriv", "--reuid=placement", "--regid=placement", "--clear-groups")
    service = ["placement-api", "--bind", f"127.0.0.1:{port}", "--workers", "1"]
    service_log, agent_log = empty.root / "service.log", empty.root / "agent.log"
    empty.start([*as_placement, *service], "service.log")
    wait_for(lambda: is_answering(f"http://127.0.0.1:{port}/"), evidence=service_log.read_text)
    agent = empty.start(["compute-agent", "run"], "agent.log")
    wait_for(lambda: _status(empty).get("placement") == "up", evidence=agent_log.read_text)
    guest = json.loads(
        empty.run("compute-agent", "guest", "run", "--name", "one", "-f", "json", "--", "sleep", "600").stdout
    )
    before = _cpus(empty, guest["pid"])
    asked(empty)

    install(empty, newer)
    assert {name: (empty.root / name).read_text() for name in written} == written
    restarted = [line for line in asked(empty) if "restart" in line]
    assert len(restarted) == 2
    assert {line.split()[-1] for line in restarted} == {"placement-api.service", "compute-agent.service"}
    assert all("try-restart" in line for line in restarted)

    agent.terminate()
    agent.wait(SECONDS)
    assert _cpus(empty, guest["pid"]) == before
    empty.start(["compute-agent", "run"], "agent.log")
    wait_for(lambda: _status(empty).get("guests") == 1, evidence=agent_log.read_text)
    (listed,) = json.loads(empty.run("compute-agent", "guest", "list", "-f", "json").stdout)
    assert listed["name"] == "one"
    assert _cpus(empty, guest["pid"]) == before


def test_removed_and_purged_they_leave_data_alone(empty: BootedMachine, built: dict[str, Path]) -> None:
    install(empty, built)
    for folder in ("var/lib/placement", "var/lib/compute-agent", "var/log/placement"):
        (empty.root / folder).mkdir()
        (empty.root / folder / "data").write_text("precious")
    asked(empty)
    empty.run("dpkg", "--remove", *reversed(NAMES))
    assert {line.split()[-1] for line in asked(empty) if line.startswith("stop") or " stop " in line} >= {
        "placement-api.service",
        "compute-agent.service",
    }
    assert (empty.root / "etc/placement/placement.conf").exists()
    assert not (empty.root / "opt/placement-compute").exists()
    empty.run("dpkg", "--purge", *reversed(NAMES))
    assert not (empty.root / "etc/placement").exists()
    assert not (empty.root / "etc/compute-agent").exists()
    assert not (empty.root / "var/log/placement").exists()
    assert [
        (empty.root / folder / "data").read_text()
        for folder in ("var/lib/placement", "var/lib/compute-agent")
    ] == ["precious"] * 2
    assert "placement-compute" not in empty.run("dpkg-query", "--show").stdout


def test_an_installation_by_pip_is_not_overwritten(empty: BootedMachine, built: dict[str, Path]) -> None:
    (empty.root / "opt/placement-compute").mkdir(parents=True)
    (empty.root / "opt/placement-compute/pyvenv.cfg").touch()
    said = install(empty, {NAMES[0]: built[NAMES[0]]}, check=False)
    assert "mv /opt/placement-compute /opt/placement-compute.old" in said
    assert [path.name for path in (empty.root / "opt/placement-compute").iterdir()] == ["pyvenv.cfg"]


def _status(here: BootedMachine) -> dict[str, object]:
    done = here.run("compute-agent", "status", "-f", "json", check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def _cpus(here: BootedMachine, pid: int) -> str:
    return here.run("sed", "-n", "s/^Cpus_allowed_list://p", f"/proc/{pid}/status").stdout.strip()
