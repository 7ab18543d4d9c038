"""Measures the CPU and memory use of host and guests, and finds cold memory.

Load-aware placement uses the CPU use by hour of the week, and reclaimed capacity the use of CPUs and memory.
Cold memory is memory that guests do not need; ``[capacity] memory`` offers it to other guests. A probe makes
the kernel reclaim a little memory of a guest, and checks whether the guest then waits for memory.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.classes.guest_classes import QosClasses
from compute_agent.drivers.base import GuestThreads
from compute_agent.drivers.memory_limits import reclaim_memory
from compute_agent.host.memory import NODE_FOLDER
from compute_agent.host.proc_stat import busy_parts, parse_cpu_times, stolen_parts
from compute_agent.kept_json import KeptFile
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration
from compute_agent.model.guest_settings import BEST_EFFORT
from compute_agent.model.resource import MEMORY, RECLAIMED_MEMORY, RECLAIMED_VCPU
from compute_agent.pipeline.events import UseMeasured
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.policy.load_profiles import LoadProfile
from compute_agent.reclaim.zone import (
    MIB,
    MIN_SWAP_ROOM,
    ColdReading,
    GuestUse,
    HostUse,
    cold_memory,
    parse_inactive_file,
    parse_node_use,
    parse_parts,
    parse_swap_room,
    parse_swap_use,
    parse_swapped,
    probe_size,
    track_calm,
    used_part,
)
from compute_agent.threads import NO_LOCK, PeriodicTask, ThreadSpec, log_failures
from compute_agent.usage.rounds import (
    MeasuredGuest,
    MeasuringRound,
    guest_cpu_use,
    parse_resident,
    pressure_share,
)
from compute_agent.usage.subjects import SubjectFactory
from compute_agent.usage.week_uses import FILE, USES_FORMAT, WeekUses, known_profiles

LOG = logging.getLogger(__name__)

# The pause is much shorter than [policy] load_minutes, so that a mean has many values.
_USE_PAUSE: Final = 15.0


@dataclass(frozen=True, slots=True)
class CpuAverage:
    """The mean CPU use of a guest in cores, and the number of seconds for which it was measured so far."""

    cores: float
    seconds: float


Averages = Mapping[str, CpuAverage]
"""Mean CPU use by uuid of the guest."""


def smooth_averages(
    before: Averages, use: Mapping[str, float], elapsed: float, window: float
) -> dict[str, CpuAverage]:
    """Update mean uses with the use of the last ``elapsed`` seconds, by exponential smoothing.

    ``use`` has the cores by uuid of the guest. Use that is older than ``window`` seconds counts little.
    Guests that are missing in ``use`` are dropped.
    """
    # After ``window`` seconds, the former mean still has a weight of 1/e.
    share = 1 - math.exp(-elapsed / window)
    found = {}
    for guest, cores in use.items():
        last = before.get(guest, CpuAverage(cores, 0.0))
        found[guest] = CpuAverage(last.cores + share * (cores - last.cores), last.seconds + elapsed)
    return found


CPU_USE_THREAD: Final = ThreadSpec(
    "cpu-use",
    _USE_PAUSE,
    "measures the CPU use of guests for ``[policy] load_aware``",
    NO_LOCK,
    "files of guests; a file of the state folder; the queue of the worker",
)


class CpuUse(AgentLoop):
    """Reports the CPU use of guests by hour of the week to the worker while ``[policy] load_aware`` is on.

    If a guest was measured for less than a day, all its hours have the mean of the last ``load_minutes``.
    """

    def __init__(self, conf: ReloadedConfiguration, pipeline: GuestPipeline, driver: GuestThreads) -> None:
        self._conf = conf
        self._pipeline = pipeline
        self._subjects = SubjectFactory(driver)
        self._before: MeasuringRound | None = None
        self._averages: Averages = {}
        self._kept = KeptFile(
            Path(conf.options.state_path) / FILE,
            USES_FORMAT.parse,
            "The CPU use of guests by hour of the week",
        )
        self._weeks: WeekUses | None = None
        """The use by hour of the week; None while the option is off."""
        self._profiles: Mapping[str, LoadProfile] = {}
        """The profiles of guests that were measured for at least a day; the profiles are made after each
        hour.
        """
        self._told: Mapping[str, LoadProfile] = {}
        """The mean use of guests as last reported to the worker."""
        self._told_use: Mapping[str, LoadProfile] = {}
        self._thread = PeriodicTask(
            CPU_USE_THREAD,
            lambda: self.measure_use(time.monotonic(), time.time()),
            lambda took: _USE_PAUSE,
            log_failures(LOG, "The CPU use of guests cannot be measured"),
        )

    def measure_use(self, now: float, wall: float) -> None:
        """Measure the CPU use of guests since the last call, and report it to the worker.

        A guest without a known use by hour is reported after it was measured for ``load_minutes``.

        :param now: the present time in monotonic seconds.
        :param wall: the present time in seconds since the epoch.
        """
        policy = self._conf.options.policy
        if not policy.load_aware:
            self._before, self._averages, self._weeks = None, {}, None
            self._report_use({})
            return
        if self._weeks is None:
            self._weeks = WeekUses(self._kept.load() or {})
            self._profiles = known_profiles(self._weeks.guests)
        window = policy.load_minutes * 60
        subjects = self._subjects.build_subjects(self._pipeline.guest_views(), self._conf.settings.classes)
        this = MeasuringRound(now, self._conf.options.host.root, subjects)
        use = guest_cpu_use(this, self._before)
        if self._before is not None and now > self._before.time:
            elapsed = now - self._before.time
            self._averages = smooth_averages(self._averages, use, elapsed, window)
            self._learn_use(self._weeks.with_use(use, elapsed, wall), wall)
        this.close()
        self._before = this
        means = {guest: one.cores for guest, one in self._averages.items() if one.seconds >= window}
        self._report_use(means)

    def _learn_use(self, weeks: WeekUses, wall: float) -> None:
        """Keep ``weeks``, the use by hour, and save it after each hour."""
        before, self._weeks = self._weeks, weeks
        if before is None or weeks.guests is not before.guests:
            self._profiles = known_profiles(weeks.guests)
            self._kept.save(USES_FORMAT.dump(weeks.guests), wall)

    def _report_use(self, means: Mapping[str, float]) -> None:
        recent = {guest: self._mean_profile(guest, cores) for guest, cores in means.items()}
        use = {**recent, **(self._profiles if self._weeks is not None else {})}
        # Only a changed use is sent, because the worker looks at all guests at each event.
        if (use, recent) != (self._told_use, self._told):
            self._pipeline.submit(UseMeasured(use, recent))
            self._told_use, self._told = use, recent

    def _mean_profile(self, guest: str, cores: float) -> LoadProfile:
        """Return a load profile that has ``cores`` in each hour.

        If the mean is about the same as in the profile that was reported last, return that profile. Profiles
        compare by identity, so a new object would count as a change.
        """
        told = self._told.get(guest)
        close = told is not None and abs(told.hours[0] - cores) < MIN_CHANGE
        return told if told is not None and close else LoadProfile.from_mean(cores)


# A change of the use by this amount changes the cost of a core by 0.2 points, a tenth of the default of
# [policy] rebalance_gain.
MIN_CHANGE: Final = 0.05
"""Minimum change, in cores, of a guest's mean use before the use is reported again."""

