"""Ports for servers of the tests, and of the demo, which has no packages but those of the product."""

import contextlib
import random
import socket
from typing import Final

_PORTS: Final = range(15000, 32000)
"""Below those that Linux and BSD give to connections, so that none comes between a look and a bind."""


def free_port() -> int:
    """A loopback port that was free a moment ago, and that only who asks for it is given.

    :raises OSError: of a hundred none was.
    """
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no loopback port of {_PORTS} is free")
