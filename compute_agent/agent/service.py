"""The agent: starts and stops its threads and listeners, and serves signals in the main thread.

The listeners are the UNIX socket for commands, and ``/healthz`` and ``/metrics`` over HTTP.
"""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from oslo_config import cfg
from prometheus_client import CollectorRegistry, make_wsgi_app

from compute_agent.agent.api import OPEN_METHODS, ApiMethods
from compute_agent.agent.assembly import AssembledAgent
from compute_agent.agent.documents import health_document
from compute_agent.agent.host_access import GUESTS_FOLDER, make_state_folder
from compute_agent.agent.protocol import LimitedThreads, SocketServer, socket_path
from compute_agent.agent.release import refuse_if_released
from compute_agent.agent.reload import ConfigurationLoader
from compute_agent.drivers.processes import records
from compute_agent.files import remove_leftovers
from compute_agent.inventory.host_identity import keep_owner, read_identity
from compute_agent.isolation.osnoise import ORIGINAL_FILE, OsNoiseTracer, TracerError
from compute_agent.pipeline.events import ReconcileGuests
from compute_agent.pipeline.state import lock_state_folder
from compute_agent.threads import ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

SOCKET_THREAD: Final = ThreadSpec(
    "socket",
    "when a connection comes, and each five seconds to end those that say nothing",
    "accepts connections of the UNIX socket",
    "that of the open connections",
    "nothing of the agent: each connection has a thread",
)

HTTP_THREAD: Final = ThreadSpec(
    "http",
    "when a connection comes, and each five seconds to end those that say nothing",
    "accepts connections for health and metrics",
    "that of the open connections",
    "nothing of the agent: each connection has a thread",
)

Health = Callable[[], tuple[bool, dict[str, Any]]]
"""A function that returns whether the agent is healthy, and the JSON document of ``/healthz``."""


class _MetricsHandler(WSGIRequestHandler):
    def handle(self) -> None:
        """Answer one request. A client that sends nothing, or disconnects, causes only a debug message."""
        try:
            super().handle()
        except OSError as error:
            LOG.debug("The connection from %s ended: %s", self.client_address[0], error)

    def get_stderr(self) -> TextIO:
        """Return a buffer that is never read. wsgiref writes there only about clients that disconnected."""
        return io.StringIO()

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)


