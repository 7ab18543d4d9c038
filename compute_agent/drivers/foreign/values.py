"""The values for CPUs, memory and block I/O of a guest's group, and the rules that choose them.

The module consists of pure functions. Values have the names of properties in systemd.resource-control(5) and
org.freedesktop.systemd1(5), for containers as for services. A value without such a property has the name of
its file. A value is a set of numbers (CPUs and NUMA nodes), a whole number, or a number for each device.
:data:`INFINITY` stands for "no limit" and "not set".

Decisions on a value
    The agent alone decides about the CPUs and the NUMA nodes of a guest. A weight, a memory limit, or a
    target of latency that the guest has of its own stays unchanged. Such a value comes from a unit file,
    ``systemctl set-property``, or an option of ``podman run``. If a quota of the guest's own and a quota of
    the agent meet, the lower one applies. The same is true for two rates of one device.

The guest's own value
    When the agent sets a value for the first time, it records the present value as the guest's own. When the
    agent no longer wants a value, the guest gets its own value back. Example: the unit file has
    ``CPUQuota=300%``, and throttling limits the guest to 2 cores. The agent records 3000000 (microseconds a
    second), sets 2000000, and sets 3000000 again when throttling ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Final

from compute_agent.drivers.base import UNLIMITED, CpuLimits, MemoryLimits
from compute_agent.drivers.cgroup import PERIOD, quota_microseconds
from compute_agent.drivers.memory_limits import attainable_amount, page_limit_files
from compute_agent.model import cpuset
from compute_agent.model.resource import DEFAULT_WEIGHT, HUGE_PAGES, BlockIo

INFINITY: Final = (1 << 64) - 1
"""The largest number of the D-Bus type ``t``, which means "no limit" or "not set" in systemd."""

CPUS: Final = "AllowedCPUs"
NODES: Final = "AllowedMemoryNodes"
WEIGHT: Final = "CPUWeight"
QUOTA: Final = "CPUQuotaPerSecUSec"
MEMORY_MAX: Final = "MemoryMax"
MEMORY_HIGH: Final = "MemoryHigh"
MEMORY_LOW: Final = "MemoryLow"
MEMORY_MIN: Final = "MemoryMin"
IO_WEIGHT: Final = "IOWeight"
RATES: Final = ("IOReadBandwidthMax", "IOWriteBandwidthMax", "IOReadIOPSMax", "IOWriteIOPSMax")
"""The rates of devices, in the order of :attr:`compute_agent.model.resource.DeviceRates.all_rates`."""
LATENCY: Final = "IODeviceLatencyTargetUSec"
BURST: Final = "cpu.max.burst"
"""The CPU time that a guest can save and use later, in microseconds a second, like :data:`QUOTA`."""
OOM_GROUP: Final = "memory.oom.group"
PAGE_LIMITS: Final[Mapping[int, tuple[str, ...]]] = {size: page_limit_files(size) for size in HUGE_PAGES}
"""The limits of huge pages by the size of the pages in KiB."""
PAGE_NAMES: Final = frozenset(name for names in PAGE_LIMITS.values() for name in names)
FILE_NAMES: Final = PAGE_NAMES | {BURST, OOM_GROUP}
"""The values for which systemd has no property that can change while a unit runs."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Limits of some devices, at most one for each device.

    :ivar pairs: devices (``MAJOR:MINOR``) with their limits, sorted by device. Other devices have no limit.
    """

    pairs: tuple[tuple[str, int], ...] = ()

    @classmethod
    def from_limits(cls, limits: Mapping[str, int]) -> DeviceLimits:
        """Make a value from a mapping of limits by device."""
        return cls(tuple(sorted((device, one) for device, one in limits.items() if one != INFINITY)))

    @property
    def by_device(self) -> dict[str, int]:
        """The limits by device."""
        return dict(self.pairs)

    def keep_devices(self, devices: Collection[str]) -> DeviceLimits:
        """Return the limits of those devices that are in ``devices``."""
        return DeviceLimits(tuple(pair for pair in self.pairs if pair[0] in devices))

    def lower_limits(self, other: DeviceLimits) -> DeviceLimits:
        """Return the lower of two limits for each device."""
        one, two = self.by_device, other.by_device
        devices = one.keys() | two.keys()
        return self.from_limits(
            {each: min(one.get(each, INFINITY), two.get(each, INFINITY)) for each in devices}
        )


Value = frozenset[int] | int | DeviceLimits
Values = Mapping[str, Value]
"""Values by name."""

DEFAULTS: Final[Values] = {
    CPUS: frozenset(),
    NODES: frozenset(),
    WEIGHT: INFINITY,
    QUOTA: INFINITY,
    MEMORY_MAX: INFINITY,
    MEMORY_HIGH: INFINITY,
    MEMORY_LOW: 0,
    MEMORY_MIN: 0,
    IO_WEIGHT: INFINITY,
    **dict.fromkeys((*RATES, LATENCY), DeviceLimits()),
    BURST: 0,
    OOM_GROUP: 0,
    **dict.fromkeys(sorted(PAGE_NAMES), INFINITY),
}
"""The default of each value: the value in a group where nothing is set."""

USUAL_NAMES: Final = DEFAULTS.keys() - PAGE_NAMES
"""The values without limits of huge pages, which only hosts that offer huge pages have."""

IDLE: Final = 0
"""The CPU weight ``idle``."""

_SECOND: Final = 1_000_000


def value_text(value: Value) -> str:
    """A value as text, for messages and records."""
    if isinstance(value, DeviceLimits):
        return ", ".join(f"{device}={limit}" for device, limit in value.pairs)
    return str(value) if isinstance(value, int) else cpuset.format(value)


def parse_text(name: str, text: str) -> Value:
    """Parse the text of a value, as :func:`value_text` makes it.

    :raises ValueError: the text is not a value of this name.
    """
    default = DEFAULTS[name]
    if isinstance(default, frozenset):
        return cpuset.parse(text)
    if isinstance(default, DeviceLimits):
        parts = [each.rpartition("=") for each in text.split(", ") if each]
        return DeviceLimits.from_limits({device: _parse_number(name, number) for device, _, number in parts})
    return _parse_number(name, text)


def _parse_number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > INFINITY:
        raise ValueError(f"{name} cannot be {text!r}")
    return int(text)


def own_value(name: str, present: Values, noted: Values) -> Value:
    """The value of the guest's own: the noted value, or the present value if the agent never wrote it.

    :param noted: the values that the guest had before the agent's first write of each.
    """
    return noted.get(name, present[name])


@dataclass(frozen=True, slots=True)
class GoalChoice:
    """Chooses the goals: the wanted contents of some values.

    :ivar names: the names of the values that can have goals or on which goals depend. A round reads only the
        files of these values.
    :ivar choose: returns the goals, from the present values and from the values that the guest had before the
        agent.
    """

    names: frozenset[str]
    choose: Callable[[Values, Values], Values]


def cpu_choice(cpus: frozenset[int], online: frozenset[int]) -> GoalChoice:
    """The choice of :func:`cpu_goal`."""
    return GoalChoice(frozenset({CPUS}), partial(cpu_goal, cpus, online))


def cpu_goal(cpus: frozenset[int], online: frozenset[int], present: Values, noted: Values) -> Values:
    """The wanted CPUs of a guest. A guest that may use all online CPUs gets its own CPUs back."""
    return {CPUS: own_value(CPUS, present, noted) if cpus >= online else cpus}


def node_choice(nodes: frozenset[int], whole: frozenset[int]) -> GoalChoice:
    """The choice of :func:`node_goal`."""
    return GoalChoice(frozenset({NODES}), partial(node_goal, nodes, whole))


def node_goal(nodes: frozenset[int], whole: frozenset[int], present: Values, noted: Values) -> Values:
    """The wanted NUMA nodes of a guest.

    A guest that may use all nodes of the host gets its own nodes back.

    :param nodes: the wanted nodes; empty means any.
    :param whole: the nodes of the host that have memory.
    """
    return {NODES: own_value(NODES, present, noted) if not nodes or nodes >= whole else nodes}


def limit_choice(wanted: CpuLimits, noted: Collection[str]) -> GoalChoice:
    """The choice of :func:`limit_goals`.

    :param noted: the names of the values that the agent has written.
    """
    # Few guests have a burst, and its file is read for these only.
    names = {WEIGHT, QUOTA, BURST} if wanted.burst or BURST in noted else {WEIGHT, QUOTA}
    return GoalChoice(frozenset(names), partial(limit_goals, wanted))


def limit_goals(wanted: CpuLimits, present: Values, noted: Values) -> Values:
    """The wanted weight, quota and burst of a guest.

    The guest's own weight takes precedence, and so do its own burst and a lower quota of its own.
    """
    goals: dict[str, Value] = {}
    weight = own_value(WEIGHT, present, noted)
    if weight != DEFAULTS[WEIGHT]:
        goals[WEIGHT] = weight
    elif wanted.idle:
        goals[WEIGHT] = IDLE
    elif wanted.weight is not None:
        # A group without a weight has the kernel's default weight.
        goals[WEIGHT] = INFINITY if wanted.weight == DEFAULT_WEIGHT else wanted.weight
    elif present[WEIGHT] == IDLE:
        goals[WEIGHT] = weight
    quota = own_value(QUOTA, present, noted)
    assert isinstance(quota, int)
    # The kernel stores a quota in whole microseconds for each PERIOD, so a finer value would differ when it
    # is read back.
    most = INFINITY if wanted.quota is None else quota_microseconds(wanted.quota) * (_SECOND // PERIOD)
    quota = goals[QUOTA] = min(most, quota)
    own_burst = own_value(BURST, present, noted)
    assert isinstance(own_burst, int)
    # The kernel saves time only for a group with a quota, and demands that the burst is at most the quota.
    saved = 0 if quota == INFINITY else round(wanted.burst * PERIOD) * (_SECOND // PERIOD)
    goals[BURST] = min(own_burst or saved, quota)
    return goals


def present_limits(present: Values) -> CpuLimits:
    """The weight, quota and burst of a guest, in the form that all drivers share."""
    weight, quota, burst = present[WEIGHT], present[QUOTA], present[BURST]
    assert isinstance(weight, int)
    assert isinstance(quota, int)
    assert isinstance(burst, int)
    return CpuLimits(
        DEFAULT_WEIGHT if weight == INFINITY else weight,
        None if quota == INFINITY else quota / _SECOND,
        weight == IDLE,
        burst / _SECOND,
    )


def own_limit(present: Values, noted: Values) -> Values:
    """The guest's own memory limit."""
    return {MEMORY_MAX: own_value(MEMORY_MAX, present, noted)}


