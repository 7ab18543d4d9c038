"""Read what a source has now, however it answers: bounded in time and size."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from compute_agent.files import read_bounded
from compute_agent.fleet.errors import FleetError, SourceError
from compute_agent.fleet.revision import MAX_BYTES

DEADLINE: Final = 20.0
"""Seconds in which all of an answer has to be there."""

_HTTPS: Final = "https"
_OK: Final = 200


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


def fetch(source: str, group: str, cafile: str | None, deadline: float = DEADLINE) -> bytes:
    """The content of the file of a group.

    :param cafile: certificates that the server's has to follow from; None for those of the system.
    :raises SourceError: it cannot be had.
    :raises FleetError: nothing can be had from such a source.
    """
    check(source)
    try:
        if is_address(source):
            return _over_https(f"{source.rstrip('/')}/{quote(group)}.conf", cafile, deadline)
        return read_bounded(Path(source) / f"{group}.conf", MAX_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SourceError(f"{source} cannot be read: {str(error) or type(error).__name__}") from error


def _over_https(address: str, cafile: str | None, deadline: float) -> bytes:
    parts = urlsplit(address)
    assert parts.hostname is not None  # checked
    context = ssl.create_default_context(cafile=cafile)
    plain = socket.create_connection((parts.hostname, parts.port or http.client.HTTPS_PORT), deadline)
    with _ended(plain, deadline), context.wrap_socket(plain, server_hostname=parts.hostname) as secured:
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
def _ended(plain: socket.socket, deadline: float) -> Iterator[None]:
    """Ends whatever waits for a connection at the deadline: its own timeout counts anew from each byte.

    :raises TimeoutError: it did.
    """
    same = plain.dup()  # which stays when the other one is wrapped
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError):  # the other side has ended it
            same.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(deadline, end)
    timer.daemon = True
    timer.start()
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
        raise TimeoutError(f"there was no whole answer in {deadline:g} seconds")
