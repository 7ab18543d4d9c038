"""Builds the service as one WSGI application: handlers behind the layers that each request passes.

A request passes the layers in this order:

- client addresses from a proxy's headers (if enabled), metrics (if enabled), health check;
- request id and log, check of chunks (the answer to a malformed chunk is 400), traces (if enabled);
- applications beside the API, such as the console, and CORS (if configured);
- authentication, Flask.

This module also sets the folder through which the processes of the service share their metrics, because the
folder has to be known before prometheus_client is imported.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from shutil import rmtree
from tempfile import mkdtemp
from typing import IO, TYPE_CHECKING, Final, Protocol

from flask import Flask
from oslo_config import cfg
from oslo_middleware import CORS, Healthcheck, HTTPProxyToWSGI
from werkzeug.exceptions import BadRequest

from placement import extensions
from placement.api.app import create_app
from placement.api.auth import add_authentication, check_options
from placement.api.call import provide_service
from placement.api.garbage import GcScheduler
from placement.api.request_log import RequestLog
from placement.api.service import PlacementService
from placement.db.database import ServiceDatabase
from placement.optional_packages import missing_package
from placement.policies.enforcer import PolicyEnforcer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from placement.api.tracing import ServiceTracing


def check_chunks(app: WSGIApplication) -> WSGIApplication:
    """Return an application that answers 400 to a malformed chunked body, and otherwise calls ``app``."""

    def serve_request(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("HTTP_TRANSFER_ENCODING"):
            environ["wsgi.input"] = io.BufferedReader(_FileChunks(environ["wsgi.input"]))
        return app(environ, start_response)

    return serve_request


class _FileChunks(io.RawIOBase):
    """Reads the body of a request as a file, and replaces exceptions of the web server by an error 400."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source

    def readable(self) -> bool:
        """Return True, because the input can always be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read into the buffer; return the number of bytes, or 0 at the end of the body.

        :raises BadRequest: the body cannot be read.
        """
        target = memoryview(buffer)
        try:
            piece = self._source.read(len(target))
        # each web server has its own exceptions for a malformed chunk and for a lost client
        except Exception as error:
            raise BadRequest(f"The body is not chunked as its headers say: {error}") from error
        target[: len(piece)] = piece
        return len(piece)


HEALTHCHECK_PATH: Final = "/healthcheck"
METRICS_PATH: Final = "/metrics"

ApplicationMaker = Callable[[PlacementService, "WSGIApplication"], "WSGIApplication"]
"""A function that makes an application beside the API, such as the console. Its arguments are the service,
and the handlers of the API, which the application can call.
"""


class SideApplication(Protocol):
    """An application beside the API, with its own path, that authenticates its callers itself."""

    path: str
    """The application answers requests for this path and for all paths below it."""

    def check_options(self, conf: cfg.ConfigOpts) -> None:
        """Raise ValueError if the application is enabled, but something that it needs is missing."""

    def find_maker(self, conf: cfg.ConfigOpts) -> ApplicationMaker | None:
        """Return the function that makes the application; None if the configuration does not enable it."""


_handlers: Final = cache(create_app)
"""A function that returns the handlers. All services of a process share them, as making routes is slow."""


def build_application(
    conf: cfg.ConfigOpts, *, in_background: bool = False, alone: bool = False
) -> WSGIApplication:
    """Return the whole service for a WSGI server.

    :param in_background: whether a separate thread prepares the database. This is allowed only in a process
        that serves requests itself, because threads do not survive a fork.
    :param alone: whether the process runs only this service. The service then schedules garbage collection.
    :raises ValueError: see :func:`check_requirements`.
    """
    tracing = _make_tracing(conf) if conf.tracing.enabled else None
    service = PlacementService.from_options(
        conf, ServiceDatabase if tracing is None else tracing.open_database
    )
    if in_background:
        service.prepare_in_background()
    else:
        service.try_to_prepare()
    handlers, metrics = _handlers(), None
    if conf.metrics.enabled or tracing is not None:
        # metrics and spans change the handlers, so they get new handlers, and not those that services share
        handlers = create_app()
    if conf.metrics.enabled:
        metrics = _make_metrics(handlers, service, conf)
    if tracing is not None:
        tracing.install_routes(handlers)
    app = provide_service(handlers, service)
    if alone:
        app = GcScheduler(service.model.long_requests).collect_after(app)
    beside = {
        each.path: make(service, app)
        for each in _side_applications()
        if (make := each.find_maker(conf)) is not None
    }
    return add_layers(app, conf, metrics, beside, tracing)


def _side_applications() -> list[SideApplication]:
    return list(extensions.registered_objects("applications").values())


def check_requirements(conf: cfg.ConfigOpts) -> None:
    """Raise ValueError if the service cannot start with these options.

    The reason is its authentication or a policy file, or that traces or side applications are enabled, but
    lack something that they need. The URL of the database has a check of its own,
    :func:`placement.db.engine.check_url`.
    """
    check_options(conf)
    # the object is made and dropped, because its constructor reads the files
    PolicyEnforcer(conf)
    if conf.tracing.enabled:
        _tracing_class()
    for each in _side_applications():
        each.check_options(conf)


