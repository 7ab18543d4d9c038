"""The connection to libvirtd, and libvirt's event loop in a thread of its own.

libvirt-python is imported when the first connection is made: without it the agent runs, with other guests.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from compute_agent.drivers.base import DriverError

LOG = logging.getLogger(__name__)

# A libvirtd that does not answer so many times in a row, at this interval, counts as gone.
_KEEPALIVE_SECONDS = 5
_KEEPALIVE_COUNT = 3

_loop_lock = threading.Lock()
_loop: threading.Thread | None = None


def load() -> Any:
    """The module of libvirt-python, whose event loop runs from now on. Raises DriverError without it."""
    global _loop  # libvirt has one event loop for each process
    try:
        libvirt = importlib.import_module("libvirt")
    except ImportError as error:
        raise DriverError(f"libvirt-python (Debian's python3-libvirt) cannot be used: {error}") from error
    with _loop_lock:
        if _loop is None:
            libvirt.registerErrorHandler(
                lambda context, error: None, None
            )  # errors are raised; enough of them
            libvirt.virEventRegisterDefaultImpl()
            _loop = threading.Thread(target=_run_loop, args=(libvirt,), name="libvirt-loop", daemon=True)
            _loop.start()
    return libvirt


def _run_loop(libvirt: Any) -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError:
            LOG.exception("A turn of libvirt's event loop failed")


class Connection:
    """A connection that is opened, breaks and is opened again. Its methods may be called from any thread."""

    def __init__(self, uri: str, happened: Callable[[str | None], None]) -> None:
        """``happened`` is told, from libvirt's event loop, the uuid of every domain with which something
        happened, and None when the connection broke. Raises DriverError without libvirt-python.
        """
        self.uri = uri
        self.libvirt = load()
        self._happened = happened
        self._handle: Any = None
        self._host_cpus = 0

    @property
    def is_open(self) -> bool:
        """Whether libvirtd is there, as far as is known."""
        return self._handle is not None

    @property
    def host_cpus(self) -> int:
        """How many CPUs libvirt wants CPU maps to have; those which are offline count."""
        return self._host_cpus

    def open(self) -> None:
        """Connect. Raises DriverError if libvirtd is not there."""
        libvirt = self.libvirt
        try:
            handle = libvirt.open(self.uri)
        except libvirt.libvirtError as error:
            raise DriverError(f"libvirtd at {self.uri} is away: {error}") from error
        try:
            handle.registerCloseCallback(self._closed, handle)
            handle.setKeepAlive(_KEEPALIVE_SECONDS, _KEEPALIVE_COUNT)
            for event in (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE):
                handle.domainEventRegisterAny(None, event, self._domain_event, None)
            self._host_cpus = handle.getCPUMap()[0]
        except libvirt.libvirtError as error:
            _close(libvirt, handle)
            raise DriverError(f"libvirtd at {self.uri} went away again: {error}") from error
        self._handle = handle
        if not handle.isAlive():  # it closed before anybody could see that it was ours
            self._closed(handle, libvirt.VIR_CONNECT_CLOSE_REASON_EOF, handle)
            raise DriverError(f"libvirtd at {self.uri} went away again")

    def close(self) -> None:
        """Disconnect; nobody is told."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _close(self.libvirt, handle)

    def running(self) -> list[Any]:
        """The active domains. Raises DriverError."""
        try:
            domains: list[Any] = self._open_handle().listAllDomains(
                self.libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
            )
        except self.libvirt.libvirtError as error:
            raise DriverError(f"libvirtd at {self.uri} does not list domains: {error}") from error
        return domains

    def domain(self, guest_uuid: str) -> Any | None:
        """The domain with a uuid; None if there is none. Raises DriverError."""
        try:
            return self._open_handle().lookupByUUIDString(guest_uuid)
        except self.libvirt.libvirtError as error:
            if error.get_error_code() == self.libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise DriverError(f"domain {guest_uuid} cannot be looked up: {error}") from error

    def _open_handle(self) -> Any:
        handle = self._handle
        if handle is None:
            raise DriverError(f"libvirtd at {self.uri} is away")
        return handle

    def _domain_event(self, handle: Any, domain: Any, *details: Any) -> None:
        self._happened(domain.UUIDString())

    def _closed(self, handle: Any, reason: int, opened: Any) -> None:
        if self._handle is opened:
            self._handle = None
            LOG.warning("The connection to libvirtd at %s broke (reason %d)", self.uri, reason)
            self._happened(None)


def _close(libvirt: Any, handle: Any) -> None:
    try:
        handle.close()
    except libvirt.libvirtError as error:
        LOG.debug("A connection could not be closed: %s", error)
