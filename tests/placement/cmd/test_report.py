"""Tests of the archive for a bug report: it is as complete as possible, and contains no secrets."""

import pytest

from placement.cmd.manage import main
from placement.db import migration
from tests.archives import read_archive
from tests.placement.serving import service

TOKEN = "gAAAAABn" + "x" * 40


@pytest.fixture
def write_conf(tmp_path):
    """A function that writes a configuration and returns its file."""

    def write_conf(connection, more=""):
        file = tmp_path / "placement.conf"
        file.write_text(f"[placement_database]\nconnection = {connection}\n{more}")
        return str(file)

    return write_conf


def test_a_report_has_the_state_of_the_service_and_its_database(write_conf, sqlite_url, tmp_path, capsys):
    log = tmp_path / "placement.log"
    log.write_text(f"X-Auth-Token: {TOKEN}\npassword=hunter2\npostgresql://placement:hunter2@db/x\n")
    secret = "[keystone_authtoken]\npassword = hunter2\n"
    conf = write_conf(sqlite_url, f"[DEFAULT]\nlog_file = {log}\n{secret}")
    target = tmp_path / "report.tar.gz"
    assert main(["--config-file", conf, "report", "--output", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert target.stat().st_mode & 0o777 == 0o600
    found = read_archive(target)
    assert found["versions.txt"].startswith("placement-compute ")
    assert f"[DEFAULT] log_file = {log}" in found["options.txt"]
    assert "[placement_database] connection = ***" in found["options.txt"]
    assert "Success" in found["check.txt"]
    assert "Nothing is wrong." in found["audit.txt"]
    assert found["database.txt"].startswith("sqlite ")
    assert f"revision {migration.newest_revision()}" in found["database.txt"]
    assert "allocations 0" in found["database.txt"]
    assert found["log.txt"].count("***") == 3
    assert not any("hunter2" in text or TOKEN in text for text in found.values())


def test_a_running_service_adds_its_version_and_metrics(write_conf, sqlite_url, tmp_path):
    conf = write_conf(sqlite_url)
    target = tmp_path / "report.tar.gz"
    folder = tmp_path / "service"
    folder.mkdir()
    with service(sqlite_url, folder, 1) as running:
        words = ["report", "--output", str(target), "--url", running.base]
        assert main(["--config-file", conf, *words]) == 0
    found = read_archive(target)
    assert '"release"' in found["service.txt"]
    # without the option for metrics, the address is any other path that needs a token
    assert found["metrics.txt"].startswith("Not available: HTTPError: 401")


def test_a_report_is_made_without_a_database(write_conf, tmp_path):
    conf = write_conf(f"sqlite:///{tmp_path}/missing/placement.sqlite")
    target = tmp_path / "report.tar.gz"
    words = ["report", "--output", str(target), "--url", "http://127.0.0.1:1"]
    assert main(["--config-file", conf, *words]) == 0
    found = read_archive(target)
    assert found["database.txt"].startswith("Not available: ")
    assert found["service.txt"].startswith("Not available: ConnectionError")
    assert "Exit status 2" in found["check.txt"]


def test_a_file_that_exists_is_kept(write_conf, sqlite_url, tmp_path, capsys):
    target = tmp_path / "report.tar.gz"
    target.write_text("mine")
    assert main(["--config-file", write_conf(sqlite_url), "report", "--output", str(target)]) == 1
    assert f"{target} cannot be written: File exists" in capsys.readouterr().err
    assert target.read_text() == "mine"