MAX_SECONDS: Final = 300.0
"""Maximum number of seconds between two readings, because a mean over a longer time hides peaks."""


class UseReader:
    """Measures the CPU use of the host and its guests between two reads, and their memory.

    Only one thread may use the object.
    """

    def __init__(
        self,
        pipeline: GuestPipeline,
        driver: GuestThreads,
        classes: Callable[[], QosClasses],
        root: str,
        monotonic: Callable[[], float],
        cold: Callable[[], Mapping[str, int]],
    ) -> None:
        """Measure the guests of ``pipeline``.

        :param root: the folder that contains ``proc`` and ``sys``. Paths of cgroups are not below it.
        :param cold: returns, by uuid of the guest, the bytes of swap that do not count, because the guest
            does not use them any more.
        """
        self._cold = cold
        self._pipeline = pipeline
        self._subjects = SubjectFactory(driver)
        self._classes = classes
        self._root = root
        self._monotonic = monotonic
        self._before: MeasuringRound | None = None
        self._reclaimed: frozenset[str] = frozenset()
        """The uuids of the guests that held only reclaimed CPUs at the last read of CPUs."""

    def _begin_round(self) -> tuple[Sequence[GuestView], MeasuringRound]:
        views = self._pipeline.guest_views()
        subjects = self._subjects.build_subjects(views, self._classes())
        return views, MeasuringRound(self._monotonic(), self._root, subjects)

    def read_cpus(self, wall: float) -> HostUse | None:
        """Measure the use since the last read; return None at the first read, or if the last one is too old.

        :param wall: the present time in seconds since the epoch.
        """
        views, now = self._begin_round()
        path = f"{now.root}/proc/stat"
        before, reclaimed_before = self._before, self._reclaimed
        cores = guest_cpu_use(now, before)
        times = now.parse_file(path, parse_cpu_times)
        now.close()
        reclaimed = frozenset(view.guest.uuid for view in views if lives_on_rest(view))
        self._before, self._reclaimed = now, reclaimed
        # The round of the last read is closed, but still has the parsed file.
        first = None if before is None else before.parse_file(path, parse_cpu_times)
        if before is None or times is None or first is None or now.time - before.time > MAX_SECONDS:
            return None
        measured = set(cores)
        gone = {subject.facts.uuid for subject in before.subjects} - measured
        return HostUse(
            wall,
            busy_parts(first, times),
            tuple(self._guest_uses(views, cores, reclaimed)),
            left=bool(gone),
            reclaimed_left=bool(gone & reclaimed_before),
            stolen=stolen_parts(first, times),
        )

    def _guest_uses(
        self, views: Sequence[GuestView], cores: dict[str, float], reclaimed: frozenset[str]
    ) -> list[GuestUse]:
        usable = self._pipeline.host_state.topology.usable
        return [
            GuestUse(
                view.guest.uuid,
                float(view.guest.settings.vcpus),
                # A guest without an assignment can run on any CPU.
                usable if view.assignment is None else view.assignment.cpus & usable,
                cores.get(view.guest.uuid),
                view.guest.uuid in reclaimed,
            )
            for view in views
        ]

    def read_memory(self, wall: float) -> HostUse:
        """Measure the used memory by NUMA node, in MiB. A node without a readable ``meminfo`` is left out.

        :param wall: the present time in seconds since the epoch.
        """
        views, now = self._begin_round()
        nodes = [node.id for node in self._pipeline.host_state.topology.numa_nodes]
        # The guests are listed before the host is read, and read after it. A guest that ends in between has
        # an unknown use, which makes the whole reading unknown. If the guests were listed after the host was
        # read, the memory of this guest would count as memory of no guest.
        paths = {node: f"{now.root}/{NODE_FOLDER}/node{node}/meminfo" for node in nodes}
        found = {node: now.parse_file(path, parse_node_use) for node, path in paths.items()}
        # A kernel without NUMA has no meminfo of nodes.
        if len(nodes) == 1 and found[nodes[0]] is None:
            found[nodes[0]] = now.parse_file(f"{now.root}/proc/meminfo", parse_node_use)
        swapped = now.parse_file(f"{now.root}/proc/meminfo", parse_swap_use) or 0.0
        cold = {uuid: amount / MIB for uuid, amount in self._cold().items()}
        guests = [
            self._guest_memory(
                view, _held_by(now, subject, swapped > 0).without_cold(cold.get(view.guest.uuid, 0.0))
            )
            for view, subject in zip(views, now.subjects, strict=True)
        ]
        now.close()
        used = {node: mib for node, mib in found.items() if mib is not None}
        # Cold memory of a guest that has ended since is not in swap any more.
        present = sum(cold.get(view.guest.uuid, 0.0) for view in views)
        counted = _with_swapped(used, max(0.0, swapped - present), guests)
        return HostUse(wall, counted, tuple(use for use, _ in guests))

    def _guest_memory(self, view: GuestView, held: _MemoryHeld) -> tuple[GuestUse, float]:
        """Compute the memory use of a guest, and its swap in MiB."""
        topology = self._pipeline.host_state.topology
        nodes = frozenset(node.id for node in topology.numa_nodes)
        mems = frozenset[int]() if view.assignment is None else view.assignment.mems & nodes
        # A guest without an allocation of memory can use all memory of the host.
        entitlement = (
            float(_held_amount(view, MEMORY)) or sum(one.memory_kib for one in topology.numa_nodes) / 1024
        )
        of_rest, mib = has_memory_of_rest(view), held.mib
        if mib is not None:
            # The memory of a guest on reclaimed memory counts only up to the guest's allocation. Memory
            # beyond the allocation belongs to other guests, and must not be offered twice.
            mib = min(mib, _held_amount(view, RECLAIMED_MEMORY)) if of_rest else mib + held.swapped
        parts = {node: part for node, part in held.parts.items() if node in nodes}
        return GuestUse(view.guest.uuid, entitlement, mems or nodes, mib, of_rest, parts), held.swapped


