"""The Flask application: one blueprint for each resource.

``flask routes`` prints the whole API as a table. Each operation is declared at its handler, in the module of
its resource. The layers around the application are in :mod:`placement.api.middleware`.
"""

from collections.abc import Callable
from typing import Any, Final

from flask import Flask, Request
from flask.sessions import NullSession, SessionInterface
from werkzeug.routing import MapAdapter

from placement import extensions
from placement.api import (
    allocation_candidates,
    allocations,
    call,
    errors,
    inventories,
    resource_classes,
    resource_providers,
    traits,
    versions,
)
from placement.api.ext import (
    changes,
    claims,
    explanations,
    reservations,
    trees,
)

# placement.server limits bodies to this size; with this constant, Flask applies the same limit under other
# WSGI servers
_MAX_BODY: Final = 64 * 1024 * 1024

BLUEPRINTS: Final = (
    versions.blueprint,
    resource_providers.blueprint,
    inventories.blueprint,
    traits.blueprint,
    resource_classes.blueprint,
    allocations.blueprint,
    allocation_candidates.blueprint,
    explanations.blueprint,
    claims.blueprint,
    reservations.blueprint,
    changes.blueprint,
    trees.blueprint,
)


class _NoSessions(SessionInterface):
    """Gives Flask one empty session, because the API has no sessions.

    Without this class, Flask would create an object that signs sessions for each request.
    """

    _shared = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        return self._shared


class _SharedHooksRequest(Request):
    """A request of an application that runs the same functions around the requests of all blueprints.

    Flask would look for functions of the request's blueprint five times for each request.
    """

    blueprints: Final[list[str]] = []


class ApiFlask(Flask):
    """Flask without some work that it does for each request and that this API does not need."""

    session_interface = _NoSessions()

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function unchanged, because Flask would check for each call if it is a coroutine."""
        return func

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Return an object that finds the route of a request.

        It does not know the host of the request. Flask would read and check the header ``Host`` three times,
        but no route and no address that Flask makes depends on it.
        """
        if request is None:
            return super().create_url_adapter(None)
        path = request.environ.get("PATH_INFO", "").encode("latin-1").decode(errors="replace")
        return MapAdapter(self.url_map, "", request.root_path, "", "http", path or "/", request.method)


def create_app() -> Flask:
    """Return an application with all operations of the API.

    The application does not contain a service. Each request has its service in the WSGI environment
    (:func:`placement.api.call.provide_service`).
    """
    # static files are off, because Flask would add a route for them
    app = ApiFlask("placement", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = _MAX_BODY
    # a path with a double slash is a different path, and must not be redirected
    app.url_map.merge_slashes = False
    call.install_versions(app)
    errors.install_handlers(app)
    for blueprint in (*BLUEPRINTS, *extensions.registered_objects("blueprints").values()):
        app.register_blueprint(blueprint)
    if not _has_blueprint_hooks(app):
        app.request_class = _SharedHooksRequest
    for rule in app.url_map.iter_rules():
        # werkzeug answers HEAD for each GET, but the API does not
        (rule.methods or set()).discard("HEAD")
    return app


def _has_blueprint_hooks(app: Flask) -> bool:
    """Return whether a blueprint has functions that run around its requests, or that answer its errors."""
    tables = (
        app.url_value_preprocessors,
        app.before_request_funcs,
        app.after_request_funcs,
        app.teardown_request_funcs,
        app.error_handler_spec,
    )
    return any(name is not None for table in tables for name in table)