def memory_choice(wanted: MemoryLimits, noted: Set[str]) -> GoalChoice:
    """The choice of :func:`memory_goals`.

    :param noted: the names of the values that the agent has written.
    """
    names = {MEMORY_MAX, MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN} | (PAGE_NAMES & noted)
    if wanted.oom_group or OOM_GROUP in noted:
        names.add(OOM_GROUP)
    for size, _ in wanted.huge_pages or ():
        names.update(PAGE_LIMITS[size])
    return GoalChoice(frozenset(names), partial(memory_goals, wanted))


def memory_goals(wanted: MemoryLimits, present: Values, noted: Values) -> Values:
    """The wanted memory limits of a guest."""
    amounts = {
        MEMORY_MAX: wanted.maximum,
        MEMORY_HIGH: wanted.high,
        MEMORY_LOW: wanted.low,
        MEMORY_MIN: wanted.minimum,
    }
    if wanted.huge_pages is not None:
        # Limits of sizes that are not wanted any more are lifted.
        amounts |= dict.fromkeys(PAGE_NAMES & noted.keys(), UNLIMITED)
        for size, limit in wanted.huge_pages:
            amounts |= dict.fromkeys(PAGE_LIMITS[size], limit)
    goals: dict[str, Value] = {}
    if wanted.oom_group is not None:
        goals[OOM_GROUP] = own_value(OOM_GROUP, present, noted) or int(wanted.oom_group)
    for name, amount in amounts.items():
        own = own_value(name, present, noted)
        if amount is None:
            continue
        # A limit of the guest's own stays.
        if own != DEFAULTS[name]:
            goals[name] = own
        else:
            goals[name] = INFINITY if amount >= UNLIMITED else attainable_amount(amount)
    return goals


