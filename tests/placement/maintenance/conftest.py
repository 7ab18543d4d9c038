"""Fixtures: the database and the service for tests of audits and imports."""

import pytest
from webtest import TestApp as Client

from placement.db.database import ServiceDatabase
from placement.store.consumers import ConsumerOwnership
from tests.placement.running import application

OWNER = ConsumerOwnership("lost-project", "lost-user", None)


@pytest.fixture
def database(database_url):
    """A migrated and empty database of this service."""
    database = ServiceDatabase(database_url)
    yield database
    database.close()


class MaintainedService:
    """One worker of the service on a database, with a REST client."""

    def __init__(self, url):
        self._client = Client(
            application(url),
            extra_environ={"HTTP_X_AUTH_TOKEN": "admin", "HTTP_OPENSTACK_API_VERSION": "placement 1.39"},
        )

    def get(self, path):
        return self._client.get(path).json

    def answer(self, path):
        """Send a request; return the answer."""
        return self._client.get(path, expect_errors=True)

    def last_modified(self, path):
        return self._client.get(path).headers["last-modified"]

    def put(self, path, body):
        """Send a PUT; return the status of the answer."""
        return self._client.put_json(path, body, expect_errors=True).status_int

    def delete(self, path):
        """Send a DELETE; return the status of the answer."""
        return self._client.delete(path, expect_errors=True).status_int

    def post(self, path, body):
        """Send a POST; return the status of the answer."""
        return self._client.post_json(path, body, expect_errors=True).status_int


@pytest.fixture
def service(database_url):
    """A worker that has run on the database since before the test."""
    return MaintainedService(database_url)
