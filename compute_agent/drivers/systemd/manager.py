"""systemd's manager of units over the message bus (org.freedesktop.systemd1(5)): calls and signals.

This module makes no decisions. A signal is only a hint: it names a unit, and the state of this unit may have
changed. After a hint, the table of guests reads the state.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from compute_agent.drivers.foreign.values import Values
from compute_agent.drivers.peer import PeerHint
from compute_agent.drivers.systemd.bus import (
    BUS_NAME,
    BUS_PATH,
    CALL_SECONDS,
    BusConnection,
    BusError,
    BusSignal,
    load_jeepney,
)
from compute_agent.drivers.systemd.unit_state import (
    KINDS,
    DevicePaths,
    encode_value,
    unit_kind,
    unit_of_path,
    unit_path,
)
from compute_agent.model.messages import DriverError

LOG = logging.getLogger(__name__)

SYSTEMD: Final = "org.freedesktop.systemd1"
MANAGER: Final = f"{SYSTEMD}.Manager"
UNIT: Final = f"{SYSTEMD}.Unit"
MANAGER_PATH: Final = "/org/freedesktop/systemd1"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"


_RULES: Final = (
    f"type='signal',sender='{SYSTEMD}',interface='{MANAGER}',path='{MANAGER_PATH}'",
    f"type='signal',sender='{SYSTEMD}',interface='{PROPERTIES}',member='PropertiesChanged',"
    f"path_namespace='{MANAGER_PATH}/unit'",
    f"type='signal',sender='{BUS_NAME}',interface='{BUS_NAME}',member='NameOwnerChanged',arg0='{SYSTEMD}'",
)

# The names of the errors for a unit that no file describes any more. systemd sends the first error, and the
# code of its bus library sends the second.
_UNKNOWN: Final = frozenset({f"{SYSTEMD}.NoSuchUnit", "org.freedesktop.DBus.Error.UnknownObject"})

_IDLE_VERSION: Final = 252
"""The first version of systemd that knows ``CPUWeight=idle``."""

_SIGKILL: Final = 9


class SystemdManager:
    """The manager of the host's units. Any thread is allowed to call the methods.

    Each call raises :class:`~compute_agent.model.messages.DriverError` if systemd does not answer in time.
    """

    def __init__(
        self, bus_path: Path, on_hint: Callable[[PeerHint], None], seconds: float = CALL_SECONDS
    ) -> None:
        """Begin without a connection; :meth:`open` connects.

        :param bus_path: the UNIX socket of the message bus.
        :param on_hint: called for each hint, from the connection's thread or from a thread that makes a call.
        :param seconds: the time limit of each call.
        :raises DriverError: jeepney is not installed.
        """
        load_jeepney()
        self._bus_path = bus_path
        self._on_hint = on_hint
        self._seconds = seconds
        self._bus: BusConnection | None = None
        self._owner = ""
        self._version = 0

    @property
    def is_open(self) -> bool:
        """Whether a connection is open, as far as the agent has noticed."""
        return self._bus is not None and self._bus.is_open

    @property
    def has_idle(self) -> bool:
        """Whether this version of systemd can make a unit idle."""
        return self._version >= _IDLE_VERSION

    def open(self) -> None:
        """Connect to the bus, and subscribe to the signals of systemd.

        :raises DriverError: the bus or systemd does not answer.
        """
        self.close()
        hint_all = partial(self._on_hint, PeerHint())
        bus = BusConnection(self._bus_path, self._on_signal, hint_all, self._seconds)
        try:
            for rule in _RULES:
                bus.call_method(BUS_NAME, BUS_PATH, BUS_NAME, "AddMatch", "s", (rule,))
            # systemd is called by the unique name of its connection, so that no later owner of the well-known
            # name can answer.
            (self._owner,) = bus.call_method(BUS_NAME, BUS_PATH, BUS_NAME, "GetNameOwner", "s", (SYSTEMD,))
            bus.call_method(self._owner, MANAGER_PATH, MANAGER, "Subscribe")
            ((_, version),) = bus.call_method(
                self._owner, MANAGER_PATH, PROPERTIES, "Get", "ss", (MANAGER, "Version")
            )
            self._version = _leading_number(version)
        except DriverError as error:
            bus.close()
            raise DriverError(f"systemd does not answer: {error}") from error
        except (ValueError, TypeError) as error:
            bus.close()
            raise DriverError(f"systemd gives an unexpected answer: {error}") from error
        self._bus = bus

    def close(self) -> None:
        """Disconnect."""
        bus, self._bus = self._bus, None
        if bus is not None:
            bus.close()

    def list_units(self) -> Mapping[str, str]:
        """The ``ActiveState`` of each service, scope and slice that systemd has loaded, by name."""
        (units,) = self._call_manager("ListUnitsByPatterns", "asas", ([], [f"*.{kind}" for kind in KINDS]))
        try:
            return {unit[0]: unit[3] for unit in units if unit_kind(unit[0])}
        except (LookupError, TypeError) as error:
            raise DriverError(f"systemd gives an unexpected answer: {error}") from error

    def read_unit(self, name: str) -> Mapping[str, Any] | None:
        """The properties of a unit; None if systemd has no such unit."""
        return self._read_all(name, UNIT)

    def read_group(self, name: str) -> Mapping[str, Any] | None:
        """The properties that units of this type have in addition; None if systemd has no such unit."""
        return self._read_all(name, f"{SYSTEMD}.{unit_kind(name).capitalize()}")

    def set_properties(self, name: str, values: Values, paths: DevicePaths) -> None:
        """Set properties of a unit until the next boot.

        :param paths: the paths by which the unit has limits of devices now.
        :raises BusError: systemd refuses a value.
        """
        pairs = [(key, encode_value(key, value, paths)) for key, value in values.items()]
        # An empty list of devices would also remove the limits of paths that are not known.
        pairs = [(key, variant) for key, variant in pairs if variant != ("a(st)", [])]
        self._call_manager("SetUnitProperties", "sba(sv)", (name, True, pairs))

    def stop_unit(self, name: str) -> None:
        """Begin to stop a unit, with all units in a slice. systemd does not restart them by itself.

        Each unit requires its slice (systemd.unit(5), ``Slice=``), so systemd stops the unit with the slice.
        """
        self._call_manager("StopUnit", "ss", (name, "replace"))

    def kill_unit(self, name: str) -> None:
        """Send SIGKILL to all processes of a unit."""
        self._call_manager("KillUnit", "ssi", (name, "all", _SIGKILL))

    def _read_all(self, name: str, interface: str) -> Mapping[str, Any] | None:
        try:
            (found,) = self._call_object(unit_path(name), PROPERTIES, "GetAll", "s", (interface,))
        except BusError as error:
            if error.name in _UNKNOWN:
                return None
            raise
        except ValueError as error:
            raise DriverError(f"systemd gives an unexpected answer: {error}") from error
        if not isinstance(found, dict):
            raise DriverError(f"systemd gives an unexpected answer about {name}")
        return found

    def _call_manager(self, member: str, signature: str, body: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._call_object(MANAGER_PATH, MANAGER, member, signature, body)

    def _call_object(
        self, path: str, interface: str, member: str, signature: str, body: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        bus = self._bus
        if bus is None:
            raise DriverError("systemd does not answer: there is no connection to the message bus")
        return bus.call_method(self._owner, path, interface, member, signature, body)

    def _on_signal(self, signal: BusSignal) -> None:
        if signal.sender == BUS_NAME:
            # systemd was started again (systemctl daemon-reexec), and may have lost the agent's subscription.
            if (
                signal.member == "NameOwnerChanged"
                and signal.body[:1] == (SYSTEMD,)
                and self._bus is not None
            ):
                self._bus.close("systemd has started again")
            return
        # The sender is compared, because any program can send a signal to the agent.
        if signal.sender != self._owner:
            return
        if signal.member == "PropertiesChanged":
            name = unit_of_path(signal.path)
        elif signal.member in ("UnitNew", "UnitRemoved"):
            name = signal.body[0] if isinstance(signal.body[0], str) else ""
        elif signal.member == "Reloading" and signal.body == (False,):
            self._on_hint(PeerHint())
            return
        else:
            return
        if unit_kind(name):
            self._on_hint(PeerHint(name, signal.member == "UnitNew"))


def _leading_number(version: str) -> int:
    """The number at the beginning of a version such as ``252.39-1~deb12u1``; 0 if there is no number."""
    match = re.match(r"v?([0-9]{1,6})", version)
    return 0 if match is None else int(match[1])


def is_unknown_unit(error: BusError) -> bool:
    """Whether an error says that systemd has no such unit."""
    return error.name in _UNKNOWN
