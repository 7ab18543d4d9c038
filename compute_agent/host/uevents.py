"""The kernel's events about PCI devices, from a netlink socket (``NETLINK_KOBJECT_UEVENT``).

A message begins with a header such as ``add@/devices/pci0000:80/0000:80:01.0``. Fields ``KEY=value`` follow,
each ended by a zero byte (kernel: lib/kobject_uevent.c). The kernel sends to group 1; udev's own events are
in group 2.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

LOG = logging.getLogger(__name__)

_KOBJECT_UEVENT: Final = 15
"""``NETLINK_KOBJECT_UEVENT`` of linux/netlink.h, for which Python has no name."""
_KERNEL_GROUP: Final = 1
_KERNEL_PORT: Final = 0
_MAX_BYTES: Final = 8192
"""The size of the buffer for a message in bytes; the kernel's UEVENT_BUFFER_SIZE is 2048."""
_MAX_READ: Final = 4096
"""Maximum number of events that one call reads, so that a storm of events does not delay the reader."""
_OF_PCI: Final = b"SUBSYSTEM=pci"


class PciEvents:
    """Counts events about PCI devices, for one thread. Without a socket no events are counted."""

    def __init__(self, open_socket: Callable[[], socket.socket | None] | None = None) -> None:
        """Open the socket.

        :param open_socket: returns a socket that does not block, or None; by default the kernel's netlink
            socket.
        """
        self._socket = (open_socket or _open_socket)()
        self._count = 0

    def count_events(self) -> int:
        """Read all waiting events; return the number of events since the start, lost events as one."""
        for _ in range(_MAX_READ if self._socket is not None else 0):
            try:
                found = self._read_event()
            except BlockingIOError:
                break
            except OSError as error:
                self._count += 1
                # ENOBUFS: the kernel drops events when the buffer of the socket is full. Reading continues
                # after ENOBUFS; any other error ends it.
                if error.errno != errno.ENOBUFS:
                    LOG.warning(
                        "The agent cannot read events of devices any more, and polls devices instead: %s",
                        error,
                    )
                    self.close()
                    break
            else:
                self._count += found
        return self._count

    def _read_event(self) -> bool:
        """Read one event, and return whether it is about a PCI device.

        :raises OSError: no event waits, or the socket fails.
        """
        # This line is for the type checker: count_events() calls this only if there is a socket.
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

    :param port: the netlink port of the sender; 0 is the kernel. The port is checked, because any process
        with privileges can send to the group.
    """
    return port == _KERNEL_PORT and _OF_PCI in content.split(b"\0")


def _open_socket() -> socket.socket | None:
    found = None
    try:
        found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _KOBJECT_UEVENT)
        found.setblocking(False)
        found.bind((0, _KERNEL_GROUP))
    except OSError as error:
        LOG.info("The kernel reports no events of devices, so the agent polls devices: %s", error)
        if found is not None:
            found.close()
        return None
    return found
