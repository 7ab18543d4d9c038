"""Request ids, and one line in the log for every request."""

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

LOG = logging.getLogger("placement.requestlog")  # the name that operators' log settings know

_GLOBAL_ID: Final = re.compile(ID_FORMAT)
_UNQUOTED: Final = "!$&'()*+,/:;=?@[]~"


class RequestLog:
    """WSGI middleware that names each request and logs it when its answer is ready.

    The name (``req-`` and a UUID) is put into the environment, the
    ``x-openstack-request-id`` header of the answer, and, with the one the
    client sent in that header, into all log records of the request.
    """

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Give the request its id, go on, and log how that went."""
        began = time.perf_counter()
        request_id = environ[ENV_REQUEST_ID] = generate_request_id()
        global_id = environ.get("HTTP_X_OPENSTACK_REQUEST_ID")
        if global_id and _GLOBAL_ID.match(global_id):
            environ[GLOBAL_REQ_ID] = global_id
        # Taken now: what handles the request may change its environment.
        asked = (environ["REQUEST_METHOD"], environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))

        def start(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            if LOG.isEnabledFor(logging.INFO):
                _log(environ, *asked, status, headers, time.perf_counter() - began)
            headers.append((HTTP_RESP_HEADER_REQUEST_ID, request_id))
            return start_response(status, headers, exc_info)

        return self._app(environ, start)


def quoted(path: str) -> str:
    """A path as a server decoded it, encoded again."""
    return quote(path, safe=_UNQUOTED, encoding="latin-1")


def _log(
    environ: "WSGIEnvironment",
    method: str,
    path: str,
    status: str,
    headers: Iterable[tuple[str, str]],
    seconds: float,
) -> None:
    answered = {name.lower(): value for name, value in headers}
    # The server decoded the path: encoded again, it cannot break or fake lines.
    uri = quoted(path)
    if query := environ.get("QUERY_STRING"):
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
