"""The programs work when confined by their units: read-only files, no capabilities, few system calls."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from placement.db import migration
from tests.packages import confinement
from tests.ports import free_port
from tests.programs import SECONDS, run_program, wait_for_answer
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.root]

ETC = Path(__file__).parents[2] / "etc/placement"
ADMIN = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"}


@contextmanager
def confined(unit: str, folder: Path, *words: object) -> "Iterator[subprocess.Popen[bytes]]":
    """Return a program of the checkout confined by its unit, with one writable folder."""
    try:
        command = confinement.command(ETC / unit, [sys.executable, *words], [folder])
    except confinement.ConfinementMissing as missing:
        pytest.skip(str(missing))
    environ = os.environ | {"TMPDIR": str(folder)}  # PrivateTmp=
    with run_program(command, folder / f"{unit}.log", environ) as process:
        yield process


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the confined service with two workers on a SQLite database; return its URL."""
    folder = tmp_path_factory.mktemp("service")
    database = f"sqlite:///{folder}/placement.sqlite"
    migration.upgrade_schema(database)
    conf = folder / "placement.conf"
    conf.write_text(
        f"[DEFAULT]\nlog_file = {folder}/placement.log\n[api]\nauth_strategy = noauth2\n"
        f"[placement_database]\nconnection = {database}\n"
    )
    bind = f"127.0.0.1:{free_port()}"
    words = ("-m", "placement.cmd.api", "--config-file", conf, "--bind", bind)
    with confined("placement-api.service", folder, *words) as process:
        wait_for_answer(f"http://{bind}/", process, folder / "placement-api.service.log")
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        assert "Seccomp:\t2" in status
        yield f"http://{bind}"


def test_the_service_reads_and_writes(service: str) -> None:
    created = requests.post(
        f"{service}/resource_providers", json={"name": "host"}, headers=ADMIN, timeout=SECONDS
    )
    assert created.status_code == 200, created.text
    uuid = created.json()["uuid"]
    answer = requests.put(
        f"{service}/resource_providers/{uuid}/inventories",
        json={"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}},
        headers=ADMIN,
        timeout=SECONDS,
    )
    assert answer.status_code == 200, answer.text
    found = requests.get(f"{service}/allocation_candidates?resources=VCPU:1", headers=ADMIN, timeout=SECONDS)
    assert [*found.json()["provider_summaries"]] == [uuid]


def test_the_service_listens_on_a_socket_in_a_file(tmp_path: Path) -> None:
    conf = tmp_path / "placement.conf"
    conf.write_text(
        "[api]\nauth_strategy = noauth2\n[placement_database]\n"
        f"connection = sqlite:///{tmp_path}/placement.sqlite\nsync_on_startup = true\n"
    )
    words = ("-m", "placement.cmd.api", "--config-file", conf, "--bind", f"unix:{tmp_path}/api.sock")
    log = tmp_path / "placement-api.service.log"
    with confined("placement-api.service", tmp_path, *words) as process:
        curl = ["curl", "--silent", "--unix-socket", str(tmp_path / "api.sock"), "http://localhost/"]

        def ask() -> str:
            assert process.poll() is None, log.read_text()
            return subprocess.run(curl, capture_output=True, text=True, check=False).stdout

        told = wait_for(ask, "an answer by the socket", evidence=log.read_text)
        assert json.loads(told)["versions"][0]["max_version"] == "1.39"


def test_the_proxy_passes_on_and_compares(service: str, tmp_path: Path) -> None:
    """One service plays both sides."""
    (tmp_path / "shadow.conf").write_text(
        f"[DEFAULT]\nstock = {service}\nours = {service}\nbind = 127.0.0.1:{free_port()}\n"
        f"report_bind = 127.0.0.1:{free_port()}\n"
    )
    options = dict(
        line.split(" = ") for line in (tmp_path / "shadow.conf").read_text().splitlines() if " = " in line
    )
    words = ("-m", "placement_extras.shadow.command", "--config-file", tmp_path / "shadow.conf")
    log = tmp_path / "placement-shadow.service.log"
    with confined("placement-shadow.service", tmp_path, *words) as process:
        report = f"http://{options['report_bind']}/report.json"
        wait_for_answer(f"http://{options['bind']}/", process, log)
        wait_for_answer(report, process, log)  # another process, which may answer later
        answer = requests.get(f"http://{options['bind']}/resource_providers", headers=ADMIN, timeout=SECONDS)
        assert answer.status_code == 200, answer.text

        def has_compared() -> bool:
            assert process.poll() is None, log.read_text()
            same: int = requests.get(report, timeout=SECONDS).json()["requests"].get("same", 0)
            return same >= 2

        wait_for(has_compared, evidence=log.read_text)
    assert "Permission" not in log.read_text()
    assert "not permitted" not in log.read_text()


def test_a_confined_process_cannot_do_what_its_unit_forbids(tmp_path: Path) -> None:
    """Validate the other tests: a forbidden action fails."""
    tries = {
        "a file elsewhere": "open('/etc/placement-was-here', 'w')",
        "a raw socket": "__import__('socket').socket(17, 3)",
        "a mount": "__import__('ctypes').CDLL(None, use_errno=True).mount(b'x', b'/mnt', b'tmpfs', 0, 0) "
        "and (_ for _ in ()).throw(OSError('refused'))",
        "code that is made": "__import__('mmap').mmap(-1, 4096, prot=7)",
        "the system's processes": "open('/proc/stat')",
        "another user": "__import__('os').setuid(65534)",
    }
    program = "\n".join(
        f"try:\n    {text}\nexcept OSError as error:\n    pass\nelse:\n    print({name!r}, flush=True)"
        for name, text in tries.items()
    )
    with confined("placement-api.service", tmp_path, "-c", program + "\nprint('done')") as process:
        process.wait(SECONDS)
    assert (tmp_path / "placement-api.service.log").read_text() == "done\n"
