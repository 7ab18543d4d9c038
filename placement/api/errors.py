"""Makes error answers: ``{"errors": [{"status", "title", "detail", ...}]}``.

The format comes from "Errors" in the API reference, and from the errors guideline of the OpenStack API
special interest group.
"""

import html
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotAcceptable

from placement import exceptions, microversion
from placement.api.context import VERSION, is_ours
from placement.exceptions import RETRY_AFTER, ServiceError

LOG = logging.getLogger(__name__)

_STATUS: Mapping[type[ServiceError], HTTPStatus] = {
    exceptions.InvalidRequest: HTTPStatus.BAD_REQUEST,
    exceptions.Forbidden: HTTPStatus.FORBIDDEN,
    exceptions.NotFound: HTTPStatus.NOT_FOUND,
    exceptions.Conflict: HTTPStatus.CONFLICT,
    exceptions.Gone: HTTPStatus.GONE,
    exceptions.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}

#: For each status, the general sentence with which errors of OpenStack Placement begin. The details of the
#: error follow. Nova's tests search errors for this sentence and for details.
_GENERAL: Final[Mapping[HTTPStatus, str]] = {
    HTTPStatus.BAD_REQUEST: "The server could not comply with the request since it is either malformed"
    " or otherwise incorrect.",
    HTTPStatus.FORBIDDEN: "Access was denied to this resource.",
    HTTPStatus.NOT_FOUND: "The resource could not be found.",
    HTTPStatus.CONFLICT: "There was a conflict when trying to complete your request.",
}


class UnacceptableVersion(NotAcceptable):
    """The service does not support the microversion of the request. The answer has the supported range."""


def install_handlers(app: Flask) -> None:
    """Make the application answer all errors in the format of the API."""
    app.register_error_handler(ServiceError, _placement_error)
    app.register_error_handler(HTTPException, _http_exception)
    app.register_error_handler(Exception, _unexpected_error)


def status_of(error: ServiceError) -> HTTPStatus:
    """Return the status of the answer to an error."""
    # base classes are also looked up, so that a subclass needs no entry in the table
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def _placement_error(error: ServiceError) -> Response:
    status = status_of(error)
    more: dict[str, Any] = {}
    # the metrics read this value, because they count answers to requests that windows or claims prevent
    g.has_overlaps = isinstance(error, exceptions.Conflict) and error.has_overlaps
    if isinstance(error, exceptions.NoCandidate):
        LOG.info("A claim or a reservation was refused: %s", error.detail)
        more = {
            "explanation": error.explanation,
            "earliest_start": error.earliest_start,
            "latest_end": error.latest_end,
        }
    elif isinstance(error, exceptions.EndTooLate):
        more["latest_end"] = error.latest_end
    shown = {name: value for name, value in more.items() if value is not None}
    if isinstance(error, exceptions.TransactionConflict):
        LOG.error("the database failed, and the client gets the answer 503: %s", error.__cause__)
    detail = error.detail
    if isinstance(error, exceptions.InvalidRequest) and is_ours(request.path):
        detail = error.plain_detail
    return render(status, detail, code=error.code, **shown)


def _http_exception(error: HTTPException) -> Response:
    status = HTTPStatus(error.code or 500)
    extra: dict[str, Any] = {}
    headers: dict[str, str] = {}
    detail = error.description or status.description
    if isinstance(error, MethodNotAllowed):
        detail = f"The method {request.method} is not allowed for this resource."
        headers["Allow"] = ", ".join(sorted(error.valid_methods or ()))
    elif isinstance(error, UnacceptableVersion):
        extra = {
            "max_version": microversion.text(microversion.MAX),
            "min_version": microversion.text(microversion.MIN),
        }
    elif status is HTTPStatus.NOT_FOUND and error.description == type(error).description:
        # the description is only the general text of werkzeug, so the error has no detail
        detail = ""
    response = render(status, detail, **extra)
    response.headers.update(headers)
    return response


def _unexpected_error(error: Exception) -> Response:
    LOG.exception("Unexpected error while the service handled %s %s", request.method, request.path)
    return render(HTTPStatus.INTERNAL_SERVER_ERROR, "The server met an unexpected error; its log says more.")


def render(status: HTTPStatus, detail: str, *, code: str = exceptions.UNDEFINED, **extra: Any) -> Response:
    """Return the answer to a failed request: JSON, or HTML or text for clients that do not accept JSON.

    As in OpenStack Placement, the detail follows the general sentence for the HTTP status and an empty line.
    For paths below ``/ext/v1``, the detail replaces the general sentence.
    """
    # a detail can contain names with line breaks, but it must have one line, because some clients show only
    # the last line
    lines = [" ".join(detail.splitlines())] if detail else []
    if status in _GENERAL and (not detail or not is_ours(request.path)):
        lines.insert(0, _GENERAL[status])
    detail = "\n\n ".join(lines)
    error: dict[str, Any] = {
        "status": status.value,
        "title": status.phrase,
        "detail": detail,
        "request_id": request.environ.get("openstack.request_id"),
        **extra,
    }
    if request.environ.get(VERSION, microversion.MIN) >= microversion.ERROR_CODES or is_ours(request.path):
        error["code"] = code
    # perhaps the outage is short, so this header tells the client when to try again
    headers = {"Retry-After": RETRY_AFTER} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
    accepted = request.accept_mimetypes
    if not accepted or accepted["application/json"] > 0:
        return Response(orjson.dumps({"errors": [error]}), status.value, headers, "application/json")
    if accepted["text/html"] > 0:
        # the detail is escaped, because it can contain names that clients have chosen
        title = f"<!doctype html><title>{status.phrase}</title><h1>{status.phrase}</h1>"
        page = title + "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        return Response(page, status.value, headers, "text/html")
    text = f"{status.value} {status.phrase}\n\n{detail}\n"
    return Response(text, status.value, headers, "text/plain")
