"""Where a libvirtd of this host listens, by its URI (https://libvirt.org/uri.html)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

_SYSTEM_FOLDER: Final = Path("/run/libvirt")
_SOCKETS: Final = ("libvirt-sock", "virtqemud-sock")
"""Of the one daemon for everything, and of the one for QEMU alone."""


def sockets(uri: str) -> tuple[Path, ...]:
    """The UNIX sockets on which libvirtd may be found; none if the URI leads elsewhere."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ()
    _, _, transport = parts.scheme.partition("+")
    if parts.netloc or transport not in ("", "unix"):
        return ()
    if named := parse_qs(parts.query).get("socket"):
        return (Path(named[-1]),)
    match parts.path:
        case "/system":
            folder = _SYSTEM_FOLDER
        case "/session":
            runtime = os.environ.get("XDG_RUNTIME_DIR")
            folder = (Path(runtime) if runtime else Path.home() / ".cache") / "libvirt"
        case _:
            return ()
    return tuple(folder / name for name in _SOCKETS)
