"""Runs the service in the process of the test, without authentication. The token `admin` has all
permissions.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from wsgiref.types import WSGIApplication

from oslo_config.cfg import ConfigOpts
from werkzeug.test import Client, TestResponse

from placement.api.middleware import build_application
from placement.conf import new_config

NEWEST = "1.39"


def service_conf(
    database_url: str, config_files: Sequence[str] = (), **groups: Mapping[str, Any]
) -> ConfigOpts:
    """Build the configuration of a service without authentication on this database. Further options are given
    by group.
    """
    conf = new_config(config_files=config_files)
    conf.set_override("connection", database_url, "placement_database")
    conf.set_override("auth_strategy", "noauth2", "api")
    for group, options in groups.items():
        for name, value in options.items():
            conf.set_override(name, value, group)
    return conf


def application(
    database_url: str, config_files: Sequence[str] = (), **groups: Mapping[str, Any]
) -> WSGIApplication:
    """Run the service on this database, which is already migrated. Further options are given by group."""
    return build_application(service_conf(database_url, config_files, **groups))


class Admin:
    """Sends requests as administrator, by default all with one microversion."""

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