def _make_tracing(conf: cfg.ConfigOpts) -> ServiceTracing:
    return _tracing_class().from_options(conf)


def _tracing_class() -> type[ServiceTracing]:
    try:
        # the module is imported only if traces are enabled, because it needs optional packages
        from placement.api.tracing import ServiceTracing
    except ImportError as error:
        raise missing_package("[tracing] enabled", str(error.name), "tracing") from error
    return ServiceTracing


METRICS_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable from which prometheus_client reads the path of the folder."""


@contextmanager
def shared_directory(conf: cfg.ConfigOpts) -> Iterator[None]:
    """Return a context in which this process, and processes that it forks, share their metrics in a folder.

    The folder is ``[metrics] directory``, or a new folder that is removed at the end of the context.
    """
    # _share_metrics() uses a folder from the configuration; a folder from the environment stays unchanged
    if not conf.metrics.enabled or conf.metrics.directory or METRICS_DIRECTORY in os.environ:
        yield
        return
    owner, folder = os.getpid(), mkdtemp(prefix="placement-metrics-")
    os.environ[METRICS_DIRECTORY] = folder
    try:
        yield
    finally:
        # forked processes also run this code when they end, but only the original process removes the folder
        if os.getpid() == owner:
            rmtree(folder, ignore_errors=True)
            os.environ.pop(METRICS_DIRECTORY, None)


def _share_metrics(conf: cfg.ConfigOpts) -> None:
    if conf.metrics.directory:
        os.makedirs(conf.metrics.directory, exist_ok=True)
        os.environ[METRICS_DIRECTORY] = conf.metrics.directory


def _make_metrics(app: Flask, service: PlacementService, conf: cfg.ConfigOpts) -> WSGIApplication:
    """Count the requests of ``app``; return the application that serves :data:`METRICS_PATH`."""
    _share_metrics(conf)
    # the module is imported after the folder is known, because prometheus_client reads the folder at import
    from placement.api.metrics import ServiceMetrics

    metrics = ServiceMetrics(service, conf.metrics.max_provider_series, exemplars=conf.tracing.enabled)
    metrics.install_counters(app)
    return metrics


def add_layers(
    app: WSGIApplication,
    conf: cfg.ConfigOpts,
    metrics: WSGIApplication | None = None,
    beside: Mapping[str, WSGIApplication] | None = None,
    tracing: ServiceTracing | None = None,
) -> WSGIApplication:
    """Return ``app`` behind all layers.

    :param metrics: the application that answers scrapes of Prometheus, if metrics are enabled.
    :param beside: the applications beside the API, by their paths.
    """
    # this layer is inside of the authentication, so that its span measures only the handlers
    if tracing is not None:
        app = tracing.trace_handlers(app, "handlers")
    app = add_authentication(app, conf)
    # CORS is added only if it is configured, because oslo.middleware parses each request with webob, which
    # takes time
    if conf.cors.allowed_origin:
        app = CORS(app, conf)
    # applications beside the API are outside of the authentication, because they authenticate their callers
    # themselves
    for path, other in (beside or {}).items():
        traced = other if tracing is None else tracing.trace_handlers(other, path.strip("/"), path)
        app = _dispatch_path(app, path, traced, also_below=True)
    if tracing is not None:
        # this layer is outside of the authentication, so that its span includes the time of the
        # authentication
        app = tracing.trace_requests(app)
    # the log is outside of the authentication, so that it also has refused requests. The log is inside of
    # health checks and metrics, so that these do not fill it.
    app = _HealthChecked(RequestLog(check_chunks(app)), conf)
    if metrics is not None:
        app = _dispatch_path(app, METRICS_PATH, metrics)
    # this layer is the first, so that all other layers see the address of the client instead of the proxy's
    if conf.oslo_middleware.enable_proxy_headers_parsing:
        app = HTTPProxyToWSGI(app, conf)
    return app


def _dispatch_path(
    app: WSGIApplication, path: str, other: WSGIApplication, *, also_below: bool = False
) -> WSGIApplication:
    """Return an application that passes requests for a path, and possibly its sub-paths, to ``other``."""
    # a path that only begins with the same letters, such as /consoles, is not below this path
    below = f"{path}/"

    def serve_request(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = environ.get("PATH_INFO", "")
        is_other = asked == path or (also_below and asked.startswith(below))
        return (other if is_other else app)(environ, start_response)

    return serve_request


class _HealthChecked:
    """Passes requests for :data:`HEALTHCHECK_PATH` to oslo.middleware's health check, without a token."""

    def __init__(self, app: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._app = app
        self._check = Healthcheck(app, conf)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not environ.get("PATH_INFO"):
            # if the service is mounted below a prefix, a request for the prefix itself has an empty path
            environ["PATH_INFO"] = "/"
        if environ["PATH_INFO"] == HEALTHCHECK_PATH:
            answer: Iterable[bytes] = self._check(environ, start_response)
            return answer
        return self._app(environ, start_response)
