"""The class of requests that handlers get, the functions that make answers, and the decorator of handlers.

Before a handler runs, the decorator :func:`api_operation` checks version, media types and policy. So a
handler only parses the request, calls the store or the read model, and makes an answer of the result.

The rules of versions come from "API Versions" in the OpenStack Placement API reference. A request states its
microversion in a header: ``OpenStack-API-Version: placement 1.39``. Without this header, the version is 1.0.
"""

import random
import re
import time
import uuid as uuids
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache, wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes, urlencode

import orjson
from flask import Blueprint, Flask, Response, abort, current_app, request
from marshmallow import Schema
from werkzeug.datastructures import Headers, MIMEAccept
from werkzeug.exceptions import BadRequest, MethodNotAllowed, NotAcceptable, UnsupportedMediaType
from werkzeug.http import http_date, parse_accept_header, parse_options_header

from placement import microversion
from placement.api import context
from placement.api.context import VERSION
from placement.api.errors import UnacceptableVersion
from placement.api.service import PlacementService
from placement.exceptions import Forbidden, InvalidRequest, TransactionConflict, Unavailable
from placement.microversion import MIN, Microversion
from placement.schemas import base, query
from placement.search.request import CandidatesRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

JSON: Final = "application/json"
_SERVICE: Final = "placement.service"

ABANDONED: Final = "placement.abandoned"
"""Key of the WSGI environment for a function of the web server.

If the answer to the request is no longer needed, the function returns the reason, otherwise None.
"""

BODY: Final = "placement.body"
"""Key of the WSGI environment for the bytes of the body, if the web server has read the whole body."""

_ADDRESSES: Final = frozenset(("Location", "Content-Location"))
"""Headers with addresses."""

ANY_PROJECT: Final = str(uuids.uuid4())
"""The id of a project that does not exist. If a rule allows this project, it allows all projects."""

_VERSION_HEADER: Final = "OpenStack-API-Version"
_VERSION_VARIABLE: Final = "HTTP_OPENSTACK_API_VERSION"
"""The key of the header in the WSGI environment."""
_SERVICE_TYPE: Final = "placement"
"""The name of this service in the header."""

_READ_ATTEMPTS: Final = 5
"""Maximum number of attempts to handle a GET."""

Handler = Callable[..., Response]
"""A function that answers one operation. Its arguments are the request and the variables of the path."""


class _JsonAnswer(Response):
    """A successful answer in pieces. It omits most of Werkzeug's work on headers, to save time."""

    def get_wsgi_headers(self, environ: "WSGIEnvironment") -> Headers:
        """Return the headers, with the length of the body. Werkzeug calls this once for each answer."""
        # these headers need Werkzeug's work, which makes their addresses absolute
        if not _ADDRESSES.isdisjoint([name for name, _ in self.headers]):
            return super().get_wsgi_headers(environ)
        self.headers.add("Content-Length", str(sum(map(len, self.response))))
        return self.headers


