"""Tests of connections to databases."""

import os
import stat
from pathlib import Path

import pytest

from placement.db import migration


def test_a_new_sqlite_file_is_for_owner_and_group(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        migration.upgrade_schema(f"sqlite:///{tmp_path}/placement.sqlite")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == {0o640}


def test_the_mode_that_an_operator_gave_a_sqlite_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "placement.sqlite"
    file.touch()
    file.chmod(0o600)
    migration.upgrade_schema(f"sqlite:///{file}")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        Exception, match=f"There is no folder {tmp_path}/missing for the database placement.sqlite"
    ):
        migration.upgrade_schema(f"sqlite:///{tmp_path}/missing/placement.sqlite")
