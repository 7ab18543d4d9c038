"""Asks the REST API, in the process, as whoever looks: what it answers is what he may know, and may do."""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from flask import request
from werkzeug.test import EnvironBuilder, run_wsgi_app

from placement.api import context
from placement.api.call import ABANDONED
from placement_extras.console.visit import HANDLERS

_VERSION: Final = "placement 1.39"
_TAKEN: Final = ("openstack.request_id", "openstack.global_request_id", "REMOTE_ADDR", ABANDONED)


class ApiRefusal(Exception):
    """The API answered with an error: its status, and what it says of it."""

    def __init__(self, status: int, detail: str, code: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code


def ask(method: str, path: str, parameters: Mapping[str, str] | None = None, body: Any = None) -> Any:
    """What the API answers, parsed; None where it says nothing.

    :raises Refused: it is an error.
    """
    headers: list[tuple[str, str]] = [("OpenStack-API-Version", _VERSION), ("Accept", "application/json")]
    builder = EnvironBuilder(
        path=path,
        method=method,
        query_string=dict(parameters or {}),
        headers=headers,
        data=None if body is None else orjson.dumps(body),
        content_type=None if body is None else "application/json",
    )
    try:
        environ = builder.get_environ()
    finally:
        builder.close()
    environ |= {name: request.environ[name] for name in _TAKEN if name in request.environ}
    context.hand_over(environ, context.of(request.environ))
    pieces, status, _ = run_wsgi_app(request.environ[HANDLERS], environ, buffered=True)
    content = b"".join(pieces)
    answer: Any = orjson.loads(content) if content else None
    number = int(status.split()[0])
    if number >= 400:
        (error,) = answer["errors"]
        # in Placement's own API a general sentence goes before what is wrong
        raise ApiRefusal(number, error["detail"].split("\n\n ")[-1], error.get("code", ""))
    return answer
