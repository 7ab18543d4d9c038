"""The driver of QEMU domains: libvirtd runs them, and the driver sets their CPUs, memory and block I/O.

One thread keeps the connection to libvirtd and the table of running domains. The thread reads a domain when
libvirtd reports an event, and all domains after an outage of libvirtd. The thread recognises missed events
by the differences between the table and the domains. Guests continue to run without libvirtd, and the table
keeps them. libvirtd reports no changes of definitions (``virsh schedinfo --config``, ``vcpupin --config``),
so the thread reads all definitions in turn.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import (
    CpuLimits,
    CpuSettings,
    GuestFlavor,
    MemoryLimits,
    OomKill,
)
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.foreign.records import ValueRecords
from compute_agent.drivers.libvirt import domain_definition, qemu
from compute_agent.drivers.libvirt.connection import LibvirtConnection
from compute_agent.drivers.libvirt.domain_definition import RESTRICTIVE, MemoryBinding
from compute_agent.drivers.libvirt.domain_memory import DomainMemory
from compute_agent.drivers.libvirt.domain_metadata import DRIVER, read_flavor
from compute_agent.drivers.libvirt.domain_table import DomainTable, ExpectedDomains
from compute_agent.drivers.libvirt.helpers import STATE_FOLDER, HelperPins
from compute_agent.drivers.libvirt.running_domain import RunningDomain
from compute_agent.drivers.memory_limits import OomWatch
from compute_agent.drivers.peer import PeerDriver
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo
from compute_agent.threads import ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

# The number of definitions in a batch, and the shortest pause in seconds between two batches. Larger batches
# cost less time for each definition, but delay the handling of events.
_LOOK_BATCH: Final = 8
_LOOK_PAUSE: Final = 0.1

GUESTS_THREAD: Final = ThreadSpec(
    "libvirt-guests",
    "when libvirtd reports a domain, and each 10 s for its definition; 0.1 to 2 s while it does not answer",
    "keeps the table of domains, and reports those that start, end or change",
    "that of changes of domains",
    "libvirtd; the queue of ``arrivals``",
)


class LibvirtDriver(PeerDriver):
    """The driver of guests that are domains of the libvirtd of this host."""

    name = DRIVER
    peer_name = "libvirtd"
    subjects = "Domains"

    def __init__(
        self,
        uri: str,
        look_interval: float = 10.0,
        lock: Callable[[], None] = lambda: None,
        state_folder: Path = STATE_FOLDER,
        records: ValueRecords | None = None,
    ) -> None:
        """Start the thread that connects and lists the running domains.

        The thread waits while libvirtd does not answer.

        :param uri: the URI of libvirtd.
        :param look_interval: the minimum time in seconds of one round, in which the thread lists all domains
            and reads each definition once.
        :param lock: called before each connection; raises DriverError if another agent manages the domains.
        :param state_folder: the state folder of libvirt's driver of QEMU, with the pid files of helpers.
        :param records: the runs of domains in which the agent has set ``oom_score_adj``; None means that the
            agent forgets them when this driver is closed.
        :raises DriverError: libvirt-python is missing.
        """
        super().__init__(look_interval, lock)
        # libvirt's event thread puts the uuids of domains with an event into this queue. That thread must
        # neither call libvirt nor wait for the driver's thread.
        self._messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._peer = self._connection = LibvirtConnection(uri, self._messages.put)
        self._table = DomainTable(self._connection, self._report_change)
        self._expected = ExpectedDomains(self._connection.usual_owner)
        self._oom = OomWatch()
        notes = ValueRecords(Path(os.devnull), "domain", True) if records is None else records
        self._memory = DomainMemory(self._connection, self._table, notes)
        self._helpers = HelperPins(state_folder)
        self._round: list[Any] = []
        """The domains with definitions that are still to be read in this round, as objects of libvirt."""
        self._look_pause = 0.0
        self._await_look(start_thread(GUESTS_THREAD, self._follow_peer))

    def _silence_text(self) -> str:
        return f"libvirtd at {self._connection.uri} does not answer"

    def _connected_text(self) -> str:
        return f"libvirtd at {self._connection.uri} answers"

    # Running guests

    def _living_guests(self) -> Sequence[Guest]:
        return [it.guest for it in self._table.all_domains() if it.was_alive]

    def lost_guests(self) -> Mapping[str, str]:
        """Running domains that the driver cannot manage: a dict from the uuid to reason and remedy."""
        return self._table.lost_guests()

    def excluded_guests(self) -> Mapping[str, str]:
        """Always empty: the driver excludes none of its guests."""
        return {}

    def read_flavor(self, guest: Guest) -> GuestFlavor:
        """The flavor that Nova wrote into the domain; an empty flavor for a guest of another program."""
        if guest.driver != self.name:
            return GuestFlavor()
        with self._table.on_domain(self._table.find_living(guest), "is not described") as domain:
            xml = domain.XMLDesc()
        try:
            return read_flavor(xml)
        except ValueError as error:
            raise DriverError(f"guest {guest.uuid} is not described: {error}") from error

    @property
    def host_name(self) -> str:
        """The host name that libvirt reports. Nova gives the same name to the host's resource provider."""
        return self._connection.host_name

    def inactive_guests(self) -> frozenset[str]:
        """The uuids of the domains that are defined and do not run."""
        return frozenset(domain.UUIDString() for domain in self._connection.inactive_domains())

    def oom_kills(self) -> Sequence[OomKill]:
        """The OOM kills of running domains since the last call. Only domains in cgroup v2 are counted."""
        for known in self._table.all_domains():
            # Kills are read from memory.events, a file of cgroup v2.
            if (group := known.domain_group) is not None and group.unified:
                self._oom.look_at_group(known.guest, GuestCgroup(group.folders[0]))
        return self._oom.take_news()

    # Life

    def stop(self, guest: Guest, timeout: float) -> None:
        """Shut the domain down by ACPI; destroy it if it still runs after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        # A guest that has already ended needs no stop.
        with contextlib.suppress(GuestGoneError):
            known = self._table.find_living(guest)
            try:
                with self._table.on_domain(known, "cannot be shut down") as domain:
                    domain.shutdown()
            # GuestGoneError is also a DriverError. It is raised again, because it must end the whole call.
            except GuestGoneError:
                raise
            except DriverError as error:
                # A paused guest, for example, does not react to shutdown(). The code below destroys such a
                # guest.
                LOG.warning("A guest cannot shut down, and is destroyed after the grace period: %s", error)
            if not procfs.await_end(lambda: known.is_alive, deadline - time.monotonic()):
                LOG.warning("Guest %s did not shut down within %s s, and is destroyed", guest, timeout)
                with self._table.on_domain(known, "cannot be destroyed") as domain:
                    domain.destroy()

    # Inner parts: one guest

    def _living_threads(self, guest: Guest) -> Mapping[int, qemu.ThreadRole]:
        return _list_roles(self._table.find_living(guest))

    def _recent_roles(self, guest: Guest) -> Mapping[int, qemu.ThreadRole]:
        return procfs.read_shared((self.name, guest.pid), _list_roles, self._table.find_recent(guest))

    # Inner parts: the thread

    def _wake_thread(self) -> None:
        self._messages.put(None)

    def _read_all(self) -> None:
        self._table.look_around(everything=True)
        self._next_look = time.monotonic() + self._look_interval

    def _close_peer(self) -> None:
        # The list is cleared, because libvirt's objects of domains keep their connection open.
        self._round = []
        super()._close_peer()

    def _handle_changes(self) -> None:
        # One event of libvirtd, or one step of reading all definitions.
        if time.monotonic() >= self._next_look:
            self._look_on()
        pause = max(self._next_look - time.monotonic(), 0.0)
        # queue.Empty means that no event arrived before the time of the next step.
        with contextlib.suppress(queue.Empty):
            if (message := self._messages.get(timeout=pause)) is not None:
                self._table.look_at(message)

    def _look_on(self) -> None:
        """Do the next step of a round over all domains: list the domains, or read the next few definitions.

        :raises DriverError: libvirtd went away.
        """
        if self._round:
            for domain in self._round[:_LOOK_BATCH]:
                self._table.look_at_definition(domain)
            del self._round[:_LOOK_BATCH]
        else:
            self._round = self._table.look_around(everything=False)
            self._memory.forget_ended()
            # The steps are spread over the interval, so that libvirtd is never busy for long.
            steps = 1 + math.ceil(len(self._round) / _LOOK_BATCH)
            self._look_pause = max(self._look_interval / steps, _LOOK_PAUSE)
        self._next_look = time.monotonic() + self._look_pause

    # Abilities of the driver

    @property
    def flavor_source(self) -> LibvirtDriver:
        """The driver itself: Nova writes the flavors of guests into the definitions of domains."""
        return self

    @property
    def expecting_driver(self) -> ExpectedDomains:
        """The domains that libvirt's hook has announced."""
        return self._expected

    # CPUs and memory

    def process_ids(self, guest: Guest) -> Sequence[int]:
        """The pid of QEMU alone. Helpers, which libvirtd starts as other processes, are left out."""
        return (guest.pid,)

    def usage_group(self, guest: Guest) -> str:
        """The outermost group that libvirt made for the domain. The counters include helpers of QEMU."""
        try:
            group = self._table.find_entry(guest).domain_group
        except GuestGoneError:
            return ""
        return str(group.folders[0]) if group is not None and group.unified else ""

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The thread ids of the domain's QEMU process, also if so far only the hook announced the domain."""
        return self._expected.thread_ids(guest) or frozenset(self._living_threads(guest))

    def recent_threads(self, guest: Guest) -> frozenset[int]:
        """The same as :meth:`thread_ids`; comparisons of one round share the list."""
        expected = self._expected.thread_ids(guest)
        return expected or frozenset(self._recent_roles(guest))

    def vcpu_threads(self, guest: Guest) -> frozenset[int]:
        """The threads that run guest CPUs; all threads if the names of threads do not tell which do."""
        threads = self._living_threads(guest)
        return frozenset(tid for tid, role in threads.items() if role.runs_guest) or frozenset(threads)

    def misplaced_threads(self, guest: Guest, settings: CpuSettings) -> Mapping[int, frozenset[int]]:
        """The present CPUs of each thread with other pins than ``settings`` say, by thread id."""
        known = self._table.find_recent(guest)
        roles = self._recent_roles(guest)
        found = {tid: has for tid, (_, has) in qemu.misplaced_threads(roles, settings).items()}
        found |= self._helpers.misplaced_tasks(known, settings.emulator_cpus, roles.keys())
        # If the agent pinned threads in the kernel and libvirt does not know these pins yet, the main thread
        # is reported as misplaced. So apply_cpu_settings() is called again, and sets the pins through libvirt
        # once libvirtd answers.
        if known.unreported and (has := procfs.thread_affinity(guest.pid)) is not None:
            found.setdefault(guest.pid, has)
        return found

    def definition_drift(self, guest: Guest, settings: CpuSettings) -> str:
        """A message about pins in the persistent definition, as last read, that differ from ``settings``."""
        other = self._table.find_entry(guest).definition.other_pins(settings, self._connection.host_cpus)
        return f"the definition has {len(other)} other pins, such as for {next(iter(other))}" if other else ""

    def observed_cpus(self, guest: Guest) -> frozenset[int]:
        """The CPUs that at least one thread of the QEMU process may use."""
        return frozenset().union(*procfs.thread_affinities(self._living_threads(guest)).values())

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Pin the threads that may run on other CPUs, and write the pins into the persistent definition."""
        known = self._table.find_living(guest)
        misplaced = known.process.misplaced_threads(settings)
        roles = {role for role, _ in misplaced.values()}
        if known.unreported:
            roles.update(known.process.thread_roles().values())
        # A busy libvirtd can take seconds for a call, so the threads are first pinned in the kernel. This
        # fails if libvirt's cpuset groups forbid the new CPUs; then the calls of libvirt below pin the
        # threads.
        known.unreported = True
        with contextlib.suppress(DriverError):
            known.pin_rest(settings)
        moved = self._helpers.move_tasks(known, settings.emulator_cpus, is_final=False)
        with self._table.change_domain(known, "cannot be pinned") as tuning:
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
        """The CPUs of the domain's helper processes, such as swtpm, and of vhost threads, by thread id."""
        return self._helpers.read_affinity(self._table.find_living(guest))

    def emulator_threads(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs of QEMU's threads that run no guest CPU, and of the helpers, by thread id."""
        known = self._table.find_living(guest)
        return known.emulator_threads() | self._helpers.read_affinity(known)

    def move_emulator(self, guest: Guest, threads: Collection[int], cpus: frozenset[int]) -> int:
        """Move threads to these CPUs: each helper, and each thread for which the definition has a pin."""
        known = self._table.find_living(guest)
        host = self._connection.host_cpus
        with self._table.change_domain(known, "cannot be pinned") as tuning:
            moved = known.move_threads(tuning, host, threads, cpus)
        return moved + self._helpers.move_tasks(known, cpus, only=threads)

    def moved_emulator(self, guest: Guest, online: frozenset[int]) -> Mapping[int, frozenset[int]]:
        """QEMU's emulator and I/O threads with other CPUs than the persistent definition pins them to."""
        known = self._table.find_living(guest)
        return known.moved_threads(self._connection.host_cpus, online)

    def restore_emulator(self, guest: Guest, online: frozenset[int]) -> int:
        """Pin QEMU's threads to the CPUs in the definition; let moved helpers use all online CPUs again."""
        known, host = self._table.find_living(guest), self._connection.host_cpus
        moved = known.moved_threads(host, online)
        helpers = self._helpers.read_affinity(known)
        with self._table.change_domain(known, "cannot be pinned") as tuning:
            changed = known.restore_threads(tuning, host, online)
        together = {tid for tid, cpus in helpers.items() if cpus in moved.values()}
        return changed + self._helpers.move_tasks(known, online, only=together)

    def stuck_helpers(self, guest: Guest) -> Sequence[str]:
        """Messages, one for each helper of the domain that could not be moved to the emulator's CPUs."""
        return self._helpers.list_stuck(self._table.find_recent(guest))

    def vcpu_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs of the thread of each guest CPU; empty if one thread runs all guest CPUs (TCG)."""
        threads = self._living_threads(guest).items()
        vcpus = {tid: role.vcpu for tid, role in threads if role.vcpu is not None}
        return {vcpus[tid]: cpus for tid, cpus in procfs.thread_affinities(vcpus).items()}

    def emulator_affinity(self, guest: Guest) -> frozenset[int]:
        """The CPUs that any emulator or I/O thread may use; empty if all threads run only guest CPUs."""
        threads = self._living_threads(guest).items()
        found = procfs.thread_affinities(tid for tid, role in threads if not role.runs_guest)
        return frozenset().union(*found.values())

    def cpu_limits(self, guest: Guest, wanted: CpuLimits) -> CpuLimits | None:
        """Weight and quota of the domain's group if they differ from ``wanted``, otherwise None.

        Shares and a lower quota that another program wrote into the definition take precedence over
        ``wanted``.

        :raises DriverError: ``wanted`` has a quota, and the domain has no group.
        """
        return self._table.find_entry(guest).other_limits(wanted)

    def apply_cpu_limits(self, guest: Guest, wanted: CpuLimits) -> bool:
        """Set the domain's weight and quota where they differ; write the weight into the definition, too."""
        with self._table.changing:
            known = self._table.find_living(guest)
            has, group, definition = known.other_limits(wanted), known.domain_group, known.definition
            if group is None:
                return False
            goal = group.within_kernel(definition.limits_within(wanted))
            shares = definition.shares if goal.weight is None else group.libvirt_shares(goal.weight)
            if has is None and shares == definition.shares:
                return False
            with self._table.change_domain(known, "does not accept CPU limits") as tuning:
                # The definition is written first: each round compares only the running domain, and would
                # never notice a definition that a crash left unchanged.
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
        """Messages about limits that need a newer kernel, or a cgroup if the domain has no cgroup."""
        group = self._table.find_entry(guest).domain_group
        if group is None:
            return ["libvirt made no cgroup with the controller cpu for it"] if wanted.idle else []
        return group.missing_parts(wanted)

    # Memory

    def memory_nodes(self, guest: Guest, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes of the kernel's or libvirt's memory binding; None if they equal ``wanted``."""
        return self._table.find_entry(guest).other_nodes(wanted)

    def bind_starting_memory(self, guest: Guest, nodes: frozenset[int]) -> bool:
        """Bind the memory of a starting domain without ``<numatune>`` by writing to its cgroup.

        At that time libvirtd does not yet answer questions about the domain.
        """
        try:
            return self._expected.bind_memory(guest, nodes)
        except OSError as error:
            LOG.warning(
                "The memory of guest %s is not bound to NUMA nodes before the guest runs: %s", guest, error
            )
            return False

    def bind_memory(self, guest: Guest, wanted: frozenset[int]) -> bool:
        """Bind the memory to the wanted NUMA nodes, and write the binding into the persistent definition.

        Memory that libvirt refuses to bind stays on its nodes, and the driver logs the refusal. Whether
        libvirt refuses depends on cgroups, on the nodes, and on the ``<numatune>`` with which the domain was
        started.
        """
        with self._table.changing:
            known = self._table.find_living(guest)
            if known.other_nodes(wanted) is None:
                return False
            nodes = wanted or procfs.nodes_with_memory()
            with self._table.change_domain(known, "cannot have its memory bound") as tuning:
                try:
                    tuning.bind_memory(known.binding, nodes)
                except self._connection.libvirt.libvirtError as error:
                    if not tuning.is_refusal(error):
                        raise
                    known.refused = wanted
                    LOG.warning("The memory of guest %s cannot be moved to its NUMA nodes: %s", guest, error)
                    return False
                known.binding, known.refused = MemoryBinding(RESTRICTIVE, nodes), None
                known.note_definition(tuning.persist_binding(known.definition, nodes))
            if (left := known.other_nodes(wanted)) is not None:
                raise DriverError(f"the memory of guest {guest} is still bound to nodes {sorted(left)}")
        return True

    def memory_use(self, guest: Guest) -> None:
        """Always None: domains get no hard limit, because the memory that QEMU itself needs is not known."""
        self._table.find_entry(guest)

    def huge_page_use(self, guest: Guest) -> Mapping[int, int]:
        """Always empty: domains get no limit of huge pages, because their definition fixes the number."""
        self._table.find_entry(guest)
        return {}

    def memory_limits(self, guest: Guest, wanted: MemoryLimits) -> MemoryLimits | None:
        """The limits that differ from ``wanted``; see :meth:`DomainMemory.memory_limits`."""
        return self._memory.memory_limits(guest, wanted)

    def memory_missing(self, guest: Guest, wanted: MemoryLimits) -> Sequence[str]:
        """Always empty, because the limits that no domain has are documented."""
        self._table.find_entry(guest)
        return ()

    def limit_memory(self, guest: Guest, wanted: MemoryLimits) -> bool:
        """Set the limits that differ from ``wanted``; see :meth:`DomainMemory.limit_memory`."""
        return self._memory.limit_memory(guest, wanted)

    # Block I/O

    def blockio_drift(self, guest: Guest, wanted: BlockIo | None) -> str:
        """A text that names block I/O items of the domain or its definition that differ from ``wanted``."""
        known = self._table.find_entry(guest)
        live, defined = _blockio_todo(known, wanted)
        parts = [f"{item} is not {value}" for item, value in live.items()]
        return "; ".join(
            [*parts, *(f"{item} is not {value} in the definition" for item, value in defined.items())]
        )

    def apply_blockio(self, guest: Guest, wanted: BlockIo | None) -> bool:
        """Set the block I/O items that differ from ``wanted``, in the running domain and in its definition.

        The agent first notes in the definition which values are its own.

        If libvirt has refused the same ``wanted``, the driver does not try again, because a refusal depends
        on cgroups and on the kernel.
        """
        with self._table.changing:
            known = self._table.find_living(guest)
            live, defined = _blockio_todo(known, wanted)
            if not live and not defined:
                return False
            with self._table.change_domain(known, "does not accept limits of block I/O") as tuning:
                try:
                    known.note_definition(tuning.note_items(known.definition, {*live, *defined}))
                    tuning.set_blockio(live, persistent=False)
                    known.blockio = known.blockio.with_items(live)
                    tuning.set_blockio(defined, persistent=True)
                    definition = known.definition
                    known.note_definition(replace(definition, blockio=definition.blockio.with_items(defined)))
                except self._connection.libvirt.libvirtError as error:
                    if not tuning.is_refusal(error):
                        raise
                    known.refused_blockio = wanted, str(error)
                    raise
                known.refused_blockio = None
        return True

    def blockio_missing(self, guest: Guest, wanted: BlockIo) -> Sequence[str]:
        """Messages about block I/O settings in ``wanted`` that libvirt cannot set or has refused."""
        refused = self._table.find_entry(guest).refused_blockio
        found = [] if refused is None or refused[0] != wanted else [f"libvirt refuses it: {refused[1]}"]
        if wanted.latency_us is not None:
            found.append("libvirt has no latency of block I/O")
        return found


def _list_roles(known: RunningDomain) -> Mapping[int, qemu.ThreadRole]:
    threads = known.process.list_roles()
    if not threads:
        raise GuestGoneError(f"guest {known.guest} has ended")
    return threads


def _blockio_todo(
    known: RunningDomain, wanted: BlockIo | None
) -> tuple[dict[str, domain_definition.Item], dict[str, domain_definition.Item]]:
    """The items of block I/O to set on the running domain, and the items to set in its definition."""
    if known.refused_blockio is not None and known.refused_blockio[0] == wanted:
        return {}, {}
    definition = known.definition
    live = domain_definition.items_to_set(known.blockio, wanted, definition.own_items)
    if not definition.persistent:
        return live, {}
    # A value of another program in the definition stays on the running domain, too.
    theirs = definition.blockio.values.keys() - definition.own_items
    live = {item: value for item, value in live.items() if item not in theirs}
    return live, domain_definition.items_to_set(definition.blockio, wanted, definition.own_items)
