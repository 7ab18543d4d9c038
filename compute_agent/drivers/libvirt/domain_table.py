"""The table of running domains, and the search for domains that are about to start.

One thread updates the table; any thread may read it. libvirtd answers nothing about a domain until its CPUs
run, but its process exists well before. The process is found in /proc, among the processes that did not exist
when libvirt's hook announced the start.

The table is apart from the driver because two locks protect it, and both are explained here: ``_lock`` for
the entries, ``changing`` for the values of one entry. ``changing`` is taken first.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
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
    DomainDescription,
    parse_constraints,
    read_flavor,
    with_pins,
)
from compute_agent.drivers.libvirt.qemu import QemuProcess
from compute_agent.drivers.libvirt.running_domain import RunningDomain
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.guest import UNCONSTRAINED, Guest, PlacementConstraints
from compute_agent.model.guest_settings import SettingSource
from compute_agent.model.messages import DriverError, GuestGoneError

EXPECTED_SECONDS: Final = 30.0
"""Seconds that an announced start may take until its process is there."""

# A bound on the memory that announcements through the agent's socket can take.
MAX_EXPECTED: Final = 1024


@dataclass(frozen=True, slots=True)
class _ExpectedProcess:
    """A domain that is about to start.

    :ivar owner: the user of its process; empty: libvirt's usual one.
    :ivar older: the pids that existed at the announcement. None of these is the process of the domain. :ivar
        until: the monotonic second at which it is given up. :ivar process: its process, once it was found.
    """

    guest: Guest
    owner: str
    older: frozenset[int]
    until: float
    process: ProcessIdentity | None = None


class ExpectedDomains:
    """The domains with an announced start, until it is over or given up. For any thread."""

    def __init__(self, driver: str, usual_owner: Callable[[], str]) -> None:
        """Expect no domain yet.

        :param driver: the name of the driver, for guests.
        :param usual_owner: asks libvirtd for the user of domains without a label.
        """
        self._driver = driver
        self._usual_owner = usual_owner
        self._lock = threading.Lock()
        self._expected: dict[str, _ExpectedProcess] = {}

    def expect_guest(self, domain_xml: str) -> Guest:
        """Wait for the process of a domain from now on.

        :return: the guest that it will be, with pid 0. The constraints of the guest are all pins that libvirt
            is about to set, including those of the agent.
        :raises ValueError: the text is not the XML of a domain, or too many domains are expected.
        """
        found = domain_metadata.describe_domain(domain_xml)
        guest_uuid = str(uuid.UUID(found.uuid))
        pins = {role: cpus for role, cpus in parse_definition(domain_xml, True).pins.items() if cpus}
        constraints = with_pins(UNCONSTRAINED, pins)
        guest = replace(_make_guest(found, guest_uuid, self._driver, 0), constraints=constraints)
        # Outside of the lock, as this reads all of /proc. The hook holds the start up meanwhile, so the
        # process of the domain cannot be among these.
        older, now = frozenset(procfs.all_pids()), time.monotonic()
        with self._lock:
            self._expected = {key: one for key, one in self._expected.items() if one.until > now}
            if len(self._expected) >= MAX_EXPECTED:
                raise ValueError(f"{MAX_EXPECTED} domains are about to start already")
            self._expected[guest_uuid] = _ExpectedProcess(guest, found.owner, older, now + EXPECTED_SECONDS)
        return guest

    def find_appeared(self) -> tuple[Sequence[Guest], bool]:
        """The expected guests that have a process now, each reported once, and whether others are expected.

        :raises DriverError: libvirtd does not report the user of QEMU.
        """
        with self._lock:
            now = time.monotonic()
            waiting = {key: one for key, one in self._expected.items() if not one.process and one.until > now}
        if not waiting:
            return (), False
        # All owners first: an error in the loop below would lose guests that were found and are reported
        # once.
        owners = {key: one.owner or self._usual_owner() for key, one in waiting.items()}
        found = []
        # Processes older than all announcements need no look at their command lines.
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
                    continue  # Another start of this guest was announced meanwhile.
                self._expected[guest.uuid] = replace(one, guest=guest, process=process.identity)
            del waiting[guest.uuid]
            found.append(guest)
        return found, bool(waiting)

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The threads of an expected guest with a process; empty for all other guests."""
        with self._lock:
            one = self._expected.get(guest.uuid)
        if one is None or one.process is None or one.guest.pid != guest.pid:
            return frozenset()
        return procfs.thread_ids(guest.pid) if procfs.is_alive(one.process) else frozenset()


