"""A worker on a database of its own, of each kind."""

from collections.abc import Iterator

import pytest

from tests.databases import DatabaseServer
from tests.placement.running import Admin, application


@pytest.fixture
def url(database_server: DatabaseServer, database_template: str) -> Iterator[str]:
    url = database_server.clone(database_template)
    yield url
    database_server.drop_database(url)


@pytest.fixture
def admin(url: str) -> Admin:
    return Admin(application(url))
