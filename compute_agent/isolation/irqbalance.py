"""Makes irqbalance move no interrupts to quiet CPUs: bans these CPUs through its socket, and lifts the bans.

irqbalance listens on ``/run/irqbalance/irqbalancePID.sock``, and handles one connection with one command at a
time (``sock_handle`` in irqbalance.c). ``setup`` returns the interval between two scans and the banned CPUs.
``settings cpus LIST`` replaces the banned CPUs. After ``settings cpus NULL`` irqbalance uses the banned CPUs
of its environment again. Both ``settings`` commands take effect at the next scan of irqbalance. A ban ends
with the process of irqbalance, so a new process needs a new ban.

A *key* is the name of a socket and the time when it was made, so each process of irqbalance has another key.
The *base* of a ban is the set of CPUs that irqbalance had banned before the agent. The agent keeps the CPUs
of the base banned.
"""

from __future__ import annotations

import array
import errno
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet

SOCKETS: Final = "run/irqbalance"
BALANCER_KEY: Final = re.compile(r"(?P<name>irqbalance(?P<pid>[0-9]{1,10})\.sock)@[0-9]{1,20}", re.ASCII)

_NAME: Final = re.compile(r"irqbalance[0-9]{1,10}\.sock", re.ASCII)
_MAX_SOCKETS: Final = 4
_ANSWER_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 30.0
"""Seconds for which the agent sends no command after irqbalance did not answer, because each wait for an
answer delays the round.
"""

_ANSWER_BYTES: Final = 1 << 16
_ANSWER: Final = re.compile(rb"SLEEP (?P<seconds>[0-9]{1,9}) .*?BANNED (?P<mask>[0-9a-fA-F,]+)", re.DOTALL)
_LONGEST_SCAN: Final = 60.0
_UNKNOWN_SCAN: Final = 10.0
_SCAN_MARGIN: Final = 1.0
_PEER: Final = struct.Struct("3i")
"""``struct ucred`` of unix(7): process, user and group."""

NO_ANSWER: Final = f"it does not answer within {_ANSWER_SECONDS:g} s"
REFUSED: Final = "it refuses commands, which only root may send"
UNREADABLE: Final = "its answer cannot be read"
NOT_ROOTS: Final = "the socket is not root's"


class BalancerError(Exception):
    """irqbalance does not accept a command; the text is the reason."""


class BalancerGoneError(BalancerError):
    """The irqbalance process of a socket has ended."""


@dataclass(frozen=True, slots=True)
class KeptBan:
    """The ban of one irqbalance: its base, and the CPUs that the agent wrote (empty if it lifted the ban)."""

    base: CpuSet
    written: CpuSet = frozenset()


@dataclass(frozen=True, slots=True)
class SeenBan:
    """The CPUs that an irqbalance has banned.

    :ivar sent: the CPUs that this agent process last wrote. Empty means that the agent lifted the ban, and
        None that it wrote nothing.
    :ivar is_pending: whether irqbalance has perhaps not scanned since the last write.
    """

    cpus: CpuSet
    sent: CpuSet | None = None
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class BanPlan:
    """The bans to save first, and the writes to irqbalance after that; a write without CPUs lifts a ban."""

    kept: Mapping[str, KeptBan] = field(default_factory=dict)
    writes: Mapping[str, CpuSet] = field(default_factory=dict)


def decide_bans(
    seen: Mapping[str, SeenBan], silent: Collection[str], quiet: CpuSet, kept: Mapping[str, KeptBan]
) -> BanPlan:
    """Decide the bans for all irqbalance processes of a host.

    :param silent: keys of processes that do not answer; the agent does not change their bans.
    """
    found = {key: ban for key, ban in kept.items() if key in silent}
    writes: dict[str, CpuSet] = {}
    for key, now in seen.items():
        known = kept.get(key)
        ban = KeptBan(now.cpus) if known is None else known
        if quiet <= ban.base:
            if ban.written:
                writes[key] = frozenset()
            # The ban is kept until the next scan of irqbalance: until then irqbalance shows the agent's
            # former ban, which the agent must not mistake for the base.
            if ban.written or (known is not None and not _is_returned(now, ban)):
                found[key] = ban
            continue
        wanted = ban.base | quiet
        if _is_due(now, ban, wanted):
            writes[key] = wanted
        found[key] = KeptBan(ban.base, wanted)
    return BanPlan(found, writes)


def _is_returned(now: SeenBan, ban: KeptBan) -> bool:
    return now.cpus <= ban.base or (now.sent == frozenset() and not now.is_pending)


def _is_due(now: SeenBan, ban: KeptBan, wanted: CpuSet) -> bool:
    if ban.written != wanted:
        return True
    if now.sent == wanted:
        # Additional banned CPUs are no difference, because irqbalance itself can ban CPUs, for example
        # overheated CPUs.
        return not (now.is_pending or wanted <= now.cpus)
    return now.cpus != wanted


@dataclass(slots=True)
class _BalancerMemory:
    """The data that the agent keeps in memory about one irqbalance process.

    :ivar sent: the banned CPUs that the agent has written last.
    :ivar scanned: the time after which irqbalance has certainly scanned since that write.
    :ivar reason: the reason why the agent does not ask irqbalance before the time ``again``; empty if
        irqbalance answers.
    :ivar seconds: the seconds between two scans of interrupts by irqbalance.
    """

    sent: CpuSet | None = None
    scanned: float = 0.0
    reason: str = ""
    again: float = 0.0
    seconds: float = _UNKNOWN_SCAN


