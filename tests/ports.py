"""Ports for servers of the tests and of the demo, which has only the packages of the product."""

import contextlib
import random
import socket
from typing import Final

_PORTS: Final = range(15000, 32000)
"""Ports below the ephemeral ports of Linux and BSD: no connection takes such a port between check and bind.
"""


def free_port() -> int:
    """Return a loopback port that is free, and reserved for the caller among all tests.

    :raises OSError: none of a hundred ports was free
    """
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no loopback port of {_PORTS} is free")
