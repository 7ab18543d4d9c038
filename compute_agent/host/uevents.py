"""Events of the kernel about PCI devices, from a netlink socket (``NETLINK_KOBJECT_UEVENT``).

An event is a header such as ``add@/devices/pci0000:80/0000:80:01.0``, and then ``KEY=value`` fields, each
ended by a zero byte (kernel: lib/kobject_uevent.c). The kernel sends events to group 1 of the socket's
protocol, and udev sends its own to group 2.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

LOG = logging.getLogger(__name__)

_KOBJECT_UEVENT: Final = 15
"""``NETLINK_KOBJECT_UEVENT`` of linux/netlink.h, for which Python's socket module has no name."""
_KERNEL_GROUP: Final = 1
_KERNEL_PORT: Final = 0
_MAX_BYTES: Final = 8192
"""Size of the buffer for one event, above the kernel's UEVENT_BUFFER_SIZE of 2048."""
_MAX_READ: Final = 4096
"""Maximum number of events that one call reads, so that a storm of events does not keep the caller busy."""
_OF_PCI: Final = b"SUBSYSTEM=pci"


class PciEvents:
    """Counts events about PCI devices; none if the socket cannot be opened. Only one thread may use it."""

    def __init__(self, open_socket: Callable[[], socket.socket | None] | None = None) -> None:
        """``open_socket`` opens a non-blocking socket; by default that of the kernel's events."""
        self._socket = (open_socket or _open_socket)()
        self._count = 0

    def count_events(self) -> int:
        """Read the pending events; return the number of events about PCI devices so far.

        Events that the kernel has dropped count as one. A changed number means that devices may have changed.
        """
        for _ in range(_MAX_READ if self._socket is not None else 0):
            try:
                found = self._read_event()
            except BlockingIOError:
                break
            except OSError as error:
                self._count += 1
                # ENOBUFS: the kernel has dropped events, because the buffer of the socket was full. Later
                # events still arrive. After any other error the socket is closed.
                if error.errno != errno.ENOBUFS:
                    LOG.warning("Events of devices are not read any more, devices are polled: %s", error)
                    self.close()
                    break
            else:
                self._count += found
        return self._count

    def _read_event(self) -> bool:
        """Read one event; return whether it is about a PCI device.

        :raises OSError: the socket has no event, or has failed.
        """
        # count_events() calls this method only with a socket.
        assert self._socket is not None
        content, sender = self._socket.recvfrom(_MAX_BYTES)
        return is_pci_event(content, sender[0])

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def is_pci_event(content: bytes, port: int) -> bool:
    """Whether a message is an event of the kernel about a PCI device.

    :param port: the netlink port of the sender, which is 0 for the kernel. A privileged process may send
        messages to the group, too.
    """
    return port == _KERNEL_PORT and _OF_PCI in content.split(b"\0")


def _open_socket() -> socket.socket | None:
    found = None
    try:
        found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _KOBJECT_UEVENT)
        found.setblocking(False)
        found.bind((0, _KERNEL_GROUP))
    except OSError as error:
        LOG.info("There are no events of devices, so devices are polled: %s", error)
        if found is not None:
            found.close()
        return None
    return found
