"""Fixtures: databases of OpenStack Placement, beside the database and the service of the tests of audits."""

from functools import cache

import pytest

# pytest finds fixtures by their names in this module
from tests.placement.maintenance.conftest import database, service  # noqa: F401
from tests.placement_extras.migration.reference_world import ReferenceDatabase


@pytest.fixture
def reference_of(database_server):
    """Create databases of OpenStack Placement on the same server."""
    urls = []

    def make(**options):
        urls.append(database_server.fresh_database())
        return ReferenceDatabase(urls[-1], **options)

    yield make
    for url in urls:
        database_server.drop_database(url)


@pytest.fixture(scope="session")
def filled_template_of():
    """Return the URL of a database of OpenStack Placement with all rows, one on each server, to clone."""

    @cache
    def make(server):
        made = ReferenceDatabase(server.fresh_database())
        made.fill()
        return made.url

    return make


@pytest.fixture
def reference(database_server, filled_template_of):
    """A database of OpenStack Placement with all rows of the module reference_world."""
    url = database_server.clone(filled_template_of(database_server))
    yield ReferenceDatabase(url, is_new=False)
    database_server.drop_database(url)
