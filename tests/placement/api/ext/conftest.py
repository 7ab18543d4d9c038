"""A worker on a database of its own, of each kind."""

import pytest

from tests.placement.running import Admin, application


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


@pytest.fixture
def admin(url: str) -> Admin:
    return Admin(application(url))
