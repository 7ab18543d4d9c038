"""Gives each request an id, and writes one line for each request into the log."""

import logging
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from oslo_context.context import generate_request_id
from oslo_middleware.request_id import ENV_REQUEST_ID, GLOBAL_REQ_ID, HTTP_RESP_HEADER_REQUEST_ID, ID_FORMAT

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# this is the name in OpenStack Placement, which operators have in their log settings
LOG = logging.getLogger("placement.requestlog")

_GLOBAL_ID: Final = re.compile(ID_FORMAT)
_UNQUOTED: Final = "!$&'()*+,/:;=?@[]~"
"""Characters of a path that stay unchanged when it is percent-encoded."""


class RequestLog:
    """WSGI middleware that gives each request an id, and logs the request when its answer is ready.

    The id (``req-`` and a UUID) is in the WSGI environment, in the header ``x-openstack-request-id`` of the
    answer, and in all log records of the request. If the client has sent an id in this header, log records
    also have the client's id.
    """

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Give the request its id, call the application, and log the answer."""
        began = time.perf_counter()
        request_id = environ[ENV_REQUEST_ID] = generate_request_id()
        global_id = environ.get("HTTP_X_OPENSTACK_REQUEST_ID")
        # an id of another form is ignored, so that clients cannot write any text into the log
        if global_id and _GLOBAL_ID.match(global_id):
            environ[GLOBAL_REQ_ID] = global_id
        # method and path are read here, because inner layers can change the environment
        asked = (environ["REQUEST_METHOD"], environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))

        def start(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            if LOG.isEnabledFor(logging.INFO):
                _log_request(environ, *asked, status, headers, time.perf_counter() - began)
            headers.append((HTTP_RESP_HEADER_REQUEST_ID, request_id))
            return start_response(status, headers, exc_info)

        return self._app(environ, start)


def quote_path(path: str) -> str:
    """Return a decoded path in its percent-encoded form."""
    return quote(path, safe=_UNQUOTED, encoding="latin-1")


def _log_request(
    environ: "WSGIEnvironment",
    method: str,
    path: str,
    status: str,
    headers: Iterable[tuple[str, str]],
    seconds: float,
) -> None:
    answered = {name.lower(): value for name, value in headers}
    # the web server has decoded the path. The path is encoded again, so that line breaks in it cannot break
    # or forge lines of the log.
    uri = quote_path(path)
    if query := environ.get("QUERY_STRING"):
        # the query is still encoded, so percent signs in it are not encoded again
        uri += "?" + quote(query, safe=_UNQUOTED + "%", encoding="latin-1")
    LOG.info(
        '%s "%s %s" status: %s len: %s microversion: %s time: %.6f',
        environ.get("REMOTE_ADDR") or "-",
        method,
        uri,
        status.split(" ", 1)[0],
        answered.get("content-length", "-"),
        answered.get("openstack-api-version", "placement -").removeprefix("placement "),
        seconds,
    )