def present_memory(present: Values, wanted: MemoryLimits, oom_score: int | None) -> MemoryLimits:
    """The memory limits of a guest, for those fields that ``wanted`` has."""

    def shown_amount(name: str, asked: int | None) -> int | None:
        value = present[name]
        assert isinstance(value, int)
        return None if asked is None else min(value, UNLIMITED)

    pages = None
    if wanted.huge_pages is not None:
        limits = ((size, shown_amount(PAGE_LIMITS[size][0], asked)) for size, asked in wanted.huge_pages)
        pages = tuple((size, limit) for size, limit in limits if limit is not None)
    return MemoryLimits(
        maximum=shown_amount(MEMORY_MAX, wanted.maximum),
        high=shown_amount(MEMORY_HIGH, wanted.high),
        low=shown_amount(MEMORY_LOW, wanted.low),
        minimum=shown_amount(MEMORY_MIN, wanted.minimum),
        oom_score_adj=oom_score,
        huge_pages=pages,
        oom_group=None if wanted.oom_group is None else bool(present[OOM_GROUP]),
    )


def io_choice(
    wanted: BlockIo, list_devices: Callable[[frozenset[str]], frozenset[str]], noted: Collection[str]
) -> GoalChoice:
    """The choice of :func:`io_goals`.

    :param list_devices: returns the devices that the host has now, without those of the given devices that
        cannot have limits.
    :param noted: the names of the values that the agent has written.
    """

    def choose_goals(present: Values, noted: Values) -> Values:
        # The devices are listed only if limits need them, because each list takes a read of /sys.
        is_limited = wanted.rates or wanted.latency_us or not noted.keys().isdisjoint((*RATES, LATENCY))
        there = list_devices(wanted.devices) if is_limited else frozenset[str]()
        return io_goals(wanted, there, present, noted)

    names = {IO_WEIGHT, *RATES}
    if wanted.latency_us is not None or LATENCY in noted:
        names.add(LATENCY)
    return GoalChoice(frozenset(names), choose_goals)


