"""Reads a source of fleet settings, and limits the time and the size of each answer."""

from __future__ import annotations

import http.client
import os
import ssl
import stat
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from compute_agent.bounded_http import late_message, read_address
from compute_agent.files import read_bounded
from compute_agent.fleet.revision import MAX_BYTES, FleetError, SourceError
from compute_agent.threads import NO_LOCK, ONCE, ThreadSpec, run_aside

DEADLINE: Final = 20.0
"""Maximum seconds for a read of the source, including the lookup of its host name."""

SOURCE_THREAD: Final = ThreadSpec(
    "fleet source",
    ONCE,
    "reads the source of the fleet's settings: names, connections and network folders may hang",
    NO_LOCK,
    "the source",
)


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """The certificates of a connection over HTTPS.

    :ivar cafile: the file with trusted certificates; None means the certificates that the system trusts.
    :ivar certfile: the file with the agent's own certificate, for servers that ask for a client certificate.
    :ivar keyfile: the file with the private key of ``certfile``.
    """

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None


_waiting: Final[dict[str, Future[bytes]]] = {}
"""The last read of each source. A source is not read again while its last read hangs."""


def is_address(source: str) -> bool:
    """Whether a source is an address rather than a folder."""
    return "://" in source


def check_source(source: str) -> None:
    """Check the form of a source.

    :raises FleetError: the source is neither an absolute path nor an address over HTTPS.
    """
    if not is_address(source):
        if not os.path.isabs(source):
            raise FleetError(f"[fleet] source = {source}: use an absolute path, or an address with https://")
        return
    try:
        parts = urlsplit(source)
        usable = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise FleetError(f"[fleet] source = {source}: {error}") from error
    if not usable or parts.query or parts.fragment or parts.username or not source.isascii():
        raise FleetError(f"[fleet] source = {source}: it has to be https://HOST[:PORT]/FOLDER")


def fetch(source: str, group: str, secured: TlsIdentity, deadline: float = DEADLINE) -> bytes:
    """Read the file of a group from a source.

    :param deadline: the maximum seconds for the whole answer.
    :raises SourceError: the source cannot be read at present.
    :raises FleetError: the source has a wrong form, or the agent's own key cannot be used.
    """
    check_source(source)
    try:
        if is_address(source):
            address = f"{source.rstrip('/')}/{quote(group)}.conf"
            return _read_within(
                deadline,
                source,
                lambda: read_address(address, deadline, MAX_BYTES, _tls_context(secured), "text/plain"),
            )
        file = Path(source) / f"{group}.conf"
        return _read_within(deadline, source, lambda: read_bounded(file, MAX_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SourceError(f"{source} cannot be read: {str(error) or type(error).__name__}") from error


def _tls_context(secured: TlsIdentity) -> ssl.SSLContext:
    """The TLS context for connections to a source.

    :raises FleetError: the agent's certificate or key cannot be used.
    :raises OSError: the trusted certificates cannot be read.
    """
    context = ssl.create_default_context(cafile=secured.cafile)
    if secured.certfile and secured.keyfile:
        try:
            _check_key(Path(secured.keyfile))
            # With an empty password OpenSSL never asks for a password on a terminal.
            context.load_cert_chain(secured.certfile, secured.keyfile, password="")
        except (OSError, ValueError) as error:
            raise FleetError(f"[fleet] certfile, keyfile cannot be used: {error}") from error
    return context


def _check_key(path: Path) -> None:
    """Check that no other user can use the agent's private key.

    :raises OSError: another user may read or change the file.
    """
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise OSError(
            f"{path} belongs to user {status.st_uid} (mode {stat.S_IMODE(status.st_mode):04o}), so others"
            f" may have the key: chown it to user {os.geteuid()}, and chmod it to 0600"
        )


def _read_within(deadline: float, source: str, read: Callable[[], bytes]) -> bytes:
    """The result of ``read``, which can hang.

    The time limit is needed because name lookups, connections and network folders have no time limit.

    :param deadline: the maximum seconds to wait.
    :param read: reads the source, in a thread of its own.
    :raises TimeoutError: the read took too long, or the read before it still hangs.
    """
    before = _waiting.get(source)
    # A thread that hangs cannot be ended. While the thread hangs, its source is not read again, so that
    # hanging threads do not pile up.
    if before is not None and not before.done():
        raise TimeoutError("the last read still hangs")
    for each in [each for each, look in _waiting.items() if look.done()]:
        del _waiting[each]  # forgets finished reads of former sources
    _waiting[source] = looking = run_aside(SOURCE_THREAD, read)
    if not wait([looking], deadline).done:
        raise TimeoutError(late_message(deadline))
    return looking.result()