def _uuid_of(pid: int) -> str:
    """The word after ``-uuid`` on the command line of a process; empty without one."""
    words = itertools.pairwise(procfs.command_line(pid))
    return next((value for word, value in words if word == "-uuid"), "")


LOG = logging.getLogger(__name__)


class DomainTable:
    """The domains that run, by uuid."""

    def __init__(
        self, driver: str, connection: LibvirtConnection, report: Callable[[GuestChange], None]
    ) -> None:
        """Begin without domains; look_around() finds them.

        :param driver: the name of the driver, for guests.
        :param report: called for each change of a guest.
        """
        self._driver = driver
        self._connection = connection
        self._report = report
        self._lock = threading.Lock()
        self.changing = threading.Lock()
        """Held while a domain is read or changed, so that a look does not undo the note of a change.

        This lock is taken before the lock of the entries, and held during calls of libvirtd.
        """
        self._running: dict[str, RunningDomain] = {}
        self._complete = False
        """Whether all domains have been looked at once. A domain that is new after that has started."""
        self._lost: dict[str, str] = {}

    # For any thread

    def all_domains(self) -> list[RunningDomain]:
        """The domains with an end that was not seen yet."""
        with self._lock:
            return list(self._running.values())

    def lost_guests(self) -> dict[str, str]:
        """The domains that run and that the driver cannot manage, by uuid, with the reason and the remedy."""
        with self._lock:
            return dict(self._lost)

    def find_entry(self, guest: Guest) -> RunningDomain:
        """The domain of a guest, without a look at its process.

        :raises GuestGoneError: the guest's end was seen, or another run of it is known.
        """
        with self._lock:
            known = self._running.get(guest.uuid)
        if known is None or known.guest.pid != guest.pid:
            raise GuestGoneError(f"guest {guest} has ended")
        return known

    def find_living(self, guest: Guest) -> RunningDomain:
        """The domain of a guest that runs.

        :raises GuestGoneError: the guest has ended, or another run of it is known.
        """
        known = self.find_entry(guest)
        if not known.is_alive:
            raise GuestGoneError(f"guest {guest} has ended")
        return known

    # For the thread that looks

    def look_around(self, everything: bool) -> list[Any]:
        """Look at the domains that came or went without an event.

        :param everything: whether to look at all domains, as after libvirtd was away.
        :return: the domains with a definition, as objects of libvirt.
        :raises DriverError: libvirtd does not list its domains.
        """
        active = {domain.UUIDString(): domain for domain in self._connection.active_domains()}
        # Read without the lock: only this thread changes the table.
        known = self._running.keys()
        # Lost domains are looked at each time: no event tells that their fault was mended.
        suspects = (known | active.keys() if everything else known ^ active.keys()) | self._lost.keys()
        for guest_uuid in sorted(suspects):
            self.look_at(guest_uuid)
        self._complete = True
        persistent = [uuid for uuid, it in self._running.items() if it.definition.persistent]
        return [active[uuid] for uuid in persistent if uuid in active]

    def look_at(self, guest_uuid: str) -> None:
        """Read one domain again, update the table, and report the difference.

        :raises DriverError: libvirtd went away.
        """
        with self.changing:
            known = self._running.get(guest_uuid)
            found, reason = self._look_closely(guest_uuid)
            if reason and known is not None and known.is_alive:
                return  # It runs, and its former description is good enough.
            before = None if known is None else known.guest
            # The same object is the same run, because _describe_domain() keeps the known process while it is
            # alive.
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
        # Reported without the locks, as the listener may ask the table.
        if before is not None and not same:
            self._report_change(ChangeKind.STOPPED, before)
        if found is not None and before != found.guest:
            has_started = before is not None or (self._complete and not was_lost)
            new = ChangeKind.STARTED if has_started else ChangeKind.FOUND
            self._report_change(ChangeKind.CHANGED if same else new, found.guest)

    def look_at_definition(self, domain: Any) -> None:
        """Read the definition of a domain again, and report changed constraints.

        :param domain: libvirt's object.
        :raises DriverError: libvirtd went away.
        """
        with self.changing:
            known = self._running.get(domain.UUIDString())
            if known is None:
                return
            try:
                # No event tells changes of these limits. Without own ones there is nothing to repair, and the
                # call is saved.
                if known.definition.own_items:
                    known.blockio, known.soft_limit = parse_live(domain.XMLDesc(0))
                source = self._read_source(domain)
                # Comparing texts is far cheaper than parsing, and mostly nothing has changed.
                if source == known.source:
                    return
                definition = _read_definition(domain, source)
            except (self._connection.libvirt.libvirtError, ValueError) as error:
                if not self._connection.is_open:
                    raise DriverError(f"guest {known.guest} cannot be described: {error}") from error
                if known.is_alive:
                    LOG.warning("The definition of guest %s cannot be read: %s", known.guest, error)
                return
            # A defect that one definition meets must not keep the driver from all others.
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
        self._report_change(ChangeKind.CHANGED, known.guest)

    def _look_closely(self, guest_uuid: str) -> tuple[RunningDomain | None, str]:
        """The present state of a domain, and the reason why the driver cannot manage it, logged once.

        None if it does not run, as far as the driver can see.

        :raises DriverError: libvirtd went away.
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
                LOG.error("%s", reason)
        except Exception as error:
            # A defect that one domain's XML meets must not keep the driver from all other domains.
            reason = f"domain {guest_uuid} cannot be described ({error!r}), and is not managed: report that"
            if reason != known_reason:
                LOG.exception("Domain %s cannot be described", guest_uuid)
        return None, reason

    def _describe_domain(self, guest_uuid: str) -> RunningDomain | None:
        """The present state of a domain; None if it does not run.

        :raises DriverError: the domain cannot be described, or libvirtd went away.
        """
        domain = self._connection.find_domain(guest_uuid)
        try:
            if domain is None:
                return None
            xml = domain.XMLDesc(0)
            number = domain_metadata.run_number(xml)
            if number is None:
                return None
            description, binding = domain_metadata.describe_domain(xml), parse_binding(xml)
            blockio, soft_limit = parse_live(xml)
            flavor = read_flavor(xml)
            source = self._read_source(domain)
            definition = _read_definition(domain, source)
            constraints = self._with_pins(parse_constraints(xml), definition)
            owner = description.owner or self._connection.usual_owner()
            known = self._running.get(guest_uuid)
            if known is not None and known.is_alive:
                process: QemuProcess | None = known.process
            elif self._is_starting(domain):
                # An event comes when its start is over. Until then libvirtd holds calls on it up for as long
                # as 30 s, and its process may belong to another user yet, or be a wrapper that starts others.
                return None
            else:
                process = qemu.find_process(guest_uuid, owner)
                # A known process that is gone has ended before libvirtd noticed: so has the domain, and the
                # next look finds its next start. _still_runs() comes last, as it is a call of libvirtd.
                if process is None and (known is not None or not self._still_runs(guest_uuid, xml)):
                    return None
        except (self._connection.libvirt.libvirtError, ValueError) as error:
            # It has ended between two of the calls.
            if self._connection.is_unknown_domain(error):
                return None
            raise DriverError(
                f"domain {guest_uuid} cannot be described (see virsh dumpxml): {error}"
            ) from error
        if process is None:
            raise DriverError(
                f"domain {guest_uuid} ({description.name!r}) runs, but user {owner or os.geteuid()}, as"
                " whom libvirt starts domains, has no process with its uuid on the command line. Start"
                " the domain again: the user in qemu.conf may have changed since its start"
            )
        guest = replace(
            _make_guest(description, guest_uuid, self._driver, process.identity.pid),
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
        """Whether the start of a domain is under way."""
        libvirt = self._connection.libvirt
        state: list[int] = domain.state()
        return state == [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP]

    def _still_runs(self, guest_uuid: str, xml: str) -> bool:
        """Whether the run with this XML goes on. A domain that was started again has another id."""
        domain = self._connection.find_domain(guest_uuid)
        return domain is not None and str(domain.ID()) == domain_metadata.run_number(xml)

    def _read_source(self, domain: Any) -> str:
        source: str = domain.XMLDesc(self._connection.libvirt.VIR_DOMAIN_XML_INACTIVE)
        return source

    def _report_change(self, kind: ChangeKind, guest: Guest) -> None:
        LOG.debug("Guest %s (pid %d) %s", guest, guest.pid, kind)
        self._report(GuestChange(kind, guest))


def _make_guest(found: DomainDescription, guest_uuid: str, driver: str, pid: int) -> Guest:
    """The guest of a domain, with its declared settings."""
    return Guest(
        guest_uuid,
        driver,
        found.name,
        pid,
        found.settings,
        identity=found.identity,
        declared=found.declared,
        declared_by=SettingSource.DOMAIN,
        declared_problems=found.problems,
        devices=found.devices,
    )


def _read_definition(domain: Any, source: str) -> DomainDefinition:
    """The definition of a domain from its inactive XML.

    :raises libvirtError:
    :raises ValueError:
    """
    return parse_definition(source, bool(domain.isPersistent()))
