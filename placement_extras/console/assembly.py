"""The console as a WSGI application beside the REST API."""

from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Final

from placement.api.auth import KeystoneAuth, NoAuth
from placement.api.call import provide_service
from placement.api.service import PlacementService
from placement_extras.console import APPLICATION
from placement_extras.console.app import create_app
from placement_extras.console.page_request import HANDLERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_ADMIN: Final = "admin"


def mount_console(service: PlacementService, handlers: "WSGIApplication") -> "WSGIApplication":
    """Return the console of a service.

    :param handlers: the REST API without authentication, because the console has its own authentication.
    :raises ValueError: visitors have to sign in, and a package is missing.
    """
    is_open = service.conf.api.auth_strategy == "noauth2"
    app = create_app(signs_in=not is_open)
    pages = _with_handlers(provide_service(app, service), handlers)
    if is_open:
        return _OpenAdmission(NoAuth(pages))
    APPLICATION.check_options(service.conf)
    # only signing in needs cryptography, which check_options() has found
    from placement_extras.console import signing_in
    from placement_extras.console.admission import SessionAdmission, note_admitted

    app.register_blueprint(signing_in.blueprint)
    app.config[signing_in.IDENTITY] = keystone = KeystoneAuth(note_admitted(pages), service.conf)
    threads = service.conf.threads if "threads" in service.conf else 1
    app.config[signing_in.ROOM] = BoundedSemaphore(max(1, threads // 4))
    return SessionAdmission(service, pages, keystone)


def _with_handlers(app: "WSGIApplication", handlers: "WSGIApplication") -> "WSGIApplication":
    def serve_request(environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        environ[HANDLERS] = handlers
        return app(environ, start_response)

    return serve_request


class _OpenAdmission:
    """Makes every visitor without a token the administrator, for development, like ``noauth2``."""

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        environ.setdefault("HTTP_X_AUTH_TOKEN", _ADMIN)
        return self._app(environ, start_response)