class BalancerSockets:
    """The sockets of irqbalance below a root. Each exchange has a time limit and a size limit."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = f"{root}/{SOCKETS}"
        self._clock = clock
        self._memories: dict[str, _BalancerMemory] = {}

    def read_bans(self) -> tuple[dict[str, SeenBan], dict[str, str]]:
        """The bans of the irqbalance processes that answer, and the errors of all others, by key."""
        seen: dict[str, SeenBan] = {}
        failures: dict[str, str] = {}
        keys = sorted(self._list_keys())
        self._memories = {key: self._memories.get(key, _BalancerMemory()) for key in keys}
        for key, memory in self._memories.items():
            try:
                cpus = self._read_ban(key, memory)
            except BalancerGoneError:
                continue
            except BalancerError as error:
                failures[key] = str(error)
                continue
            seen[key] = SeenBan(cpus, memory.sent, self._clock() < memory.scanned)
        return seen, failures

    def write_ban(self, key: str, cpus: CpuSet) -> None:
        """Ban CPUs. If ``cpus`` is empty, make irqbalance use the banned CPUs of its environment again.

        :raises BalancerError: irqbalance did not confirm the command, but perhaps executes it later.
        """
        # The list must not contain blanks, because irqbalance reads only its first word.
        self._send_command(key, f"settings cpus {cpuset.format(cpus) or 'NULL'}")
        memory = self._memories.setdefault(key, _BalancerMemory())
        memory.sent, memory.scanned = cpus, self._clock() + memory.seconds + _SCAN_MARGIN

    def _read_ban(self, key: str, memory: _BalancerMemory) -> CpuSet:
        if memory.reason and self._clock() < memory.again:
            raise BalancerError(memory.reason)
        try:
            answer = self._send_command(key, "setup")
            # An empty answer is a refusal: irqbalance sends nothing to a process without permission.
            if not answer:
                raise BalancerError(REFUSED)
            match = _ANSWER.fullmatch(answer.strip(b"\0\n "))
            try:
                cpus = None if match is None else cpuset.parse_mask(match["mask"].decode())
            except cpuset.BadCpuSet:
                cpus = None
            if match is None or cpus is None:
                raise BalancerError(UNREADABLE)
        except BalancerGoneError:
            raise
        except BalancerError as error:
            memory.again, memory.reason = self._clock() + _SILENT_SECONDS, str(error)
            raise
        memory.reason, memory.seconds = "", min(float(match["seconds"]), _LONGEST_SCAN)
        return cpus

    def _list_keys(self) -> set[str]:
        try:
            with os.scandir(self._folder) as entries:
                names = sorted(entry.name for entry in entries if _NAME.fullmatch(entry.name))
        except OSError:
            return set()
        found: set[str] = set()
        for name in names[:_MAX_SOCKETS]:
            try:
                found.add(f"{name}@{os.lstat(f'{self._folder}/{name}').st_mtime_ns}")
            except OSError:
                continue
        return found

    def _send_command(self, key: str, command: str) -> bytes:
        """Send a command, and return the answer, which ends when irqbalance closes the connection.

        :raises BalancerGoneError: no process listens on the socket.
        :raises BalancerError: the process does not belong to root, or gives no complete answer.
        """
        match = BALANCER_KEY.fullmatch(key)
        if match is None:
            raise BalancerGoneError
        try:
            # The path goes through the folder's descriptor, because the name of a socket has at most 107
            # bytes.
            folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                found = os.stat(match["name"], dir_fd=folder, follow_symlinks=False)
                if not (stat.S_ISSOCK(found.st_mode) and _is_trusted(found.st_uid)):
                    raise BalancerError(NOT_ROOTS)
                if key != f"{match['name']}@{found.st_mtime_ns}":
                    raise BalancerGoneError
                with socket.socket(socket.AF_UNIX) as connection:
                    return _run_command(connection, f"/proc/self/fd/{folder}/{match['name']}", command)
            finally:
                os.close(folder)
        except TimeoutError:
            raise BalancerError(NO_ANSWER) from None
        except (FileNotFoundError, ConnectionRefusedError):
            raise BalancerGoneError from None
        except OSError as error:
            # EAGAIN means that the queue of connections is full, because irqbalance hangs.
            is_full = error.errno == errno.EAGAIN
            raise BalancerError(NO_ANSWER if is_full else os.strerror(error.errno or 0)) from None


def _run_command(connection: socket.socket, path: str, command: str) -> bytes:
    deadline = time.monotonic() + _ANSWER_SECONDS
    connection.settimeout(_ANSWER_SECONDS)
    connection.connect(path)
    peer = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if not _is_trusted(peer[1]):
        raise BalancerError(NOT_ROOTS)
    credentials = array.array("i", (os.getpid(), os.geteuid(), os.getegid()))
    connection.sendmsg(
        [command.encode()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials.tobytes())]
    )
    parts: list[bytes] = []
    room = _ANSWER_BYTES
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(room)
        if not part:
            return b"".join(parts)
        parts.append(part)
        room -= len(part)
        if room <= 0:
            raise BalancerError(UNREADABLE)


def has_socket(root: Path) -> bool:
    """Whether an irqbalance of the host below ``root`` has a socket, even if it does not answer now."""
    return any(BalancerSockets(root).read_bans())


def _is_trusted(user: int) -> bool:
    return user in (0, os.geteuid())


def tell_failures(failures: Mapping[str, str]) -> tuple[str, ...]:
    """Messages about the irqbalance processes that do not accept the ban of quiet CPUs."""
    found = []
    for key, reason in sorted(failures.items()):
        match = BALANCER_KEY.fullmatch(key)
        pid = "" if match is None else f" (process {match['pid']})"
        found.append(f"irqbalance{pid} may put interrupts on quiet CPUs again: {reason}")
    return tuple(found)
