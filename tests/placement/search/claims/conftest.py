"""Fixtures: a worker of the service on a database of its own, for each kind of database."""

import pytest

from tests.placement.running import Admin, application


@pytest.fixture
def admin(database_url: str) -> Admin:
    return Admin(application(database_url))
