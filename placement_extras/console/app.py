"""The web application of the console: its pages, the filters of its templates, and its pages for errors."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Final

from flask import Flask, Response, g, render_template, request
from werkzeug.exceptions import HTTPException

from placement.api.auth import KeystoneAuth, NoAuth
from placement.api.call import provide_service
from placement.api.context import shown_path
from placement.api.errors import status_of
from placement.api.service import PlacementService
from placement.exceptions import RETRY_AFTER, ServiceError
from placement.policies import rest
from placement_extras.console import (
    APPLICATION,
    candidates,
    capacity,
    consumers,
    hosts,
    icalendar,
    names,
    neighbours,
    page_request,
    questions,
    settings,
    window_calendar,
)
from placement_extras.console.devices import count_devices
from placement_extras.console.fleet import HostResults
from placement_extras.console.page_request import HANDLERS, SEE_HOSTS, SESSION, ApiRefusal, PageRequest
from placement_extras.planner.rules import CAPACITY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_THIN_SPACE: Final = "\N{NARROW NO-BREAK SPACE}"
_STEP: Final = 1024
_UNITS: Final = ("MiB", "GiB", "TiB", "PiB", "EiB")
_RATE_STEP: Final = 1000
_RATE_UNITS: Final = ("MB/s", "GB/s", "TB/s", "PB/s")
_FIRST_UNIT: Final = {"MEMORY_MB": 0, "DISK_GB": 1}
"""The unit of each class's amounts, as an index of ``_UNITS``. Amounts of all other classes are numbers of
pieces.
"""


def format_number(value: int) -> str:
    """Format a number with a narrow space between thousands."""
    return f"{value:,}".replace(",", _THIN_SPACE)


def format_quantity(value: int, resource_class: str) -> str:
    """Format an amount of a resource class in a short unit, such as ``256 GiB`` of MEMORY_MB."""
    unit = _FIRST_UNIT.get(resource_class)
    if unit is None or value == 0:
        return format_number(value)
    return _scaled_text(value, _STEP, _UNITS[unit:])


def format_memory(mebibytes: float) -> str:
    """Format an amount of memory in a short unit, such as ``1.5 GiB``."""
    return _scaled_text(mebibytes, _STEP, _UNITS)


def format_traffic(megabytes: float) -> str:
    """Format a bandwidth, given in MB a second, in a short unit, such as ``12.5 GB/s``."""
    return _scaled_text(megabytes, _RATE_STEP, _RATE_UNITS)


def _scaled_text(value: float, step: int, units: Sequence[str]) -> str:
    """Format a value in the smallest unit in which it is less than ``step``, or in the largest unit."""
    shown, unit = float(value), 0
    while abs(shown) >= step and unit + 1 < len(units):
        shown, unit = shown / step, unit + 1
    # one decimal is enough to compare hosts; values from 100 on need no decimal
    text = f"{shown:.1f}".removesuffix(".0") if abs(shown) < 100 else f"{shown:.0f}"
    return f"{text}\N{NO-BREAK SPACE}{units[unit]}"


def whole_percent(part: int, whole: int) -> int:
    """Return the share of a part in percent.

    The share is 0 only for an empty part, and 100 only for the whole.
    """
    if whole <= 0:
        # without a capacity, any usage fills the bar
        return 100 if part > 0 else 0
    exact = 100 * part / whole
    # a small share is shown as 1 %, because 0 % means that nothing is used
    if 0 < exact < 1:
        return 1
    # a full bar means a host without room, so only a share of 100 % is shown as full
    return 99 if 99 < exact < 100 else max(0, min(100, round(exact)))


def bar_width(part: int, whole: int) -> str:
    """Return the width of a part of a bar, where the whole bar has a width of 100."""
    if whole <= 0:
        return "0"
    return f"{max(0.0, min(100.0, 100 * part / whole)):.1f}".removesuffix(".0")


def format_time(seconds: float) -> str:
    """Format a time (seconds since 1970) in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    # an attribute of an agent can have a number that is no valid time
    except (OverflowError, OSError, ValueError):
        return "unknown"