class HttpServer(LimitedThreads, WSGIServer):
    """Serves ``/healthz`` and ``/metrics`` over HTTP in threads of its own."""

    max_connections = 32
    answer_timeout = 10.0

    def __init__(self, address: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        """Listen on the address and the port, and start the thread.

        If ``port`` is 0, the kernel chooses the port, which is then in ``server_port``.

        :raises OSError: listening is not possible; the error names address and port.
        """
        self._metrics = make_wsgi_app(registry)
        self._health = health
        try:
            super().__init__((address, port), _MetricsHandler)
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot listen on {address} port {port}: {error.strerror or error}; change [daemon]"
                " http_port or http_address, or set http_port = 0 to disable it",
            ) from error
        self.set_app(self._serve_request)
        self._thread = start_thread(HTTP_THREAD, self.serve_until_stopped)

    def close(self) -> None:
        """Stop listening, and wait for the end of the thread."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def _serve_request(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return self._answer_request(environ, start_response)
        # The error is logged here, because wsgiref would write it to get_stderr(), a buffer that is never
        # read.
        except Exception:
            LOG.exception("A request for %s could not be answered", environ.get("PATH_INFO"))
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"the log of the agent tells more\n"]

    def _answer_request(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ.get("PATH_INFO"):
            case "/metrics":
                metrics: Iterable[bytes] = self._metrics(environ, start_response)
                return metrics
            case "/healthz":
                healthy, document = self._health()
                status, body = "200 OK" if healthy else "503 Service Unavailable", json.dumps(document)
                kind = "application/json"
            case path:
                status, body, kind = "404 Not Found", f"there is no {path} here\n", "text/plain"
        start_response(status, [("Content-Type", kind)])
        return [body.encode()]


LOOK_SECONDS: Final = 2.0
"""The seconds between two checks of the main thread for changed configuration files and hardware."""

PRUNE_SECONDS: Final = 600.0
"""The seconds between two removals of the logs of ended guests."""


class HostAgent:
    """One agent on one state folder.

    Its threads and listeners run from the call of start() until the call of stop().
    """

    def __init__(self, load_conf: ConfigurationLoader) -> None:
        """Read the configuration, the host and the state folder, and make all objects of the agent.

        The constructor writes only into the state folder, and mounts resctrl if configured.

        :raises ConfigError: the configuration does not fit this host, or contradicts itself.
        :raises cfg.Error: a configuration file cannot be read or parsed.
        :raises IdentityError: the state folder belongs to another host, or the uuid or the name of the root
            provider cannot be determined.
        :raises LockedError: another agent works on the state folder, or on the guests.
        :raises DriverError: the driver of guests cannot be used.
        :raises OSError: a file of the host or of the state folder cannot be read or written.
        """
        options = load_conf()
        self._folder = folder = make_state_folder(options)
        # The lock is taken first: a second agent on the folder must fail before it changes anything.
        self._lock = lock_state_folder(folder)
        try:
            refuse_if_released(folder)
            for part in (folder, folder / GUESTS_FOLDER):
                # A crash during a write leaves a temporary file that should have replaced the real file.
                remove_leftovers(part)
            keep_owner(folder, read_identity(Path(options.host.root)))
            self.parts = parts = AssembledAgent(load_conf, options, folder)
        except BaseException:
            os.close(self._lock)
            raise
        # SimpleQueue.put() is reentrant, unlike Queue.put(): a handler can interrupt a put of the main
        # thread.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._socket: SocketServer | None = None
        self._http: HttpServer | None = None
        self._guest_logs = records.GuestLogs(folder / GUESTS_FOLDER)
        self.driver, self.pipeline = parts.driver, parts.pipeline
        self.metrics, self.reports = parts.metrics, parts.reports

    @property
    def options(self) -> cfg.ConfigOpts:
        """The options of the configuration in force."""
        return self.parts.options

    # Start and end

    def start(self) -> None:
        """Start the worker with the known guests, then the loops and the listeners.

        :raises OSError: the agent cannot listen on the UNIX socket or on the HTTP address.
        """
        parts = self.parts
        # The worker gets the remembered limits when it starts; otherwise the controllers would remove these
        # limits.
        limits = parts.limits.combined_limits()
        self.pipeline.start(parts.state.state, parts.arrivals.report_change, limits)
        if parts.reloader.resctrl.off:
            LOG.info("Cache and bandwidth control is off: %s", parts.reloader.resctrl.off)
        self._stop_tracer()
        for loop in parts.early:
            loop.start()
        methods, daemon = ApiMethods(parts, self.end_agent), self.options.daemon
        server = SocketServer(socket_path(self.options), methods.list_methods(), OPEN_METHODS)
        if daemon.http_port:
            health, registry = partial(health_document, parts), self.metrics.registry
            try:
                self._http = HttpServer(daemon.http_address, daemon.http_port, registry, health)
            except OSError:
                server.server_close()
                raise
        self._socket = server
        # The UNIX socket answers last, because an agent that answers there counts as started.
        start_thread(SOCKET_THREAD, server.serve_until_stopped)
        for loop in parts.late:
            loop.start()
        LOG.info("The agent of host %s has started", self.pipeline.host_state.tree.root.name)

    def _stop_tracer(self) -> None:
        """End a tracer that a killed ``cpu noise`` left running, as it would disturb the CPUs of guests."""
        tracer = OsNoiseTracer(Path(self.options.host.root), self._folder / ORIGINAL_FILE)
        try:
            tracer.stop_leftover()
        except TracerError as error:
            LOG.warning(
                "The tracer that an earlier `compute-agent cpu noise` has left cannot be removed: %s", error
            )

    def stop(self) -> None:
        """Stop the listeners, all threads and the driver. Guests continue to run with their settings."""
        parts = self.parts
        # The listeners close first, because requests need the objects that end below.
        if self._socket is not None:
            self._socket.shutdown()
            self._socket.server_close()
        if self._http is not None:
            self._http.close()
        # The loops stop in reverse order of their start, because a loop uses loops that started earlier.
        for loop in reversed((*parts.early, *parts.late)):
            if loop is not parts.events:
                loop.stop()
        self.pipeline.stop()
        parts.events.stop()  # the loop of events stops after the worker, which records events
        parts.host_driver.close()
        parts.reloader.close()
        # The lock is released last: from here on, another agent can work on the state folder.
        os.close(self._lock)
        LOG.info("The agent stopped; its guests continue to run")

    # For the main thread

    def catch_signals(self) -> None:
        """Queue SIGTERM, SIGINT and SIGHUP for serve_signals(); called in the main thread before start()."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # The handler only queues: it interrupts the main thread, which can hold a lock at that moment.
            signal.signal(number, lambda number, frame: self._signals.put(number))

    def serve_signals(self) -> None:
        """Run the periodic tasks of the main thread until SIGTERM or SIGINT, and then stop.

        SIGHUP reloads.
        """
        due = time.monotonic() + self.options.guests.reconcile_interval
        prune_due = time.monotonic()
        try:
            while True:
                received = self._wait_for_signal(min(due - time.monotonic(), LOOK_SECONDS))
                if received == signal.SIGHUP:
                    self.reload()
                elif received is not None:
                    return
                else:
                    self.reload_changes()
                    self._guest_logs.shorten_logs(self.options.guests.log_guest_mb * 10**6)
                    if time.monotonic() >= due:
                        self.reconcile()
                        due = time.monotonic() + self.options.guests.reconcile_interval
                if time.monotonic() >= prune_due:
                    records.try_prune(self._folder / GUESTS_FOLDER, self.options.guests)
                    prune_due = time.monotonic() + PRUNE_SECONDS
        finally:
            self.stop()

    def _wait_for_signal(self, timeout: float) -> int | None:
        try:
            return self._signals.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None

    def reload_changes(self) -> None:
        """Reload if configuration files or hardware have changed since the last call."""
        self.parts.reloader.reload_changes()

    def reload(self) -> None:
        """Read the configuration and the host, and apply them.

        If the configuration is refused, report the reason; the old configuration stays in force.
        """
        self.parts.reloader.reload()

    def reconcile(self) -> None:
        """Queue a check of all guests for the worker, which compares the kernel with the targets."""
        self.pipeline.submit(ReconcileGuests())

    def end_agent(self) -> None:
        """Queue a SIGTERM, so that the main thread ends the agent."""
        # The agent is not stopped here, because this thread belongs to a listener and still has to answer its
        # client.
        self._signals.put(signal.SIGTERM)
