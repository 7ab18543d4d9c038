"""Fixtures for tests of the layers in front of the handlers, such as authentication."""

from collections.abc import Iterator

import pytest
from webtest import TestApp as Client

from placement.api import context
from placement.conf import new_config
from tests.databases import DatabaseServer
from tests.placement.running import Admin, application


@pytest.fixture(scope="module")
def admin(database_server: DatabaseServer, database_template: str) -> Iterator[Admin]:
    """An administrator of the whole service. All tests of a module share the database."""
    url = database_server.clone(database_template)
    yield Admin(application(url))
    database_server.drop_database(url)


@pytest.fixture
def conf():
    """The default configuration of a service without authentication."""
    conf = new_config(config_files=[])
    conf.set_override("auth_strategy", "noauth2", group="api")
    return conf


class Handlers:
    """Stands in for the Flask application. It answers 200 to all requests and records the callers."""

    def __init__(self):
        self.callers = []
        self.headers = [("Content-Type", "text/plain"), ("Content-Length", "2")]

    def __call__(self, environ, start_response):
        self.callers.append(context.caller_of(environ))
        start_response("200 OK", list(self.headers))
        return [b"ok"]

    @property
    def caller(self):
        (caller,) = self.callers
        return caller


@pytest.fixture
def handlers():
    return Handlers()


@pytest.fixture
def client_of():
    """A function that makes a client of a WSGI application."""
    return lambda app: Client(app, lint=True)
