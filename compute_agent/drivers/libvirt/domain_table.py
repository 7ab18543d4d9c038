"""The table of running domains, and the search for the QEMU processes of domains that are starting.

One thread updates the table, and any thread is allowed to read it. While a domain starts, libvirtd answers no
questions about it, but the QEMU process already exists. The agent finds this process in /proc, among the
processes that did not exist when libvirt's hook announced the start.

Two locks protect the table. The lock ``_lock`` protects the entries, and the lock ``changing`` the values of
one entry. Code that needs both locks takes ``changing`` before ``_lock``, so that two threads cannot wait for
each other.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import ChangeKind, GuestChange
from compute_agent.drivers.libvirt import domain_metadata, qemu
from compute_agent.drivers.libvirt.connection import LibvirtConnection
from compute_agent.drivers.libvirt.domain_definition import (
    DomainDefinition,
    parse_binding,
    parse_definition,
    parse_live,
)
from compute_agent.drivers.libvirt.domain_metadata import (
    parse_constraints,
    read_flavor,
    with_pins,
)
from compute_agent.drivers.libvirt.qemu import QemuProcess
from compute_agent.drivers.libvirt.running_domain import DomainTuning, RunningDomain, find_group
from compute_agent.drivers.peer import list_changes
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest import UNCONSTRAINED, Guest, PlacementConstraints
from compute_agent.model.messages import DriverError, GuestGoneError

EXPECTED_SECONDS: Final = 30.0
"""Seconds after the announcement of a start within which the process of the domain must exist."""

# The limit protects the agent's memory, because any caller of the agent's socket can announce starts.
MAX_EXPECTED: Final = 1024


@dataclass(frozen=True, slots=True)
class _ExpectedProcess:
    """A domain with an announced start.

    :ivar guest: the guest as it will start; its pid is 0 until the process is found.
    :ivar owner: the user of the domain's process; empty means the user that libvirtd uses for domains without
        a label.
    :ivar older: the pids that existed at the announcement. None of these is the process of the domain.
    :ivar until: the time of the monotonic clock, in seconds, after which the agent no longer expects the
        start.
    :ivar is_bound: whether the definition of the domain has ``<numatune>``.
    :ivar process: the process of the domain; None until the process is found.
    """

    guest: Guest
    owner: str
    older: frozenset[int]
    until: float
    is_bound: bool = False
    process: ProcessIdentity | None = None


class ExpectedDomains:
    """The domains with an announced start, until libvirtd reports that they run.

    Any thread is allowed to call the methods.
    """

    def __init__(self, usual_owner: Callable[[], str]) -> None:
        """:param usual_owner: asks libvirtd for the user of domains without a label."""
        self._usual_owner = usual_owner
        self._lock = threading.Lock()
        self._expected: dict[str, _ExpectedProcess] = {}

    def expect_guest(self, domain_xml: str) -> Guest:
        """Register a domain that is about to start, so that find_appeared() looks for its process.

        :return: the guest that the start will make, with pid 0. The constraints of this guest are all pins
            that libvirt is about to set, including pins that the agent wrote.
        :raises ValueError: the text is not the XML of a domain, or too many domains are expected.
        """
        guest, owner = domain_metadata.describe_domain(domain_xml), domain_metadata.read_owner(domain_xml)
        pins = {role: cpus for role, cpus in parse_definition(domain_xml, True).pins.items() if cpus}
        guest = replace(guest, constraints=with_pins(UNCONSTRAINED, pins))
        is_bound = domain_metadata.parse(domain_xml).find("numatune") is not None
        # The list of pids takes a read of all of /proc, so it is made without the lock. libvirt still waits
        # for the hook, so the process of the domain cannot exist yet.
        older, now = frozenset(procfs.all_pids()), time.monotonic()
        with self._lock:
            self._expected = {key: one for key, one in self._expected.items() if one.until > now}
            if len(self._expected) >= MAX_EXPECTED:
                raise ValueError(f"{MAX_EXPECTED} domains are about to start already")
            until = now + EXPECTED_SECONDS
            self._expected[guest.uuid] = _ExpectedProcess(guest, owner, older, until, is_bound)
        return guest

    def find_appeared(self) -> tuple[Sequence[Guest], bool]:
        """The expected guests that got a process since the last call, and whether more guests are expected.

        :raises DriverError: libvirtd does not report the user of QEMU.
        """
        with self._lock:
            now = time.monotonic()
            waiting = {key: one for key, one in self._expected.items() if not one.process and one.until > now}
        if not waiting:
            return (), False
        # All owners are read before the loop: an error in the loop would lose the guests found so far, which
        # are reported only once.
        owners = {key: one.owner or self._usual_owner() for key, one in waiting.items()}
        found = []
        # A process that is older than all announcements is skipped before its command line is read.
        oldest = frozenset.intersection(*(one.older for one in waiting.values()))
        for pid in procfs.all_pids():
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
                    continue  # Another start of this guest was announced in the meantime.
                self._expected[guest.uuid] = replace(one, guest=guest, process=process.identity)
            del waiting[guest.uuid]
            found.append(guest)
        return found, bool(waiting)

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The thread ids of an expected guest with a living process; empty for other guests."""
        return procfs.thread_ids(guest.pid) if self._find_starting(guest) else frozenset()

    def bind_memory(self, guest: Guest, nodes: frozenset[int]) -> bool:
        """Bind the memory of an expected guest with a living process; return whether a value was written.

        A guest with ``<numatune>`` keeps the binding of libvirt.

        :raises OSError: the kernel refuses the nodes.
        """
        one = self._find_starting(guest)
        group = None if one is None or one.is_bound else find_group(guest.pid)
        return group is not None and group.bind_main_thread(nodes)

    def _find_starting(self, guest: Guest) -> _ExpectedProcess | None:
        with self._lock:
            one = self._expected.get(guest.uuid)
        if one is None or one.process is None or one.guest.pid != guest.pid:
            return None
        return one if procfs.is_alive(one.process) else None


