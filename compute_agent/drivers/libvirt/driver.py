"""The driver of QEMU domains: libvirtd runs them, and the driver sets CPUs, memory and block I/O.

One thread keeps the connection and a table of running domains. The thread reads a domain when libvirtd
reports an event of it, and all domains after libvirtd was away. The differences between table and domains
replace the missed events. Guests run on without libvirtd, and the table stays. libvirtd reports no changes of
definitions (``virsh schedinfo --config``, ``vcpupin --config``), so definitions are read in turn.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from compute_agent.drivers import memory_limits, procfs
from compute_agent.drivers.base import (
    UNLIMITED,
    CpuLimits,
    CpuSettings,
    GuestChange,
    GuestFlavor,
    Listener,
    MemoryLimits,
    OomKill,
)
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.libvirt import domain_definition, qemu
from compute_agent.drivers.libvirt.connection import LibvirtConnection
from compute_agent.drivers.libvirt.domain_definition import RESTRICTIVE, SOFT_LIMIT, MemoryBinding
from compute_agent.drivers.libvirt.domain_metadata import read_flavor
from compute_agent.drivers.libvirt.domain_table import DomainTable, ExpectedDomains
from compute_agent.drivers.libvirt.helpers import STATE_FOLDER, HelperFinder, HelperPins
from compute_agent.drivers.libvirt.running_domain import DomainTuning, RunningDomain
from compute_agent.drivers.memory_limits import OomScores, OomWatch
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo
from compute_agent.threads import ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

# Seconds until the next attempt to connect; the pause doubles from the first number to the second. The first
# is short, as a restart of libvirtd takes a moment, and starts of guests are not seen meanwhile.
_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 2.0

# Definitions that are read in one go, and the least seconds between two goes. A larger go costs less for each
# definition; a smaller one lets events wait less.
_LOOK_BATCH: Final = 8
_LOOK_PAUSE: Final = 0.1

# Seconds that the constructor and close() wait for the thread at most. libvirtd may hang, and the agent
# starts and stops without it.
_FIRST_LOOK: Final = 10.0
_LAST_LOOK: Final = 2.0

_POLL_SECONDS: Final = 0.02

_KIB: Final = 1024

GUESTS_THREAD: Final = ThreadSpec(
    "libvirt-guests",
    "when libvirtd reports a domain, and each 10 s for its definition; 0.1 to 2 s while libvirtd is away",
    "keeps the table of domains, and reports those that start, end or change",
    "that of changes of domains",
    "libvirtd; the queue of ``arrivals``",
)


class LibvirtDriver:
    """Guests that are domains of the libvirtd of this host, which starts and ends them."""

    name = "libvirt"

    def __init__(
        self,
        uri: str,
        look_interval: float = 10.0,
        lock: Callable[[], None] = lambda: None,
        state_folder: Path = STATE_FOLDER,
    ) -> None:
        """Connect, and look which domains run. The thread waits for a libvirtd that is away.

        :param look_interval: seconds between two looks at all domains and definitions; longer with many
            domains.
        :param lock: called before each connection; raises DriverError if another agent has the domains.
        :param state_folder: that of libvirt's driver of QEMU.
        :raises DriverError: libvirt-python is missing.
        """
        # libvirt's event thread puts uuids here; it must not call libvirt, nor wait for this driver's thread.
        self._messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._connection = LibvirtConnection(uri, self._messages.put)
        self._table = DomainTable(self.name, self._connection, self._report_change)
        self._expected = ExpectedDomains(self.name, self._connection.usual_owner)
        self._oom, self._scores = OomWatch(), OomScores()
        self._helpers = HelperPins(HelperFinder(state_folder))
        self._listener: Listener | None = None
        self._absence = ""
        self._listed = False
        self._look_interval = look_interval
        self._check_lock = lock
        self._round: list[Any] = []
        """The domains with definitions that are still to be read in this round, as objects of libvirt."""
        self._look_pause = self._next_look = 0.0
        self._stopped = threading.Event()
        tried = threading.Event()
        self._thread = start_thread(GUESTS_THREAD, partial(self._run, tried))
        # Usually the guests are known when this returns, and the agent takes them over at its start.
        tried.wait(_FIRST_LOOK)

    # What runs

    @property
    def outage_reason(self) -> str:
        """The reason why libvirtd does not answer; empty if it does."""
        if self._listed and self._connection.is_open:
            return ""
        return self._absence or f"libvirtd at {self._connection.uri} does not answer"

    def guests(self) -> Sequence[Guest]:
        """The domains that run now; while libvirtd is away, those of the table with a living process.

        :raises DriverError: libvirtd has not answered since the agent started.
        """
        if not self._listed:
            raise DriverError(self.outage_reason)
        # An end is in the table only after an event, so each process is looked at.
        return [it.guest for it in self._table.all_domains() if it.is_alive]

    def lost_guests(self) -> Mapping[str, str]:
        """The domains that run and that the driver cannot manage, by uuid, with the reason and the remedy."""
        return self._table.lost_guests()

    def read_flavor(self, guest: Guest) -> GuestFlavor:
        """The order that Nova wrote into the domain; an empty one for a domain of another program."""
        with self._on_domain(self._table.find_living(guest), "is not described") as domain:
            xml = domain.XMLDesc()
        try:
            return read_flavor(xml)
        except ValueError as error:
            raise DriverError(f"guest {guest.uuid} is not described: {error}") from error

    @property
    def host_name(self) -> str:
        """The name of this host by libvirt, which is that of its provider in Nova."""
        return self._connection.host_name

    def inactive_guests(self) -> frozenset[str]:
        """The domains that are defined and do not run."""
        return frozenset(domain.UUIDString() for domain in self._connection.inactive_domains())

    def watch_guests(self, listener: Listener) -> None:
        """Call ``listener`` for each domain that starts, ends or gets other settings later."""
        self._listener = listener

    def close(self) -> None:
        """Disconnect. Domains run on."""
        # Before the message that wakes the thread, which then looks at this.
        self._stopped.set()
        self._messages.put(None)
        if threading.current_thread() is not self._thread:
            # A thread that is in a call of a hung libvirtd is left behind; it ends with the process.
            self._thread.join(_LAST_LOOK)
        # Objects of domains keep their connection open.
        self._round = []
        self._connection.close()

    def oom_kills(self) -> Sequence[OomKill]:
        """The kernel's kills of domains since the last call, in groups of cgroup v2 that still exist."""
        for known in self._table.all_domains():
            # Kills are read from memory.events, a file of cgroup v2.
            if (group := known.domain_group) is not None and group.unified:
                self._oom.look_at_group(known.guest, GuestCgroup(group.folders[0]))
        return self._oom.take_news()

    # Life

    def stop(self, guest: Guest, timeout: float) -> None:
        """Shut the domain down by ACPI; destroy it if it still runs after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        # A guest that has ended needs no stop.
        with contextlib.suppress(GuestGoneError):
            known = self._table.find_living(guest)
            try:
                with self._on_domain(known, "cannot be shut down") as domain:
                    domain.shutdown()
            # A GuestGoneError is a DriverError as well, and here it ends the whole call.
            except GuestGoneError:
                raise
            except DriverError as error:
                LOG.warning("%s", error)  # Such as for a paused guest; it is destroyed below.
            while known.is_alive:
                if time.monotonic() >= deadline:
                    LOG.warning("Guest %s did not shut down within %s s, and was destroyed", guest, timeout)
                    with self._on_domain(known, "cannot be destroyed") as domain:
                        domain.destroy()
                    return
                time.sleep(_POLL_SECONDS)

    # Inner parts: one guest

    def _living_threads(self, guest: Guest) -> Mapping[int, qemu.ThreadRole]:
        threads = self._table.find_living(guest).process.thread_roles()
        if not threads:
            raise GuestGoneError(f"guest {guest} has ended")
        return threads

    @contextlib.contextmanager
    def _on_domain(self, known: RunningDomain, failing: str) -> Iterator[Any]:
        """The domain of a guest for some calls; libvirt's errors become the driver's.

        :param failing: the end of the sentence "guest X ...", for the error.
        :raises GuestGoneError: the guest has ended, maybe during the calls.
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

    def _domain_tuning(self, domain: Any) -> DomainTuning:
        return DomainTuning(self._connection.libvirt, domain, self._connection.host_cpus)

    def _is_active(self, known: RunningDomain) -> bool:
        """Whether a guest still runs. libvirt reports an end before the process is gone from /proc."""
        if not known.is_alive:
            return False
        with contextlib.suppress(DriverError, self._connection.libvirt.libvirtError):
            domain = self._connection.find_domain(known.guest.uuid)
            return domain is not None and bool(domain.isActive())
        # A libvirtd without an answer says nothing about the guest, and its process is alive.
        return True

    # Inner parts: the thread

    def _run(self, tried: threading.Event) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                if not self._connection.is_open:
                    # Another agent may have started while this one had no connection.
                    self._check_lock()
                    self._connection.open()
                    # Before the next event: what happened while there was no connection has no event.
                    self._table.look_around(everything=True)
                    self._next_look = time.monotonic() + self._look_interval
                    self._listed, self._absence = True, ""
                    pause = _FIRST_PAUSE
                    LOG.info("libvirtd at %s answers", self._connection.uri)
                    tried.set()
                self._handle_next()
            except DriverError as error:
                # Logged once for each reason, and not with each attempt.
                if str(error) != self._absence:
                    LOG.warning("%s; the agent tries again", error)
                self._absence = str(error)
                self._round = []  # Objects of domains keep their connection open.
                self._connection.close()
                tried.set()
                self._stopped.wait(pause)
                pause = min(2 * pause, _MAX_PAUSE)
            except Exception:
                # A defect: the thread goes on, as without it no start or end of a guest would be seen.
                LOG.exception("An answer of libvirtd could not be handled")
                self._stopped.wait(pause)

    def _handle_next(self) -> None:
        """Handle the next event of libvirtd, or the next step of a round of looks."""
        if time.monotonic() >= self._next_look:
            self._look_on()
        pause = max(self._next_look - time.monotonic(), 0.0)
        # No event has come before the next look.
        with contextlib.suppress(queue.Empty):
            if (message := self._messages.get(timeout=pause)) is not None:
                self._table.look_at(message)

    def _look_on(self) -> None:
        """Do the next step of a round: list the domains, then read some of their definitions.

        :raises DriverError: libvirtd went away.
        """
        if self._round:
            for domain in self._round[:_LOOK_BATCH]:
                self._table.look_at_definition(domain)
            del self._round[:_LOOK_BATCH]
        else:
            self._round = self._table.look_around(everything=False)
            # Spread over the interval, so that libvirtd is not busy for long at a time.
            steps = 1 + math.ceil(len(self._round) / _LOOK_BATCH)
            self._look_pause = max(self._look_interval / steps, _LOOK_PAUSE)
        self._next_look = time.monotonic() + self._look_pause

    def _report_change(self, change: GuestChange) -> None:
        if self._listener is not None:
            self._listener(change)

    # What it can

    @property
    def starting_driver(self) -> None:
        """Always None: the programs that define domains start them."""
        return

    @property
    def flavor_source(self) -> LibvirtDriver:
        """The driver itself: Nova writes its orders into the definitions of domains."""
        return self

    @property
    def expecting_driver(self) -> ExpectedDomains:
        """The domains that libvirt's hook has announced."""
        return self._expected

    # CPUs and memory

    def process_ids(self, guest: Guest) -> Sequence[int]:
        """The QEMU process only, as it starts no other processes."""
        return (guest.pid,)

    def usage_group(self, guest: Guest) -> str:
        """The outer group that libvirt made for the domain; it counts helpers of QEMU as well."""
        try:
            group = self._table.find_entry(guest).domain_group
        except GuestGoneError:
            return ""
        return str(group.folders[0]) if group is not None and group.unified else ""

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The thread ids of the domain's QEMU process, even before libvirtd has reported the domain."""
        return self._expected.thread_ids(guest) or frozenset(self._living_threads(guest))

    def vcpu_threads(self, guest: Guest) -> frozenset[int]:
        """The threads that run guest CPUs; all threads where QEMU has not named them."""
        threads = self._living_threads(guest)
        return frozenset(tid for tid, role in threads.items() if role.runs_guest) or frozenset(threads)

    def misplaced_threads(self, guest: Guest, settings: CpuSettings) -> Mapping[int, frozenset[int]]:
        """The threads with CPUs other than those that ``settings`` give their roles, each with its CPUs."""
        known = self._table.find_living(guest)
        found = {tid: has for tid, (_, has) in known.process.misplaced_threads(settings).items()}
        found |= self._helpers.misplaced_tasks(known, settings.emulator_cpus)
        # Pins that libvirt does not know yet are reported as a misplaced main thread, so that they are set
        # again through libvirt once it answers.
        if known.unreported and (has := procfs.thread_affinity(guest.pid)) is not None:
            found.setdefault(guest.pid, has)
        return found

    def definition_drift(self, guest: Guest, settings: CpuSettings) -> str:
        """The differing pins of the persistent definition, as it was last read, in words."""
        other = self._table.find_entry(guest).definition.other_pins(settings, self._connection.host_cpus)
        return f"the definition has {len(other)} other pins, such as for {next(iter(other))}" if other else ""

    def observed_cpus(self, guest: Guest) -> frozenset[int]:
        """The CPUs that the threads of the QEMU process may use, all together."""
        found = (procfs.thread_affinity(tid) for tid in self._living_threads(guest))
        return frozenset().union(*(cpus for cpus in found if cpus is not None))

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Pin the threads that run elsewhere, and write the pins into a persistent definition."""
        known = self._table.find_living(guest)
        misplaced = known.process.misplaced_threads(settings)
        roles = {role for role, _ in misplaced.values()}
        if known.unreported:
            roles.update(known.process.thread_roles().values())
        # First in the kernel, as a busy libvirtd may take seconds. Where libvirt's cpuset groups forbid the
        # new CPUs, this fails, and the calls of libvirt below do it.
        known.unreported = True
        with contextlib.suppress(DriverError):
            known.pin_rest(settings)
        moved = self._helpers.move_tasks(known, settings.emulator_cpus, is_final=False)
        with self._on_domain(known, "cannot be pinned") as domain:
            tuning = self._domain_tuning(domain)
            tuning.pin_threads(roles, settings)
            known.pin_rest(settings)
            moved += self._helpers.move_tasks(known, settings.emulator_cpus)
            with self._table.changing:
                known.note_definition(tuning.persist_pins(known.definition, settings))
        known.unreported = False
        if left := known.process.misplaced_threads(settings):
            raise DriverError(f"guest {guest} has threads that cannot be pinned: {sorted(left)}")
        return len(misplaced) + moved

    def helper_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs of processes such as swtpm, and of the kernel's threads of vhost."""
        return self._helpers.read_affinity(self._table.find_living(guest))

    def emulator_threads(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs of the threads of QEMU that run no guest CPU, and of helper_affinity()."""
        known = self._table.find_living(guest)
        return known.emulator_threads() | self._helpers.read_affinity(known)

    def move_emulator(self, guest: Guest, threads: Collection[int], cpus: frozenset[int]) -> int:
        """Move those of these threads for which the definition has pins, and helpers among them."""
        known = self._table.find_living(guest)
        host = self._connection.host_cpus
        with self._on_domain(known, "cannot be pinned") as domain:
            tuning = self._domain_tuning(domain)
            moved = known.move_threads(tuning, host, threads, cpus)
        return moved + self._helpers.move_tasks(known, cpus, only=threads)

    def moved_emulator(self, guest: Guest, online: frozenset[int]) -> Mapping[int, frozenset[int]]:
        """The threads of QEMU with other pins than the persistent definition has."""
        known = self._table.find_living(guest)
        return known.moved_threads(self._connection.host_cpus, online)

    def restore_emulator(self, guest: Guest, online: frozenset[int]) -> int:
        """Pin these by the definition again. Helpers on the same CPUs may use all that their groups allow."""
        known, host = self._table.find_living(guest), self._connection.host_cpus
        moved = known.moved_threads(host, online)
        helpers = self._helpers.read_affinity(known)
        with self._on_domain(known, "cannot be pinned") as domain:
            changed = known.restore_threads(self._domain_tuning(domain), host, online)
        together = {tid for tid, cpus in helpers.items() if cpus in moved.values()}
        return changed + self._helpers.move_tasks(known, online, only=together)

    def stuck_helpers(self, guest: Guest) -> Sequence[str]:
        """Sentences on these that could not be moved."""
        return self._helpers.list_stuck(self._table.find_living(guest))

    def vcpu_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs of the thread of each guest CPU; empty if one thread runs all guest CPUs."""
        found = {}
        for tid, role in self._living_threads(guest).items():
            if role.vcpu is not None and (cpus := procfs.thread_affinity(tid)) is not None:
                found[role.vcpu] = cpus
        return found

    def emulator_affinity(self, guest: Guest) -> frozenset[int]:
        """The CPUs of the emulator's and the I/O threads; empty where roles cannot be told apart."""
        threads = self._living_threads(guest).items()
        found = (procfs.thread_affinity(tid) for tid, role in threads if not role.runs_guest)
        return frozenset().union(*(cpus for cpus in found if cpus is not None))

    def cpu_limits(self, guest: Guest, wanted: CpuLimits) -> CpuLimits | None:
        """Weight and quota of the domain's group where they differ from those wanted.

        Foreign shares in the domain's definition, and a lower quota there, are respected.

        :raises DriverError: a quota is wanted for a domain without a group.
        """
        return self._table.find_entry(guest).other_limits(wanted)

    def apply_cpu_limits(self, guest: Guest, wanted: CpuLimits) -> bool:
        """Set weight and quota where they differ; the weight in the persistent definition as well."""
        with self._table.changing:
            known = self._table.find_living(guest)
            has, group, definition = known.other_limits(wanted), known.domain_group, known.definition
            if group is None:
                return False
            goal = group.within_kernel(definition.limits_within(wanted))
            shares = definition.shares if goal.weight is None else group.libvirt_shares(goal.weight)
            if has is None and shares == definition.shares:
                return False
            with self._on_domain(known, "does not accept CPU limits") as domain:
                tuning = self._domain_tuning(domain)
                # The definition comes first: the comparison of each round looks at the running domain alone,
                # so a crash after the other order would leave the definition unchanged.
                if shares is not None and shares != definition.shares:
                    known.note_definition(tuning.persist_shares(definition, shares))
                if has is not None:
                    try:
                        group.write_idle(has, goal)
                        tuning.limit(has, goal, group)
                        group.write_burst(has, goal)
                    except OSError as error:
                        raise DriverError(f"guest {guest} does not accept CPU limits: {error}") from error
            if left := known.other_limits(wanted):
                raise DriverError(f"libvirt did not apply {goal} to guest {guest}, which has {left}")
        return True

    def missing_limits(self, guest: Guest, wanted: CpuLimits) -> Sequence[str]:
        """Sentences about the limits that the kernel, or libvirt's kind of group, cannot have."""
        group = self._table.find_entry(guest).domain_group
        if group is None:
            return ["libvirt made no cgroup with the controller cpu for it"] if wanted.idle else []
        return group.missing_parts(wanted)

    # Memory

    def memory_nodes(self, guest: Guest, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes of the kernel's and libvirt's binding where they differ from those wanted."""
        return self._table.find_entry(guest).other_nodes(wanted)

    def bind_memory(self, guest: Guest, wanted: frozenset[int]) -> bool:
        """Bind memory to the NUMA nodes wanted, in the persistent definition as well.

        Memory that libvirt refuses to bind stays where it is, with a log line. The refusal depends on
        cgroups, on the nodes, and on the ``<numatune>`` that the domain was started with.
        """
        with self._table.changing:
            known = self._table.find_living(guest)
            if known.other_nodes(wanted) is None:
                return False
            nodes = wanted or procfs.nodes_with_memory()
            with self._on_domain(known, "cannot have its memory bound") as domain:
                tuning = self._domain_tuning(domain)
                try:
                    tuning.bind_memory(known.binding, nodes)
                except self._connection.libvirt.libvirtError as error:
                    if not self._connection.is_refusal(domain, error):
                        raise
                    known.refused = wanted
                    LOG.warning("The memory of guest %s stays where it is: %s", guest, error)
                    return False
                known.binding, known.refused = MemoryBinding(RESTRICTIVE, nodes), None
                known.note_definition(tuning.persist_binding(known.definition, nodes))
            if (left := known.other_nodes(wanted)) is not None:
                raise DriverError(f"the memory of guest {guest} is still bound to nodes {sorted(left)}")
        return True

    def memory_use(self, guest: Guest) -> None:
        """Always None: domains have no hard limit, because the need of QEMU itself is not known."""
        self._table.find_entry(guest)

    def huge_page_use(self, guest: Guest) -> Mapping[int, int]:
        """Always empty: domains have no limit of pages, as their definition fixes the number."""
        self._table.find_entry(guest)
        return {}

    def memory_limits(self, guest: Guest, wanted: MemoryLimits) -> MemoryLimits | None:
        """The ``oom_score_adj`` of the QEMU process, and the soft limit, where they differ from those wanted.

        Values that another program has set, in the definition or of the process, count as agreeing.
        """
        known = self._table.find_living(guest)
        score = self._scores.without_refused(guest, MemoryLimits(oom_score_adj=wanted.oom_score_adj))
        others = memory_limits.differing_limits(None, [guest.pid], score, known.own_limits)
        has = memory_limits.present_limits(None, [guest.pid], score)
        live, defined = _soft_limit_differs(known, wanted)
        if not (others or live or defined):
            return None
        limit = known.soft_limit if live else known.definition.soft_limit
        high = UNLIMITED if limit is None else limit * _KIB
        return replace(has, high=high if live or defined else None)

    def limit_memory(self, guest: Guest, wanted: MemoryLimits) -> bool:
        """Write the ``oom_score_adj`` of the QEMU process and the soft limit if they differ."""
        if self.memory_limits(guest, wanted) is None:
            return False
        score = self._scores.without_refused(guest, wanted)
        try:
            if score.oom_score_adj is not None:
                known = self._table.find_living(guest)
                if memory_limits.differing_limits(None, [guest.pid], score, known.own_limits):
                    self._scores.write(guest, [guest.pid], score.oom_score_adj)
                    known.own_limits = frozenset({memory_limits.OOM_SCORE})
        except OSError as error:
            raise DriverError(f"the memory of guest {guest} cannot be limited: {error}") from error
        self._set_soft_limit(guest, wanted)
        return True

    def _set_soft_limit(self, guest: Guest, wanted: MemoryLimits) -> None:
        """Set the soft limit where it differs.

        The agent notes the limit as its own first; it logs a refusal.
        """
        with self._table.changing:
            known = self._table.find_living(guest)
            live, defined = _soft_limit_differs(known, wanted)
            if not live and not defined:
                return
            kib = _soft_limit_kib(wanted)
            with self._on_domain(known, "does not accept limits of memory") as domain:
                tuning = self._domain_tuning(domain)
                try:
                    known.note_definition(tuning.note_items(known.definition, {SOFT_LIMIT}))
                    if live:
                        tuning.set_soft_limit(kib, persistent=False)
                        known.soft_limit = kib
                    if defined:
                        tuning.set_soft_limit(kib, persistent=True)
                        known.note_definition(replace(known.definition, soft_limit=kib))
                except self._connection.libvirt.libvirtError as error:
                    if not self._connection.is_refusal(domain, error):
                        raise
                    known.refused_soft_limit = str(error)
                    LOG.warning("The memory of guest %s cannot be limited: %s", guest, error)

    # Block I/O

    def blockio_drift(self, guest: Guest, wanted: BlockIo | None) -> str:
        """The differing items of block I/O of the domain and of its definition, in words."""
        known = self._table.find_entry(guest)
        live, defined = _blockio_todo(known, wanted)
        parts = [f"{item} is not {value}" for item, value in live.items()]
        return "; ".join(
            [*parts, *(f"{item} is not {value} in the definition" for item, value in defined.items())]
        )

    def apply_blockio(self, guest: Guest, wanted: BlockIo | None) -> bool:
        """Set the differing items of the domain and of its definition. The agent notes them as its own first.

        Items that libvirt refuses are not tried again: the refusal depends on cgroups and on the kernel.
        """
        with self._table.changing:
            known = self._table.find_living(guest)
            live, defined = _blockio_todo(known, wanted)
            if not live and not defined:
                return False
            with self._on_domain(known, "does not accept limits of block I/O") as domain:
                tuning = self._domain_tuning(domain)
                try:
                    known.note_definition(tuning.note_items(known.definition, {*live, *defined}))
                    tuning.set_blockio(live, persistent=False)
                    known.blockio = known.blockio.with_items(live)
                    tuning.set_blockio(defined, persistent=True)
                    definition = known.definition
                    known.note_definition(replace(definition, blockio=definition.blockio.with_items(defined)))
                except self._connection.libvirt.libvirtError as error:
                    if not self._connection.is_refusal(domain, error):
                        raise
                    known.refused_blockio = wanted, str(error)
                    raise
                known.refused_blockio = None
        return True

    def blockio_missing(self, guest: Guest, wanted: BlockIo) -> Sequence[str]:
        """Sentences about parts for which libvirt has no setting, or which it has refused."""
        refused = self._table.find_entry(guest).refused_blockio
        found = [] if refused is None or refused[0] != wanted else [f"libvirt refuses it: {refused[1]}"]
        if wanted.latency_us is not None:
            found.append("libvirt has no latency of block I/O")
        return found


def _blockio_todo(
    known: RunningDomain, wanted: BlockIo | None
) -> tuple[dict[str, domain_definition.Item], dict[str, domain_definition.Item]]:
    """The items of block I/O to set on a domain, and those to set in its definition."""
    if known.refused_blockio is not None and known.refused_blockio[0] == wanted:
        return {}, {}
    definition = known.definition
    live = domain_definition.items_to_set(known.blockio, wanted, definition.own_items)
    if not definition.persistent:
        return live, {}
    # A value that another program wrote for the next start is its wish for the running domain as well.
    theirs = definition.blockio.values.keys() - definition.own_items
    live = {item: value for item, value in live.items() if item not in theirs}
    return live, domain_definition.items_to_set(definition.blockio, wanted, definition.own_items)


def _soft_limit_kib(wanted: MemoryLimits) -> int | None:
    return None if wanted.high is None or wanted.high >= UNLIMITED else wanted.high // _KIB


def _soft_limit_differs(known: RunningDomain, wanted: MemoryLimits) -> tuple[bool, bool]:
    """Return whether to set the soft limit of the running domain, and whether that of its definition."""
    definition = known.definition
    if wanted.high is None or known.refused_soft_limit:
        return False, False
    kib, own = _soft_limit_kib(wanted), SOFT_LIMIT in definition.own_items
    if definition.soft_limit is not None and not own:
        # A limit that another program wrote for the next start is its wish for the running domain as well.
        return False, False
    live = known.soft_limit != kib and (own or known.soft_limit is None)
    defined = definition.soft_limit != kib and (own or definition.soft_limit is None)
    return live, defined and definition.persistent