def lives_on_rest(view: GuestView) -> bool:
    """Whether a best-effort guest holds only reclaimed CPUs: neither VCPU nor PCPU."""
    return holds_of_rest_alone(view, RECLAIMED_VCPU, {"VCPU", "PCPU"})


def holds_of_rest_alone(view: GuestView, rest: str, own: Set[str]) -> bool:
    """Whether a best-effort guest holds the reclaimed class ``rest``, and no class in ``own``."""
    held = {
        name for amounts in (view.allocation or {}).values() for name, amount in amounts.items() if amount
    }
    return view.guest.settings.qos_class == BEST_EFFORT and rest in held and held.isdisjoint(own)


@dataclass(frozen=True, slots=True)
class _MemoryHeld:
    """The memory that a guest uses.

    :ivar mib: the memory of the host that the guest uses, in MiB; None if unknown.
    :ivar swapped: the part of the guest's memory that is in swap, in MiB.
    :ivar parts: the share of the guest's memory on each NUMA node, from 0 to 1.
    """

    mib: float | None = None
    swapped: float = 0.0
    parts: Mapping[int, float] = field(default_factory=dict)

    def without_cold(self, mib: float) -> _MemoryHeld:
        """A copy that leaves out ``mib`` MiB of swap, because the guest does not use that memory any more."""
        return replace(self, swapped=max(0.0, self.swapped - mib)) if mib else self