def _uuid_of(pid: int) -> str:
    """The word after ``-uuid`` on the command line of a process; empty if there is no such word."""
    words = itertools.pairwise(procfs.command_line(pid))
    return next((value for word, value in words if word == "-uuid"), "")


LOG = logging.getLogger(__name__)


class DomainTable:
    """The running domains by uuid, and the domains that the driver cannot manage."""

    def __init__(self, connection: LibvirtConnection, report: Callable[[GuestChange], None]) -> None:
        """Begin without domains; look_around() finds them.

        :param report: called for each change of a guest.
        """
        self._connection = connection
        self._report = report
        self._lock = threading.Lock()
        self.changing = threading.Lock()
        """The lock that a thread holds while it reads or changes a domain. Without the lock, the table's
        thread could overwrite a change with values that it read before.

        The lock ``changing`` is taken before ``_lock``, and held during calls of libvirtd.
        """
        self._running: dict[str, RunningDomain] = {}
        self._complete = False
        """Whether all domains have been read once. A domain that is found later has started since then."""
        self._lost: dict[str, str] = {}

    # For any thread

    def all_domains(self) -> list[RunningDomain]:
        """All domains of the table, including domains that have just ended."""
        with self._lock:
            return list(self._running.values())

    def lost_guests(self) -> dict[str, str]:
        """Running domains that the driver cannot manage: a dict from the uuid to reason and remedy."""
        with self._lock:
            return dict(self._lost)

    def find_entry(self, guest: Guest) -> RunningDomain:
        """The entry of a guest. The process of the guest is not checked and may have ended.

        :raises GuestGoneError: the table's thread has seen the guest's end, or a later run of the domain.
        """
        with self._lock:
            known = self._running.get(guest.uuid)
        if known is None or known.guest.pid != guest.pid:
            raise GuestGoneError(f"guest {guest} has ended")
        return known

    def find_living(self, guest: Guest) -> RunningDomain:
        """The entry of a guest with a living process.

        :raises GuestGoneError: the guest has ended, or the domain was started again.
        """
        known = self.find_entry(guest)
        if not known.is_alive:
            raise GuestGoneError(f"guest {guest} has ended")
        return known

    def find_recent(self, guest: Guest) -> RunningDomain:
        """The same as :meth:`find_living`; comparisons of one round share the reading.

        A caller that changes the guest uses :meth:`find_living`.
        """
        known = self.find_entry(guest)
        if not known.was_alive:
            raise GuestGoneError(f"guest {guest} has ended")
        return known

    # For the table's thread

    def look_around(self, everything: bool) -> list[Any]:
        """Read the lost domains, and the domains that started or ended without an event.

        :param everything: whether to read all domains, as after an outage of libvirtd.
        :return: the running domains that have a definition, as objects of libvirt.
        :raises DriverError: libvirtd does not list its domains.
        """
        active = {domain.UUIDString(): domain for domain in self._connection.active_domains()}
        # The table is read without the lock, because only this thread changes the table.
        known = self._running.keys()
        # Lost domains are read each time, because no event reports that the cause has been corrected.
        suspects = (known | active.keys() if everything else known ^ active.keys()) | self._lost.keys()
        for guest_uuid in sorted(suspects):
            self.look_at(guest_uuid)
        self._complete = True
        persistent = [uuid for uuid, it in self._running.items() if it.definition.persistent]
        return [active[uuid] for uuid in persistent if uuid in active]

    def look_at(self, guest_uuid: str) -> None:
        """Read one domain again, update the table, and report the difference.

        :raises DriverError: the connection to libvirtd broke.
        """
        with self.changing:
            known = self._running.get(guest_uuid)
            found, reason = self._look_closely(guest_uuid)
            if reason and known is not None and known.is_alive:
                return  # The former description of the domain stays, because the domain still runs.
            before = None if known is None else known.guest
            # The same object of the process means the same run: _describe_domain() keeps the known process
            # while it lives.
            same = known is not None and found is not None and known.process is found.process
            with self._lock:
                if known is not None and found is not None and same:
                    known.describe_as(found)
                elif found is not None:
                    self._running[guest_uuid] = found
                else:
                    self._running.pop(guest_uuid, None)
                if reason:
                    self._lost[guest_uuid] = reason
                was_lost = not reason and self._lost.pop(guest_uuid, None) is not None
                if was_lost:
                    LOG.info("The agent manages domain %s again", guest_uuid)
        # The listener may read the table, so it is called without the locks.
        now = None if found is None else found.guest
        for change in list_changes(before, now, same, self._complete and not was_lost):
            self._report_change(change)

    def look_at_definition(self, domain: Any) -> None:
        """Read the definition of a domain again, and report constraints that have changed.

        :param domain: libvirt's object of the domain.
        :raises DriverError: the connection to libvirtd broke.
        """
        with self.changing:
            known = self._running.get(domain.UUIDString())
            if known is None:
                return
            try:
                # No event reports changes of block I/O and of the soft limit. The live XML is read only if
                # the agent has set one of these values and may have to repair the value.
                if known.definition.own_items:
                    known.blockio, known.soft_limit = parse_live(domain.XMLDesc(0))
                source = self._read_source(domain)
                # Most definitions have not changed, and a comparison of texts is far cheaper than parsing.
                if source == known.source:
                    return
                definition = _read_definition(domain, source)
            except (self._connection.libvirt.libvirtError, ValueError) as error:
                if not self._connection.is_open:
                    raise DriverError(f"guest {known.guest} cannot be described: {error}") from error
                if known.is_alive:
                    LOG.warning("The definition of guest %s cannot be read: %s", known.guest, error)
                return
            # If the agent's code fails on one definition, the driver must still read all other definitions.
            except Exception:
                LOG.exception("The definition of guest %s cannot be read", known.guest)
                return
            if changes := definition.changed_fields(known.definition):
                LOG.info("The definition of guest %s was changed: %s", known.guest, ", ".join(changes))
            known.source, known.definition = source, definition
            constraints = self._with_pins(known.guest.constraints, definition)
            if constraints == known.guest.constraints:
                return
            known.guest = replace(known.guest, constraints=constraints)
        self._report_change(GuestChange(ChangeKind.CHANGED, known.guest))

    def _look_closely(self, guest_uuid: str) -> tuple[RunningDomain | None, str]:
        """The present state of a domain, and the reason why the driver cannot manage the domain.

        The state is None if the domain does not run or cannot be managed. The reason is empty if the domain
        can be managed. Each reason is logged once.

        :raises DriverError: the connection to libvirtd broke.
        """
        known_reason = self._lost.get(guest_uuid)
        try:
            return self._describe_domain(guest_uuid), ""
        except DriverError as error:
            if not self._connection.is_open:
                raise
            reason = (
                f"{error}. Until that is corrected the agent does not manage the domain, which keeps"
                " its CPUs, cache and bandwidth"
            )
            if reason != known_reason:
                LOG.error("The agent does not manage a domain: %s", reason)
        except Exception as error:
            # An error in the agent's code for one domain must not keep the driver from all other domains.
            reason = f"domain {guest_uuid} cannot be described ({error!r}), and is not managed: report that"
            if reason != known_reason:
                LOG.exception("Domain %s cannot be described", guest_uuid)
        return None, reason

    def _describe_domain(self, guest_uuid: str) -> RunningDomain | None:
        """The present state of a domain; None if it does not run or its start is still under way.

        :raises DriverError: the domain cannot be described, or the connection to libvirtd broke.
        """
        domain = self._connection.find_domain(guest_uuid)
        try:
            if domain is None:
                return None
            xml = domain.XMLDesc(0)
            number = domain_metadata.run_number(xml)
            if number is None:
                return None
            guest, binding = domain_metadata.describe_domain(xml), parse_binding(xml)
            blockio, soft_limit = parse_live(xml)
            flavor = read_flavor(xml)
            source = self._read_source(domain)
            definition = _read_definition(domain, source)
            constraints = self._with_pins(parse_constraints(xml), definition)
            owner = domain_metadata.read_owner(xml) or self._connection.usual_owner()
            known = self._running.get(guest_uuid)
            if known is not None and known.is_alive:
                process: QemuProcess | None = known.process
            elif self._is_starting(domain):
                # libvirtd sends an event when the start is over. Until then libvirtd delays calls for this
                # domain for up to 30 s, and the process of the domain perhaps still runs as another user or
                # is a wrapper.
                return None
            else:
                process = qemu.find_process(guest_uuid, owner)
                # A known process that is gone means that the domain has ended and libvirtd has not noticed
                # yet. _still_runs() comes last, because it calls libvirtd.
                if process is None and (known is not None or not self._still_runs(guest_uuid, xml)):
                    return None
        except (self._connection.libvirt.libvirtError, ValueError) as error:
            # The domain ended between two calls.
            if self._connection.is_unknown_domain(error):
                return None
            raise DriverError(
                f"domain {guest_uuid} cannot be described (see virsh dumpxml): {error}"
            ) from error
        if process is None:
            raise DriverError(
                f"domain {guest_uuid} ({guest.name!r}) runs, but user {owner or os.geteuid()}, as"
                " whom libvirt starts domains, has no process with its uuid on the command line. Start"
                " the domain again: the user in qemu.conf may have changed since its start"
            )
        guest = replace(
            guest,
            pid=process.identity.pid,
            dedicated=flavor.dedicated or 0,
            dedicated_vcpus=flavor.dedicated_vcpus,
            constraints=constraints,
        )
        return RunningDomain(
            guest,
            process,
            source,
            definition,
            binding,
            blockio=blockio,
            soft_limit=soft_limit,
            number=number,
        )

    def _with_pins(
        self, constraints: PlacementConstraints, definition: DomainDefinition
    ) -> PlacementConstraints:
        return with_pins(constraints, definition.demanded_pins(self._connection.host_cpus))

    def _is_starting(self, domain: Any) -> bool:
        """Whether libvirtd is still starting the domain: it is paused before its guest CPUs first run."""
        libvirt = self._connection.libvirt
        state: list[int] = domain.state()
        return state == [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP]

    def _still_runs(self, guest_uuid: str, xml: str) -> bool:
        """Whether the domain still runs under the id in this XML; a restart changes the id."""
        domain = self._connection.find_domain(guest_uuid)
        return domain is not None and str(domain.ID()) == domain_metadata.run_number(xml)

    def _read_source(self, domain: Any) -> str:
        source: str = domain.XMLDesc(self._connection.libvirt.VIR_DOMAIN_XML_INACTIVE)
        return source

    def _report_change(self, change: GuestChange) -> None:
        guest = change.guest
        LOG.debug("libvirtd reports a change of guest %s (pid %d): %s", guest, guest.pid, change.kind)
        self._report(change)

    @contextlib.contextmanager
    def on_domain(self, known: RunningDomain, failing: str) -> Iterator[Any]:
        """Yield libvirt's object of the domain for some calls, and translate libvirt's errors.

        :param failing: the end of the sentence "guest X ..." in the error message.
        :raises GuestGoneError: the guest has ended, perhaps during the calls.
        :raises DriverError: libvirt refuses a call.
        """
        libvirt, guest_uuid = self._connection.libvirt, known.guest.uuid
        domain = self._connection.find_domain(guest_uuid)
        try:
            if domain is None:
                raise GuestGoneError(f"guest {known.guest} has ended")
            yield domain
        except libvirt.libvirtError as error:
            if not self._is_active(known):
                raise GuestGoneError(f"guest {known.guest} has ended") from error
            raise DriverError(f"guest {known.guest} {failing}: {error}") from error

    @contextlib.contextmanager
    def change_domain(self, known: RunningDomain, failing: str) -> Iterator[DomainTuning]:
        """Yield the calls that change a domain, and translate libvirt's errors like :meth:`on_domain`.

        The driver refuses these calls at once during a migration, a save or a copy of disks. Otherwise
        libvirt would refuse each call after up to 30 seconds, while all other guests wait.

        :raises DriverError: such a job runs, or libvirt refuses a call.
        """
        with self.on_domain(known, failing) as domain:
            if domain.jobInfo()[0] != self._connection.libvirt.VIR_DOMAIN_JOB_NONE:
                raise DriverError(f"guest {known.guest} {failing} while libvirt migrates, saves or copies it")
            yield DomainTuning(self._connection.libvirt, domain, self._connection.host_cpus)

    def _is_active(self, known: RunningDomain) -> bool:
        """Whether a guest still runs. libvirt can report its end before /proc no longer shows the process."""
        if not known.is_alive:
            return False
        with contextlib.suppress(DriverError, self._connection.libvirt.libvirtError):
            domain = self._connection.find_domain(known.guest.uuid)
            return domain is not None and bool(domain.isActive())
        # Without an answer of libvirtd only the process counts, and it is alive.
        return True


def _read_definition(domain: Any, source: str) -> DomainDefinition:
    """The settings in the inactive XML of a domain.

    :param source: the inactive XML.
    :raises libvirtError: libvirtd does not answer, or the domain is gone.
    :raises ValueError: a value cannot be read.
    """
    return parse_definition(source, bool(domain.isPersistent()))
