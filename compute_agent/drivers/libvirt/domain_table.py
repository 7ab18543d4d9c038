"""The table of running domains, and the search for domains that are about to start.

One thread updates the table; any thread may read it. libvirtd cannot be asked about a domain until its CPUs
run. Its process exists well before: it is looked for in /proc, among the processes that were not there when
libvirt's hook announced the start.
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

    def expect_guest(self, domain_xml: str) -> Guest:
        """Wait for the process of a domain from now on. The guest that it will be, with pid 0.

        Its constraints are all pins that libvirt is about to set, those of the agent included.

        :raises ValueError: this is not the XML of a domain, or too many are waited for.
        """
        found = domain_metadata.describe_domain(domain_xml)
        guest_uuid = str(uuid.UUID(found.uuid))
        pins = {role: cpus for role, cpus in parse_definition(domain_xml, True).pins.items() if cpus}
        constraints = with_pins(UNCONSTRAINED, pins)
        guest = replace(_make_guest(found, guest_uuid, self._driver, 0), constraints=constraints)
        older, now = frozenset(procfs.all_pids()), time.monotonic()
        with self._lock:
            self._expected = {key: one for key, one in self._expected.items() if one.until > now}
            if len(self._expected) >= MAX_EXPECTED:
                raise ValueError(f"{MAX_EXPECTED} domains are about to start already")
            self._expected[guest_uuid] = _ExpectedProcess(guest, found.owner, older, now + EXPECTED_SECONDS)
        return guest

    def find_appeared(self) -> tuple[Sequence[Guest], bool]:
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


LOG = logging.getLogger(__name__)


class DomainTable:
    """The domains that run, by uuid."""

    def __init__(
        self, driver: str, connection: LibvirtConnection, report: Callable[[GuestChange], None]
    ) -> None:
        """``driver`` is the name of the driver that guests have; ``report`` hears what happens to them."""
        self._driver = driver
        self._connection = connection
        self._report = report
        self._lock = threading.Lock()
        self.changing = threading.Lock()
        """Held while what is known of a domain is read or made to be another, so that neither is undone."""
        self._running: dict[str, RunningDomain] = {}
        self._complete = False
        """Whether all domains have been looked at once: what is new since then has started."""
        self._lost: dict[str, str] = {}

    # For any thread

    def all_domains(self) -> list[RunningDomain]:
        """The domains, as far as their ends have been seen."""
        with self._lock:
            return list(self._running.values())

    def lost_guests(self) -> dict[str, str]:
        """The domains that run and cannot be looked after, by uuid, with the reason and what to do."""
        with self._lock:
            return dict(self._lost)

    def find_entry(self, guest: Guest) -> RunningDomain:
        """The domain of a guest, as far as its end has been seen.

        :raises GuestGoneError:
        """
        with self._lock:
            known = self._running.get(guest.uuid)
        if known is None or known.guest.pid != guest.pid:
            raise GuestGoneError(f"guest {guest} has ended")
        return known

    def find_living(self, guest: Guest) -> RunningDomain:
        """The domain of a guest.

        :raises GuestGoneError: it is not this one that runs.
        """
        known = self.find_entry(guest)
        if not known.is_alive:
            raise GuestGoneError(f"guest {guest} has ended")
        return known

    # For the thread that looks

    def look_around(self, anew: bool) -> list[Any]:
        """Look at domains of which no event told; with ``anew`` at all of them.

        The domains that have a definition, as libvirt's.

        :raises DriverError:
        """
        active = {domain.UUIDString(): domain for domain in self._connection.active_domains()}
        known = self._running.keys()
        suspects = (known | active.keys() if anew else known ^ active.keys()) | self._lost.keys()
        for guest_uuid in sorted(suspects):
            self.look_at(guest_uuid)
        self._complete = True
        persistent = [uuid for uuid, it in self._running.items() if it.definition.persistent]
        return [active[uuid] for uuid in persistent if uuid in active]

    def look_at(self, guest_uuid: str) -> None:
        """Bring the table in line with one domain, and tell what is new.

        :raises DriverError: libvirtd went away.
        """
        with self.changing:
            known = self._running.get(guest_uuid)
            found, reason = self._look_closely(guest_uuid)
            if reason and known is not None and known.is_alive:
                return  # it is looked after as it was
            before = None if known is None else known.guest
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
                    LOG.info("Domain %s is not lost any more", guest_uuid)
        if before is not None and not same:
            self._report_change(ChangeKind.STOPPED, before)
        if found is not None and before != found.guest:
            has_started = before is not None or (self._complete and not was_lost)
            new = ChangeKind.STARTED if has_started else ChangeKind.FOUND
            self._report_change(ChangeKind.CHANGED if same else new, found.guest)

    def look_at_definition(self, domain: Any) -> None:
        """Take up the definition of libvirt's ``domain`` if it is another one.

        :raises DriverError: libvirtd went away.
        """
        with self.changing:
            known = self._running.get(domain.UUIDString())
            if known is None:
                return
            try:
                if known.definition.own_items:  # of changes of these limits libvirtd does not tell either
                    known.blockio, known.soft_limit = parse_live(domain.XMLDesc(0))
                source = self._read_source(domain)
                if source == known.source:
                    return
                definition = _read_definition(domain, source)
            except (self._connection.libvirt.libvirtError, ValueError) as error:
                if not self._connection.is_open:
                    raise DriverError(f"guest {known.guest} cannot be described: {error}") from error
                if known.is_alive:
                    LOG.warning("The definition of guest %s cannot be read: %s", known.guest, error)
                return
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
        """A domain as it runs now, and why it cannot be looked after; the log says that once.

        None if it does not run, as far as can be seen.

        :raises DriverError: libvirtd went away.
        """
        known_reason = self._lost.get(guest_uuid)
        try:
            return self._describe_domain(guest_uuid), ""
        except DriverError as error:
            if not self._connection.is_open:
                raise
            reason = f"{error}. Until that is mended it is not looked after, and keeps what it holds"
            if reason != known_reason:
                LOG.error("%s", reason)
        except Exception as error:  # what nobody thought of is this domain's alone: the others are looked at
            reason = (
                f"domain {guest_uuid} cannot be described ({error!r}), and is not looked after: report that"
            )
            if reason != known_reason:
                LOG.exception("Domain %s cannot be described", guest_uuid)
        return None, reason

    def _describe_domain(self, guest_uuid: str) -> RunningDomain | None:
        """A domain as it runs now; None if it does not.

        :raises DriverError:
        """
        domain = self._connection.find_domain(guest_uuid)
        try:
            if domain is None:
                return None
            xml = domain.XMLDesc(0)
            if domain_metadata.run_number(xml) is None:
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
                # An event comes when its start is over. Until then changes of it would wait in libvirtd, for
                # 30 s, and its process may be none of its user's, or a wrapper that starts others.
                return None
            else:
                process = qemu.find_process(guest_uuid, owner)
                # A known process that is gone may have ended before libvirtd noticed: the domain has ended,
                # and the next look finds another start of it. Last, as it asks libvirtd.
                if process is None and (known is not None or not self._still_runs(guest_uuid, xml)):
                    return None
        except (self._connection.libvirt.libvirtError, ValueError) as error:
            raise DriverError(
                f"domain {guest_uuid} cannot be described (see virsh dumpxml): {error}"
            ) from error
        if process is None:
            raise DriverError(
                f"domain {guest_uuid} ({description.name!r}) runs, but no process with its uuid on the"
                f" command line is that of user {owner or os.geteuid()}, as libvirt has it: start it anew,"
                " as the user in qemu.conf may have been another one when it started"
            )
        guest = replace(
            _make_guest(description, guest_uuid, self._driver, process.identity.pid),
            dedicated=flavor.dedicated or 0,
            dedicated_vcpus=flavor.dedicated_vcpus,
            constraints=constraints,
        )
        return RunningDomain(
            guest, process, source, definition, binding, blockio=blockio, soft_limit=soft_limit
        )

    def _with_pins(
        self, constraints: PlacementConstraints, definition: DomainDefinition
    ) -> PlacementConstraints:
        return with_pins(constraints, definition.demanded_pins(self._connection.host_cpus))

    def _is_starting(self, domain: Any) -> bool:
        """Whether the start of a domain is not over yet."""
        libvirt = self._connection.libvirt
        state: list[int] = domain.state()
        return state == [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP]

    def _still_runs(self, guest_uuid: str, xml: str) -> bool:
        """Whether the run that has this XML goes on: a domain that was started anew has another number."""
        domain = self._connection.find_domain(guest_uuid)
        return domain is not None and str(domain.ID()) == domain_metadata.run_number(xml)

    def _read_source(self, domain: Any) -> str:
        source: str = domain.XMLDesc(self._connection.libvirt.VIR_DOMAIN_XML_INACTIVE)
        return source

    def _report_change(self, kind: ChangeKind, guest: Guest) -> None:
        LOG.debug("Guest %s (pid %d) %s", guest, guest.pid, kind)
        self._report(GuestChange(kind, guest))


def _make_guest(found: DomainDescription, guest_uuid: str, driver: str, pid: int) -> Guest:
    """The guest that a domain is, with what its description declares."""
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
    )


def _read_definition(domain: Any, source: str) -> DomainDefinition:
    """The definition of a domain from its inactive XML.

    :raises libvirtError:
    :raises ValueError:
    """
    return parse_definition(source, bool(domain.isPersistent()))
