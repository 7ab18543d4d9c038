"""A worker on a database of its own, of each kind."""

import pytest

from tests.placement.running import Admin, application


@pytest.fixture
def admin(database_url: str) -> Admin:
    return Admin(application(database_url))
