"""Fixtures: one Keystone for all tests of a process."""

import os
from collections.abc import Iterator

import pytest

from benchmarks.reference import ReferenceMissing
from tests.keystone import Keystone
from tests.placement.keystone.serving import KeystonePlacement, authtoken, placement


@pytest.fixture(scope="session")
def keystone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keystone]:
    try:
        keystone = Keystone(tmp_path_factory.mktemp("keystone"))
    except ReferenceMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(f"Keystone cannot be installed: {error}")
    with keystone:
        yield keystone


@pytest.fixture(scope="module")
def service(keystone: Keystone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeystonePlacement]:
    """The service with the configuration that operators usually have."""
    with placement(tmp_path_factory.mktemp("placement"), authtoken(keystone)) as running:
        yield running
