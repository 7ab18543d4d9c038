"""The peer of a driver: the program that starts the driver's guests, such as libvirtd or systemd.

A thread connects to the peer, reads all guests, and then handles changes. Guests continue to run without the
peer. The thread tries to connect again, after a pause that doubles with each attempt.
"""

from __future__ import annotations

import abc
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from compute_agent.drivers.base import ChangeKind, GuestChange, Listener
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError

LOG = logging.getLogger(__name__)

# Seconds until the next attempt to connect; the pause doubles from the first number up to the second. The
# first pause is short: a restart of the peer takes only a moment, and until then the agent sees no starts of
# guests.
_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 2.0

# The longest time in seconds for which the constructor and close() wait for the thread. If the peer hangs,
# the agent must still start and stop.
_FIRST_LOOK: Final = 10.0
_LAST_LOOK: Final = 2.0


@dataclass(frozen=True, slots=True)
class PeerHint:
    """A hint: the state of a unit or a container may have changed, so the agent reads the state.

    :ivar key: the key of the unit or container in the table; empty if any unit or container may have changed.
    :ivar is_new: whether a new unit or container with this key may have replaced the former one.
    """

    key: str = ""
    is_new: bool = False


MAX_LOOKS: Final = 30
"""The number of reads of one unit or container that hints can cause at once. After that, hints cause at
most one read each second."""


class LookBudget:
    """Limits the reads of one unit or container.

    A service causes a hint by each message to systemd (sd_notify(3)), and a container by each restart.
    Without a limit, the agent would read the same unit or container again and again.
    """

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}
        """The number of reads that still count, and the monotonic time of the last read in seconds, by
        key."""

    def take_look(self, key: str, now: float) -> bool:
        """Return whether the agent is allowed to read the unit or container now; if so, count a read."""
        spent, last = self._spent.get(key, (0.0, now))
        spent = max(0.0, spent - (now - last))
        if spent + 1 > MAX_LOOKS:
            return False
        self._spent[key] = spent + 1, now
        return True

    def forget_old(self, now: float) -> None:
        """Forget the keys that were not read recently, because a read counts for at most 30 seconds."""
        self._spent = {key: one for key, one in self._spent.items() if now - one[1] < MAX_LOOKS}


class GuestPeer(Protocol):
    """The connection to the program that starts the guests."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as the agent has noticed."""
        ...

    def open(self) -> None:
        """Connect, and begin to follow changes of guests.

        :raises DriverError: the program does not answer.
        """
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


def list_changes(before: Guest | None, now: Guest | None, same: bool, is_later: bool) -> list[GuestChange]:
    """The changes to report after a subject was read again.

    :param before: the guest that was known, or None.
    :param now: the present guest, or None.
    :param same: whether the two guests are one run.
    :param is_later: whether the guest, if it was not known, has started since the driver began.
    """
    found = [] if before is None or same else [GuestChange(ChangeKind.STOPPED, before)]
    if now is not None and before != now:
        new = ChangeKind.STARTED if before is not None or is_later else ChangeKind.FOUND
        found.append(GuestChange(ChangeKind.CHANGED if same else new, now))
    return found


