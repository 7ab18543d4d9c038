"""Read what a source has now, however it answers: bounded in time and size."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from compute_agent.files import read_bounded
from compute_agent.fleet.revision import MAX_BYTES, FleetError, SourceError
from compute_agent.threads import NO_LOCK, ONCE, ThreadSpec, run_aside, start_timer

DEADLINE: Final = 20.0
"""Seconds in which all of an answer has to be there, from the question for the address of its name on."""

SOURCE_THREAD: Final = ThreadSpec(
    "fleet source",
    ONCE,
    "reads the source of the fleet's settings: names, connections and network folders may hang",
    NO_LOCK,
    "the source",
)

DEADLINE_THREAD: Final = ThreadSpec(
    "fleet deadline",
    ONCE,
    "shuts down the connection to the source when its time is over",
    NO_LOCK,
    "nothing",
)

_HTTPS: Final = "https"
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """How an agent and a server over HTTPS know each other.

    ``cafile``: certificates that the server's has to follow from; None for those of the system. ``certfile``
    and ``keyfile``: what the agent shows, where the server asks who it is; None for nothing.
    """

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None


_waiting: Final[dict[str, Future[bytes]]] = {}
"""The last look at the source, and those at sources of before that have not come back."""


def is_address(source: str) -> bool:
    """Whether a source is one over HTTPS, not a folder."""
    return "://" in source


def check(source: str) -> None:
    """:raises FleetError: no revision can come from there."""
    if not is_address(source):
        if not os.path.isabs(source):
            raise FleetError(
                f"[fleet] source = {source}: it has to be an absolute path, or begin with https://"
            )
        return
    try:
        parts = urlsplit(source)
        usable = parts.scheme == _HTTPS and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise FleetError(f"[fleet] source = {source}: {error}") from error
    if not usable or parts.query or parts.fragment or parts.username or not source.isascii():
        raise FleetError(f"[fleet] source = {source}: it has to be https://HOST[:PORT]/FOLDER")


def fetch(source: str, group: str, secured: TlsIdentity, deadline: float = DEADLINE) -> bytes:
    """The content of the file of a group.

    :raises SourceError: it cannot be had.
    :raises FleetError: nothing can be had from such a source, or the agent's own key cannot be used.
    """
    check(source)
    try:
        if is_address(source):
            address = f"{source.rstrip('/')}/{quote(group)}.conf"
            return _within(deadline, source, lambda: _over_https(address, _context(secured), deadline))
        file = Path(source) / f"{group}.conf"
        return _within(deadline, source, lambda: read_bounded(file, MAX_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SourceError(f"{source} cannot be read: {str(error) or type(error).__name__}") from error


def _context(secured: TlsIdentity) -> ssl.SSLContext:
    """By what a connection is secured.

    :raises FleetError: the certificate or the key cannot be used.
    :raises OSError: the certificates of others cannot be read.
    """
    context = ssl.create_default_context(cafile=secured.cafile)
    if secured.certfile and secured.keyfile:
        try:
            _check_key(Path(secured.keyfile))
            # Without a password nothing is asked on the terminal, where nobody is.
            context.load_cert_chain(secured.certfile, secured.keyfile, password="")
        except (OSError, ValueError) as error:
            raise FleetError(f"[fleet] certfile, keyfile cannot be used: {error}") from error
    return context


def _check_key(path: Path) -> None:
    """:raises OSError: others may read the key, or change it."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise OSError(
            f"{path} belongs to user {status.st_uid} (mode {stat.S_IMODE(status.st_mode):04o}), so that it is"
            f" not the agent's alone: chown it to user {os.geteuid()}, and chmod it to 0600"
        )


def _within(deadline: float, source: str, read: Callable[[], bytes]) -> bytes:
    """What a function gives that may hang where no timeout reaches: at names, connections, network folders.

    It is left behind then, and the source is not asked again before it has come back.

    :raises TimeoutError: it took too long, or that of before does still.
    """
    before = _waiting.get(source)
    if before is not None and not before.done():
        raise TimeoutError("the last look at it has not come back so far")
    for each in [each for each, look in _waiting.items() if look.done()]:
        del _waiting[each]  # of sources of before; those that hang are remembered until they have come back
    _waiting[source] = looking = run_aside(SOURCE_THREAD, read)
    if not wait([looking], deadline).done:
        raise TimeoutError(_late(deadline))
    return looking.result()


def _late(deadline: float) -> str:
    return f"there was no whole answer in {deadline:g} seconds"


def _over_https(address: str, context: ssl.SSLContext, deadline: float) -> bytes:
    parts = urlsplit(address)
    assert parts.hostname is not None  # checked
    began = time.monotonic()
    plain = socket.create_connection((parts.hostname, parts.port or http.client.HTTPS_PORT), deadline)
    left = max(0.0, began + deadline - time.monotonic())
    with _ended(plain, left, deadline), context.wrap_socket(plain, server_hostname=parts.hostname) as secured:
        connection = http.client.HTTPSConnection(parts.hostname, parts.port)
        connection.sock = secured
        connection.request("GET", parts.path, headers={"Accept": "text/plain", "Connection": "close"})
        answer = connection.getresponse()
        if answer.status != _OK:
            raise OSError(f"it answers {answer.status} for {parts.path}")
        content = answer.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise OSError(f"it is larger than {MAX_BYTES} bytes")
        return content


@contextmanager
def _ended(plain: socket.socket, left: float, deadline: float) -> Iterator[None]:
    """Ends what waits for a connection, when nothing is left: its own timeout counts anew from each byte.

    :raises TimeoutError: it did.
    """
    same = plain.dup()  # which stays when the other one is wrapped
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError):  # the other side has ended it
            same.shutdown(socket.SHUT_RDWR)

    timer = start_timer(DEADLINE_THREAD, left, end)
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
        timer.join()
        plain.close()
        same.close()
    if late.is_set():
        raise TimeoutError(_late(deadline))
