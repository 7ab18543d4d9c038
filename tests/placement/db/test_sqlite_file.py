"""Tests that problems with an SQLite file are reported with the folder, the file and the remedy."""

import os
import sqlite3
from contextlib import closing

import pytest

from placement.cmd.manage import main as manage
from placement.db.sqlite_file import SystemUser, file_obstacle, missing_file, path_of

NOBODY = SystemUser("nobody", 65534, frozenset({65534}))


@pytest.fixture
def folder(tmp_path):
    """A folder that all users may enter."""
    for one in (tmp_path, *tmp_path.parents):
        if one.stat().st_uid == os.geteuid() and one.parts[:2] == ("/", "tmp") and one.parts[2:]:
            one.chmod(0o755)
    made = tmp_path / "database"
    made.mkdir(mode=0o755)
    return made


def url_of(folder):
    return f"sqlite:///{folder}/placement.sqlite"


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://u@h/d", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?uri=true"]
)
def test_other_databases_have_no_file(url):
    assert (path_of(url), missing_file(url), file_obstacle(url)) == (None, None, None)


def test_a_missing_folder_is_named_with_the_command_that_makes_it(tmp_path, capsys):
    url = url_of(tmp_path / "away")
    config = tmp_path / "placement.conf"
    config.write_text(f"[placement_database]\nconnection = {url}\n")
    assert manage(["--config-file", str(config), "db", "sync"]) == 1
    said = capsys.readouterr().err
    assert f"There is no folder {tmp_path}/away for the database placement.sqlite" in said
    assert "install --directory" in said


def test_another_user_needs_the_folder_and_every_file(folder):
    url, file = url_of(folder), folder / "placement.sqlite"
    assert f"nobody may not write in {folder}" in file_obstacle(url, NOBODY)
    folder.chmod(0o777)
    assert file_obstacle(url, NOBODY) is None
    assert (
        missing_file(url)
        == f"There is no database {file}: 'placement-manage db sync' makes it, run as the service's user."
    )
    for name in ("placement.sqlite", "placement.sqlite-wal", "placement.sqlite-shm"):
        (folder / name).touch(mode=0o644)
        assert f"nobody may not write {folder / name}: make" in file_obstacle(url, NOBODY)
        (folder / name).chmod(0o666)
    assert (file_obstacle(url, NOBODY), missing_file(url), file_obstacle(url)) == (None, None, None)
    folder.parent.chmod(0o700)
    assert f"nobody may not enter the folder {folder.parent}" in file_obstacle(url, NOBODY)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be somebody else")
def test_a_database_that_this_user_may_only_read_is_not_available(folder, migrated_file):
    file = folder / "placement.sqlite"
    file.write_bytes(migrated_file.read_bytes())
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    pid = os.fork()
    if pid == 0:  # as another user, with all that is imported by now
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        said = file_obstacle(url_of(folder)) or ""
        os._exit(0 if f"may not write in {folder}" in said else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
