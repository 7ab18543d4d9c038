"""The table of versions names tests that exist, and the versions that tests on this machine use."""

import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.databases import ServerMissing, create

ROOT = Path(__file__).parents[1]
TABLE: list[dict[str, Any]] = yaml.safe_load((ROOT / "doc/reference/supported.yaml").read_text())


def tried(software: str) -> list[str]:
    (row,) = (each for each in TABLE if each["software"] == software)
    return [version for versions in row["tried"] for version in re.findall(r"\d[\d.]*", versions)]


def printed_version(*command: str) -> str:
    """The first version number that a program prints."""
    program = shutil.which(command[0], path="/usr/sbin:/usr/bin:/bin:/usr/local/bin")
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r"\d+\.\d+", done.stdout)
    assert found
    return found[0]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["software"])
def test_each_version_is_tried_by_a_test_or_has_a_reason(row: dict[str, Any]) -> None:
    assert row["tried"] or row["untried"]
    assert all(row["untried"].values())
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for test in row["tried"].values():
        target = test.removeprefix("make ")
        assert target in targets if target != test else (ROOT / test).exists(), test


def test_the_python_of_these_tests_is_in_the_table() -> None:
    assert "{}.{}".format(*sys.version_info) in tried("Python")


def test_the_sqlite_of_these_tests_is_not_older_than_that_of_the_table() -> None:
    (version,) = tried("SQLite")
    assert sqlite3.sqlite_version_info >= tuple(map(int, version.split(".")))


@pytest.mark.parametrize(("software", "command"), [("MariaDB", "mariadbd"), ("libvirt", "libvirtd")])
def test_servers_of_this_machine_are_in_the_table(software: str, command: str) -> None:
    assert printed_version(command, "--version") in tried(software)


def test_the_postgresql_of_this_machine_is_in_the_table() -> None:
    try:
        with create("postgresql") as server:
            server.fresh_database()
            number = (server.folder / "data" / "PG_VERSION").read_text().strip()
    except ServerMissing as error:
        pytest.skip(str(error))
    assert number in tried("PostgreSQL")


def test_lists_of_dependencies_are_those_of_the_table() -> None:
    series = {
        path.stem.removeprefix("openstack-") for path in (ROOT / "tests/dependencies").glob("openstack-*")
    }
    assert set(tried("libraries of OpenStack, in one environment with others")) == series
