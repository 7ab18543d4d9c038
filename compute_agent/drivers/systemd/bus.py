"""A connection to the message bus (D-Bus) of this host: calls with a time limit, and signals.

The package jeepney encodes and decodes messages. The agent imports jeepney only when a connection opens,
because other drivers work without it. One thread of the connection reads all messages. Any thread can make a
call, and waits for the answer until the time limit of the call. After a timeout the connection is closed,
because a bus or a service that hangs would delay each further call by the time limit, too.

Any program may send messages to a connection of the system bus, and they must neither cost much nor end the
connection. So a message counts only if its sender is the bus itself, or a service that the agent has called.
The connection skips the bodies of other messages, and whole messages with a long header or one that jeepney
does not know. An answer counts only if its sender is the service that was called, or the bus. A signal counts
only if its sender has the name that the listener expects.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compute_agent.model.messages import ConfigError, DriverError, missing_package, printable_text
from compute_agent.threads import ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

BUS_NAME: Final = "org.freedesktop.DBus"
BUS_PATH: Final = "/org/freedesktop/DBus"

CALL_SECONDS: Final = 5.0
"""The maximum time in seconds that a call waits for its answer."""

# The longest message for the agent is the list of all services, about 300 bytes each. The D-Bus specification
# allows 128 MiB, which could exceed the memory limit of the agent.
_MAX_BODY: Final = 16 << 20
_MAX_MESSAGE: Final = 128 << 20

# The longest field of a header is the path of a unit.
_MAX_HEADER: Final = 4 << 10

# The number of bytes at the start of a message that state the length of the whole message (D-Bus
# Specification, "Message Format").
_START: Final = 16

BUS_THREAD: Final = ThreadSpec(
    "bus",
    "when the message bus has a message for the agent",
    "reads answers of systemd for the threads that wait for them, and hands on signals",
    "that of pending calls",
    "the queue of ``systemd-units``",
)


@dataclass(frozen=True, slots=True)
class BusSignal:
    """A signal of the bus.

    :ivar sender: the unique name of the connection that sent the signal, or the name of the bus itself.
    """

    sender: str
    path: str
    interface: str
    member: str
    body: tuple[Any, ...]


class BusError(DriverError):
    """The service answered a call with an error; ``name`` is the name of the error."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def load_jeepney() -> Any:
    """Import jeepney.

    :raises DriverError: the package is not installed.
    """
    try:
        import jeepney.auth
        import jeepney.low_level
    except ImportError as error:
        raise DriverError(str(_missing_jeepney())) from error
    return jeepney


def _missing_jeepney() -> ConfigError:
    return missing_package("[guests] drivers = systemd", "jeepney (Debian's python3-jeepney)", "systemd")


