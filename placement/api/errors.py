"""Errors as clients read them: ``{"errors": [{"status", "title", "detail", ...}]}``.

Source: "Errors" in the API reference, and the errors guideline of the OpenStack
API special interest group.
"""

import html
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotAcceptable

from placement import exceptions, microversion
from placement.api.paths import is_ours
from placement.exceptions import PlacementError

LOG = logging.getLogger(__name__)

_STATUS: Mapping[type[PlacementError], HTTPStatus] = {
    exceptions.InvalidRequest: HTTPStatus.BAD_REQUEST,
    exceptions.Forbidden: HTTPStatus.FORBIDDEN,
    exceptions.NotFound: HTTPStatus.NOT_FOUND,
    exceptions.Conflict: HTTPStatus.CONFLICT,
    exceptions.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}


class UnacceptableVersion(NotAcceptable):
    """A microversion that this service does not speak; the answer names those it does."""


def install(app: Flask) -> None:
    """Make the application answer every error in the API's format."""
    app.register_error_handler(PlacementError, _placement_error)
    app.register_error_handler(HTTPException, _http_exception)
    app.register_error_handler(Exception, _unexpected)


def _placement_error(error: PlacementError) -> Response:
    status = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
    more: dict[str, Any] = {}
    if isinstance(error, exceptions.NoCandidate) and error.explanation is not None:
        more["explanation"] = error.explanation
    return render(status, error.detail, code=error.code, **more)


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
        detail = "The resource could not be found."
    response = render(status, detail, **extra)
    response.headers.update(headers)
    return response


def _unexpected(error: Exception) -> Response:
    LOG.exception("unexpected error in %s %s", request.method, request.path)
    return render(HTTPStatus.INTERNAL_SERVER_ERROR, "The server met an unexpected error; its log says more.")


def render(status: HTTPStatus, detail: str, *, code: str = exceptions.UNDEFINED, **extra: Any) -> Response:
    """The answer to a request that failed, as JSON unless the client takes only HTML or text.

    The detail is made one line: some clients show the last one only, whatever a user put into a name.
    """
    detail = " ".join(detail.splitlines())
    error: dict[str, Any] = {
        "status": status.value,
        "title": status.phrase,
        "detail": detail,
        "request_id": request.environ.get("openstack.request_id"),
        **extra,
    }
    if g.get("version", microversion.MIN) >= microversion.ERROR_CODES or is_ours(request.path):
        error["code"] = code
    accepted = request.accept_mimetypes
    if not accepted or accepted["application/json"] > 0:
        return Response(orjson.dumps({"errors": [error]}), status.value, mimetype="application/json")
    if accepted["text/html"] > 0:
        title = f"<!doctype html><title>{status.phrase}</title><h1>{status.phrase}</h1>"
        page = f"{title}<p>{html.escape(detail)}</p>"
        return Response(page, status.value, mimetype="text/html")
    return Response(f"{status.value} {status.phrase}\n\n{detail}\n", status.value, mimetype="text/plain")
