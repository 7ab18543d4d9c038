"""Pure functions that decide the CPU class of each CPU, the content of kernel files, and the parked cores.

Nouns:

- A *claim* is a set of CPUs with the class that they ask for. Claims are in order, the strongest first.
- A *frequency domain* is a set of CPUs with one frequency. The CPUs of a frequency domain cannot have
  different frequencies. So the strongest claim that contains a CPU of the frequency domain decides for the
  whole domain. If this claim has no class, the frequency domain gets its former frequencies.
- Idle states belong to each single CPU.
- A CPU is *used* while a guest holds it, floats on it or is about to start on it.
- A core is *parked* when none of its CPUs has been used for a while. The core stays parked until one of its
  CPUs is used. Parked cores are the weakest claim.

A worked example: the claims are ``2-3 fast`` and ``4-7 idle``. With the frequency domains ``2-3``, ``4-5``,
``6-7`` each claim gets its own class. With the single frequency domain ``2-7`` the frequencies of all its
CPUs are those of ``fast``, and CPUs 4-7 have the idle states of ``idle``. After a while without use, the
cores ``4-5`` and ``6-7`` are parked. A guest on CPU 6 wakes the core ``6-7``.

Invariants: a file gets its former content if no claim on its CPUs has a class. Equal claims always lead to
equal contents of files. A core with a used CPU, or with a CPU outside :attr:`ParkingRules.cpus`, is not
parked. Where parking takes CPUs offline, CPU 0 and one core of each L3 cache and NUMA node stay online. If
the last CPU of a cache went offline, the kernel would drop the resctrl masks of the cache. If the last CPU of
a node went offline, no CPU would be near the node's memory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.controllers.base import GuestTarget
from compute_agent.host import cpu_power
from compute_agent.host.cpu_power import CpuPower, FrequencyDomain, UncoreDomain
from compute_agent.host.cpus import CPU_FOLDER
from compute_agent.host.topology import HostTopology
from compute_agent.model import cpuset
from compute_agent.model.cpuset import (
    IDLE,
    SHARED,
    Bound,
    CpuClass,
    CpuSet,
    CpuSets,
    FormerValues,
    NamedFrequency,
    ParkMode,
    named_cpus,
)
from compute_agent.model.guest_settings import GuestSettings

ON: Final = "1"
OFF: Final = "0"
ONLINE_FILE: Final = re.compile(rf"{CPU_FOLDER}/cpu([0-9]+)/online", re.ASCII)

_PARKED_GOVERNOR: Final = "powersave"
# The minimum number of idle states for parking by idle states: the deepest state and at least one other.
_MIN_STATES: Final = 2

# Drivers that refuse all energy preferences but ``performance`` (EBUSY) while the governor is
# ``performance``.
_ONE_PREFERENCE: Final = {"intel_pstate", "amd-pstate-epp"}


@dataclass(frozen=True, slots=True)
class ClassBinding:
    """The rank of a class of guests, and the CPU class for the dedicated CPUs of its guests."""

    rank: int
    cpu_class: CpuClass | None = None


NO_BINDING: Final = ClassBinding(0)


@dataclass(frozen=True, slots=True)
class ParkingRules:
    """The rules that decide which idle cores are parked, when and how.

    :ivar mode: how CPUs are parked: offline, in a deep idle state, or with a slow governor.
    :ivar after: the seconds without use after which a core is parked.
    :ivar topology: the cores, caches and NUMA nodes of the host.
    :ivar cpus: the CPUs that may be parked.
    :ivar unknown: offline dedicated CPUs of unknown cores. The controller brings them online, because the
        kernel shows the siblings of online CPUs only.
    """

    mode: ParkMode
    after: float
    topology: HostTopology
    cpus: CpuSet
    unknown: CpuSet = frozenset()


@dataclass(frozen=True, slots=True)
class CpuClasses:
    """The configuration of controller ``cpu_class``.

    :ivar classes: the CPU classes by name.
    :ivar bindings: the rank and the CPU class of each class of guests, by its name.
    :ivar cpu_sets: the dedicated, shared and emulator CPUs of the host.
    :ivar parking: how idle cores are parked; None if they are not parked.
    """

    classes: Mapping[str, CpuClass]
    bindings: Mapping[str, ClassBinding]
    cpu_sets: CpuSets
    parking: ParkingRules | None = None

    def binding_of(self, settings: GuestSettings, otherwise: ClassBinding = NO_BINDING) -> ClassBinding:
        """The rank of a guest, and the CPU class of its dedicated CPUs.

        The guest's own setting names the CPU class. Without this setting, the guest's QoS class names it.

        :param otherwise: the result for guests of a QoS class that is not configured.
        """
        bound = self.bindings.get(settings.qos_class, otherwise)
        own = self.classes.get(settings.cpu_class)
        return bound if own is None else ClassBinding(bound.rank, own)


NO_CPU_CLASSES: Final = CpuClasses({}, {}, CpuSets(frozenset(), frozenset(), frozenset()))


@dataclass(frozen=True, slots=True)
class CpuClassClaim:
    """A set of CPUs and the class that they ask for.

    :ivar cpu_class: the class that the CPUs ask for; None if their files get their former content.
    :ivar frozen: whether the files of these CPUs stay unchanged.
    :ivar parked: whether these CPUs are parked.
    """

    cpus: frozenset[int]
    cpu_class: CpuClass | None = None
    frozen: bool = False
    parked: bool = False

    @property
    def wanted_governor(self) -> str | None:
        """The governor that the CPUs should have; None if they get their former governor back."""
        if self.cpu_class is None or self.cpu_class.park is not ParkMode.GOVERNOR:
            return None if self.cpu_class is None else self.cpu_class.governor
        return (self.cpu_class.governor or _PARKED_GOVERNOR) if self.parked else None


@dataclass(frozen=True, slots=True)
class FileSetting:
    """The wanted content of a kernel file.

    :ivar cpus: the CPUs that the file concerns.
    :ivar cpu_class: the class of these CPUs; empty if the file gets its former content back.
    """

    text: str
    cpus: frozenset[int]
    cpu_class: str = ""


@dataclass(frozen=True, slots=True)
class CpuClassPlan:
    """The wanted content of all kernel files of a host.

    :ivar settings: the wanted content by path below the root.
    :ivar frozen: folders in which all files stay unchanged.
    :ivar classes: the CPUs of each class.
    :ivar missing: by class, messages about settings that this host does not support.
    :ivar parked: the CPUs to park.
    """

    settings: Mapping[str, FileSetting] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    classes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parked: frozenset[int] = frozenset()


def make_claims(
    configured: CpuClasses,
    targets: Iterable[GuestTarget],
    lost: bool,
    parked: frozenset[int] = frozenset(),
) -> list[CpuClassClaim]:
    """The claims of a host: of guests by rank, then of shared CPUs, then of unheld dedicated CPUs.

    :param lost: whether the driver cannot manage some guests that perhaps still run. Their CPUs are unknown.
    :param parked: the CPUs to park, all of which no guest holds.
    """
    # CPUs of preserved guests and of guests of unknown classes come before all ranks, because their files
    # must not change.
    highest = ClassBinding(max((one.rank for one in configured.bindings.values()), default=0) + 1)
    held: list[tuple[tuple[int, bool, str, str], CpuClassClaim]] = []
    for target in targets:
        if target.assignment is not None and target.assignment.held_cpus:
            settings = target.guest.settings
            # Without a claim, the CPUs of a preserved guest would count as idle.
            bound = highest if settings.preserve else configured.binding_of(settings, highest)
            name = "" if bound.cpu_class is None else bound.cpu_class.name
            # Guests of equal rank are sorted by name and uuid, so that each call gives the same order.
            strength = (-bound.rank, not name, name, target.guest.uuid)
            held.append((strength, CpuClassClaim(target.assignment.held_cpus, bound.cpu_class)))
    cpu_sets, classes = configured.cpu_sets, configured.classes
    shared = cpu_sets.shared | cpu_sets.emulator
    idle_class = classes.get(IDLE)
    unheld = CpuClassClaim(cpu_sets.dedicated - shared - parked, None if lost else idle_class, frozen=lost)
    of_guests = [claim for _, claim in sorted(held, key=lambda each: each[0])]
    rest = [CpuClassClaim(shared, classes.get(SHARED)), unheld]
    asleep = [CpuClassClaim(parked, None if lost else idle_class, lost, parked=True)] if parked else []
    # While a guest is lost, CPUs that no guest holds come before shared CPUs, because the lost guest perhaps
    # holds one of them.
    return [*of_guests, *(reversed(rest) if lost else rest), *asleep]


def decide_files(power: CpuPower, claims: Sequence[CpuClassClaim]) -> CpuClassPlan:
    """The wanted content of a host's files for these claims.

    :param power: the frequency domains and idle states of the host.
    :param claims: the claims on the CPUs of the host. The strongest claim comes first.
    """
    maker = _PlanBuilder()
    for domain in power.frequency_domains:
        if (claim := _winning_claim(claims, domain.cpus)) is not None:
            maker.decide_files(domain.folder, domain.cpus, claim, maker.frequency_texts(domain, claim))
    for beside in power.uncore_domains:
        if (claim := _winning_claim(claims, beside.cpus)) is not None:
            maker.decide_files(beside.folder, beside.cpus, claim, maker.uncore_texts(beside, claim.cpu_class))
    has_frequency = frozenset[int]().union(*(domain.cpus for domain in power.frequency_domains))
    for cpu in sorted({cpu for claim in claims for cpu in claim.cpus}):
        claim = next(claim for claim in claims if cpu in claim.cpus)
        maker.disable_states(cpu, claim, power.idle_states.get(cpu, {}))
        maker.park_cpu(cpu, claim)
        if claim.cpu_class is not None and cpu not in has_frequency:
            maker.without_frequency(cpu, claim.cpu_class)
    if not power.uncore_domains:
        for claim in claims:
            if claim.cpu_class and (claim.cpu_class.min_uncore or claim.cpu_class.max_uncore):
                maker.note_missing(
                    claim.cpu_class, "uncore frequencies cannot be set on this host", claim.cpus
                )
    return maker.build_plan()


def _winning_claim(claims: Sequence[CpuClassClaim], cpus: frozenset[int]) -> CpuClassClaim | None:
    return next((claim for claim in claims if not claim.cpus.isdisjoint(cpus)), None)


class _PlanBuilder:
    """Collects the fields of a :class:`CpuClassPlan`."""

    def __init__(self) -> None:
        self._settings: dict[str, FileSetting] = {}
        self._frozen: set[str] = set()
        self._classes: dict[str, set[int]] = defaultdict(set)
        self._missing: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._parked: set[int] = set()

    def build_plan(self) -> CpuClassPlan:
        """Return the plan with all noted fields."""
        return CpuClassPlan(
            self._settings,
            frozenset(self._frozen),
            {name: frozenset(cpus) for name, cpus in sorted(self._classes.items())},
            {
                name: tuple(
                    f"{reason} ({named_cpus(frozenset(cpus))})" for reason, cpus in sorted(found.items())
                )
                for name, found in sorted(self._missing.items())
            },
            frozenset(self._parked),
        )

    def note_missing(self, cpu_class: CpuClass, reason: str, cpus: Iterable[int]) -> None:
        """Note that some CPUs cannot have a setting of their class."""
        self._missing[cpu_class.name][f"[{CPU_CLASS}{cpu_class.name}] {reason}"].update(cpus)

    def decide_files(
        self, folder: str, cpus: frozenset[int], claim: CpuClassClaim, texts: Iterable[tuple[str, str]]
    ) -> None:
        """Note the wanted content of the files in a folder.

        :param cpus: the CPUs that the files concern.
        :param claim: the claim that decides.
        :param texts: pairs of a file name and its content.
        """
        if claim.frozen:
            self._frozen.add(folder)
        elif claim.cpu_class is not None:
            for name, text in texts:
                self._settings[f"{folder}/{name}"] = FileSetting(text, cpus, claim.cpu_class.name)
            # A folder of uncore frequencies concerns the CPUs of many cores, and does not decide the class of
            # these CPUs.
            if folder.rpartition("/")[2].startswith("policy"):
                self._classes[claim.cpu_class.name] |= cpus

    def frequency_texts(self, domain: FrequencyDomain, claim: CpuClassClaim) -> Iterator[tuple[str, str]]:
        """The content that a claim requests for each file of a frequency domain, by file name."""
        wanted = claim.cpu_class
        if wanted is None:
            return
        governor, preference = claim.wanted_governor, wanted.energy_preference
        if governor is not None:
            if governor in domain.governors:
                yield cpu_power.GOVERNOR, governor
            else:
                there = ", ".join(domain.governors) or "none"
                self.note_missing(wanted, f"governor = {governor}: this kernel has {there}", domain.cpus)
        if preference is not None:
            text = f"energy_performance_preference = {preference}"
            if preference not in domain.preferences:
                there = ", ".join(domain.preferences) or "none"
                self.note_missing(wanted, f"{text}: this kernel has {there}", domain.cpus)
            elif governor == "performance" != preference and domain.driver in _ONE_PREFERENCE:
                self.note_missing(
                    wanted,
                    f"{text}: {domain.driver} accepts only performance with that governor",
                    domain.cpus,
                )
            else:
                yield cpu_power.PREFERENCE, preference
        # fmt: skip keeps the pairs of file names and of bounds on one line each.
        yield from self._bound_texts(
            wanted, domain, domain.base_khz, ("", wanted.min_frequency, wanted.max_frequency),
            (cpu_power.MIN_FREQUENCY, cpu_power.MAX_FREQUENCY),
        )  # fmt: skip

    def uncore_texts(self, domain: UncoreDomain, wanted: CpuClass | None) -> Iterator[tuple[str, str]]:
        """The file names and contents for an uncore domain (frequencies of caches and interconnect)."""
        if wanted is not None:
            yield from self._bound_texts(
                wanted, domain, None, ("uncore_", wanted.min_uncore, wanted.max_uncore),
                (cpu_power.MIN_UNCORE, cpu_power.MAX_UNCORE),
            )  # fmt: skip

    def disable_states(self, cpu: int, claim: CpuClassClaim, states: Mapping[str, str]) -> None:
        """Note the files that disable idle states of a CPU.

        :param states: the folder of each idle state of the CPU, by its name, the shallowest first.
        """
        wanted, there = claim.cpu_class, ", ".join(states) or "none"
        if claim.frozen:
            self._frozen.update(states.values())
        elif wanted is not None:
            disabled = [state for state in wanted.disabled_c_states if state in states]
            for state in (each for each in wanted.disabled_c_states if each not in states):
                self.note_missing(wanted, f"disabled_c_states = {state}: this kernel has {there}", [cpu])
            if claim.parked and wanted.park is ParkMode.C_STATE:
                # With only one idle state left, a CPU enters it whenever it is idle, however short a sleep
                # the kernel expects.
                deep = [state for state in states if state not in disabled]
                if len(deep) < _MIN_STATES:
                    self.note_missing(wanted, f"park = c-state: the kernel has {there} here", [cpu])
                # A higher number is a deeper state (kernel: admin-guide/pm/cpuidle.rst), so the last one is
                # kept.
                disabled += deep[:-1]
            for state in disabled:
                path = f"{states[state]}/{cpu_power.DISABLE}"
                self._settings[path] = FileSetting("1", frozenset({cpu}), wanted.name)

    def park_cpu(self, cpu: int, claim: CpuClassClaim) -> None:
        """Note a CPU to park. If parking takes CPUs offline, also note the file ``online`` of these CPUs."""
        if claim.parked:
            self._parked.add(cpu)
            if claim.frozen:
                self._frozen.add(f"{CPU_FOLDER}/cpu{cpu}")
            wanted = claim.cpu_class
            if wanted is not None and wanted.park is ParkMode.OFFLINE:
                self._settings[online_file(cpu)] = FileSetting(OFF, frozenset({cpu}), wanted.name)

    def without_frequency(self, cpu: int, wanted: CpuClass) -> None:
        """Record that a CPU has no cpufreq (as in most VMs), and which settings it cannot have."""
        self._classes[wanted.name].add(cpu)
        if wanted.governor or wanted.energy_preference or wanted.min_frequency or wanted.max_frequency:
            self.note_missing(wanted, "governor, frequencies: this kernel has no cpufreq", [cpu])

    def _bound_texts(
        self,
        wanted: CpuClass,
        domain: FrequencyDomain | UncoreDomain,
        base_khz: int | None,
        bounds: tuple[str, Bound, Bound],
        files: tuple[str, str],
    ) -> Iterator[tuple[str, str]]:
        """The file names and contents for the lowest and the highest frequency, within the domain's range.

        :param base_khz: the base frequency in kHz; None if unknown.
        :param bounds: the prefix of the option names, and the wanted lowest and highest frequency.
        :param files: the names of the files for the lowest and the highest frequency.
        """
        prefix, *pair = bounds
        known = {
            NamedFrequency.MIN: domain.min_khz,
            NamedFrequency.BASE: base_khz,
            NamedFrequency.TURBO: domain.max_khz,
        }
        found: list[int | None] = []
        for option, bound in zip((f"{prefix}min_frequency", f"{prefix}max_frequency"), pair, strict=True):
            khz = known[bound] if isinstance(bound, NamedFrequency) else bound
            text = f"{option} = {bound}"
            if bound is not None and khz is None:
                self.note_missing(wanted, f"{text}: this kernel does not report that frequency", domain.cpus)
            elif khz is not None and domain.min_khz is not None and domain.max_khz is not None:
                # The kernel would restrict the value without an error. The message shows the operator the
                # value that is in effect.
                within = min(max(khz, domain.min_khz), domain.max_khz)
                if within != khz:
                    self.note_missing(
                        wanted,
                        f"{text}: it is {within} kHz, because the CPUs have no such frequency",
                        domain.cpus,
                    )
                khz = within
            found.append(khz)
        low, high = found
        if low is not None and high is not None and low > high:
            reason = f"{prefix}min_frequency is above {prefix}max_frequency: both are {high} kHz"
            self.note_missing(wanted, reason, domain.cpus)
            low = high
        yield from ((file, str(khz)) for file, khz in zip(files, (low, high), strict=True) if khz is not None)


def online_file(cpu: int) -> str:
    """The path, below the root, of the file that takes a CPU offline and brings it online."""
    return f"{CPU_FOLDER}/cpu{cpu}/online"


def parked_offline(former: FormerValues) -> frozenset[int]:
    """The CPUs that the agent took offline: those with a saved value of their file ``online``."""
    found = (ONLINE_FILE.fullmatch(path) for path in former.values)
    return frozenset(int(match[1]) for match in found if match is not None)


def in_words(classes: Mapping[str, frozenset[int]]) -> dict[str, str]:
    """The CPUs of each class as text, such as ``2-3``, by the name of the class."""
    return {name: cpuset.format(cpus) for name, cpus in sorted(classes.items())}


def idle_since(before: Mapping[int, float], cpus: CpuSet, used: CpuSet, now: float) -> dict[int, float]:
    """The start of the idle time of each unused CPU, in monotonic seconds.

    :param before: the last result.
    :param cpus: all CPUs that may be parked.
    :param used: the CPUs that guests use. They have no entry, so that their idle time starts from zero after
        their last use.
    :param now: the present time in monotonic seconds.
    """
    return {cpu: before.get(cpu, now) for cpu in cpus - used}


def choose_parked(
    rules: ParkingRules, used: CpuSet, parked: CpuSet, since: Mapping[int, float], now: float
) -> CpuSet:
    """The CPUs to park.

    :param used: the CPUs that guests use.
    :param parked: the CPUs that are parked already. They stay parked until they are used.
    :param since: the start of the idle time by CPU, in monotonic seconds.
    :param now: the present time in monotonic seconds.
    """
    cores = [
        core.cpus
        for core in rules.topology.cores
        if core.cpus <= rules.cpus
        and core.cpus.isdisjoint(used)
        and (
            not core.cpus.isdisjoint(parked)
            or all(now - since.get(cpu, now) >= rules.after for cpu in core.cpus)
        )
    ]
    if rules.mode is ParkMode.OFFLINE:
        # CPU 0 stays online: most kernels refuse to take it offline, or have no file for it.
        cores = _spare_domains(rules.topology, [cpus for cpus in cores if 0 not in cpus])
    return frozenset().union(*cores)


def _spare_domains(topology: HostTopology, cores: Iterable[CpuSet]) -> list[CpuSet]:
    """The cores that may be parked, without the last online core of each L3 cache and NUMA node."""
    domains = [cache.cpus for cache in topology.l3_domains]
    # A NUMA node that has only memory has no CPU to keep online.
    domains += [node.cpus for node in topology.numa_nodes if node.cpus]
    found: list[CpuSet] = []
    gone: CpuSet = frozenset()
    # The loop runs from the last core to the first, so that the first core of a domain always stays online.
    for cpus in sorted(cores, key=min, reverse=True):
        if all(cpus.isdisjoint(domain) or domain - gone - cpus for domain in domains):
            found.append(cpus)
            gone |= cpus
    return found
