"""Tests of the archive for a bug report: it is as complete as possible, and contains no secrets."""

from tests.archives import read_archive
from tests.compute_agent.cmd.agents import run_here

TOKEN = "gAAAAABn" + "x" * 40


def test_the_report_of_a_running_agent_has_its_state(agent, write_ini, metrics_port, tmp_path):
    ini = write_ini(daemon=f"http_port = {metrics_port}")
    agent.start_reporting()
    target = tmp_path / "report.tar.gz"
    done = run_here(ini, "report", "--output", target)
    assert (done.returncode, done.stdout) == (0, f"{target}\n"), done.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    found = read_archive(target)
    assert found["versions.txt"].startswith("placement-compute ")
    assert '"provider_uuid"' in found["status.txt"]
    assert "http_port" in found["options.txt"]
    assert "compute_agent_" in found["metrics.txt"]
    assert "PCPU" in found["inventories.txt"]
    assert not any("is not a " in text for text in found.values())
    assert "CPU" in found["topology.txt"]


def test_a_report_without_a_daemon_says_what_is_missing(two_cpus, write_ini, tmp_path):
    log = tmp_path / "agent.log"
    log.write_text(f"X-Auth-Token: {TOKEN}\npassword=hunter2\npostgresql://placement:hunter2@db/x\n")
    ini = write_ini(DEFAULT=f"log_file = {log}", placement="password = hunter2")
    target = tmp_path / "report.tar.gz"
    assert run_here(ini, "report", "--output", target).returncode == 0
    found = read_archive(target)
    assert "does not answer" in found["status.txt"] or "Exit status" in found["status.txt"]
    assert found["metrics.txt"].startswith("Not available: ")
    assert found["log.txt"].count("***") == 3
    assert not any("hunter2" in text or TOKEN in text for text in found.values())


def test_a_report_is_made_when_the_configuration_is_wrong(tmp_path):
    ini = tmp_path / "wrong.conf"
    ini.write_text("[daemon]\nhttp_port = many\n")
    target = tmp_path / "report.tar.gz"
    assert run_here(ini, "report", "--output", target).returncode == 0
    found = read_archive(target)
    assert "http_port" in found["metrics.txt"]
    assert "http_port" in found["check.txt"]


def test_a_file_that_exists_is_kept(two_cpus, write_ini, tmp_path):
    target = tmp_path / "report.tar.gz"
    target.write_text("mine")
    done = run_here(write_ini(), "report", "--output", target)
    assert done.returncode == 1
    assert "File exists" in done.stderr
    assert target.read_text() == "mine"