def io_goals(wanted: BlockIo, there: frozenset[str], present: Values, noted: Values) -> Values:
    """The wanted weight, rates and targets of latency of block I/O.

    The result leaves out each rate that the agent does not want and has never set, and likewise the targets.

    :param wanted: the wanted settings; if they are empty, the goals are the guest's own values.
    :param there: the devices that the host has now. The kernel forgets the limits of all other devices.
    """
    goals: dict[str, Value] = {}
    weight = own_value(IO_WEIGHT, present, noted)
    if weight == DEFAULTS[IO_WEIGHT] and wanted.weight is not None:
        weight = INFINITY if wanted.weight == DEFAULT_WEIGHT else wanted.weight
    goals[IO_WEIGHT] = weight
    for name, rate in zip(RATES, wanted.rates.all_rates, strict=True):
        limits = {} if rate is None else dict.fromkeys(wanted.devices & there, rate)
        if not limits and name not in noted:
            continue
        own = own_value(name, present, noted)
        assert isinstance(own, DeviceLimits)
        goals[name] = own.keep_devices(there).lower_limits(DeviceLimits.from_limits(limits))
    targets = {} if wanted.latency_us is None else dict.fromkeys(wanted.devices & there, wanted.latency_us)
    if targets or LATENCY in noted:
        own = own_value(LATENCY, present, noted)
        assert isinstance(own, DeviceLimits)
        goals[LATENCY] = DeviceLimits.from_limits({**targets, **own.keep_devices(there).by_device})
    return goals


def pending_writes(goals: Values, present: Values) -> Values:
    """The wanted values that differ from the present values."""
    return {name: value for name, value in goals.items() if present[name] != value}
