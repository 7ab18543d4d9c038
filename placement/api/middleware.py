"""The service as one WSGI application: the layers that a request passes before the handlers see it.

From outside to inside: addresses from a proxy's headers (if enabled), health check and metrics, request id
and log, chunks (a malformed chunk is the client's error), traces (if wanted), applications beside the API
(the console, if it is wanted), CORS (if configured), authentication, Flask.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import IO, TYPE_CHECKING, Final, Protocol

from flask import Flask
from oslo_config import cfg
from oslo_middleware import CORS, Healthcheck, HTTPProxyToWSGI
from werkzeug.exceptions import BadRequest

from placement import extensions
from placement.api import metrics_sharing
from placement.api.app import create_app
from placement.api.auth import authenticate
from placement.api.call import provide
from placement.api.garbage import GcScheduler
from placement.api.request_log import RequestLog
from placement.api.service import PlacementService
from placement.db.database import ServiceDatabase
from placement.optional_packages import missing_package

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from placement.api.tracing import ServiceTracing


def check_chunks(app: WSGIApplication) -> WSGIApplication:
    """The application, to which a chunked body that cannot be read is a bad request."""

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("HTTP_TRANSFER_ENCODING"):
            environ["wsgi.input"] = io.BufferedReader(_FileChunks(environ["wsgi.input"]))
        return app(environ, start_response)

    return serve


class _FileChunks(io.RawIOBase):
    """What another file gives."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """As of any file.

        :raises BadRequest: the web server could not read the body.
        """
        target = memoryview(buffer)
        try:
            piece = self._source.read(len(target))
        except (
            Exception
        ) as error:  # each web server has errors of its own for a malformed chunk, and a lost client
            raise BadRequest(f"The body is not chunked as its headers say: {error}") from error
        target[: len(piece)] = piece
        return len(piece)


HEALTHCHECK_PATH: Final = "/healthcheck"
METRICS_PATH: Final = "/metrics"

ApplicationMaker = Callable[[PlacementService, "WSGIApplication"], "WSGIApplication"]
"""Makes an application beside the API, out of the API's handlers, which it may ask in the process."""


class SideApplication(Protocol):
    """An application that answers below a path of its own, and finds out by itself who asks."""

    path: str
    """Where it answers, with all that is below."""

    def check(self, conf: cfg.ConfigOpts) -> None:
        """:raises ValueError: it is wanted, and lacks what it needs."""

    def maker(self, conf: cfg.ConfigOpts) -> ApplicationMaker | None:
        """What makes it; None where the configuration wants none."""


_handlers: Final = cache(create_app)
"""Shared by all services of a process, as making routes takes longer than most requests."""


def build_application(
    conf: cfg.ConfigOpts, *, in_background: bool = False, alone: bool = False
) -> WSGIApplication:
    """The whole service for a WSGI server, as ``conf`` wants it.

    :param in_background: whether the database is prepared by a thread of its own. That is for servers that
        build the application in the process that serves it; no thread outlives a fork.
    :param alone: whether the process is there for this only, so that it may decide when garbage is collected.
    :raises ValueError: as :func:`check`.
    """
    tracing = _tracing(conf) if conf.tracing.enabled else None
    service = PlacementService.of(conf, ServiceDatabase if tracing is None else tracing.database)
    if in_background:
        service.prepare_in_background()
    else:
        service.try_to_prepare()
    handlers, metrics = _handlers(), None
    if conf.metrics.enabled or tracing is not None:
        handlers = create_app()  # of its own: metrics and spans of this service are told of it
    if conf.metrics.enabled:
        metrics = _metrics(handlers, service, conf)
    if tracing is not None:
        tracing.install(handlers)
    app = provide(handlers, service)
    if alone:
        app = GcScheduler(service.model.long_requests).after(app)
    beside = {
        each.path: make(service, app) for each in _applications() if (make := each.maker(conf)) is not None
    }
    return wrap(app, conf, metrics, beside, tracing)


def _applications() -> list[SideApplication]:
    return list(extensions.registered_objects("applications").values())


def check(conf: cfg.ConfigOpts) -> None:
    """Refuse to start where traces or applications are wanted and lack what they need.

    :raises ValueError: naming it.
    """
    if conf.tracing.enabled:
        _tracing_class()
    for each in _applications():
        each.check(conf)


def _tracing(conf: cfg.ConfigOpts) -> ServiceTracing:
    return _tracing_class().of(conf)


def _tracing_class() -> type[ServiceTracing]:
    try:
        from placement.api.tracing import ServiceTracing  # for those who want it
    except ImportError as error:
        raise missing_package("[tracing] enabled", str(error.name), "tracing") from error
    return ServiceTracing


def _metrics(app: Flask, service: PlacementService, conf: cfg.ConfigOpts) -> WSGIApplication:
    """What answers :data:`METRICS_PATH`, once it counts the requests of the application."""
    metrics_sharing.share(conf)
    from placement.api.metrics import ServiceMetrics  # not before it is known where numbers are put together

    metrics = ServiceMetrics(service, conf.metrics.max_provider_series)
    metrics.install(app)
    return metrics


def wrap(
    app: WSGIApplication,
    conf: cfg.ConfigOpts,
    metrics: WSGIApplication | None = None,
    beside: Mapping[str, WSGIApplication] | None = None,
    tracing: ServiceTracing | None = None,
) -> WSGIApplication:
    """Put all layers before ``app``; beside it answer ``metrics`` and, by their paths, other applications."""
    if tracing is not None:
        app = tracing.handlers(app, "handlers")
    app = authenticate(app, conf)
    # oslo.middleware goes through webob, so it stands in the way only where it is wanted.
    if conf.cors.allowed_origin:
        app = CORS(app, conf)
    for path, other in (beside or {}).items():
        traced = other if tracing is None else tracing.handlers(other, path.strip("/"), path)
        app = _PrefixDispatch(app, path, traced)
    if tracing is not None:
        app = tracing.requests(app)
    app = _HealthChecked(RequestLog(check_chunks(app)), conf)
    if metrics is not None:
        app = _PathDispatch(app, METRICS_PATH, metrics)
    if conf.oslo_middleware.enable_proxy_headers_parsing:
        app = HTTPProxyToWSGI(app, conf)
    return app


class _PathDispatch:
    """Answers one path by another application, without a token."""

    def __init__(self, app: WSGIApplication, path: str, other: WSGIApplication) -> None:
        self._app = app
        self._path = path
        self._other = other

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        app = self._other if environ.get("PATH_INFO") == self._path else self._app
        return app(environ, start_response)


class _PrefixDispatch:
    """Answers one path, and all below it, by another application, which asks by itself who calls."""

    def __init__(self, app: WSGIApplication, path: str, other: WSGIApplication) -> None:
        self._app = app
        self._path = path
        self._other = other

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        is_below = path.startswith(self._path) and path[len(self._path) :][:1] in ("", "/")
        return (self._other if is_below else self._app)(environ, start_response)


class _HealthChecked:
    """Answers :data:`HEALTHCHECK_PATH` by oslo.middleware's health check, without a token."""

    def __init__(self, app: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._app = app
        self._check = Healthcheck(app, conf)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not environ.get("PATH_INFO"):
            environ["PATH_INFO"] = "/"  # of a service below a prefix, asked for the prefix alone
        if environ["PATH_INFO"] == HEALTHCHECK_PATH:
            answer: Iterable[bytes] = self._check(environ, start_response)
            return answer
        return self._app(environ, start_response)
