"""Which domains a libvirtd has, and how it is asked about one of them.

One thread keeps the connection, and a table of the domains that run. It looks at a domain whenever libvirtd
says that something happened with it, and at all of them after libvirtd was away: what the table and the
domains have not in common is what happened. Guests run on without libvirtd, and so does the table. Of changes
of a definition (``virsh schedinfo --config``, ``vcpupin --config``) libvirtd does not tell: definitions are
asked for in turn, and read when they are not as they were.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from compute_agent.drivers.base import GuestChange, Listener, OomKill
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.flavor import GuestFlavor
from compute_agent.drivers.libvirt import qemu
from compute_agent.drivers.libvirt.connection import LibvirtConnection
from compute_agent.drivers.libvirt.domain_table import DomainTable
from compute_agent.drivers.libvirt.expected import ExpectedDomains
from compute_agent.drivers.libvirt.flavor import read_flavor
from compute_agent.drivers.libvirt.running_domain import RunningDomain
from compute_agent.drivers.libvirt.tuning import DomainTuning
from compute_agent.drivers.memory_limits import OomScores
from compute_agent.drivers.oom import OomWatch
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError

LOG = logging.getLogger(__name__)

# Libvirtd is asked again so many seconds after it was away; the pause doubles up to the second number.
_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 2.0

# So many definitions are asked for in a row, as each costs less then, and so few that events need not wait;
# with so many seconds in between at the least.
_LOOK_BATCH: Final = 8
_LOOK_PAUSE: Final = 0.1

# Seconds that the first and the last look may take.
_FIRST_LOOK: Final = 10.0
_LAST_LOOK: Final = 2.0

_POLL_SECONDS: Final = 0.02


class LibvirtDomains:
    """The domains that run, and those that are defined."""

    name = "libvirt"

    def __init__(
        self, uri: str, look_interval: float = 10.0, lock: Callable[[], None] = lambda: None
    ) -> None:
        """Connect, and look which domains run. A libvirtd that is away is waited for in the background.

        All domains are looked for, and their definitions read, every ``look_interval`` seconds; less often
        where there are many. ``lock`` is called before each connection, and raises DriverError if that is not
        to be made.

        :raises DriverError: without libvirt-python.
        """
        self._messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._connection = LibvirtConnection(uri, self._messages.put)
        self._table = DomainTable(self.name, self._connection, self._report)
        self._expected = ExpectedDomains(self.name, self._connection.usual_owner)
        self._oom, self._scores = OomWatch(), OomScores()
        self._listener: Listener | None = None
        self._absence = ""
        self._listed = False
        self._look_interval = look_interval
        self._check_lock = lock
        self._round: list[Any] = []
        """The domains whose definitions have yet to be looked at in this round."""
        self._look_pause = self._next_look = 0.0
        self._stopped = threading.Event()
        tried = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(tried,), name="libvirt-guests", daemon=True)
        self._thread.start()
        tried.wait(_FIRST_LOOK)

    # What runs

    @property
    def outage(self) -> str:
        """Why libvirtd cannot be asked now; empty if it can."""
        if self._listed and self._connection.is_open:
            return ""
        return self._absence or f"libvirtd at {self._connection.uri} does not answer"

    def guests(self) -> Sequence[Guest]:
        """The domains that run now; as far as is known, while libvirtd is away.

        :raises DriverError: it has not been there yet.
        """
        if not self._listed:
            raise DriverError(self.outage)
        return [it.guest for it in self._table.all() if it.is_alive]

    def lost(self) -> Mapping[str, str]:
        """The domains that run and cannot be looked after, by uuid, and why that is so."""
        return self._table.lost()

    def flavor(self, guest: Guest) -> GuestFlavor:
        """What Nova wrote into the domain about the order; empty if it was not Nova that made it."""
        with self._on_domain(self._table.living(guest), "is not described") as domain:
            xml = domain.XMLDesc()
        try:
            return read_flavor(xml)
        except ValueError as error:
            raise DriverError(f"guest {guest.uuid} is not described: {error}") from error

    def inactive(self) -> frozenset[str]:
        """The domains that are defined and do not run."""
        return frozenset(domain.UUIDString() for domain in self._connection.inactive())

    def watch(self, listener: Listener) -> None:
        """Call ``listener`` for every domain that starts, ends or gets other settings from now on."""
        self._listener = listener

    def close(self) -> None:
        """Disconnect. Domains run on."""
        self._stopped.set()
        self._messages.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_LAST_LOOK)  # longer only where libvirtd hangs while it is connected to
        self._round = []
        self._connection.close()

    def oom_kills(self) -> Sequence[OomKill]:
        """What the kernel killed of domains with groups of cgroup v2, as far as these were still there."""
        for known in self._table.all():
            if (group := known.group) is not None and group.unified:
                self._oom.look(known.guest, GuestCgroup(group.folders[0]))
        return self._oom.take()

    # Life

    def stop(self, guest: Guest, timeout: float) -> None:
        """Shut the domain down by ACPI; destroy it when it still runs after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with contextlib.suppress(GuestGoneError):
            known = self._table.living(guest)
            try:
                with self._on_domain(known, "cannot be shut down") as domain:
                    domain.shutdown()
            except GuestGoneError:
                raise
            except DriverError as error:
                LOG.warning("%s", error)  # a paused guest, for example; there is the other way still
            while known.is_alive:
                if time.monotonic() >= deadline:
                    LOG.warning("Guest %s did not shut down within %s s: destroyed", guest, timeout)
                    with self._on_domain(known, "cannot be destroyed") as domain:
                        domain.destroy()
                    return
                time.sleep(_POLL_SECONDS)

    # Inner parts: one guest

    def _threads(self, guest: Guest) -> Mapping[int, qemu.ThreadRole]:
        threads = self._table.living(guest).process.threads()
        if not threads:
            raise GuestGoneError(f"guest {guest} has ended")
        return threads

    @contextlib.contextmanager
    def _on_domain(self, known: RunningDomain, failing: str) -> Iterator[Any]:
        """Calls on the domain of a guest; libvirt's errors become the driver's."""
        libvirt, guest_uuid = self._connection.libvirt, known.guest.uuid
        domain = self._connection.domain(guest_uuid)
        try:
            if domain is None:
                raise GuestGoneError(f"guest {known.guest} has ended")
            yield domain
        except libvirt.libvirtError as error:
            if not self._is_active(known):
                raise GuestGoneError(f"guest {known.guest} has ended") from error
            raise DriverError(f"guest {known.guest} {failing}: {error}") from error

    def _tuning(self, domain: Any) -> DomainTuning:
        return DomainTuning(self._connection.libvirt, domain, self._connection.host_cpus)

    def _is_active(self, known: RunningDomain) -> bool:
        """Whether a guest still runs, as far as can be learnt: libvirt knows it earlier than /proc."""
        if not known.is_alive:
            return False
        with contextlib.suppress(DriverError, self._connection.libvirt.libvirtError):
            domain = self._connection.domain(known.guest.uuid)
            return domain is not None and bool(domain.isActive())
        return True

    # Inner parts: the thread

    def _run(self, tried: threading.Event) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                if not self._connection.is_open:
                    self._check_lock()
                    self._connection.open()
                    self._table.look_around(anew=True)
                    self._next_look = time.monotonic() + self._look_interval
                    self._listed, self._absence = True, ""
                    pause = _FIRST_PAUSE
                    LOG.info("libvirtd at %s is there", self._connection.uri)
                    tried.set()
                self._handle_next()
            except DriverError as error:
                if str(error) != self._absence:
                    LOG.warning("%s; will be tried again", error)
                self._absence = str(error)
                self._round = []  # domains keep their connection open
                self._connection.close()
                tried.set()
                self._stopped.wait(pause)
                pause = min(2 * pause, _MAX_PAUSE)
            except Exception:
                LOG.exception("What libvirtd said could not be handled")
                self._stopped.wait(pause)

    def _handle_next(self) -> None:
        """What libvirtd says, and in between what it does not say by itself."""
        if time.monotonic() >= self._next_look:
            self._look_on()
        pause = max(self._next_look - time.monotonic(), 0.0)
        with contextlib.suppress(queue.Empty):
            if (message := self._messages.get(timeout=pause)) is not None:
                self._table.look_at(message)

    def _look_on(self) -> None:
        """The next step of a round: which domains there are, then the definitions of all.

        :raises DriverError: libvirtd went away.
        """
        if self._round:
            for domain in self._round[:_LOOK_BATCH]:
                self._table.look_at_definition(domain)
            del self._round[:_LOOK_BATCH]
        else:
            self._round = self._table.look_around(anew=False)
            steps = 1 + math.ceil(len(self._round) / _LOOK_BATCH)
            self._look_pause = max(self._look_interval / steps, _LOOK_PAUSE)
        self._next_look = time.monotonic() + self._look_pause

    def _report(self, change: GuestChange) -> None:
        if self._listener is not None:
            self._listener(change)
