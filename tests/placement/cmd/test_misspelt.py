"""What is misspelt in the service's ini file is told at once, with what was probably meant."""

from pathlib import Path

import pytest

from placement.cmd import manage


def warnings_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> str:
    ini = tmp_path / "placement.conf"
    ini.write_text(f"[placement_database]\nconnection = sqlite:///{tmp_path}/p.db\n{content}")
    assert manage.main(["--config-file", str(ini), "db", "version"]) == 0
    return capsys.readouterr().err


def test_a_misspelt_option_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = warnings_of(tmp_path, capsys, "[api]\nauth_strateg = noauth2\n")
    assert "[api] auth_strateg: there is no such option; did you mean auth_strategy?" in told


def test_a_misspelt_section_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = warnings_of(tmp_path, capsys, "[placement_databse]\nlock_timeout = 1\n")
    assert "there is no section [placement_databse]; did you mean [placement_database]?" in told


def test_options_of_libraries_and_plugins_are_left_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "[keystone_authtoken]\nauth_type = password\nusername = placement\n[DEFAULT]\ndebug = true\n"
    assert warnings_of(tmp_path, capsys, content) == ""
