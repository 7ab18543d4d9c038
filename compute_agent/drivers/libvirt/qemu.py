"""The QEMU process of a domain in /proc, and the roles of its threads.

libvirt reports neither. The process has the domain's uuid on its command line and runs as the user that
libvirt gave it. The threads of QEMU have names, because libvirt starts QEMU with ``debug-threads=on``: ``CPU
0/KVM`` or ``CPU 0/TCG``, and ``IO iothread1``. A thread that runs all guest CPUs is ``ALL CPUs/TCG``.
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

# The names that QEMU's accelerators and I/O threads give; libvirt names I/O threads "iothread" and a number.
_VCPU: Final = re.compile(r"CPU (\d+)/")
_IOTHREAD: Final = re.compile(r"IO iothread(\d+)\Z")
_ALL_VCPUS: Final = "ALL CPUs/"


@dataclass(frozen=True, slots=True)
class ThreadRole:
    """The role of a thread: guest CPU ``vcpu``, I/O thread ``iothread``, or all guest CPUs.

    A thread without any of these is a thread of the emulator.
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
    """The role of a thread with this name."""
    if match := _VCPU.match(name):
        return ThreadRole(vcpu=int(match[1]))
    if match := _IOTHREAD.match(name):
        return ThreadRole(iothread=int(match[1]))
    return ThreadRole(all_vcpus=True) if name.startswith(_ALL_VCPUS) else EMULATOR


def wanted_cpus(it: ThreadRole, settings: CpuSettings) -> frozenset[int]:
    """The CPUs of a thread.

    A guest CPU that was plugged in after the settings were made may use the CPUs of all others.
    """
    if it.vcpu is not None and it.vcpu < len(settings.vcpu_cpus):
        return settings.vcpu_cpus[it.vcpu]
    return settings.cpus if it.runs_guest else settings.emulator_cpus


@dataclass(slots=True)
class QemuProcess:
    """One QEMU process, with the known roles of its threads."""

    identity: ProcessIdentity
    name: str
    _roles: dict[int, ThreadRole] = field(default_factory=dict)

    def thread_roles(self) -> Mapping[int, ThreadRole]:
        """The roles of all threads by thread id; empty when the process is gone.

        If no thread has the name of a guest CPU, each may run one, and all have the role of all guest CPUs.
        """
        # The identity is checked first, as the pid may be another process's by now.
        if not procfs.is_alive(self.identity):
            return {}
        tids = procfs.thread_ids(self.identity.pid)
        # Roles are kept, as each name costs a read of /proc; the kernel may reuse the ids of ended threads.
        for gone in self._roles.keys() - tids:
            del self._roles[gone]
        for tid in tids - self._roles.keys():
            name = procfs.thread_name(self.identity.pid, tid)
            # A young thread still has the name of its maker, the main thread. Its role is not kept, so that
            # the next call reads the name again.
            if name != self.name or tid == self.identity.pid:
                self._roles[tid] = thread_role(name)
        found_roles = {tid: self._roles.get(tid, EMULATOR) for tid in tids}
        if any(it.runs_guest for it in found_roles.values()):
            return found_roles
        return dict.fromkeys(tids, ThreadRole(all_vcpus=True))

    def misplaced_threads(self, settings: CpuSettings) -> dict[int, tuple[ThreadRole, frozenset[int]]]:
        """The threads with another affinity than wanted, each with its role and its affinity."""
        found = {}
        for tid, it in self.thread_roles().items():
            has = procfs.thread_affinity(tid)
            if has is not None and has != wanted_cpus(it, settings):
                found[tid] = (it, has)
        return found

    def find_elsewhere(
        self, wanted: Mapping[ThreadRole, frozenset[int]]
    ) -> dict[int, tuple[ThreadRole, frozenset[int]]]:
        """The threads of some roles with other CPUs than wanted, each with its role and its CPUs."""
        found = {}
        for tid, role in self.thread_roles().items() if wanted else ():
            has = procfs.thread_affinity(tid) if role in wanted else None
            if has is not None and has != wanted[role]:
                found[tid] = (role, has)
        return found


def find_process(guest_uuid: str, owner: str, among: Iterable[int] | None = None) -> QemuProcess | None:
    """The process of a domain; None if there is none.

    Any user can start a process with the same words on its command line. So all user ids of the process must
    be those of the ``owner``; if that is empty or unknown, of root or of the agent's own user. A fork that
    has not called execve(2) yet has the command line of its parent, and does not count.

    :param among: the pids to look at; None: all.
    """
    users = _user_ids(owner)
    # From the highest pid on: the newest run of a domain is mostly found first.
    for pid in sorted(procfs.all_pids() if among is None else among, reverse=True):
        if not _is_named(pid, guest_uuid) or _is_fork(pid):
            continue
        identity = procfs.identify_process(pid)
        found = procfs.users_of(pid)
        # The command line is read again and the identity compared, so that all answers are of one process and
        # not of two that had the pid in turn.
        if identity and found and found <= users and _is_named(pid, guest_uuid) and procfs.is_alive(identity):
            return QemuProcess(identity, procfs.thread_name(pid, pid))
    return None


def _is_named(pid: int, guest_uuid: str) -> bool:
    return ("-uuid", guest_uuid) in itertools.pairwise(procfs.command_line(pid))


def _is_fork(pid: int) -> bool:
    """Whether a process has the command line of its parent, as a fork has until its execve(2)."""
    return procfs.command_line(procfs.parent_of(pid)) == procfs.command_line(pid)


def _user_ids(owner: str) -> frozenset[int]:
    """The user ids that a process of this owner may have.

    :param owner: a name, or a number after ``+``; empty if not known.
    """
    number = owner.removeprefix("+")
    if number != owner and number.isascii() and number.isdecimal():
        return frozenset({int(number)})
    try:
        return frozenset({pwd.getpwnam(owner).pw_uid})
    except KeyError:
        # Without a known user QEMU may be root's, or the agent's own user's in a session of libvirt.
        return frozenset({0, os.geteuid()})
