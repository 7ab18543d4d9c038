"""A fake irqbalance: a server on a UNIX socket with the commands and answers of its ``sock_handle``."""

import os
import socket
import struct
import threading

from compute_agent.isolation.irqbalance import SOCKETS
from compute_agent.model import cpuset


class FakeBalancer:
    """One process of irqbalance. It scans interrupts only when a test calls scan(), so that no test has to
    wait.

    ``answer`` replaces the answer to ``setup``. A process that hangs accepts no connection.
    """

    def __init__(self, root, pid=77, environment=(), user=None, answer=None, hangs=False):
        self.environment, self.banned = frozenset(environment), frozenset(environment)
        self.from_user, self.commands, self.answer = None, [], answer
        self.user = os.geteuid() if user is None else user
        folder = root / SOCKETS
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"irqbalance{pid}.sock"
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        # The name of a socket has 107 bytes at most.
        descriptor = os.open(folder, os.O_PATH)
        self._listener.bind(f"/proc/self/fd/{descriptor}/{self.path.name}")
        os.close(descriptor)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._listener.listen(1)
        self._woken = threading.Event()
        if not hangs:
            self._woken.set()
        self.has_ended = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def wake(self):
        """Let a hanging process continue, with the connections that are waiting."""
        self._woken.set()

    def scan(self):
        """Make the scan of irqbalance after which bans take effect."""
        self.banned = self.environment if self.from_user is None else self.from_user

    def end(self, leaves_socket=False):
        """End the process. A killed process leaves its socket behind."""
        self.has_ended = True
        self._woken.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()
        if not leaves_socket:
            self.path.unlink()

    def _serve(self):
        self._woken.wait()
        while not self.has_ended:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._handle(connection)
                except OSError:
                    continue

    def _handle(self, connection):
        data, ancillary, _, _ = connection.recvmsg(16384, socket.CMSG_SPACE(12))
        [(level, kind, content)] = ancillary
        assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        # The real one asks for the user 0.
        if struct.unpack("3i", content)[1] != self.user:
            return
        command = data.decode()
        if command.startswith("settings cpus "):
            self.commands.append(command)
            word = command.removeprefix("settings cpus ").split(" ")[0]
            self.from_user = None if word.startswith("NULL") else cpuset.parse(word)
        elif command.startswith("setup"):
            mask = cpuset.format_mask(self.banned).zfill(8)
            connection.sendall(self.answer or f"SLEEP 10 BANNED {mask}".encode())