class BusConnection:
    """A connection to the message bus. Any thread is allowed to call the methods."""

    def __init__(
        self,
        path: Path,
        on_signal: Callable[[BusSignal], None],
        on_closed: Callable[[], None],
        seconds: float = CALL_SECONDS,
    ) -> None:
        """Connect to the bus, and start the thread that reads messages.

        :param path: the UNIX socket of the bus.
        :param on_signal: called from the connection's thread for each signal.
        :param on_closed: called once when the connection ends, from any thread.
        :param seconds: the time limit of each call.
        :raises DriverError: the bus does not answer.
        """
        self._jeepney = load_jeepney()
        self._path = path
        self._on_signal = on_signal
        self._on_closed = on_closed
        self._seconds = seconds
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[str, Future[Any]]] = {}
        """For each call under way, by serial number: the called bus name, and the future of the answer."""
        self._called = {BUS_NAME}
        """The names of the services that were called so far."""
        self._serial = 0
        self._reason = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(seconds)
            self._socket.connect(str(path))
            self._prove_identity()
            self._limit_sending()
        except (OSError, self._jeepney.AuthenticationError) as error:
            self._socket.close()
            raise DriverError(f"the message bus at {path} does not answer: {error}") from error
        start_thread(BUS_THREAD, self._run)
        try:
            self.call_method(BUS_NAME, BUS_PATH, BUS_NAME, "Hello")
        except DriverError:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as the agent has noticed."""
        return not self._reason

    def close(self, reason: str = "it was closed") -> None:
        """End the connection. Calls that wait raise an error with ``reason``."""
        with self._lock:
            if self._reason:
                return
            self._reason = reason
            waiting, self._pending = list(self._pending.values()), {}
        # shutdown() wakes the thread from recv(); close() alone would not. The thread closes the socket.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for _, answer in waiting:
            answer.set_exception(self._broken_error())
        self._on_closed()

    def call_method(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: tuple[Any, ...] = (),
    ) -> tuple[Any, ...]:
        """Call a method, and return its answer.

        :raises BusError: the service answers with an error.
        :raises DriverError: there is no answer within the time limit, or the connection has ended.
        """
        jeepney = self._jeepney
        try:
            address = jeepney.DBusAddress(path, bus_name=destination, interface=interface)
            message = jeepney.new_method_call(address, member, signature or None, body)
        except ValueError as error:
            raise DriverError(f"{member} of {destination} cannot be called: {error}") from error
        answer: Future[Any] = Future()
        with self._lock:
            if self._reason:
                raise self._broken_error()
            self._serial += 1
            serial = self._serial
            self._pending[serial] = destination, answer
            self._called.add(destination)
            # The message is sent under the lock, so that the bytes of two messages do not mix. SO_SNDTIMEO
            # limits the time of sending.
            try:
                self._socket.sendall(message.serialise(serial=serial))
            except OSError as error:
                failure: OSError | None = error
            else:
                failure = None
        if failure is not None:
            self.close(f"sending failed: {failure}")
        try:
            reply = answer.result(self._seconds)
        except TimeoutError as error:
            self.close(f"{member} of {destination} had no answer within {self._seconds:g} s")
            raise self._broken_error() from error
        if reply.header.message_type is jeepney.MessageType.error:
            name = str(reply.header.fields.get(jeepney.HeaderFields.error_name, ""))
            told = reply.body[0] if reply.body and isinstance(reply.body[0], str) else "no reason"
            raise BusError(name, printable_text(f"{told} ({name})"))
        return tuple(reply.body)

    def _broken_error(self) -> DriverError:
        return DriverError(f"the connection to the message bus at {self._path} ended: {self._reason}")

    def _prove_identity(self) -> None:
        authenticator = self._jeepney.auth.Authenticator()
        # The deadline is for all reads together. The socket has a time limit for each read, and a bus could
        # send one byte at each read.
        deadline = time.monotonic() + self._seconds
        for data in authenticator:
            self._socket.sendall(data)
            received = self._socket.recv(1024)
            if not received or time.monotonic() > deadline:
                raise OSError("no answer to the authentication")
            authenticator.feed(received)
        self._socket.sendall(self._jeepney.auth.BEGIN)

    def _limit_sending(self) -> None:
        # From here on, only sending has a time limit. settimeout() would limit reading, too.
        self._socket.settimeout(None)
        whole, part = divmod(self._seconds, 1)
        limit = struct.pack("ll", int(whole), int(part * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    # The thread

    def _run(self) -> None:
        reason = "the bus closed it"
        try:
            while True:
                if (message := self._read_message()) is not None:
                    self._handle_message(message)
        except EOFError:
            pass
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
        # jeepney raises several kinds of errors for a message that it cannot decode.
        except Exception as error:
            reason = f"a message cannot be read: {type(error).__name__}: {error}"
        self.close(reason)
        self._socket.close()

    def _read_message(self) -> Any:
        """Read the next message; None if it does not count."""
        low_level = self._jeepney.low_level
        start = self._read_bytes(_START)
        order = low_level.endian_map[start[:1]]
        body_size, _, fields_size = struct.unpack_from(f"{order.struct_code()}III", start, 4)
        # The header is padded to a multiple of 8 bytes.
        rest_size = -(-fields_size // 8) * 8
        if rest_size + body_size > _MAX_MESSAGE:
            raise ValueError(f"{rest_size + body_size} bytes are too many")
        header = None
        if rest_size <= _MAX_HEADER:
            header, rest_size = self._parse_header(start + self._read_bytes(rest_size)), 0
        if header is None:
            for _ in self._read_pieces(rest_size + body_size):
                pass
            return None
        if body_size > _MAX_BODY:
            raise ValueError(f"{body_size} bytes are too many")
        content, body = self._read_bytes(body_size), ()
        if signature := header.fields.get(self._jeepney.HeaderFields.signature):
            kind = low_level.parse_signature(list(f"({signature})"))
            body, _ = kind.parse_data(content, 0, header.endianness)
        return low_level.Message(header, body)

    def _parse_header(self, content: bytes) -> Any:
        """The header of a message; None if the message does not count.

        dbus-broker passes on types of messages and fields of headers that it does not know itself.
        """
        try:
            header, _ = self._jeepney.low_level.Header.from_buffer(content)
            # A bus states the sender in each message. Only its own first answers perhaps lack the sender.
            sender = header.fields.get(self._jeepney.HeaderFields.sender, BUS_NAME)
            return header if sender in self._called else None
        # jeepney raises several kinds of errors for a header that it cannot decode.
        except Exception as error:
            LOG.debug("A message of the bus is skipped: %s: %s", type(error).__name__, error)
            return None

    def _read_bytes(self, size: int) -> bytes:
        return b"".join(self._read_pieces(size))

    def _read_pieces(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self._socket.recv(min(size, 1 << 16))
            if not piece:
                raise EOFError
            yield piece
            size -= len(piece)

    def _handle_message(self, message: Any) -> None:
        jeepney = self._jeepney
        fields, names = message.header.fields, jeepney.HeaderFields
        sender = fields.get(names.sender, BUS_NAME)
        if message.header.message_type is jeepney.MessageType.signal:
            path, interface, member = (
                fields.get(name, "") for name in (names.path, names.interface, names.member)
            )
            try:
                self._on_signal(BusSignal(sender, path, interface, member, tuple(message.body)))
            except Exception:
                LOG.exception("A signal of the message bus could not be handled")
            return
        serial = fields.get(names.reply_serial)
        with self._lock:
            destination, answer = self._pending.get(serial, ("", None))
            if answer is None or sender not in (destination, BUS_NAME):
                return  # The answer is late, or another program has made it up.
            del self._pending[serial]
        answer.set_result(message)
