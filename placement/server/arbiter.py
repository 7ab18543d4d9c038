"""Has gunicorn's parent process, which listens for connections, and starts and stops the workers."""

import signal
import socket
import struct
import time
from array import array
from contextlib import suppress
from typing import Final

from gunicorn.arbiter import Arbiter

_HANDSHAKE_SECONDS: Final = 0.1
"""A stopping server gives clients this number of seconds to complete the connections that they have begun."""
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""The signals that stop a server or a worker."""
_SO_ATTACH_FILTER: Final = 26
"""The option of sockets in the kernel's ``asm-generic/socket.h``; Python has no name for it."""
_DROP_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte of the flags in the TCP header (RFC 9293, 3.1)
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # if only SYN is set, go on; otherwise, skip one instruction
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # accept the packet
)
"""A classic BPF program: the code, two jumps and the operand of each instruction (``linux/filter.h``)."""


class ServerArbiter(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """Stops the server so that no accepted connection is left without a worker.

    Before several workers start, the application can read data that these workers share.
    """

    def spawn_workers(self) -> None:
        """Start the missing workers. gunicorn calls this method."""
        with self.app.share_with_workers(self.num_workers - len(self.WORKERS)):
            super().spawn_workers()

    def spawn_worker(self) -> int:
        """Start a worker, and return its process id. gunicorn calls this method."""
        # until a new worker has its own handlers, the arbiter's handlers would lose the worker's signals, and
        # the worker would not stop; so the kernel keeps the signals (BufferingWorker.init_signals)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            # the variable has a type for the type checker, because gunicorn has no types
            pid: int = super().spawn_worker()
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def reload(self) -> None:
        """Replace all workers. gunicorn calls this method on SIGHUP."""
        with self.app.share_with_workers(self.num_workers):
            super().reload()

    def stop(self, graceful: bool = True) -> None:
        """Stop the workers. gunicorn calls this method."""
        # a shared socket stays open in another process, such as a server that systemd or this server starts
        is_shared = self.systemd or self.reexec_pid or self.master_pid
        if graceful and self.LISTENERS and not is_shared:
            # If a connection arrived after a worker has accepted its last connection, the kernel would reset
            # this connection when the socket is closed. The request of this connection would be lost.
            for each in self.LISTENERS:
                ignore_new_connections(each.sock)
            time.sleep(_HANDSHAKE_SECONDS)
        super().stop(graceful)


def ignore_new_connections(listener: socket.socket) -> None:
    """Make the kernel drop the first packet of each new connection to a listening TCP socket.

    The server's kernel still completes connections that have begun. The kernel of a later client gets no
    answer, and sends the SYN again after about a second. If the socket is closed by then, the connection is
    refused. This function does not change UNIX sockets, because gunicorn removes the path of a UNIX socket
    before the workers stop.
    """
    if listener.family == socket.AF_UNIX:
        return
    program = array("B", b"".join(struct.pack("HBBI", *each) for each in _DROP_SYN))
    address, _ = program.buffer_info()
    with suppress(OSError):  # without such filters, the kernel accepts connections until the socket is closed
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_DROP_SYN), address))
