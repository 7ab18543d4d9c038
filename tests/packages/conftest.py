"""Fixtures for tests of several deployment tools."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.reference import ReferenceMissing, install_environment
from tests import databases
from tests.databases import ServerMissing

REQUIREMENTS = Path(__file__).with_name("kolla-requirements.txt")


@pytest.fixture(scope="session")
def kolla() -> Path:
    """Environment with kolla and kolla-ansible."""
    try:
        return install_environment("kolla-ansible-22.2.0", REQUIREMENTS)
    except ReferenceMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(f"kolla cannot be installed: {error}")


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The URL of an empty database."""
    try:
        server = databases.create("mariadb")
    except ServerMissing as error:
        pytest.skip(str(error))
    with server:
        yield server.fresh_database()
