"""Gives each request an id, writes one line for each request into the log, and formats the log's lines."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from oslo_config import cfg
from oslo_context.context import RequestContext, get_current
from oslo_log import log
from oslo_log.formatters import ContextFormatter
from oslo_middleware.request_id import ENV_REQUEST_ID, GLOBAL_REQ_ID, HTTP_RESP_HEADER_REQUEST_ID, ID_FORMAT

from placement.api.context import shown_path

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# this is the name in OpenStack Placement, which operators have in their log settings
LOG = logging.getLogger("placement.requestlog")

_GLOBAL_ID: Final = re.compile(ID_FORMAT)
_UNQUOTED: Final = "!$&'()*+,/:;=?@[]~"
"""Characters of a path that stay unchanged when it is percent-encoded."""

_VARIANT: Final = dict(zip("0123456789abcdef", 4 * "89ab", strict=True))
"""For each hexadecimal digit, the digit with the same lower bits, and the upper bits of UUIDs of RFC 9562."""

_MESSAGE: Final = "%(message)s"
_INSTANCES: Final = ("instance", "instance_uuid")
_EMPTY_VALUES: Final = (
    *("instance", "color", "user_identity", "resource", "user_name", "project_name", "global_request_id"),
    "error_summary",
)
"""Values of a line that are empty if neither its record nor the caller of its request has them."""


def set_up_logging(conf: cfg.ConfigOpts, project: str) -> None:
    """Set up logging as the options of oslo.log say, with :class:`LineFormatter` as the formatter."""
    log.setup(conf, project)
    for handler in logging.getLogger().handlers:
        # subclasses of ContextFormatter write other lines, for example lines with colors
        if type(handler.formatter) is ContextFormatter:
            handler.setFormatter(LineFormatter(handler.formatter, conf))


class LineFormatter(ContextFormatter):
    """Formats lines as oslo.log does, but computes only the values that the configured formats contain.

    oslo.log also reads its options again for each line. Records of levels other than INFO, and records with
    an exception or an instance, are left to oslo.log.
    """

    def __init__(self, formatter: ContextFormatter, conf: cfg.ConfigOpts) -> None:
        names = {"project": formatter.project, "version": formatter.version}
        super().__init__(datefmt=formatter.datefmt, config=conf, **names)
        self._request_format = conf.logging_context_format_string or _MESSAGE
        self._default_format = conf.logging_default_format_string or _MESSAGE
        self._identity_format = conf.logging_user_identity_format
        formats = self._request_format + self._default_format
        self._has_plain_formats = not re.search(r"%\((isotime|error_summary)\)", formats)
        self._names = names
        self._time = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        context = record.__dict__.get("context", get_current())
        try:
            if self._is_plain(record, context):
                return self._format_plain(record, context)
        except (TypeError, ValueError, KeyError):
            pass  # oslo.log has a line for a message that does not fit its arguments
        return super().format(record)

    def _is_plain(self, record: logging.LogRecord, context: object) -> bool:
        return (
            self._has_plain_formats
            and record.levelno == logging.INFO
            and not (record.exc_info or record.exc_text or record.stack_info)
            and (context is None or isinstance(context, RequestContext))
            and not any(map(record.__dict__.get, _INSTANCES))
            and not any(getattr(context, name, None) for name in (*_INSTANCES, "resource_uuid"))
        )

    def _format_plain(self, record: logging.LogRecord, context: RequestContext | None) -> str:
        # oslo.log puts its values into the record, where other handlers read them
        values = record.__dict__
        values.update(self._names)
        if context:
            of_caller = context.get_logging_values()
            values.update(of_caller)
            values["user_identity"] = self._identity_format % _DashedValues(of_caller)
        for name in _EMPTY_VALUES:
            values.setdefault(name, "")
        values["message"] = record.getMessage()
        values["asctime"] = self._time_of(record)
        line: str = (self._request_format if values.get("request_id") else self._default_format) % values
        return line

    def _time_of(self, record: logging.LogRecord) -> str:
        second, text = self._time
        # lines of the same second have the same text; without a configured format, the text has milliseconds
        if second != int(record.created) or not self.datefmt:
            text = self.formatTime(record, self.datefmt)
            self._time = int(record.created), text
        return text


class _DashedValues(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return self.get(key) or "-"


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
        request_id = environ[ENV_REQUEST_ID] = _new_request_id()
        global_id = environ.get("HTTP_X_OPENSTACK_REQUEST_ID")
        # an id of another form is ignored, so that clients cannot write any text into the log
        if global_id and _GLOBAL_ID.match(global_id):
            environ[GLOBAL_REQ_ID] = global_id
        # method and path are read here, because inner layers can change the environment
        path = shown_path(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""))
        asked = (environ["REQUEST_METHOD"], path)

        def start(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], object]:
            if LOG.isEnabledFor(logging.INFO):
                _log_request(environ, *asked, status, headers, time.perf_counter() - began)
            headers.append((HTTP_RESP_HEADER_REQUEST_ID, request_id))
            return start_response(status, headers, exc_info)

        return self._app(environ, start)


def _new_request_id() -> str:
    """Return ``req-`` and a UUID of version 4 (RFC 9562, 5.4), in a third of the time of oslo.context."""
    text = os.urandom(16).hex()
    return f"req-{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:]}"


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
    arguments = (
        environ.get("REMOTE_ADDR") or "-",
        method,
        uri,
        status.split(" ", 1)[0],
        answered.get("content-length", "-"),
        answered.get("openstack-api-version", "placement -").removeprefix("placement "),
        seconds,
    )
    # LOG.info() would search the stack for this function, which takes a sixth of the time of a line
    LOG.handle(LOG.makeRecord(LOG.name, logging.INFO, *_HERE, _LINE, arguments, None, _log_request.__name__))


_LINE: Final = '%s "%s %s" status: %s len: %s microversion: %s time: %.6f'
_HERE: Final = (__file__, _log_request.__code__.co_firstlineno)
