"""Fixtures: a worker of the service on a database of its own, for each kind of database."""

import pytest

from tests.placement.running import Admin, application


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


@pytest.fixture
def admin(url: str) -> Admin:
    return Admin(application(url))
