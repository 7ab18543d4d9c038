"""The console as a WSGI application beside the REST API."""

from typing import TYPE_CHECKING, Final

from placement.api.auth import authenticate
from placement.api.call import provide
from placement.api.service import Service
from placement.console.app import create_app
from placement.console.visit import HANDLERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_ADMIN: Final = "admin"


def mount(service: Service, handlers: "WSGIApplication") -> "WSGIApplication":
    """The console of a service; ``handlers`` are those of the REST API, which ask nobody who he is."""
    pages = _asking(provide(create_app(), service), handlers)
    if service.conf.api.auth_strategy == "noauth2":
        return _Unquestioned(authenticate(pages, service.conf))
    return authenticate(pages, service.conf)


def _asking(app: "WSGIApplication", handlers: "WSGIApplication") -> "WSGIApplication":
    def serve(environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        environ[HANDLERS] = handlers
        return app(environ, start_response)

    return serve


class _Unquestioned:
    """Has every visitor without a token be the administrator: for development, as ``noauth2`` is."""

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        environ.setdefault("HTTP_X_AUTH_TOKEN", _ADMIN)
        return self._app(environ, start_response)