def _with_swapped(
    used: Mapping[int, float], swapped: float, guests: Sequence[tuple[GuestUse, float]]
) -> dict[int, float]:
    """Add swapped memory to the use of each node in MiB, except swap of guests on reclaimed memory."""
    # Swap that belongs to no guest is divided evenly, because its former node is unknown.
    of_none = max(0.0, swapped - sum(mib for _, mib in guests)) / max(1, len(used))
    return {
        node: mib
        + of_none
        + sum(part * used_part(guest, frozenset({node})) for guest, part in guests if not guest.reclaimed)
        for node, mib in used.items()
    }


def _held_amount(view: GuestView, name: str) -> int:
    return sum(amounts.get(name, 0) for amounts in (view.allocation or {}).values())


def has_memory_of_rest(view: GuestView) -> bool:
    """Whether a best-effort guest holds reclaimed memory, and no normal memory."""
    return holds_of_rest_alone(view, RECLAIMED_MEMORY, {MEMORY})


def _held_by(now: MeasuringRound, subject: MeasuredGuest, swaps: bool) -> _MemoryHeld:
    """Read the memory of a guest. If the host uses swap (``swaps``), read also the swap of the guest."""
    group = subject.cgroup
    if group and (held := now.parse_file(f"{group}/memory.current", int)) is not None:
        # Inactive page cache does not count, because the kernel can reclaim it at once.
        files = now.parse_file(f"{group}/memory.stat", parse_inactive_file) or 0
        swapped = (now.parse_file(f"{group}/memory.swap.current", int) or 0) if swaps else 0
        parts = now.parse_file(f"{group}/memory.numa_stat", parse_parts) or {}
        return _MemoryHeld(max(0, held - files) / MIB, swapped / MIB, parts)
    resident = [now.parse_file(f"{now.root}/proc/{pid}/statm", parse_resident) for pid in subject.pids]
    known = [size for size in resident if size is not None]
    if not known:
        return _MemoryHeld()
    status = (now.parse_file(f"{now.root}/proc/{pid}/status", parse_swapped) for pid in subject.pids if swaps)
    return _MemoryHeld(sum(known) / MIB, sum(one or 0 for one in status) / MIB)


# Senpai, a program of Meta for the same purpose, has the same pause. During the pause, a guest that needs the
# memory that the last probe has reclaimed begins to wait for it.
COLD_PAUSE: Final = 6.0
"""Seconds between two rounds."""

PROBE_SECONDS: Final = 2.0
"""Seconds of a round after which no further guest is probed. The next round begins with the remaining
guests.
"""

COLD_MEMORY_THREAD: Final = ThreadSpec(
    "cold-memory",
    COLD_PAUSE,
    "has the kernel reclaim small parts of guests' memory, for ``[capacity] cold_memory``",
    NO_LOCK,
    "files of guests; the kernel reclaims memory meanwhile",
)