class ApiRequest:
    """A request with its caller, version, parameters and body."""

    def __init__(self) -> None:
        # Flask searches for the current request at each use of ``request``, which takes a microsecond
        self._environ = request.environ
        self.version: Microversion = self._environ[VERSION]
        self.service: PlacementService = self._environ[_SERVICE]

    @property
    def query_parameters(self) -> list[tuple[str, str]]:
        """The parameters of the query string, in their order.

        :raises InvalidRequest: the query string has bytes that are not UTF-8.
        """
        try:
            # the query is decoded strictly, because Flask would replace wrong bytes, and the answer would be
            # about another name than the client has sent
            unquote_to_bytes(request.query_string).decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"Invalid query string parameters: {error}") from None
        return list(request.args.items(multi=True))

    @property
    def project_id(self) -> str:
        """The id of the caller's project; empty if the caller has no project."""
        return context.caller_of(self._environ).project_id or ""

    @property
    def root_url(self) -> str:
        """The address of the API, for links. If the header ``Host`` is invalid, only the path."""
        # Werkzeug before 3.1.8 accepts any text as a host, or raises ValueError
        host = self._environ.get("HTTP_HOST")
        if host is not None and not _HOST.fullmatch(host):
            return mount_prefix()
        return request.root_url.rstrip("/")

    def authorize(self, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Check that a policy rule allows the caller an operation.

        :param target: attributes of the object of the operation, such as its project, which the rule can
            check.

        :raises placement.exceptions.Forbidden: the policy does not allow the operation.
        """
        self.service.enforcer.authorize(context.caller_of(self._environ), rule, target)

    def allows_project(self, rule: str, project_id: str) -> bool:
        """Return whether the rule allows the caller its operation on objects of this project."""
        try:
            self.authorize(rule, {"project_id": project_id})
        except Forbidden:
            return False
        return True

    def asked_project(self, rule: str) -> str:
        """Return the project in a query without other parameters; without a project, that of the caller.

        :raises InvalidRequest: the query is invalid, or there is no project.
        :raises placement.exceptions.Forbidden: the rule does not allow the operation for this project.
        """
        project_id = query.parse_project(self.query_parameters, self.version) or self.project_id
        self.authorize(rule, {"project_id": project_id or ANY_PROJECT})
        if not project_id:
            raise InvalidRequest("Give a project_id: this caller has no project.")
        return project_id

    def check_awaited(self) -> None:
        """Raise Unavailable with the reason if the answer to this request is no longer needed."""
        abandoned = self._environ.get(ABANDONED)
        if abandoned is not None and (why := abandoned()):
            raise Unavailable(why)

    def explain_empty(self, wanted: CandidatesRequest) -> None:
        """Explain in the log why the list of candidates is empty, if ``[api] explain_empty`` is set."""
        if self.service.explainer is not None:
            question = (request.query_string, self.version)
            self.service.explainer.explain_answer(question, wanted, context.caller_of(self._environ))

    def require_json(self) -> None:
        """Raise UnsupportedMediaType for a body that is not JSON."""
        if not _is_json(self._environ.get("CONTENT_TYPE")):
            raise UnsupportedMediaType(
                f"The media type {request.mimetype or None} is not supported, use {JSON}"
            )

    def require_acceptance(self) -> None:
        """Raise NotAcceptable if the client does not accept JSON."""
        if not _accepts_json(self._environ.get("HTTP_ACCEPT")):
            raise NotAcceptable(f"Only {JSON} is provided")

    def parse_json(self) -> Any:
        """Return the parsed body, or raise InvalidRequest if it is not JSON."""
        body = self._environ.get(BODY)
        if body is None:
            # Flask must not cache the bytes, because a body is read only once and can have many megabytes
            body = request.get_data(cache=False)
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"Malformed JSON: {error}") from None

    def parse_body(self, schema: Schema) -> dict[str, Any]:
        """Return the body as the schema converts it, or raise InvalidRequest."""
        return base.load(schema, self.parse_json())

    def wrapped_body(self, schema: Schema, field: str) -> Any:
        """Return the body, checked and converted by the schema as if it were the value of this field."""
        return base.load(schema, {field: self.parse_json()})[field]

    def json_answer(self, payload: Any, last_modified: float | None = None, status: int = 200) -> Response:
        """Return an answer with JSON.

        :param payload: JSON as bytes, or a value that is converted to JSON.
        :param last_modified: the time of the last change of the shown objects, in seconds since 1970. Answers
            contain this time from microversion 1.15 on.
        """
        body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        return self.answer_pieces([body], last_modified, status)

    def answer_pieces(
        self, body: list[bytes], last_modified: float | None = None, status: int = 200
    ) -> Response:
        """Return an answer with JSON that is given in pieces. The pieces are sent one after the other."""
        # the pieces are bytes already, so Werkzeug passes them on unchanged
        answer = _JsonAnswer(body, status, mimetype=JSON, direct_passthrough=True)
        return self.add_dates(answer, last_modified)

    def empty_answer(self, status: int = 204, location: str | None = None) -> Response:
        """Return an answer without a body."""
        response = Response(status=status)
        # Flask sets a media type even for an empty body
        del response.headers["Content-Type"]
        return response if location is None else self.add_location(response, location)

    def add_location(self, response: Response, path: str) -> Response:
        """Add the address of a new resource to the response, and return the response."""
        response.headers["Location"] = self.root_url + path
        return response

    def add_dates(self, response: Response, last_modified: float | None) -> Response:
        """Add ``Last-Modified`` and ``Cache-Control`` (from microversion 1.15 on); return the response."""
        if last_modified is not None and self.version >= microversion.CACHE_HEADERS:
            # the headers are new, and to add a header takes less time than to set it
            response.headers.add("Last-Modified", _http_date(int(last_modified)))
            # clients are allowed to cache the answer, but have to check before each use whether it is current
            response.headers.add("Cache-Control", "no-cache")
        return response


_HOST: Final = re.compile(r"([\w.~-]+|\[[0-9A-Fa-f:.]+\])(:\d+)?", re.ASCII)
"""The pattern of valid values of the header ``Host``: a name or an address, with an optional port."""


# texts of dates are cached, because many answers have the same date
_http_date: Final = lru_cache(maxsize=1024)(http_date)


# clients send few different headers; the caches are limited, because a client can send any header
@lru_cache(maxsize=256)
def _is_json(content_type: str | None) -> bool:
    """Return whether a body with this header ``Content-Type`` is JSON."""
    return parse_options_header(content_type)[0].lower() == JSON


@lru_cache(maxsize=256)
def _accepts_json(header: str | None) -> bool:
    """Return whether a client that sends this header ``Accept`` accepts JSON; without a header, it does."""
    accepted = parse_accept_header(header, MIMEAccept)
    return not accepted or bool(accepted[JSON])


def provide_service(app: "WSGIApplication", service: PlacementService) -> "WSGIApplication":
    """Return an application that passes this service to ``app`` in the environment of each request."""

    def serve_request(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        environ[_SERVICE] = service
        return app(environ, start_response)

    return serve_request


def mount_prefix() -> str:
    """Return the path at which the web server mounts the API, which is the prefix of all links."""
    return str(request.environ.get("SCRIPT_NAME", ""))


def next_links(path: str, following: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the links to the next page of a list. ``following`` has the query parameters of the next page.

    Parameters with the value None are left out.
    """
    query = urlencode({name: value for name, value in following.items() if value is not None})
    return [{"rel": "next", "href": f"{mount_prefix()}{path}?{query}"}]


def install_versions(app: Flask) -> None:
    """Find the version of each request before its handler runs, and show the version in each answer."""
    app.before_request(_check_headers)
    app.after_request(_add_version)


# most requests have one of few versions; the cache is limited, because a client can send any header
@lru_cache(maxsize=256)
def parse_version(header: str | None) -> Microversion:
    """Return the version in the header.

    :raises BadRequest: the header is not a version.
    :raises UnacceptableVersion: this service does not support the version.
    """
    asked = _of_placement(header) if header else None
    if asked is None:
        return microversion.MIN
    if asked == "latest":
        return microversion.MAX
    try:
        major, minor = asked.split(".")
        version = (int(major), int(minor))
    except ValueError:
        raise BadRequest(f"invalid version string: {asked}") from None
    if not microversion.MIN <= version <= microversion.MAX:
        raise UnacceptableVersion(f"Unacceptable version header: {asked}")
    return version


def _of_placement(header: str) -> str | None:
    """Return the last version for Placement in a header: 1.30 in ``compute 2.1, placement 1.30``."""
    asked = None
    for part in header.split(","):
        service, *version = part.split(maxsplit=1)[:2] or [""]
        # the loop continues after a version, because the last version for Placement counts
        if service.lower() == _SERVICE_TYPE and version:
            asked = version[0].strip()
    return asked


@cache
def _version_text(version: Microversion) -> str:
    return f"{_SERVICE_TYPE} {microversion.text(version)}"


def _check_headers() -> None:
    environ = request.environ
    environ[VERSION] = parse_version(environ.get(_VERSION_VARIABLE))
    # the version is found first, because the form of an error depends on it
    _check_body_headers(environ)


def _add_version(response: Response) -> Response:
    headers = response.headers
    # if the version of the request is not supported, the answer shows no version
    if (version := request.environ.get(VERSION)) is not None:
        headers.add(_VERSION_HEADER, _version_text(version))
    # the header is added directly, because the attribute ``response.vary`` would take twenty times as long
    if not headers.getlist("Vary"):
        headers.add("Vary", _VERSION_HEADER.lower())
    else:
        response.vary.add(_VERSION_HEADER.lower())
    return response


def api_operation(
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
    """Return a decorator that makes a function the handler of one operation of the API.

    :param rule: the policy rule that has to allow the operation. If it is None, the handler itself checks the
        policy.
    :param since: the microversion that introduced the operation. In older microversions, the answer has the
        status ``before``.
    :param reads_json: whether the body has to be JSON. The answer to any other body is 415.
    :param writes_json: whether the answer is JSON. A client that does not accept JSON gets 406.
    """
    # only a GET has certainly changed nothing before a query fails
    attempts = _READ_ATTEMPTS if method == "GET" else 1

    def decorate_handler(handler: Handler) -> Handler:
        @wraps(handler)
        def handle_request(**path_arguments: str) -> Response:
            call = ApiRequest()
            # in older versions, the operation does not exist
            if call.version < since:
                if before is HTTPStatus.METHOD_NOT_ALLOWED:
                    raise MethodNotAllowed(valid_methods=_other_methods(method))
                abort(before)
            if reads_json:
                call.require_json()
            if writes_json:
                call.require_acceptance()
            # the database is prepared before the policy is checked, because a worker without a database has
            # to answer 503 even to callers without rights
            call.service.prepare_database()
            if rule is not None:
                call.authorize(rule)
            return _handle_repeatedly(handler, call, path_arguments, attempts)

        blueprint.add_url_rule(
            path,
            f"{method} {path}".replace(".", "_"),
            handle_request,
            methods=[method],
            # without this argument, Flask would answer requests with OPTIONS itself
            provide_automatic_options=False,
        )
        # the handler is returned unchanged, so that other modules can call it
        return handler

    return decorate_handler


def _handle_repeatedly(
    handler: Handler, call: ApiRequest, path_arguments: Mapping[str, str], attempts: int
) -> Response:
    """Handle a request; handle it again if other transactions make its queries fail."""
    for attempt in range(1, attempts):
        try:
            return handler(call, **path_arguments)
        except TransactionConflict:
            time.sleep(random.uniform(0, 0.01 * 2**attempt))
    return handler(call, **path_arguments)


def _other_methods(method: str) -> list[str]:
    # the type checker does not know that a request which has reached a handler has a URL rule
    assert request.url_rule is not None
    same_path = (each for each in current_app.url_map.iter_rules() if each.rule == request.url_rule.rule)
    return sorted({name for each in same_path for name in each.methods or ()} - {method})


def _check_body_headers(environ: Mapping[str, Any]) -> None:
    """Raise BadRequest for a length that is not a number, or a body without a media type."""
    length = environ.get("CONTENT_LENGTH") or ""
    if length and not (length.isascii() and length.isdigit()):
        raise BadRequest("content-length header must be an integer")
    # a length of 0 means that the request has no body, and needs no media type
    if length.strip("0") and not environ.get("CONTENT_TYPE"):
        raise BadRequest("content-type header required")
