"""The service in process, as tests of the whole of it want it: nobody is checked, `admin` may do all."""

from typing import Any
from wsgiref.types import WSGIApplication

from werkzeug.test import Client, TestResponse

from placement.api.middleware import build_application
from placement.conf import new_config

NEWEST = "1.39"


def application(database_url: str, retries: int | None = None, **database_options: Any) -> WSGIApplication:
    """The service on this (migrated) database."""
    conf = new_config(config_files=())
    if retries is not None:
        conf.set_override("allocation_conflict_retry_count", retries, "placement")
    for name, value in database_options.items():
        conf.set_override(name, value, "placement_database")
    conf.set_override("connection", database_url, "placement_database")
    conf.set_override("auth_strategy", "noauth2", "api")
    return build_application(conf)


class Admin:
    """An administrator's requests, at one microversion unless they say otherwise."""

    def __init__(self, app: WSGIApplication, version: str = NEWEST) -> None:
        self._client = Client(app)
        self._version = version

    def __call__(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any
    ) -> TestResponse:
        """Send a request; the options are those of :class:`werkzeug.test.EnvironBuilder`."""
        sent = {
            "X-Auth-Token": "admin",
            "OpenStack-API-Version": f"placement {self._version}",
            **(headers or {}),
        }
        return self._client.open(path, method=method, headers=sent, **options)
