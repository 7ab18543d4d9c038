"""The QEMU process of a domain in /proc, and the roles of its threads.

libvirt reports neither pids nor roles of threads. The process has the domain's uuid on its command line and
runs as the user that libvirt chose. The threads of QEMU have names, because libvirt starts QEMU with
``debug-threads=on``: ``CPU 0/KVM`` or ``CPU 0/TCG``, and ``IO iothread1``. A thread that runs all guest CPUs
is named ``ALL CPUs/TCG``.
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

# Names of threads as QEMU's accelerators and I/O threads set them. libvirt names I/O threads "iothread" and a
# number.
_VCPU: Final = re.compile(r"CPU (\d+)/")
_IOTHREAD: Final = re.compile(r"IO iothread(\d+)\Z")
_ALL_VCPUS: Final = "ALL CPUs/"


@dataclass(frozen=True, slots=True)
class ThreadRole:
    """The role of a QEMU thread: it runs one guest CPU, all guest CPUs, one I/O thread, or the emulator.

    :ivar vcpu: the number of the guest CPU that the thread runs; None means that the thread runs no single
        guest CPU.
    :ivar iothread: the number of the I/O thread; None means that the thread is no I/O thread.
    :ivar all_vcpus: whether the thread runs all guest CPUs. A thread without any of these roles belongs to
        the emulator.
    """

    vcpu: int | None = None
    iothread: int | None = None
    all_vcpus: bool = False

    @property
    def runs_guest(self) -> bool:
        """Whether the guest's own code runs in the thread."""
        return self.vcpu is not None or self.all_vcpus

    def __str__(self) -> str:
        if self.vcpu is not None:
            return f"guest CPU {self.vcpu}"
        if self.iothread is not None:
            return f"I/O thread {self.iothread}"
        return "all guest CPUs" if self.all_vcpus else "the emulator"


EMULATOR: Final = ThreadRole()


def thread_role(name: str) -> ThreadRole:
    """The role of a QEMU thread, from the name that QEMU gave it."""
    if match := _VCPU.match(name):
        return ThreadRole(vcpu=int(match[1]))
    if match := _IOTHREAD.match(name):
        return ThreadRole(iothread=int(match[1]))
    return ThreadRole(all_vcpus=True) if name.startswith(_ALL_VCPUS) else EMULATOR


def wanted_cpus(it: ThreadRole, settings: CpuSettings) -> frozenset[int]:
    """The CPUs for a role; a guest CPU that was plugged in later may use the CPUs of all guest CPUs."""
    if it.vcpu is not None and it.vcpu < len(settings.vcpu_cpus):
        return settings.vcpu_cpus[it.vcpu]
    return settings.cpus if it.runs_guest else settings.emulator_cpus


def misplaced_threads(
    roles: Mapping[int, ThreadRole], settings: CpuSettings
) -> dict[int, tuple[ThreadRole, frozenset[int]]]:
    """Role and present affinity, by thread id, of the threads that may use other CPUs than ``settings`` say.

    :param roles: the roles of the threads, by thread id.
    """
    found = procfs.thread_affinities(roles)
    return {tid: (roles[tid], has) for tid, has in found.items() if has != wanted_cpus(roles[tid], settings)}