def format_count(count: int, noun: str, nouns: str = "") -> str:
    """Format a number with its noun; ``nouns`` is the plural if it is irregular."""
    return f"{format_number(count)} {noun if count == 1 else nouns or noun + 's'}"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": format_number,
    "quantity": format_quantity,
    "memory": format_memory,
    "traffic": format_traffic,
    "percent": whole_percent,
    "width": bar_width,
    "when": format_time,
    "plural": format_count,
}


LOG = logging.getLogger(__name__)

_MAX_BODY: Final = 64 * 1024
"""Maximum size of a form, in bytes."""
_STATIC: Final = Path(__file__).parent / "static"
_HEADERS: Final = {
    # Pages load scripts and styles only from the files of the console, and send forms only to the console.
    # Other sites cannot show a page in a frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SECTIONS: Final = (
    ("hosts.show_fleet", "Fleet", SEE_HOSTS),
    ("candidates.explore_candidates", "Candidates", (*SEE_HOSTS, rest.LIST_CANDIDATES)),
    ("capacity.count_guests", "Capacity", (*SEE_HOSTS, CAPACITY)),
    ("window_calendar.show_calendar", "Calendar", window_calendar.SEE_CALENDAR),
    ("consumers.find_consumer", "Consumers", (rest.LIST_ALLOCATIONS,)),
    ("neighbours.show_neighbours", "Neighbours", neighbours.SEE_NEIGHBOURS),
    ("settings.show_settings", "Fleet settings", settings.SEE_SETTINGS),
    ("names.show_names", "Names", (*SEE_HOSTS, rest.LIST_CLASSES, rest.LIST_TRAITS)),
    ("consumers.show_project", "Project", (rest.TOTAL_USAGES,)),
)
"""The pages in the menu, each with the policy rules that REST requires for the same content."""
_KEPT: Final = "public, max-age=31536000, immutable"
"""The value of Cache-Control for a file if its address contains a digest of its content."""
_FILES: Final = ("console.css", "console.js", "htmx.min.js", "icon.svg")
_HTMX: Final = {
    "allowEval": False,
    "allowScriptTags": False,
    "historyCacheSize": 0,  # htmx keeps no page in the browser
    "refreshOnHistoryMiss": True,
    "timeout": 30_000,
    "includeIndicatorStyles": False,  # these styles would be inline, which _HEADERS forbid
    "responseHandling": [
        {"code": "2..", "swap": True},
        # htmx also shows errors, which replace the whole content of the page
        {"code": "...", "swap": True, "target": "#content", "select": "#content"},
    ],
}
"""Settings of htmx, https://htmx.org/reference/#config."""


def create_app(*, signs_in: bool) -> Flask:
    """Return the Flask application with all pages.

    :param signs_in: whether visitors have to sign in.
    """
    app = Flask("placement_extras.console", static_url_path="/console/static")
    app.config[page_request.SIGNS_IN] = signs_in
    app.config["MAX_CONTENT_LENGTH"] = _MAX_BODY
    app.config[capacity.CENSUS] = HostResults(count_devices)
    app.config[icalendar.TEXTS] = icalendar.FeedTexts()
    app.config[neighbours.CENSUS] = HostResults(neighbours.read_usage)
    app.jinja_options = {"trim_blocks": True, "lstrip_blocks": True}
    app.jinja_env.filters.update(FILTERS)
    for each in (
        hosts,
        candidates,
        capacity,
        consumers,
        icalendar,
        names,
        neighbours,
        settings,
        window_calendar,
    ):
        app.register_blueprint(each.blueprint)
    app.context_processor(_template_values)
    app.after_request(page_request.give_secret)
    app.after_request(_add_headers)
    app.register_error_handler(ServiceError, _service_error)
    app.register_error_handler(ApiRefusal, _refused_by_api)
    app.register_error_handler(HTTPException, _http_exception)
    # without this handler, Flask would answer an unexpected error with its own page, which has no request id
    app.register_error_handler(Exception, _unexpected_error)
    return app


@cache
# digests are cached, because files of an installed package do not change while the process runs
def _file_digest(name: str) -> str:
    return hashlib.blake2b((_STATIC / name).read_bytes(), digest_size=8).hexdigest()