class PeerDriver(abc.ABC):
    """The part of a driver that follows the guests of a peer.

    A subclass sets the attributes of its peer, starts the thread, and then calls :meth:`_await_look`.
    """

    name: str
    peer_name: str
    """The name of the peer, for messages."""
    subjects: str
    """The plural of the subjects that the peer starts, for messages."""

    _peer: GuestPeer

    def __init__(self, look_interval: float, lock: Callable[[], None]) -> None:
        """Begin without a peer.

        :param look_interval: the time in seconds between two lists of all guests.
        :param lock: called before each connection; raises DriverError if another agent manages the guests.
        """
        self._look_interval = look_interval
        self._check_lock = lock
        self._listener: Listener | None = None
        self._absence = ""
        self._listed = False
        self._next_look = 0.0
        self._stopped, self._tried = threading.Event(), threading.Event()

    def _await_look(self, thread: threading.Thread) -> None:
        """Wait until the thread has tried once to list guests, but at most ``_FIRST_LOOK`` seconds.

        In most cases the guests are known when the constructor returns, so the agent can manage the guests
        from its start.

        :param thread: the thread that runs :meth:`_follow_peer`.
        """
        self._thread = thread
        self._tried.wait(_FIRST_LOOK)

    @property
    def outage_reason(self) -> str:
        """The reason why the peer does not answer; empty if it answers."""
        if self._listed and self._peer.is_open:
            return ""
        return self._absence or self._silence_text()

    def outage_reasons(self) -> Mapping[str, str]:
        """The reason why the peer does not answer, by the driver's name; empty if the peer answers.

        The dict has no entry for any other driver.
        """
        return {self.name: reason} if (reason := self.outage_reason) else {}

    @property
    def awaited_drivers(self) -> frozenset[str]:
        """The name of this driver, if the peer has not answered since the agent started."""
        return frozenset() if self._listed else frozenset({self.name})

    def guests(self) -> Sequence[Guest]:
        """The guests that run now, also while the peer does not answer.

        :raises DriverError: the peer has not answered since the agent started.
        """
        if not self._listed:
            raise DriverError(self.outage_reason)
        return self._living_guests()

    @abc.abstractmethod
    def _living_guests(self) -> Sequence[Guest]:
        """The guests of the table with living processes. The table learns of ends only from the peer."""

    def listed_guests(self) -> Sequence[Guest]:
        """The same as :meth:`guests`."""
        return self.guests()

    def watch_guests(self, listener: Listener) -> None:
        """Call ``listener`` for each later start, end and change of settings of a guest."""
        self._listener = listener

    @property
    def starting_driver(self) -> None:
        """Always None: the peer starts guests."""
        return

    def close(self) -> None:
        """Disconnect. Guests run on."""
        # The event is set before the thread is woken, which then checks it.
        self._stopped.set()
        self._wake_thread()
        if threading.current_thread() is not self._thread:
            # If a hung peer keeps the thread in a call, close() does not wait any longer: the thread ends
            # with the process.
            self._thread.join(_LAST_LOOK)
        self._close_peer()

    @abc.abstractmethod
    def _silence_text(self) -> str:
        """The outage reason as long as no attempt to connect has failed with a reason."""

    @abc.abstractmethod
    def _connected_text(self) -> str:
        """The line of the log after the first list of guests of a connection."""

    @abc.abstractmethod
    def _wake_thread(self) -> None:
        """Make the thread return from :meth:`_handle_changes` soon."""

    @abc.abstractmethod
    def _read_all(self) -> None:
        """Read all guests of a new connection, because the peer reports no changes from before it.

        :raises DriverError: the peer went away.
        """

    @abc.abstractmethod
    def _handle_changes(self) -> None:
        """Wait for the next change or for the next regular check, and then read the guests.

        :raises DriverError: the peer went away.
        """

    def _close_peer(self) -> None:
        self._peer.close()

    def _report_change(self, change: GuestChange) -> None:
        if self._listener is not None:
            self._listener(change)

    def _follow_peer(self) -> None:
        """Connect to the peer, and follow its guests until the driver is closed."""
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                if not self._peer.is_open:
                    # The lock is checked at each connection, because another agent may have started while
                    # there was no connection.
                    self._check_lock()
                    self._peer.open()
                    self._read_all()
                    self._listed, self._absence = True, ""
                    pause = _FIRST_PAUSE
                    LOG.info(self._connected_text())
                    self._tried.set()
                self._handle_changes()
            except DriverError as error:
                # A new reason is logged once, and not again at each attempt.
                if str(error) != self._absence:
                    LOG.warning("%s cannot be read, and the agent tries again: %s", self.subjects, error)
                self._absence = str(error)
                self._close_peer()
                self._tried.set()
                self._stopped.wait(pause)
                pause = min(2 * pause, _MAX_PAUSE)
            except Exception:
                # This is an error in the agent's code. The thread goes on, because without it the agent would
                # see no start or end of a guest.
                LOG.exception("An answer of %s could not be handled", self.peer_name)
                self._stopped.wait(pause)