@dataclass(slots=True)
class QemuProcess:
    """One QEMU process, with a cache of the roles of its threads.

    :ivar name: the name of its main thread.
    """

    identity: ProcessIdentity
    name: str
    _roles: dict[int, ThreadRole] = field(default_factory=dict)

    def thread_roles(self) -> Mapping[int, ThreadRole]:
        """The roles of all threads of the process, by thread id; empty if the process has ended.

        If no thread has the name of a guest CPU, each thread has the role ``all_vcpus``.
        """
        # The pid may belong to another process by now.
        return self.list_roles() if procfs.is_alive(self.identity) else {}

    def list_roles(self) -> Mapping[int, ThreadRole]:
        """The same as :meth:`thread_roles`, for a caller that has checked that the process runs."""
        tids = procfs.thread_ids(self.identity.pid)
        # Roles are cached because each name costs a read of /proc. Ended threads are removed because the
        # kernel may reuse their ids.
        for gone in self._roles.keys() - tids:
            del self._roles[gone]
        for tid in tids - self._roles.keys():
            name = procfs.thread_name(self.identity.pid, tid)
            # A new thread has the name of the main thread, which made it, until QEMU renames it. Until then
            # its role is not cached, so that the next call reads the name again.
            if name != self.name or tid == self.identity.pid:
                self._roles[tid] = thread_role(name)
        found_roles = {tid: self._roles.get(tid, EMULATOR) for tid in tids}
        if any(it.runs_guest for it in found_roles.values()):
            return found_roles
        return dict.fromkeys(tids, ThreadRole(all_vcpus=True))

    def misplaced_threads(self, settings: CpuSettings) -> dict[int, tuple[ThreadRole, frozenset[int]]]:
        """Role and present affinity, by thread id, of threads with other CPUs than ``settings`` say."""
        return misplaced_threads(self.thread_roles(), settings)

    def find_elsewhere(
        self, wanted: Mapping[ThreadRole, frozenset[int]]
    ) -> dict[int, tuple[ThreadRole, frozenset[int]]]:
        """Role and present CPUs, by thread id, of threads that have other CPUs than ``wanted``."""
        roles = self.thread_roles().items() if wanted else ()
        chosen = {tid: role for tid, role in roles if role in wanted}
        found = procfs.thread_affinities(chosen)
        return {tid: (chosen[tid], has) for tid, has in found.items() if has != wanted[chosen[tid]]}


def find_process(guest_uuid: str, owner: str, among: Iterable[int] | None = None) -> QemuProcess | None:
    """The QEMU process of a domain; None if no such process runs.

    Any user can start a process with the same words on its command line. So all user ids of the process must
    belong to ``owner``. If ``owner`` is empty or unknown, the ids must belong to root or to the agent's own
    user. A fork of QEMU does not count, although it shows QEMU's command line until it calls execve(2).

    :param owner: a user name, or ``+`` and a number.
    :param among: the pids to look at; None means all.
    """
    users = _user_ids(owner)
    # The highest pid comes first, because the newest run of a domain usually has the highest pid.
    for pid in sorted(procfs.all_pids() if among is None else among, reverse=True):
        if not _is_named(pid, guest_uuid) or _is_fork(pid):
            continue
        identity = procfs.identify_process(pid)
        found = procfs.users_of(pid)
        # The command line is read again and the identity compared at the end: if the pid was reused during
        # the reads, one of the two differs.
        if identity and found and found <= users and _is_named(pid, guest_uuid) and procfs.is_alive(identity):
            return QemuProcess(identity, procfs.thread_name(pid, pid))
    return None


def _is_named(pid: int, guest_uuid: str) -> bool:
    return ("-uuid", guest_uuid) in itertools.pairwise(procfs.command_line(pid))


def _is_fork(pid: int) -> bool:
    """Whether a process has the command line of its parent, as a fork has until its execve(2)."""
    return procfs.command_line(procfs.parent_of(pid)) == procfs.command_line(pid)


def _user_ids(owner: str) -> frozenset[int]:
    """The user ids that a process of this owner can have.

    :param owner: a user name, or ``+`` and a number; empty if not known.
    """
    number = owner.removeprefix("+")
    if number != owner and number.isascii() and number.isdecimal():
        return frozenset({int(number)})
    try:
        return frozenset({pwd.getpwnam(owner).pw_uid})
    except KeyError:
        # Without a known user, QEMU runs as root under the system's libvirtd, or as the agent's own user
        # under the libvirtd of a session.
        return frozenset({0, os.geteuid()})
