"""Requests of an administrator to a service of the cloud, over REST."""

import copy
import time
from typing import Any, Final

import requests

from tests.keystone import CALLERS, Caller, Keystone

_SECONDS: Final = 120.0
_LIFETIME: Final = 3000
ADMIN: Final = CALLERS["admin"]


class Refused(Exception):
    """The service refuses the request; the message has status and text."""


class CloudClient:
    """A service at a URL, with one microversion.

    :param version: as in the header `OpenStack-API-Version`: `compute 2.96`.
    """

    def __init__(self, keystone: Keystone, url: str, version: str | None = None) -> None:
        self._keystone = keystone
        self._caller = ADMIN
        self._url = url
        self._headers = {"OpenStack-API-Version": version} if version else {}
        self._token = ""
        self._since = 0.0

    def called_by(self, caller: Caller) -> "CloudClient":
        """The same service, asked by another user."""
        made = copy.copy(self)
        made._caller, made._token = caller, ""
        return made

    def get(self, path: str) -> Any:
        """Send a GET and return the body."""
        return self.send("GET", path)

    def send(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send a request and return the decoded body, None if it is empty.

        :param options: of :func:`requests.request`.
        :raises Refused: the answer is an error
        """
        if not self._token or time.monotonic() - self._since > _LIFETIME / 2:
            self._token, self._since = (
                self._keystone.identity.token(self._caller, _LIFETIME),
                time.monotonic(),
            )
        headers = {"X-Auth-Token": self._token, **self._headers, **options.pop("headers", {})}
        answer = requests.request(
            method, self._url + path, json=body, headers=headers, timeout=_SECONDS, **options
        )
        if not answer.ok:
            raise Refused(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content and "json" in answer.headers["Content-Type"] else None