class ColdMemoryLoop(AgentLoop):
    """Probes the guests that can be throttled, and counts the memory that each guest did not need again."""

    def __init__(
        self,
        conf: ReloadedConfiguration,
        pipeline: GuestPipeline,
        driver: GuestThreads,
        registry: CollectorRegistry,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conf = conf
        self._pipeline = pipeline
        self._subjects = SubjectFactory(driver)
        self._monotonic = monotonic
        self._before: MeasuringRound | None = None
        self._since: Mapping[str, float] = {}
        self._cold: Mapping[str, int] = {}
        self._probed: dict[str, float] = {}
        """The time of the last probe of each guest, in monotonic seconds."""
        self._refused: set[str] = set()
        """The guests for which the kernel has refused to reclaim memory; each guest is logged once."""
        self._gauge = Gauge(
            "compute_agent_cold_memory_bytes",
            "Memory in swap of the guests that have not waited for memory for ten minutes.",
            registry=registry,
        )
        self._reclaimed = Counter(
            "compute_agent_cold_memory_reclaimed_bytes",
            "Memory of guests that the search for cold memory has moved to swap.",
            registry=registry,
        )
        self._thread = PeriodicTask(
            COLD_MEMORY_THREAD,
            self.run_round,
            lambda took: COLD_PAUSE,
            log_failures(LOG, "Guests cannot be probed for cold memory"),
            is_needed=lambda: self._conf.options.capacity.cold_memory,
            rest=self._forget_all,
        )

    @property
    def cold_memory(self) -> Mapping[str, int]:
        """The bytes of cold memory by uuid of the guest. Any thread may read this value."""
        return self._cold

    def run_round(self) -> None:
        """Measure all guests, and reclaim some memory of each guest that does not wait for memory."""
        now = self._monotonic()
        root, limit = self._conf.options.host.root, self._conf.options.capacity.cold_pressure
        views = self._pipeline.guest_views()
        subjects = self._subjects.build_subjects(views, self._conf.settings.classes)
        this = MeasuringRound(now, root, subjects)
        readings, groups = {}, {}
        for view, subject in zip(views, subjects, strict=True):
            # A guest on reclaimed memory is not probed, because its memory was offered before and cannot be
            # offered again.
            if subject.facts.protected or not subject.cgroup or has_memory_of_rest(view):
                continue
            reading = _read_guest(subject.cgroup, this, self._before)
            if reading is not None:
                readings[subject.facts.uuid], groups[subject.facts.uuid] = reading, subject.cgroup
        room = this.parse_file(f"{root}/proc/meminfo", parse_swap_room) or 0.0
        this.close()
        self._before = this
        self._since = track_calm(self._since, readings, limit, now)
        self._cold = cold_memory(self._since, readings, now)
        self._gauge.set(sum(self._cold.values()))
        self._probed = {uuid: self._probed.get(uuid, 0.0) for uuid in readings}
        self._refused &= readings.keys()
        if room >= MIN_SWAP_ROOM:
            self._probe_guests(groups, {uuid: probe_size(one, limit) for uuid, one in readings.items()}, now)

    def _probe_guests(self, groups: Mapping[str, str], sizes: Mapping[str, int], now: float) -> None:
        for uuid in sorted(sizes, key=lambda uuid: (self._probed[uuid], uuid)):
            left = now + PROBE_SECONDS - self._monotonic()
            if left <= 0:
                break
            if sizes[uuid]:
                self._probed[uuid] = now
                try:
                    done = reclaim_memory(groups[uuid], sizes[uuid], left, self._monotonic)
                except OSError as error:
                    self._log_refusal(uuid, error)
                else:
                    self._reclaimed.inc(done)

    def _log_refusal(self, uuid: str, error: OSError) -> None:
        if uuid not in self._refused:
            self._refused.add(uuid)
            LOG.warning(
                "The kernel does not reclaim memory of guest %s, so its cold memory is not found: %s;"
                " memory.reclaim needs Linux 5.19",
                uuid,
                error,
            )

    def _forget_all(self) -> None:
        self._before, self._since, self._cold = None, {}, {}
        self._probed, self._refused = {}, set()
        self._gauge.set(0)


def _read_guest(group: str, now: MeasuringRound, before: MeasuringRound | None) -> ColdReading | None:
    used = now.parse_file(f"{group}/memory.current", int)
    if used is None:
        return None
    return ColdReading(
        used,
        now.parse_file(f"{group}/memory.swap.current", int) or 0,
        pressure_share(f"{group}/memory.pressure", now, before),
    )
