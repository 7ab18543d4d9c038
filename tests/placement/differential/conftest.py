"""Fixtures: OpenStack Placement and the service of this checkout, running on each kind of database."""

import itertools
import os
from collections.abc import Iterator

import pytest

from benchmarks.reference import ReferenceInstall, ReferenceMissing, install_reference
from tests.databases import DatabaseServer
from tests.placement.differential.play import Names, Play
from tests.placement.differential.services import ServicePair, running

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def reference() -> ReferenceInstall:
    try:
        return install_reference()
    except ReferenceMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def pair(
    reference: ReferenceInstall, database_server: DatabaseServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServicePair]:
    with running(database_server, tmp_path_factory.mktemp("differential"), reference) as pair:
        yield pair


@pytest.fixture
def play(pair: ServicePair) -> Play:
    """A conversation with both services, which compares their answers."""
    return Play(pair)


@pytest.fixture
def names() -> Names:
    """Names that no other test uses."""
    return Names(next(_NUMBERS))
