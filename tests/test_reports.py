"""Archives for reports of defects: the agent and the service write them alike."""

import inspect
from types import SimpleNamespace

import pytest

import compute_agent.cmd.report
import placement.cmd.report
from tests.archives import read_archive

REPORTS = (compute_agent.cmd.report, placement.cmd.report)
SHARED = ("list_versions", "run_program", "read_log", "read_end", "without_secrets", "write_archive")


@pytest.fixture(params=REPORTS, ids=["agent", "service"])
def report(request):
    return request.param


@pytest.mark.parametrize("name", SHARED)
def test_both_have_the_same_functions(name):
    agent, service = (inspect.getsource(getattr(module, name)) for module in REPORTS)
    assert agent == service


def test_both_hide_the_same_secrets():
    agent, service = (module._SECRETS for module in REPORTS)
    assert agent == service


@pytest.mark.parametrize(
    "text",
    [
        "password = SECRET",
        'password = SECRET"SECRET SECRET',
        "| placement | password | SECRET |",
        '"placement","admin_password","SECRET"',
        '  "auth_token": "SECRET",',
        "X-Auth-Token: SECRET",
        "Authorization: Basic SECRET",
        'curl -H "Authorization: Bearer SECRET" http://x',
        "curl -u user:SECRET http://x",
        "curl --user=user:SECRET http://x",
        "mysql+pymysql://placement:SECRET@db/placement",
        "mysql+pymysql://placement:SEC/SECRET@db/placement",
        "a gAAAAABSECRET_SECRET-SECRET_SECRET b",
    ],
)
def test_secrets_are_hidden(report, text):
    hidden = report.without_secrets(f"before\n{text}\nafter")
    assert "SECRET" not in hidden
    assert "***" in hidden
    assert hidden.startswith("before\n")
    assert hidden.endswith("\nafter")


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:8778/metrics", "password", "tokens are valid", '"token": ""', "a@b"]
)
def test_other_text_stays(report, text):
    assert report.without_secrets(text) == text


def test_a_long_log_is_read_from_its_end_without_its_first_line(report, monkeypatch, tmp_path):
    monkeypatch.setattr(report, "_MAX_BYTES", 20)
    log = tmp_path / "agent.log"
    log.write_text("password = SECRET-SECRET-SECRET\nlast\n")
    conf = SimpleNamespace(log_file=str(log), log_dir=None)
    assert report.read_log(conf, "unit") == "last\n"


def test_a_folder_of_logs_has_the_log_of_the_program(report, tmp_path):
    (tmp_path / "unit.log").write_text("all\n")
    assert report.read_log(SimpleNamespace(log_file=None, log_dir=str(tmp_path)), "unit") == "all\n"


def test_a_program_that_hangs_has_its_output(report, monkeypatch):
    monkeypatch.setattr(report, "_SECONDS", 0.5)
    text = report.run_program(["sh", "-c", "echo first; exec sleep 60"])
    assert text.startswith("first\nNot available: ")
    assert "timed out" in text


def test_the_output_of_a_program_is_bounded(report, monkeypatch):
    monkeypatch.setattr(report, "_MAX_BYTES", 5)
    assert report.run_program(["echo", "123456789"]) == "12345"


def test_a_long_journal_has_its_last_lines(report, monkeypatch):
    programs = []

    def write_journal(command, **options):
        programs.append(command[0])
        options["stdout"].write(b"first line\nlast\n")
        options["stdout"].flush()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("subprocess.run", write_journal)
    monkeypatch.setattr(report, "_MAX_BYTES", 8)
    assert report.read_log(SimpleNamespace(log_file=None, log_dir=None), "unit") == "last\n"
    assert programs == ["journalctl"]


def test_a_full_disk_leaves_no_part_of_an_archive(report, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tarfile.TarFile.addfile", fail)
    target = tmp_path / "report.tar.gz"
    with pytest.raises(OSError, match="No space left"):
        report.write_archive(target, [("status.txt", "x")])
    assert not target.exists()


def test_an_existing_file_is_refused_before_parts_are_collected(report, tmp_path):
    target = tmp_path / "report.tar.gz"
    target.write_text("mine")
    collected = (pytest.fail("collected") for _ in "x")
    with pytest.raises(FileExistsError):
        report.write_archive(target, collected)
    assert target.read_text() == "mine"


def test_a_part_is_a_file_of_its_owner(report, tmp_path):
    target = tmp_path / "report.tar.gz"
    report.write_archive(target, [("status.txt", "password = x\n")])
    assert read_archive(target) == {"status.txt": "password = ***\n"}
