"""The connection to libvirtd, and libvirt's event loop in a thread of its own.

The module imports libvirt-python only when the driver libvirt opens, because the driver of processes works
without it. A method that asks libvirtd raises DriverError if libvirtd does not answer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from compute_agent.drivers.libvirt import domain_metadata
from compute_agent.model.messages import DriverError
from compute_agent.threads import NO_LOCK, ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

# Seconds between two keep-alive messages, and the number of unanswered messages after which the connection is
# closed. Calls of libvirt have no timeout of their own: if libvirtd hangs, the keep-alives end a call after 4
# s at the latest.
_KEEPALIVE_SECONDS: Final = 1
_KEEPALIVE_COUNT: Final = 3

LOOP_THREAD: Final = ThreadSpec(
    "libvirt-loop",
    "when libvirtd says something, and for keep-alives",
    "runs libvirt's own event loop, one for the process",
    NO_LOCK,
    "the queue of ``libvirt-guests`` only: a call of libvirt from here would wait for itself",
)

# libvirt allows one default event loop in a process, registered before the first connection. The tests make
# several drivers in one process, so the loop is started once.
_loop_lock = threading.Lock()
_loop: threading.Thread | None = None


def load() -> Any:
    """Import libvirt-python, and start its event loop once.

    :raises DriverError: the package is missing or cannot be used.
    """
    global _loop  # The loop is global, because libvirt has one event loop for each process.
    try:
        import libvirt
    except ImportError as error:
        raise DriverError(f"libvirt-python (Debian's python3-libvirt) cannot be used: {error}") from error
    with _loop_lock:
        if _loop is None:
            # By default libvirt prints each error to standard error; the same error is raised as an
            # exception.
            libvirt.registerErrorHandler(lambda context, error: None, None)
            libvirt.virEventRegisterDefaultImpl()
            _loop = start_thread(LOOP_THREAD, partial(_run_loop, libvirt))
    return libvirt


def _run_loop(libvirt: Any) -> None:
    # The loop runs as long as the process: libvirt cannot unregister an event loop.
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError:
            LOG.exception("An iteration of libvirt's event loop failed")


@dataclass(eq=False, slots=True)
class _LibvirtSession:
    """One connection to libvirtd with its registered events.

    :ivar handle: libvirt's object of the connection.
    :ivar events: the ids of the event callbacks that are registered on the connection.
    :ivar calls: the number of calls under way on this connection.
    :ivar unwanted: whether to close the connection as soon as none of these calls is running.
    """

    handle: Any
    events: list[int] = field(default_factory=list)
    calls: int = 0
    unwanted: bool = False


class LibvirtConnection:
    """A connection to libvirtd. If the connection breaks, it can be opened again.

    Any thread is allowed to call the methods.
    """

    def __init__(self, uri: str, happened: Callable[[str | None], None]) -> None:
        """Load libvirt; open() connects.

        :param happened: called from libvirt's event loop: with a domain's uuid at each event of the domain,
            and with None when the connection broke.
        :raises DriverError: libvirt-python is missing.
        """
        self.uri = uri
        self.libvirt = load()
        self._happened = happened
        self._session: _LibvirtSession | None = None
        self._broken: list[_LibvirtSession] = []
        # This lock protects only the counts of calls. No thread holds the lock during a call of libvirt.
        self._calls_lock = threading.Lock()
        #: The CPUs of this host as libvirtd numbers them, including offline CPUs.
        self.host_cpus = frozenset[int]()
        #: The host name that libvirtd reports; empty before the first connection.
        self.host_name = ""
        self._usual_owner: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether a connection is open, as far as the agent has noticed."""
        return self._session is not None

    def open(self) -> None:
        """Connect to libvirtd, and register for the events of domains."""
        libvirt = self.libvirt
        # Broken connections are closed here, in the caller's thread; see _on_closed().
        while self._broken:
            self._let_go(self._broken.pop())
        try:
            session = _LibvirtSession(libvirt.open(self.uri))
        except libvirt.libvirtError as error:
            raise DriverError(f"libvirtd at {self.uri} does not answer: {error}") from error
        handle = session.handle
        try:
            handle.registerCloseCallback(self._on_closed, session)
            handle.setKeepAlive(_KEEPALIVE_SECONDS, _KEEPALIVE_COUNT)
            # LIFECYCLE reports starts and ends of domains. METADATA_CHANGE reports settings in the agent's
            # namespace. TUNABLE reports limits of disks. DEVICE reports hot-plugged devices. No event reports
            # changes of a definition; the driver's thread looks for such changes, a few domains at a time.
            for event, handler in (
                (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._domain_event),
                (libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, self._domain_event),
                (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED, self._domain_event),
                (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, self._domain_event),
                (libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE, self._on_tuned),
            ):
                session.events.append(handle.domainEventRegisterAny(None, event, handler, None))
            self.host_cpus = frozenset(range(handle.getCPUMap()[0]))
            self.host_name = str(handle.getHostname())
        except libvirt.libvirtError as error:
            self._let_go(session)
            raise DriverError(f"libvirtd at {self.uri} went away again: {error}") from error
        # The usual owner is forgotten, because a restarted libvirtd may have another qemu.conf.
        self._usual_owner = None
        self._session = session
        # The connection is checked again: if it was closed before the line above, _on_closed() saw another
        # session and did nothing.
        if not handle.isAlive():
            self._on_closed(handle, libvirt.VIR_CONNECT_CLOSE_REASON_EOF, session)
            raise DriverError(f"libvirtd at {self.uri} went away again")

    def close(self) -> None:
        """Disconnect, without calling ``happened``."""
        session, self._session = self._session, None
        if session is not None:
            self._let_go(session)

    def active_domains(self) -> list[Any]:
        """The domains that are active at present, as objects of libvirt."""
        return self._list_domains(self.libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)

    def inactive_domains(self) -> list[Any]:
        """The domains that are defined but not active, as objects of libvirt."""
        return self._list_domains(self.libvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE)

    def _list_domains(self, which: int) -> list[Any]:
        try:
            with self._open_call() as handle:
                domains: list[Any] = handle.listAllDomains(which)
        except self.libvirt.libvirtError as error:
            raise DriverError(f"libvirtd at {self.uri} does not list domains: {error}") from error
        return domains

    def find_domain(self, guest_uuid: str) -> Any | None:
        """The domain with this uuid, as an object of libvirt; None if libvirtd does not know the uuid."""
        try:
            with self._open_call() as handle:
                return handle.lookupByUUIDString(guest_uuid)
        except self.libvirt.libvirtError as error:
            # Other errors do not mean that there is no such domain.
            if self.is_unknown_domain(error):
                return None
            raise DriverError(f"domain {guest_uuid} cannot be looked up: {error}") from error

    def is_unknown_domain(self, error: Exception) -> bool:
        """Whether an error says that the domain has ended, and has no definition either."""
        libvirt = self.libvirt
        return isinstance(error, libvirt.libvirtError) and error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN

    def usual_owner(self) -> str:
        """The user that runs QEMU if a domain has no security label of its own.

        :return: a user in the form of :func:`domain_metadata.read_owner`; empty for the libvirtd of a user's
            session.
        """
        # libvirtd is asked once for each connection: the capabilities are a long text, and the user rarely
        # changes.
        if self._usual_owner is None:
            try:
                with self._open_call() as handle:
                    self._usual_owner = domain_metadata.usual_owner(handle.getCapabilities())
            except (self.libvirt.libvirtError, ValueError) as error:
                raise DriverError(f"libvirtd does not say which user QEMU runs as: {error}") from error
        return self._usual_owner

    @contextlib.contextmanager
    def _open_call(self) -> Iterator[Any]:
        """Yield libvirt's object of the connection for one call.

        The connection is not closed during the call.

        :raises DriverError: there is no connection.
        """
        with self._calls_lock:
            session = self._session
            if session is None:
                raise DriverError(f"libvirtd at {self.uri} does not answer")
            # libvirt frees the memory of a closed connection at once, even while a call of another thread
            # uses it. So a connection is closed only when no call is under way.
            session.calls += 1
        try:
            yield session.handle
        finally:
            with self._calls_lock:
                session.calls -= 1
                last = session.unwanted and not session.calls
            if last:
                self._end_session(session)

    def _on_tuned(self, handle: Any, domain: Any, params: Mapping[str, Any], opaque: Any) -> None:
        """Handle changed limits of disks; the event also reports pins, which are read from /proc."""
        if any(name.startswith("blkdeviotune") for name in params):
            self._domain_event(handle, domain)

    def _domain_event(self, handle: Any, domain: Any, *details: Any) -> None:
        self._happened(domain.UUIDString())

    def _on_closed(self, handle: Any, reason: int, session: _LibvirtSession) -> None:
        if self._session is session:
            self._session = None
            # This function runs in libvirt's event thread, in which a close of the connection would wait for
            # itself. The next open() closes the session.
            self._broken.append(session)
            LOG.warning("The connection to libvirtd at %s ended (reason %d)", self.uri, reason)
            self._happened(None)

    def _let_go(self, session: _LibvirtSession) -> None:
        """Close a connection now if no call uses it, or else when the last of these calls returns."""
        with self._calls_lock:
            session.unwanted = True
            busy = session.calls > 0
        if not busy:
            self._end_session(session)

    def _end_session(self, session: _LibvirtSession) -> None:
        """Close a connection and all its event callbacks. Errors of a broken connection are ignored."""
        handle = session.handle
        # All callbacks are removed, because each one holds a reference to the connection and so keeps its
        # socket open.
        ends = [partial(handle.domainEventDeregisterAny, event) for event in session.events]
        for end in (*ends, handle.unregisterCloseCallback, handle.close):
            with contextlib.suppress(self.libvirt.libvirtError):
                end()
