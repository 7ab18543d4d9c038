"""A request for a page: the visitor, the pinned read model, lists, forms, and requests to the REST API.

A page calls the API within the process with the visitor's token, so visitors have the same rights as with
REST.

Only a page of the console in the same browser can send a form that changes data. The cookie of a browser has
a secret, and each form contains a mark that is derived from this secret. If a browser has no cookie yet, the
page that contains the form sets the cookie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import orjson
from flask import Blueprint, Response, current_app, g, redirect, request
from werkzeug.http import parse_cookie
from werkzeug.test import EnvironBuilder, run_wsgi_app

from placement import microversion
from placement.api import context
from placement.api.call import ABANDONED
from placement.api.context import RequestContext
from placement.api.service import PlacementService
from placement.exceptions import Forbidden
from placement.policies import rest
from placement.read_model.rows import NameTable
from placement.read_model.snapshot import ModelSnapshot
from placement_extras.console import sessions

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_SERVICE: Final = "placement.service"
HANDLERS: Final = "placement_extras.console.handlers"
"""The key of the WSGI environment with the handlers of the REST API."""

SESSION: Final = "placement_extras.console.session"
"""The key of the WSGI environment with the session of a visitor that has signed in."""
REFUSAL: Final = "placement_extras.console.refusal"
"""The key of the WSGI environment with an error that the console shows in place of the page."""

SEE_HOSTS: Final = (
    rest.LIST_PROVIDERS,
    rest.LIST_INVENTORIES,
    rest.PROVIDER_USAGES,
    rest.LIST_PROVIDER_TRAITS,
    rest.LIST_AGGREGATES,
)
"""The policy rules that the REST API requires of a client that reads everything on a page of hosts."""

Page = Callable[..., Response | str | tuple[str, int]]
"""The function of a page, which returns the page, or a tuple of the page and the HTTP status."""


@dataclass(frozen=True, slots=True)
class VisitorSession:
    """A signed-in visitor: the token, and the names of user and project for the page.

    ``secret`` is the value of the cookie.
    """

    secret: str
    token: str
    user: str
    project: str


def service_of(environ: Mapping[str, Any]) -> PlacementService:
    """Return the service that the current request belongs to."""
    service: PlacementService = environ[_SERVICE]
    return service


def with_variable(app: WSGIApplication, name: str, value: object) -> WSGIApplication:
    """Return an application that sets a variable of the WSGI environment, and then calls ``app``."""

    def serve_request(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ[name] = value
        return app(environ, start_response)

    return serve_request


class PageRequest:
    """The current request, with the service and the visitor."""

    def __init__(self) -> None:
        self.service = service_of(request.environ)
        self.visitor: RequestContext = context.caller_of(request.environ)

    @contextmanager
    def pinned_model(self) -> Iterator[tuple[ModelSnapshot, NameTable]]:
        """Yield all providers and names, in their state at the beginning of the context.

        The yielded objects stay unchanged until the context ends. Updates of the model do not wait for the
        end of the context.

        :raises placement.exceptions.Unavailable: the database does not answer.
        """
        model = self.service.model
        with model.fresh_view() as view:
            names = view.names
        # pages use a pinned model, because making a page takes longer than an answer of REST, and must not
        # delay writers
        with model.pinned_snapshot() as (snapshot, _):
            yield snapshot, names

    def require_rules(self, rules: Iterable[str]) -> None:
        """Raise Forbidden for the first of these rules that does not allow the visitor the operation."""
        for rule in rules:
            self.service.enforcer.authorize(self.visitor, rule)

    def may_use(self, *rules: str) -> bool:
        """Return whether all these rules allow the visitor their operations."""
        try:
            self.require_rules(rules)
        except Forbidden:
            return False
        return True


def console_page(
    blueprint: Blueprint, path: str, *rules: str, methods: tuple[str, ...] = ("GET",)
) -> Callable[[Page], Page]:
    """Return a decorator that makes a function the route of a page.

    A visitor sees the page if all ``rules`` allow the visitor their operations.

    The arguments of the function are the :class:`PageRequest` and the variables of the path.
    """

    def decorate_route(route: Page) -> Page:
        @wraps(route)
        def handle_request(**arguments: Any) -> Response | str | tuple[str, int]:
            # the admission has stored an error here, because only a page can show an error to the visitor
            if REFUSAL in request.environ:
                raise request.environ[REFUSAL]
            visit = g.visit = PageRequest()
            # the database is prepared before the rules are checked, because a worker without a database has
            # to answer 503 even to visitors without rights
            visit.service.prepare_database()
            visit.require_rules(rules)
            return route(visit, **arguments)

        blueprint.add_url_rule(path, route.__name__, handle_request, methods=list(methods))
        return route

    return decorate_route


T = TypeVar("T")
U = TypeVar("U")

MAX_NAME: Final = 255
"""Maximum number of characters in a typed name. Columns of the database for names have this length, too."""
_MAX_PAGE: Final = 1_000_000
"""Largest number of a page that a query string can ask for; a larger number counts as this one."""


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list: its rows, its number from 1 on, and the total numbers of pages and of rows."""

    rows: tuple[T, ...]
    page: int
    pages: int
    total: int

    def with_rows(self, rows: Iterable[U]) -> ListPage[U]:
        """Return this page with other objects for the same rows."""
        return ListPage(tuple(rows), self.page, self.pages, self.total)


