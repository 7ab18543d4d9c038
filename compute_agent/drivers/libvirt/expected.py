"""Domains that are about to start, as libvirt's hook says: found before libvirtd tells anybody of them.

libvirtd is busy with the domain until its CPUs run, and cannot be asked about it. Its process is there well
before: it is looked for in /proc, among those that were not there when the start was announced.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.libvirt import metadata, qemu
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest import Guest

EXPECTED_SECONDS: Final = 30.0
"""How long a start that was announced may take until its process is there."""

MAX_EXPECTED: Final = 1024


@dataclass(frozen=True, slots=True)
class _ExpectedProcess:
    """``older`` are the processes that cannot be its own; ``process`` is its own once it was found."""

    guest: Guest
    owner: str
    older: frozenset[int]
    until: float
    process: ProcessIdentity | None = None


class ExpectedDomains:
    """The domains whose start was announced, for so long as that may take. For any thread."""

    def __init__(self, driver: str, usual_owner: Callable[[], str]) -> None:
        """``driver`` is the name of the driver; ``usual_owner`` tells the user of domains without a label."""
        self._driver = driver
        self._usual_owner = usual_owner
        self._lock = threading.Lock()
        self._expected: dict[str, _ExpectedProcess] = {}

    def expect(self, domain_xml: str) -> Guest:
        """Wait for the process of a domain from now on. The guest that it will be, with pid 0.

        :raises ValueError: this is not the XML of a domain, or too many are waited for.
        """
        found = metadata.describe(domain_xml)
        guest_uuid = str(uuid.UUID(found.uuid))
        guest = Guest(guest_uuid, self._driver, found.name, 0, found.settings)
        older, now = frozenset(procfs.pids()), time.monotonic()
        with self._lock:
            self._expected = {key: one for key, one in self._expected.items() if one.until > now}
            if len(self._expected) >= MAX_EXPECTED:
                raise ValueError(f"{MAX_EXPECTED} domains are about to start already")
            self._expected[guest_uuid] = _ExpectedProcess(guest, found.owner, older, now + EXPECTED_SECONDS)
        return guest

    def appeared(self) -> tuple[Sequence[Guest], bool]:
        """The guests whose processes are there now, each told once, and whether others are waited for.

        :raises DriverError: libvirtd does not say which user QEMU runs as.
        """
        with self._lock:
            now = time.monotonic()
            waiting = {key: one for key, one in self._expected.items() if not one.process and one.until > now}
        if not waiting:
            return (), False
        # before any is found, as one that is told is told once
        owners = {key: one.owner or self._usual_owner() for key, one in waiting.items()}
        found = []
        oldest = frozenset.intersection(*(one.older for one in waiting.values()))
        for pid in procfs.pids():
            if pid in oldest:
                continue
            one = waiting.get(_uuid_of(pid))
            if one is None or pid in one.older:
                continue
            process = qemu.find_process(one.guest.uuid, owners[one.guest.uuid], (pid,))
            if process is None:
                continue
            guest = replace(one.guest, pid=pid)
            with self._lock:
                if self._expected.get(guest.uuid) is not one:
                    continue  # another start was announced meanwhile, and is waited for
                self._expected[guest.uuid] = replace(one, guest=guest, process=process.identity)
            del waiting[guest.uuid]
            found.append(guest)
        return found, bool(waiting)

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The threads of a guest that was expected and is there; empty if it is not, or is another one."""
        with self._lock:
            one = self._expected.get(guest.uuid)
        if one is None or one.process is None or one.guest.pid != guest.pid:
            return frozenset()
        return procfs.thread_ids(guest.pid) if procfs.is_alive(one.process) else frozenset()


def _uuid_of(pid: int) -> str:
    """What follows ``-uuid`` on the command line of a process; empty if nothing does."""
    words = itertools.pairwise(procfs.command_line(pid))
    return next((value for word, value in words if word == "-uuid"), "")
