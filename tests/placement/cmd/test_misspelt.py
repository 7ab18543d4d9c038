"""Tests that a misspelt name in the configuration file is reported at once, with the name that was probably
meant.
"""

from pathlib import Path

import pytest

from placement.cmd import manage
from placement.conf import new_config, opts
from placement.conf.unknown import STOCK, STOCK_SECTIONS


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


def test_options_of_openstack_placement_are_told_once_with_what_is_in_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (
        "max_retries = -1\nslave-connection = sqlite://\nconnection_parameters = x=y\nmysql_sql_mode = ANSI\n"
        "[DEFAULT]\nstate_path = /var/lib/placement\n"
        "[cache]\nbackend = oslo_cache.memcache_pool\nenabled = true\n"
    )
    told = warnings_of(tmp_path, capsys, content).splitlines()
    assert [line.partition("placement.conf: ")[2].partition(" of OpenStack")[0] for line in told] == [
        "[placement_database] connection_parameters",
        "[placement_database] max_retries",
        "[placement_database] mysql_sql_mode",
        "[placement_database] slave-connection",
        "[DEFAULT] state_path",
        "section [cache]",
    ]
    assert all(" is not used: " in line for line in told)


def test_no_option_of_ours_is_said_to_be_of_openstack_placement_alone() -> None:
    conf = new_config(config_files=[])
    for section, options in STOCK.items():
        known = set(conf if section == "DEFAULT" else conf[section])
        assert not known & options.keys()
    assert not STOCK_SECTIONS.keys() & set(conf)


def test_options_of_libraries_and_plugins_are_left_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "[keystone_authtoken]\nauth_type = password\nusername = placement\n[DEFAULT]\ndebug = true\n"
    assert warnings_of(tmp_path, capsys, content) == ""


def test_every_section_of_ours_is_known_and_its_options_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {group.name for group, _ in opts.list_opts()} - {"placement_database"}
    assert "console" in sections
    assert warnings_of(tmp_path, capsys, "".join(f"[{section}]\n" for section in sections)) == ""
    told = warnings_of(tmp_path, capsys, "[console]\nenable = true\n")
    assert "[console] enable: there is no such option; did you mean enabled?" in told
