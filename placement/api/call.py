"""One request, as the handlers see it, and the answers they give.

A handler is thin: the decorator :func:`operation` has checked version, media
types and policy, the handler parses, calls the store or the model, and
serialises.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

import orjson
from flask import Blueprint, Response, abort, current_app, g, request
from marshmallow import Schema
from werkzeug.exceptions import BadRequest, MethodNotAllowed, NotAcceptable, UnsupportedMediaType
from werkzeug.http import http_date

from placement import microversion
from placement.api import context
from placement.api.service import PlacementService
from placement.exceptions import InvalidRequest, Unavailable
from placement.microversion import MIN, Microversion
from placement.schemas import base
from placement.search.request import CandidatesRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

JSON: Final = "application/json"
_SERVICE: Final = "placement.service"

ABANDONED: Final = "placement.abandoned"
"""Where a web server that can tell puts a function into the environment, which says why nobody needs the
answer any more, or None."""

Handler = Callable[..., Response]


class ApiRequest:
    """The present request: who, which version, what."""

    def __init__(self) -> None:
        self.version: Microversion = g.version
        self.service: PlacementService = request.environ[_SERVICE]

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """The query string, in its order.

        :raises InvalidRequest: it holds bytes that are no text.
        """
        try:
            unquote_to_bytes(request.query_string).decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"Invalid query string parameters: {error}") from None
        return list(request.args.items(multi=True))

    @property
    def project_id(self) -> str:
        """The project of the caller; empty if it has none."""
        return context.of(request.environ).project_id or ""

    def authorize(self, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Refuse who may not do this.

        :raises placement.exceptions.Forbidden: saying so.
        """
        self.service.enforcer.authorize(context.of(request.environ), rule, target)

    def check_awaited(self) -> None:
        """Stop if nobody needs the answer any more, as far as the web server tells.

        :raises Unavailable: saying why.
        """
        abandoned = request.environ.get(ABANDONED)
        if abandoned is not None and (why := abandoned()):
            raise Unavailable(why)

    def explain_empty(self, wanted: CandidatesRequest) -> None:
        """Have the log say why there are no candidates, if the operator wants that; nobody waits for it."""
        if self.service.explainer is not None:
            question = (request.query_string, self.version)
            self.service.explainer.tell(question, wanted, context.of(request.environ))

    def require_json(self) -> None:
        """Refuse a body that says it is something else.

        :raises UnsupportedMediaType: naming what it says.
        """
        if request.mimetype != JSON:
            raise UnsupportedMediaType(
                f"The media type {request.mimetype or None} is not supported, use {JSON}"
            )

    def json(self) -> Any:
        """The body, parsed.

        :raises InvalidRequest: it is not JSON.
        """
        try:
            return orjson.loads(request.get_data(cache=False))
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"Malformed JSON: {error}") from None

    def body(self, schema: Schema) -> dict[str, Any]:
        """The body as the schema reads it.

        :raises InvalidRequest: it is not JSON or not what the schema says.
        """
        return base.load(schema, self.json())

    def wrapped_body(self, schema: Schema, field: str) -> Any:
        """As :meth:`body`, for a schema whose one field stands for the whole body."""
        return base.load(schema, {field: self.json()})[field]

    def answer(self, payload: Any, last_modified: float | None = None, status: int = 200) -> Response:
        """JSON; from 1.15 with the time (seconds since 1970) at which what it shows last changed."""
        body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        return self.written([body], last_modified, status)

    def written(self, body: list[bytes], last_modified: float | None = None, status: int = 200) -> Response:
        """As :meth:`answer`, of JSON in pieces, which are sent one after the other."""
        return self.dated(Response(body, status, mimetype=JSON), last_modified)

    def nothing(self, status: int = 204, location: str | None = None) -> Response:
        """An answer without a body."""
        response = Response(status=status)
        del response.headers["Content-Type"]
        return response if location is None else self.located(response, location)

    def located(self, response: Response, path: str) -> Response:
        """The response with the address of what was made."""
        response.headers["Location"] = request.root_url.rstrip("/") + path
        return response

    def dated(self, response: Response, last_modified: float | None) -> Response:
        """The response with the headers that 1.15 introduced."""
        if last_modified is not None and self.version >= microversion.CACHE_HEADERS:
            response.headers["Last-Modified"] = _http_date(int(last_modified))
            response.headers["Cache-Control"] = "no-cache"
        return response


_http_date: Final = lru_cache(maxsize=1024)(http_date)


def provide(app: "WSGIApplication", service: PlacementService) -> "WSGIApplication":
    """The application, whose calls are those of this service."""

    def serve(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        environ[_SERVICE] = service
        return app(environ, start_response)

    return serve


def prefix() -> str:
    """Where the API is mounted; what links begin with."""
    return str(request.environ.get("SCRIPT_NAME", ""))


def operation(
    blueprint: Blueprint,
    method: str,
    path: str,
    rule: str | None,
    *,
    since: Microversion = MIN,
    before: HTTPStatus = HTTPStatus.NOT_FOUND,
    reads_json: bool = False,
    writes_json: bool = False,
) -> Callable[[Handler], Handler]:
    """Make a function the handler of one operation of the API.

    :param rule: the policy rule that must allow it; None when the handler asks itself.
    :param since: the microversion that introduced the operation, and ``before``
        what it is to older ones.
    :param reads_json: the body is JSON, anything else is 415.
    :param writes_json: the answer is JSON, a client that does not take that gets 406.
    """

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        def handle(**path_arguments: str) -> Response:
            call = ApiRequest()
            if call.version < since:
                if before is HTTPStatus.METHOD_NOT_ALLOWED:
                    raise MethodNotAllowed(valid_methods=_other_methods(method))
                abort(before)
            if reads_json:
                call.require_json()
            if writes_json and request.accept_mimetypes and not request.accept_mimetypes[JSON]:
                raise NotAcceptable(f"Only {JSON} is provided")
            call.service.prepare()
            if rule is not None:
                call.authorize(rule)
            return handler(call, **path_arguments)

        blueprint.add_url_rule(
            path,
            f"{method} {path}".replace(".", "_"),
            handle,
            methods=[method],
            provide_automatic_options=False,
        )
        return handler

    return decorate


def _other_methods(method: str) -> list[str]:
    assert request.url_rule is not None
    same_path = (each for each in current_app.url_map.iter_rules() if each.rule == request.url_rule.rule)
    return sorted({name for each in same_path for name in each.methods or ()} - {method})


def check_body_headers() -> None:
    """Refuse a length that is no number, and a body that does not say what it is.

    :raises BadRequest: naming the header.
    """
    length = request.environ.get("CONTENT_LENGTH") or ""
    if length and not (length.isascii() and length.isdigit()):
        raise BadRequest("content-length header must be an integer")
    if length.strip("0") and not request.environ.get("CONTENT_TYPE"):
        raise BadRequest("content-type header required")