def _template_values() -> dict[str, Any]:
    """Return the variables that every template can use."""
    visit: PageRequest | None = g.get("visit")
    sections = []
    if visit is not None:
        sections = [(endpoint, title) for endpoint, title, rules in _SECTIONS if visit.may_use(*rules)]
    return {
        "visitor": None if visit is None else visit.visitor,
        # the key is not "session", because older versions of Flask pass the session of Flask to templates
        # under this name
        "visitor_session": request.environ.get(SESSION),
        "mark": page_request.form_mark,
        "condition": questions.condition_words,
        "sections": sections,
        "digest": _file_digest,
        "htmx": _HTMX,
        "request_id": request.environ.get("openstack.request_id"),
    }


def _add_headers(response: Response) -> Response:
    response.headers.update(_HEADERS)
    if response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = RETRY_AFTER
    # browsers must not store pages, because a page shows the state of one moment and can be confidential
    response.headers["Cache-Control"] = _KEPT if response.status_code < 400 and _is_dated() else "no-store"
    return response


def _is_dated() -> bool:
    """Return whether the address contains the digest of the requested file, so that browsers can cache it."""
    name = (request.view_args or {}).get("filename") if request.endpoint == "static" else None
    return name in _FILES and request.args.get("v") == _file_digest(name)


def _service_error(error: ServiceError) -> tuple[str, int]:
    return _error_page(status_of(error), error.detail)


def _refused_by_api(error: ApiRefusal) -> tuple[str, int]:
    return _error_page(HTTPStatus(error.status), error.detail)


def _http_exception(error: HTTPException) -> tuple[str, int] | Response:
    # this "error" is a redirection, or already has a complete answer
    if error.response is not None or error.code is None or error.code < 400:
        return Response(error.get_response().response, error.code, error.get_headers())
    status = HTTPStatus(error.code)
    return _error_page(
        status, "There is no such page." if status is HTTPStatus.NOT_FOUND else status.description
    )


def _unexpected_error(error: Exception) -> tuple[str, int]:
    LOG.exception("unexpected error in the page %s", shown_path(request.path))
    return _error_page(
        HTTPStatus.INTERNAL_SERVER_ERROR, "The service met an unexpected error; its log has the cause."
    )


def _error_page(status: HTTPStatus, detail: str) -> tuple[str, int]:
    return render_template("error.html", status=status, detail=detail), status.value


_ADMIN: Final = "admin"


def mount_console(service: PlacementService, handlers: WSGIApplication) -> WSGIApplication:
    """Return the console of a service.

    :param handlers: the handlers of the REST API without authentication. The console authenticates its
        visitors itself.
    :raises ValueError: visitors have to sign in, and the package cryptography is missing.
    """
    is_open = service.conf.api.auth_strategy == "noauth2"
    app = create_app(signs_in=not is_open)
    pages = page_request.with_variable(provide_service(app, service), HANDLERS, handlers)
    if is_open:
        return _admit_everyone(NoAuth(pages))
    APPLICATION.check_options(service.conf)
    # these imports need the package cryptography; check_options() has found out that it is installed
    from placement_extras.console import signing_in
    from placement_extras.console.admission import ADMITTED, SessionAdmission

    app.register_blueprint(signing_in.blueprint)
    admitted = page_request.with_variable(pages, ADMITTED, True)
    app.config[signing_in.IDENTITY] = keystone = KeystoneAuth(admitted, service.conf)
    # perhaps the Identity service hangs, so at most a quarter of the threads are allowed to wait for it
    threads = service.conf.threads if "threads" in service.conf else 1
    app.config[signing_in.ROOM] = BoundedSemaphore(max(1, threads // 4))
    return SessionAdmission(service, pages, keystone)


def _admit_everyone(app: WSGIApplication) -> WSGIApplication:
    """Make every visitor without a token the administrator, because ``noauth2`` checks no tokens either."""

    def serve_request(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ.setdefault("HTTP_X_AUTH_TOKEN", _ADMIN)
        return app(environ, start_response)

    return serve_request
