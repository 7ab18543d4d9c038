"""A driver with guests in a dictionary; tests in drivers/test_contract.py compare it with real drivers."""

import itertools
from dataclasses import fields, replace

from compute_agent.drivers.base import UNLIMITED, ChangeKind, CpuLimits, GuestChange, MemoryLimits
from compute_agent.drivers.cgroup import PERIOD, attainable_quota, burst_microseconds, limits_agree
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError


class FakeDriver:
    """Guests with a few threads each. A fake kernel remembers the CPUs to which threads are pinned."""

    name = "fake"
    flavor_source = None
    expecting_driver = None

    def __init__(self, cpus, name="fake"):
        self.name = name
        self.outage_reason = ""
        self.awaited = False
        """Whether the driver has not listed its guests since the start of the agent."""
        self.cpus = frozenset(cpus)
        self.affinities = {}
        self.vcpu_cpus = {}
        self.emulator_cpus = {}
        self.helpers, self.stuck = {}, {}
        self.emulators, self.immovable = {}, set()
        self.limits = {}
        self.nodes = {}
        self.blockio, self.without_blockio = {}, []
        self.without_limits = []
        self.without_memory = ()
        """Messages about memory limits that guests cannot have."""
        self.memory, self.memory_used, self.pages_used, self.kills = {}, {}, {}, []
        self.definitions = {}
        self.running = {}
        self.released = []
        self.broken = None
        self.lost_reasons = {}
        self.excluded_reasons: dict[str, str] = {}
        self.writes = 0
        self._listener = None
        self.starting_guests = True
        self._pids = itertools.count(100)

    @property
    def starting_driver(self):
        return self if self.starting_guests else None

    def process_ids(self, guest):
        return (guest.pid,)

    def usage_group(self, guest):
        return guest.cgroup

    def outage_reasons(self):
        return {self.name: self.outage_reason} if self.outage_reason else {}

    @property
    def awaited_drivers(self):
        return frozenset({self.name} if self.awaited else ())

    def guests(self):
        if self.awaited:
            raise DriverError(self.outage_reason)
        return list(self.running.values())

    def listed_guests(self):
        return self.guests()

    def watch_guests(self, listener):
        self._listener = listener

    def thread_ids(self, guest):
        return frozenset(self._threads(guest))

    def recent_threads(self, guest):
        return self.thread_ids(guest)

    def vcpu_threads(self, guest):
        return self.thread_ids(guest)

    def misplaced_threads(self, guest, settings):
        wanted = settings.cpus or settings.emulator_cpus
        return {tid: cpus for tid, cpus in self._threads(guest).items() if cpus != wanted}

    def definition_drift(self, guest, settings):
        self._threads(guest)
        return self.definitions.get(guest.uuid, "")

    def observed_cpus(self, guest):
        return self._threads(guest)[guest.pid]

    def apply_cpu_settings(self, guest, settings):
        if self.broken is not None:
            raise self.broken
        wanted = settings.cpus or settings.emulator_cpus
        if not wanted <= self.cpus:
            raise DriverError(f"guest {guest.uuid} cannot be pinned to {sorted(wanted)}")
        self.definitions.pop(guest.uuid, None)
        misplaced = self.misplaced_threads(guest, settings)
        self.writes += len(misplaced)
        self._threads(guest).update(dict.fromkeys(misplaced, wanted))
        return len(misplaced)

    def vcpu_affinity(self, guest):
        self._threads(guest)
        return dict(self.vcpu_cpus.get(guest.uuid, {}))

    def emulator_affinity(self, guest):
        self._threads(guest)
        return self.emulator_cpus.get(guest.uuid, frozenset())

    def helper_affinity(self, guest):
        self._threads(guest)
        return dict(self.helpers.get(guest.uuid, {}))

    def emulator_threads(self, guest):
        return {**self.emulators.get(guest.uuid, {}), **self.helper_affinity(guest)}

    def move_emulator(self, guest, threads, cpus):
        self._threads(guest)
        if self.broken is not None:
            raise self.broken
        moved = set(threads) & self.emulators[guest.uuid].keys() - self.immovable
        self.emulators[guest.uuid].update(dict.fromkeys(moved, cpus))
        return len(moved)

    def moved_emulator(self, guest, online):
        self._threads(guest)
        pin = guest.constraints.emulator & online
        has = self.emulators.get(guest.uuid, {})
        return {tid: cpus for tid, cpus in has.items() if pin and cpus != pin}

    def restore_emulator(self, guest, online):
        return self.move_emulator(guest, self.moved_emulator(guest, online), guest.constraints.emulator)

    def stuck_helpers(self, guest):
        self._threads(guest)
        return tuple(self.stuck.get(guest.uuid, ()))

    def cpu_limits(self, guest, wanted):
        self._threads(guest)
        has = self.limits.get(guest.uuid, CpuLimits(100))
        return None if limits_agree(has, wanted) else has

    def apply_cpu_limits(self, guest, wanted):
        has = self.cpu_limits(guest, wanted)
        if has is None:
            return False
        weight = (has.weight or 100) if wanted.weight is None else wanted.weight
        # The kernel shows an idle group in this way.
        weight = 0 if wanted.idle else weight
        quota, burst = attainable_quota(wanted.quota), burst_microseconds(wanted) / PERIOD
        self.limits[guest.uuid] = CpuLimits(weight, quota, wanted.idle, burst)
        return True

    def missing_limits(self, guest, wanted):
        self._threads(guest)
        return self.without_limits

    def memory_nodes(self, guest, wanted):
        self._threads(guest)
        has = self.nodes.get(guest.uuid, frozenset())
        return None if has == wanted else has

    def bind_starting_memory(self, guest, nodes):
        self.nodes[guest.uuid] = nodes
        return True

    def bind_memory(self, guest, wanted):
        if self.memory_nodes(guest, wanted) is None:
            return False
        self.nodes[guest.uuid] = wanted
        return True

    def memory_use(self, guest):
        self._threads(guest)
        return self.memory_used.get(guest.uuid, 0)

    def huge_page_use(self, guest):
        self._threads(guest)
        return self.pages_used.get(guest.uuid, {})

    def memory_limits(self, guest, wanted):
        self._threads(guest)
        has = self.memory.get(guest.uuid, MemoryLimits(UNLIMITED, UNLIMITED, 0, 0, (), 0, False))
        return None if has == _merged(has, wanted) else has

    def memory_missing(self, guest, wanted):
        self._threads(guest)
        return self.without_memory

    def limit_memory(self, guest, wanted):
        has = self.memory_limits(guest, wanted)
        if has is None:
            return False
        self.memory[guest.uuid] = _merged(has, wanted)
        return True

    def blockio_drift(self, guest, wanted):
        self._threads(guest)
        has = self.blockio.get(guest.uuid)
        return "" if has == wanted else f"it has {has}"

    def apply_blockio(self, guest, wanted):
        if not self.blockio_drift(guest, wanted):
            return False
        self.blockio[guest.uuid] = wanted
        return True

    def blockio_missing(self, guest, wanted):
        self._threads(guest)
        return self.without_blockio

    def oom_kills(self):
        found, self.kills = self.kills, []
        return found

    def stop(self, guest, timeout):
        self._threads(guest)
        self.end(guest)

    def close(self):
        pass

    def lost_guests(self):
        return self.lost_reasons

    def excluded_guests(self):
        return self.excluded_reasons

    def create_guest(self, guest_uuid, name, settings, command, cwd="/", environment=None, declared=()):
        if guest_uuid in self.running:
            raise DriverError(f"guest {guest_uuid} exists already")
        pid = next(self._pids)
        names = {*declared, *settings.chosen_values}
        values = {setting: getattr(settings, setting) for setting in names}
        guest = Guest(guest_uuid, self.name, name, pid, settings, declared=values)
        self.running[guest_uuid] = guest
        self.affinities[guest_uuid] = {pid: self.cpus, pid + 1000: self.cpus}
        return guest

    def release(self, guest):
        self.released.append((guest.uuid, self.observed_cpus(guest)))

    def discard(self, guest):
        del self.running[guest.uuid], self.affinities[guest.uuid]

    def recent_ending(self, guest, seconds):
        return ""

    def adopt_guest(self, guest_uuid, name, settings, origin, declared=()):
        return self.create_guest(guest_uuid, name, settings, (), declared=declared)

    def end(self, guest):
        """End a guest, as if it had ended by itself."""
        del self.running[guest.uuid], self.affinities[guest.uuid]
        self.report(GuestChange(ChangeKind.STOPPED, guest))

    def report(self, change):
        """Report a change, as drivers do from their threads."""
        if self._listener is not None:
            self._listener(change)

    def succeed(self, guest_uuid):
        """End the main process of a guest; another process of the guest becomes the main process."""
        before = self.running[guest_uuid]
        threads = self.affinities[guest_uuid]
        heir = self.running[guest_uuid] = replace(before, pid=next(self._pids))
        threads[heir.pid] = threads.pop(before.pid)
        return heir

    def _threads(self, guest):
        try:
            return self.affinities[guest.uuid]
        except KeyError:
            raise GuestGoneError(f"guest {guest.uuid} has ended") from None


def _merged(has, wanted):
    """The memory limits ``has``, with those in ``wanted`` set."""
    values = ((getattr(wanted, one.name), getattr(has, one.name)) for one in fields(MemoryLimits))
    return MemoryLimits(*(ours if ours is not None else theirs for ours, theirs in values))
