"""Fixtures: databases of OpenStack Placement, beside the database and the service of the tests of audits."""

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


@pytest.fixture
def reference(reference_of):
    """A database of OpenStack Placement with all rows of the module reference_world."""
    made = reference_of()
    made.fill()
    return made
