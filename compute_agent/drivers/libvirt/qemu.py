"""The QEMU process of a domain as /proc shows it: which process it is, and which of its threads is what.

libvirt tells neither. The process is the one that has the domain's uuid on its command line and runs as the
user that libvirt gave it. Threads have names, as libvirt starts QEMU with ``debug-threads=on``: ``CPU 0/KVM``
or ``CPU 0/TCG``, ``IO iothread1``; and a thread that runs all guest CPUs is ``ALL CPUs/TCG``.
"""

from __future__ import annotations

import itertools
import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuSettings
from compute_agent.drivers.procfs import ProcessIdentity

_VCPU: Final = re.compile(r"CPU (\d+)/")
_IOTHREAD: Final = re.compile(r"IO iothread(\d+)\Z")
_ALL_VCPUS: Final = "ALL CPUs/"


@dataclass(frozen=True, slots=True)
class ThreadRole:
    """What a thread does: guest CPU ``vcpu``, I/O thread ``iothread``, or every guest CPU.

    If it is nothing of these, it does the emulator's work.
    """

    vcpu: int | None = None
    iothread: int | None = None
    all_vcpus: bool = False

    @property
    def runs_guest(self) -> bool:
        """Whether the guest's own code runs in it."""
        return self.vcpu is not None or self.all_vcpus

    def __str__(self) -> str:
        if self.vcpu is not None:
            return f"guest CPU {self.vcpu}"
        if self.iothread is not None:
            return f"I/O thread {self.iothread}"
        return "all guest CPUs" if self.all_vcpus else "the emulator"


EMULATOR: Final = ThreadRole()


def thread_role(name: str) -> ThreadRole:
    """What a thread with this name does."""
    if match := _VCPU.match(name):
        return ThreadRole(vcpu=int(match[1]))
    if match := _IOTHREAD.match(name):
        return ThreadRole(iothread=int(match[1]))
    return ThreadRole(all_vcpus=True) if name.startswith(_ALL_VCPUS) else EMULATOR


def wanted_cpus(it: ThreadRole, settings: CpuSettings) -> frozenset[int]:
    """Where a thread should run.

    A guest CPU that the settings do not know (plugged in later) may use what the others have.
    """
    if it.vcpu is not None and it.vcpu < len(settings.vcpu_cpus):
        return settings.vcpu_cpus[it.vcpu]
    return settings.cpus if it.runs_guest else settings.emulator_cpus


@dataclass(slots=True)
class QemuProcess:
    """One QEMU process, and what is known of its threads."""

    identity: ProcessIdentity
    name: str
    _roles: dict[int, ThreadRole] = field(default_factory=dict)

    def thread_roles(self) -> Mapping[int, ThreadRole]:
        """Every thread by its id; empty when the process is gone.

        Where no thread has the name of a guest CPU they cannot be told apart, and each may be one.
        """
        if not procfs.is_alive(self.identity):
            return {}
        tids = procfs.thread_ids(self.identity.pid)
        for gone in self._roles.keys() - tids:
            del self._roles[gone]
        for tid in tids - self._roles.keys():
            name = procfs.thread_name(self.identity.pid, tid)
            # A young thread may still have the name of its maker, the main thread: it is asked again.
            if name != self.name or tid == self.identity.pid:
                self._roles[tid] = thread_role(name)
        found_roles = {tid: self._roles.get(tid, EMULATOR) for tid in tids}
        if any(it.runs_guest for it in found_roles.values()):
            return found_roles
        return dict.fromkeys(tids, ThreadRole(all_vcpus=True))

    def misplaced_threads(self, settings: CpuSettings) -> dict[int, tuple[ThreadRole, frozenset[int]]]:
        """The threads with another affinity than wanted: what they do, and the affinity they have."""
        found = {}
        for tid, it in self.thread_roles().items():
            has = procfs.thread_affinity(tid)
            if has is not None and has != wanted_cpus(it, settings):
                found[tid] = (it, has)
        return found


def find_process(guest_uuid: str, owner: str, among: Iterable[int] | None = None) -> QemuProcess | None:
    """The process of a domain, ``among`` these ids or all there are; None if there is none.

    Anybody can start a process with the same words on its command line: only one that is ``owner``'s in every
    respect is taken; where nobody says whose (empty, or unknown), one of root or of the agent's own user.
    A fork that has yet to call execve(2) has the words of the process that made it, and is not taken.
    """
    users = _user_ids(owner)
    for pid in sorted(procfs.all_pids() if among is None else among, reverse=True):
        if not _is_named(pid, guest_uuid) or _is_fork(pid):
            continue
        identity = procfs.identify_process(pid)
        found = procfs.users_of(pid)
        # Asked again, so that all of this is true of one process, not of two that had the pid in turn.
        if identity and found and found <= users and _is_named(pid, guest_uuid) and procfs.is_alive(identity):
            return QemuProcess(identity, procfs.thread_name(pid, pid))
    return None


def _is_named(pid: int, guest_uuid: str) -> bool:
    return ("-uuid", guest_uuid) in itertools.pairwise(procfs.command_line(pid))


def _is_fork(pid: int) -> bool:
    """Whether a process has the command line of the one that made it: it runs for a moment mostly."""
    return procfs.command_line(procfs.parent_of(pid)) == procfs.command_line(pid)


def _user_ids(owner: str) -> frozenset[int]:
    """Whose process it may be: a name, or a number after ``+``; empty if libvirt does not say."""
    number = owner.removeprefix("+")
    if number != owner and number.isascii() and number.isdecimal():
        return frozenset({int(number)})
    try:
        return frozenset({pwd.getpwnam(owner).pw_uid})
    except KeyError:
        return frozenset({0, os.geteuid()})