def cut_page(rows: Sequence[T], number: int, per_page: int) -> ListPage[T]:
    """Return one page of a list; the last one if ``number`` is too large. An empty list has an empty page."""
    pages = max(1, -(-len(rows) // per_page))
    number = min(max(1, number), pages)
    return ListPage(tuple(rows[(number - 1) * per_page : number * per_page]), number, pages, len(rows))


def asked_page(name: str = "page") -> int:
    """Return the number of the page that the current request asks for."""
    return number_of(request.args, name)


def text_of(fields: Mapping[str, str], name: str, longest: int = MAX_NAME) -> str:
    """Return a field of a form or a query string, without outer blanks and cut to ``longest`` characters."""
    return fields.get(name, "").strip()[:longest]


def field_texts(fields: Mapping[str, str], names: Iterable[str], longest: int = MAX_NAME) -> dict[str, str]:
    """Return these fields of a form or a query string by name, each as :func:`text_of` returns it."""
    return {name: text_of(fields, name, longest) for name in names}


def number_of(arguments: Mapping[str, str], name: str = "page") -> int:
    """Return the number of the page that a query string asks for; 1 if it has no valid number."""
    text = arguments.get(name, "")
    # isdigit() alone would accept digits that int() refuses, such as superscripts
    return min(max(1, int(text[:9])), _MAX_PAGE) if text.isascii() and text.isdigit() else 1


COOKIE: Final = "__Host-placement-console"
"""Name of the cookie. Browsers send a cookie with such a name only over HTTPS or to their own machine, and
only to the host that has set the cookie.
"""
PLAIN_COOKIE: Final = "placement-console"
"""Name of the cookie if visitors need not sign in, because such a console is perhaps used without HTTPS."""
SIGNS_IN: Final = "SIGNS_IN"
"""The key, in the application's configuration, of the flag that visitors have to sign in."""

_STALE: Final = (
    "The form was out of date, or your browser did not keep the cookie, which needs HTTPS. Please try again."
)


def secret_of(environ: WSGIEnvironment, name: str) -> str | None:
    """Return the value of the cookie with that name, if the value has the form of a secret."""
    sent = environ.get("HTTP_COOKIE", "").encode("latin-1")
    # cookies of other applications can contain any bytes. These bytes must not cause an error, and must not
    # vanish from the name of such a cookie.
    found = parse_cookie(sent.decode("ascii", "backslashreplace")).get(name)
    return found if sessions.is_one(found) else None


def form_mark() -> str:
    """Return the mark for a form on this page. The mark proves that the form is from the console."""
    secret = secret_of(request.environ, _cookie_name()) or g.get("new_secret")
    if secret is None:
        # all forms of a page have the same secret, which give_secret() sends to the browser
        secret = g.new_secret = sessions.new_secret()
    return sessions.form_mark(secret)


def check_form() -> None:
    """Raise Forbidden for a request without the mark of a form of the console."""
    secret = secret_of(request.environ, _cookie_name())
    # the mark alone protects browsers that do not send this header
    from_here = request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
    if not from_here or secret is None or not sessions.is_marked(secret, request.form.get("mark", "")):
        raise Forbidden(_STALE)


def give_secret(response: Response) -> Response:
    """Return the response; add the cookie if a form on the page needs it and the browser does not have it."""
    if "new_secret" in g:
        keep_secret(response, g.new_secret)
    return response


def keep_secret(response: Response, secret: str) -> None:
    """Set a cookie with the secret of this browser. The browser keeps the cookie until it is closed."""
    # with "Lax", the browser sends the cookie if a visitor follows a link of another site, but not if another
    # site sends a form
    secure = current_app.config[SIGNS_IN]
    response.set_cookie(_cookie_name(), secret, secure=secure, httponly=True, samesite="Lax", path="/")


def forget_secret(response: Response) -> None:
    """Delete the cookie with the secret."""
    secure = current_app.config[SIGNS_IN]
    response.delete_cookie(_cookie_name(), secure=secure, httponly=True, samesite="Lax", path="/")


def _cookie_name() -> str:
    return COOKIE if current_app.config[SIGNS_IN] else PLAIN_COOKIE


_VERSION: Final = f"placement {microversion.text(microversion.MAX)}"
_TAKEN: Final = ("openstack.request_id", "openstack.global_request_id", "REMOTE_ADDR", ABANDONED)
"""The variables of the WSGI environment that a request to the API copies from the visitor's request."""


class ApiRefusal(Exception):
    """An error answer of the API, with its status and its detail."""

    def __init__(self, status: int, detail: str, code: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code


def ask_api(method: str, path: str, parameters: Mapping[str, str] | None = None, body: Any = None) -> Any:
    """Return the parsed answer of the API, or None for an empty answer.

    :raises ApiRefusal: the API answers with an error.
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
    # these variables give log lines of the request to the API the id of the visitor's request, and stop the
    # request to the API when the browser closes the connection
    environ |= {name: request.environ[name] for name in _TAKEN if name in request.environ}
    # the visitor's token was already checked for the page, so the API gets the checked visitor
    context.hand_over(environ, context.caller_of(request.environ))
    pieces, status, _ = run_wsgi_app(request.environ[HANDLERS], environ, buffered=True)
    content = b"".join(pieces)
    answer: Any = orjson.loads(content) if content else None
    number = int(status.split()[0])
    if number >= 400:
        # each error answer of the API has exactly one error in its list
        (error,) = answer["errors"]
        # details of errors of the Placement API begin with a general sentence, which is cut off
        raise ApiRefusal(number, error["detail"].split("\n\n ")[-1], error.get("code", ""))
    return answer


def redirect_to(address: str) -> Response:
    """Return an answer that makes the browser go to another page."""
    # after status 303 the browser fetches the other page with GET, so a reload does not send the form again
    answer = redirect(address, HTTPStatus.SEE_OTHER, Response)
    # the type checker does not know that redirect() returns an object of the class in its last argument
    assert isinstance(answer, Response)
    return answer
