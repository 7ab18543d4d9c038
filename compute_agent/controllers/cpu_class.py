"""Controller ``cpu_class``: how fast CPUs work, and how deep they sleep, by the guests that hold them.

decide() says which CPUs work by which class, and what that means for files of the kernel. It is pure.

Nouns: a *claim* is a set of CPUs with the class that they ask for; claims are in order, the strongest first.
A *domain* is a set of CPUs with one frequency. What shares a domain cannot differ, so the first claim with a
CPU in it decides for all of it, also where it asks for nothing: then the domain is as it was found. A CPU has
its idle states for itself.

With claims ``2-3 fast``, ``4-7 idle`` and domains ``2-3``, ``4-5``, ``6-7`` each class has its own. With one
domain ``2-7`` all of it is ``fast``, and CPUs 4-7 have the idle states of ``idle``.

Always: what no claim of a class reaches is as it was found; the same claims lead to the same files.

A class is a section ``[cpu_class:NAME]``. A class of guests names one for the dedicated CPUs of its guests;
``idle`` is that of dedicated CPUs that nobody holds, ``shared`` that of shared CPUs. What files held before
is kept durably before they are written to, and written back when no class says anything about them any more.

Idle cores may be *parked* after a while (see :mod:`compute_agent.controllers.parking`): that is one more
claim, the weakest. CPUs that are parked offline are brought online before anything else is written.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Gauge

from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.controllers.base import GuestTarget, KernelController, PlannedChange, ReleaseItem
from compute_agent.controllers.parking import IdleTimes, ParkingRules, choose_parked
from compute_agent.drivers.base import CpuTuning, RunningGuests
from compute_agent.host import cpu_power, kernel_files
from compute_agent.host.cpu_power import CpuPower, FrequencyDomain, UncoreDomain, read_cpu_power
from compute_agent.host.cpus import CPU_FOLDER
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model import cpuset
from compute_agent.model.cpuset import (
    IDLE,
    SHARED,
    Bound,
    CpuClass,
    CpuSets,
    FormerValues,
    NamedFrequency,
    ParkMode,
    named,
)
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError

_PARKED_GOVERNOR: Final = "powersave"
_MIN_STATES: Final = 2
"""Idle states from which one can be the deepest."""

_ONE_PREFERENCE: Final = {"intel_pstate", "amd-pstate-epp"}
"""Drivers that take no energy preference but performance while that is the governor."""


@dataclass(frozen=True, slots=True)
class ClassBinding:
    """What a class of guests means for CPUs: its rank, and the class of its dedicated CPUs."""

    rank: int
    cpu_class: CpuClass | None = None


NO_BINDING: Final = ClassBinding(0)


@dataclass(frozen=True, slots=True)
class CpuClassClaim:
    """CPUs and the class that they ask for; None: as they were found. ``frozen``: as they are now.

    ``parked``: they are parked as the class says.
    """

    cpus: frozenset[int]
    cpu_class: CpuClass | None = None
    frozen: bool = False
    parked: bool = False

    @property
    def governor(self) -> str | None:
        """The governor that the CPUs are to have; None: as it was found."""
        if self.cpu_class is None or self.cpu_class.park is not ParkMode.GOVERNOR:
            return None if self.cpu_class is None else self.cpu_class.governor
        return (self.cpu_class.governor or _PARKED_GOVERNOR) if self.parked else None


@dataclass(frozen=True, slots=True)
class FileSetting:
    """What a file is to hold: for which CPUs, by which class (empty: as it was found)."""

    text: str
    cpus: frozenset[int]
    cpu_class: str = ""


@dataclass(frozen=True, slots=True)
class CpuClassPlan:
    """Files by path below the root, folders that are left as they are, and who has which class.

    ``missing`` says, by class, what of it cannot be had. ``parked`` are the CPUs that are to be parked.
    """

    settings: Mapping[str, FileSetting] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    classes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parked: frozenset[int] = frozenset()


def make_claims(
    targets: Iterable[GuestTarget],
    cpu_sets: CpuSets,
    bindings: Mapping[str, ClassBinding],
    classes: Mapping[str, CpuClass],
    lost: bool,
    parked: frozenset[int] = frozenset(),
) -> list[CpuClassClaim]:
    """The claims of a host: those of guests by rank, of shared CPUs, of dedicated ones that nobody holds.

    ``lost``: there may be guests that nobody can look after, and it is not known which CPUs they hold.
    ``parked`` are the CPUs to be parked, which are some of those that nobody holds.
    """
    highest = ClassBinding(max((one.rank for one in bindings.values()), default=0) + 1)
    held: list[tuple[tuple[int, bool, str, str], CpuClassClaim]] = []
    for target in targets:
        if target.assignment is not None and target.assignment.held:
            settings = target.guest.settings
            # The CPUs of a preserved guest stay as they were found: without a claim they would count as idle.
            bound = highest if settings.preserve else bind_guest(settings, bindings, classes, highest)
            name = "" if bound.cpu_class is None else bound.cpu_class.name
            strength = (-bound.rank, not name, name, target.guest.uuid)
            held.append((strength, CpuClassClaim(target.assignment.held, bound.cpu_class)))
    shared = cpu_sets.shared | cpu_sets.emulator
    idle_class = classes.get(IDLE)
    nobodys = CpuClassClaim(cpu_sets.dedicated - shared - parked, None if lost else idle_class, frozen=lost)
    of_guests = [claim for _, claim in sorted(held, key=lambda each: each[0])]
    rest = [CpuClassClaim(shared, classes.get(SHARED)), nobodys]
    asleep = [CpuClassClaim(parked, None if lost else idle_class, lost, parked=True)] if parked else []
    return [*of_guests, *(reversed(rest) if lost else rest), *asleep]


def bind_guest(
    settings: GuestSettings,
    bindings: Mapping[str, ClassBinding],
    classes: Mapping[str, CpuClass],
    otherwise: ClassBinding,
) -> ClassBinding:
    """The rank of a guest, and the class of its dedicated CPUs: its own, or that of its class of guests.

    ``otherwise`` is for guests of a class that is not configured.
    """
    bound = bindings.get(settings.qos_class, otherwise)
    own = classes.get(settings.cpu_class)
    return bound if own is None else ClassBinding(bound.rank, own)


def decide(power: CpuPower, claims: Sequence[CpuClassClaim]) -> CpuClassPlan:
    """What the files of a host are to hold for these claims."""
    maker = _PlanBuilder()
    for domain in power.frequency_domains:
        if (claim := _winning_claim(claims, domain.cpus)) is not None:
            maker.decide(domain.folder, domain.cpus, claim, maker.frequency_texts(domain, claim))
    for beside in power.uncore_domains:
        if (claim := _winning_claim(claims, beside.cpus)) is not None:
            maker.decide(beside.folder, beside.cpus, claim, maker.uncore_texts(beside, claim.cpu_class))
    has_frequency = frozenset[int]().union(*(domain.cpus for domain in power.frequency_domains))
    for cpu in sorted({cpu for claim in claims for cpu in claim.cpus}):
        claim = next(claim for claim in claims if cpu in claim.cpus)
        maker.disable_states(cpu, claim, power.idle_states.get(cpu, {}))
        maker.park(cpu, claim)
        if claim.cpu_class is not None and cpu not in has_frequency:
            maker.without_frequency(cpu, claim.cpu_class)
    if not power.uncore_domains:
        for claim in claims:
            if claim.cpu_class and (claim.cpu_class.min_uncore or claim.cpu_class.max_uncore):
                maker.note_missing(
                    claim.cpu_class, "uncore frequencies cannot be set on this host", claim.cpus
                )
    return maker.plan()


def _winning_claim(claims: Sequence[CpuClassClaim], cpus: frozenset[int]) -> CpuClassClaim | None:
    return next((claim for claim in claims if not claim.cpus.isdisjoint(cpus)), None)


class _PlanBuilder:
    """Gathers a plan."""

    def __init__(self) -> None:
        self._settings: dict[str, FileSetting] = {}
        self._frozen: set[str] = set()
        self._classes: dict[str, set[int]] = defaultdict(set)
        self._missing: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._parked: set[int] = set()

    def plan(self) -> CpuClassPlan:
        """What was gathered."""
        return CpuClassPlan(
            self._settings,
            frozenset(self._frozen),
            {name: frozenset(cpus) for name, cpus in sorted(self._classes.items())},
            {
                name: tuple(f"{reason} ({named(frozenset(cpus))})" for reason, cpus in sorted(found.items()))
                for name, found in sorted(self._missing.items())
            },
            frozenset(self._parked),
        )

    def note_missing(self, cpu_class: CpuClass, reason: str, cpus: Iterable[int]) -> None:
        """Note what some CPUs cannot have of a class."""
        self._missing[cpu_class.name][f"[{CPU_CLASS}{cpu_class.name}] {reason}"].update(cpus)

    def decide(
        self, folder: str, cpus: frozenset[int], claim: CpuClassClaim, texts: Iterable[tuple[str, str]]
    ) -> None:
        """Note what the files of a folder are to hold."""
        if claim.frozen:
            self._frozen.add(folder)
        elif claim.cpu_class is not None:
            for name, text in texts:
                self._settings[f"{folder}/{name}"] = FileSetting(text, cpus, claim.cpu_class.name)
            if folder.rpartition("/")[2].startswith("policy"):
                self._classes[claim.cpu_class.name] |= cpus

    def frequency_texts(self, domain: FrequencyDomain, claim: CpuClassClaim) -> Iterator[tuple[str, str]]:
        """What a domain of frequency is to have."""
        wanted = claim.cpu_class
        if wanted is None:
            return
        governor, preference = claim.governor, wanted.energy_preference
        if governor is not None:
            if governor in domain.governors:
                yield cpu_power.GOVERNOR, governor
            else:
                there = ", ".join(domain.governors) or "none"
                self.note_missing(wanted, f"governor = {governor}: the kernel has {there} here", domain.cpus)
        if preference is not None:
            text = f"energy_performance_preference = {preference}"
            if preference not in domain.preferences:
                there = ", ".join(domain.preferences) or "none"
                self.note_missing(wanted, f"{text}: the kernel has {there} here", domain.cpus)
            elif governor == "performance" != preference and domain.driver in _ONE_PREFERENCE:
                self.note_missing(
                    wanted,
                    f"{text}: {domain.driver} takes none but performance with that governor",
                    domain.cpus,
                )
            else:
                yield cpu_power.PREFERENCE, preference
        yield from self._bound_texts(
            wanted, domain, domain.base_khz, ("", wanted.min_frequency, wanted.max_frequency),
            (cpu_power.MIN_FREQUENCY, cpu_power.MAX_FREQUENCY),
        )  # fmt: skip

    def uncore_texts(self, domain: UncoreDomain, wanted: CpuClass | None) -> Iterator[tuple[str, str]]:
        """What is beside the cores is to have."""
        if wanted is not None:
            yield from self._bound_texts(
                wanted, domain, None, ("uncore_", wanted.min_uncore, wanted.max_uncore),
                (cpu_power.MIN_UNCORE, cpu_power.MAX_UNCORE),
            )  # fmt: skip

    def disable_states(self, cpu: int, claim: CpuClassClaim, states: Mapping[str, str]) -> None:
        """Which idle states a CPU is not to have."""
        if claim.frozen:
            self._frozen.update(states.values())
        elif claim.cpu_class is not None:
            wanted = claim.cpu_class
            for state in wanted.disabled_c_states:
                if state in states:
                    path = f"{states[state]}/{cpu_power.DISABLE}"
                    self._settings[path] = FileSetting("1", frozenset({cpu}), wanted.name)
                else:
                    there = ", ".join(states) or "none"
                    self.note_missing(
                        wanted, f"disabled_c_states = {state}: the kernel has {there} here", [cpu]
                    )
            if claim.parked and wanted.park is ParkMode.C_STATE:
                # A CPU with one state left enters it whatever the kernel expects of the length of the sleep.
                deep = [state for state in states if state not in wanted.disabled_c_states]
                if len(deep) < _MIN_STATES:
                    self.note_missing(
                        wanted, f"park = c-state: the kernel has {', '.join(states) or 'none'} here", [cpu]
                    )
                for state in deep[:-1]:
                    path = f"{states[state]}/{cpu_power.DISABLE}"
                    self._settings[path] = FileSetting("1", frozenset({cpu}), wanted.name)

    def park(self, cpu: int, claim: CpuClassClaim) -> None:
        """Note a CPU that is to be parked, and its file where that takes it offline."""
        if claim.parked:
            self._parked.add(cpu)
            if claim.frozen:
                self._frozen.add(f"{CPU_FOLDER}/cpu{cpu}")
            wanted = claim.cpu_class
            if wanted is not None and wanted.park is ParkMode.OFFLINE:
                self._settings[online_file(cpu)] = FileSetting(OFF, frozenset({cpu}), wanted.name)

    def without_frequency(self, cpu: int, wanted: CpuClass) -> None:
        """A CPU whose frequency the kernel does not set, as in most virtual machines."""
        self._classes[wanted.name].add(cpu)
        if wanted.governor or wanted.energy_preference or wanted.min_frequency or wanted.max_frequency:
            self.note_missing(wanted, "governor, frequencies: the kernel has no cpufreq here", [cpu])

    def _bound_texts(
        self,
        wanted: CpuClass,
        domain: FrequencyDomain | UncoreDomain,
        base_khz: int | None,
        bounds: tuple[str, Bound, Bound],
        files: tuple[str, str],
    ) -> Iterator[tuple[str, str]]:
        """The lowest and the highest frequency, within what the domain can."""
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
                self.note_missing(
                    wanted, f"{text}: the kernel does not tell that frequency here", domain.cpus
                )
            elif khz is not None and domain.min_khz is not None and domain.max_khz is not None:
                within = min(max(khz, domain.min_khz), domain.max_khz)
                if within != khz:
                    self.note_missing(
                        wanted, f"{text}: it is {within} kHz, as the CPUs cannot do that", domain.cpus
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
    """The file that takes a CPU offline, below the root."""
    return f"{CPU_FOLDER}/cpu{cpu}/online"


def parked_offline(former: FormerValues) -> frozenset[int]:
    """The CPUs that the agent took offline, by the former values of their files."""
    found = (_ONLINE_FILE.fullmatch(path) for path in former.values)
    return frozenset(int(match[1]) for match in found if match is not None)


def in_words(classes: Mapping[str, frozenset[int]]) -> dict[str, str]:
    """The CPUs of each class as text."""
    return {name: cpuset.format(cpus) for name, cpus in sorted(classes.items())}


LOG = logging.getLogger(__name__)

_ORDER: Final = (
    cpu_power.GOVERNOR,
    cpu_power.MAX_FREQUENCY,
    cpu_power.MIN_FREQUENCY,
    cpu_power.MAX_UNCORE,
    cpu_power.MIN_UNCORE,
)
"""Governors first, as some bring an energy preference of their own."""

_ROUNDS: Final = 2
"""A minimum that is to fall below the present maximum may have to go first, or second."""

ON: Final = "1"
OFF: Final = "0"
_ONLINE_FILE: Final = re.compile(rf"{CPU_FOLDER}/cpu([0-9]+)/online", re.ASCII)

_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
_ONLINE: Final = "sys/devices/system/cpu/online"
_DRIVER: Final = "sys/devices/system/cpu/cpufreq/policy0/scaling_driver"


class FormerStore(Protocol):
    """Where is kept what files held before."""

    @property
    def former_values(self) -> FormerValues:
        """What is kept."""
        ...

    def keep_former_values(self, former: FormerValues) -> None:
        """Keep that instead, durably.

        :raises OSError:
        """
        ...


@dataclass(frozen=True, slots=True)
class CpuClasses:
    """What the configuration says: classes by name, what classes of guests mean, and the CPU sets.

    ``parking`` None: idle cores are not parked.
    """

    classes: Mapping[str, CpuClass]
    bindings: Mapping[str, ClassBinding]
    cpu_sets: CpuSets
    parking: ParkingRules | None = None


NO_CPU_CLASSES: Final = CpuClasses({}, {}, CpuSets(frozenset(), frozenset(), frozenset()))


@dataclass(frozen=True, slots=True)
class CpuClassStatus:
    """Which CPUs work by which class, which are parked, and what is not in force, a sentence each."""

    classes: Mapping[str, frozenset[int]]
    refusals: tuple[str, ...] = ()
    parked: frozenset[int] = frozenset()


class KernelFiles:
    """Files of the kernel below a root; paths are relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str) -> str | None:
        """The content; None where there is none."""
        text = kernel_files.read_optional(f"{self.root}/{path}")
        return None if text is None else text.strip()

    def write(self, path: str, text: str) -> None:
        """Write it at once.

        :raises OSError: the kernel does not take it.
        """
        kernel_files.write_text(f"{self.root}/{path}", text)


class CpuClassController(KernelController):
    """Sets governors, frequencies, energy preferences and idle states, all of the host together."""

    name = "cpu_class"
    acts_early = False
    awaits = True

    def __init__(
        self,
        driver: ObservedGuests,
        configured: CpuClasses,
        store: FormerStore,
        files: KernelFiles,
        count_drift: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``count_drift`` is called for each file that somebody else has changed."""
        self._clock = clock
        self._idle = IdleTimes()
        self._driver = driver
        self._configured = configured
        self._store = store
        self._files = files
        self._count_drift = count_drift
        self._seen: tuple[str | None, ...] | None = None
        self._power = CpuPower()
        self._in_force: Mapping[str, str] = {}
        self.status = CpuClassStatus({})
        self.refused: Mapping[str, Sequence[str]] = {}

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Bring every file into line, each folder for itself.

        :raises OSError: what files hold cannot be kept; nothing is written then.
        """
        # Frequencies and idle states of CPUs that were offline are there once these are online.
        for _ in range(_ROUNDS):
            if not self._align_files(targets):
                break

    def _align_files(self, targets: Sequence[GuestTarget]) -> bool:
        """As sync(), once. True if CPUs were to go offline or come online."""
        plan, wanted = self._decide_files(targets)
        former = self._former_values()
        if not wanted:
            self._show_status(plan, (), targets)
            return False
        has = {path: text for path in wanted if (text := self._files.read(path)) is not None}
        fresh = {path: has[path] for path in plan.settings if path in has and path not in former.values}
        fresh |= dict.fromkeys(former.values.keys() - self._store.former_values.values.keys(), ON)
        switches = any(
            text != wanted[path].text and _ONLINE_FILE.fullmatch(path) for path, text in has.items()
        )
        if fresh or any(text != wanted[path].text for path, text in has.items()):
            former = replace(former, values={**former.values, **fresh})
            self._store.keep_former_values(former)
        self._tell_drift(wanted, has)
        failures: dict[str, str] = {}
        back: set[str] = set()
        for names in _by_folder(path for path in wanted if path in has):
            failed = self._write_folder({path: wanted[path].text for path in names}, has)
            errors = {path for path, (_, is_error) in failed.items() if is_error}
            failures |= {
                path: reason
                for path, (reason, _) in failed.items()
                if path in plan.settings or path in errors
            }
            back |= {path for path in names if path not in plan.settings and path not in errors}
        if back:
            left = {path: text for path, text in former.values.items() if path not in back}
            self._store.keep_former_values(replace(former, values=left))
        failures |= {path: "it is not there" for path in plan.settings if path not in has}
        self._in_force = {
            path: setting.text for path, setting in plan.settings.items() if path not in failures
        }
        self._show_status(plan, _refusal_sentences(wanted, failures), targets)
        return switches

    def drifted(self, target: GuestTarget) -> str | None:
        """Nothing: sync() has looked at all CPUs, and repaired them."""
        return None

    def apply(self, target: GuestTarget) -> bool:
        """Nothing is left to do for a guest alone."""
        return False

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """All files that were written to, as one thing: what they held before belongs together."""
        if values := self._store.former_values.values:
            detail = f"{len(values)} files of frequencies and idle states"
            if parked := parked_offline(self._store.former_values):
                detail += f", {named(parked)} offline"
            yield ReleaseItem("CPU classes", "host", detail, self._give_back)

    def _give_back(self) -> None:
        """Write back what files held before the first class of CPUs.

        :raises DriverError: the kernel does not take all of it.
        :raises OSError:
        """
        # As on a host without classes, whatever the configuration says: sync() writes back the rest.
        unconfigured = CpuClassController(self._driver, NO_CPU_CLASSES, self._store, self._files)
        unconfigured.sync((), ())
        if unconfigured.status.refusals:
            raise DriverError("; ".join(unconfigured.status.refusals))

    def plan(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> Iterator[PlannedChange]:
        """What sync() would change, by the CPUs that it concerns."""
        _, wanted = self._decide_files(targets)
        found: dict[str, set[int]] = defaultdict(set)
        for path, setting in wanted.items():
            has = self._files.read(path)
            if has is not None and has != setting.text:
                found[f"{_file_name(path)} {has} -> {setting.text}"] |= setting.cpus
        for change, cpus in sorted(found.items()):
            yield PlannedChange(self.name, named(frozenset(cpus)) if cpus else "host", change)

    def _decide_files(self, targets: Sequence[GuestTarget]) -> tuple[CpuClassPlan, dict[str, FileSetting]]:
        """The plan, and what files are to hold: those of the plan, and those to be as they were found."""
        former = self._former_values()
        configured = self._configured
        if not configured.classes and not former.values:
            return CpuClassPlan(), {}
        lost = bool(self._driver.lost())
        claims = make_claims(
            targets,
            configured.cpu_sets,
            configured.bindings,
            configured.classes,
            lost,
            self._choose_parked(targets, lost),
        )
        plan = decide(self._power_layout(), claims)
        back = {
            path: FileSetting(text, frozenset())
            for path, text in former.values.items()
            if path not in plan.settings and path.rpartition("/")[0] not in plan.frozen
        }
        return plan, {**back, **plan.settings}

    def _choose_parked(self, targets: Sequence[GuestTarget], lost: bool) -> frozenset[int]:
        """The CPUs to be parked; while a guest is lost, none but those that are."""
        rules = self._configured.parking
        if rules is None:
            return frozenset()
        used, now = frozenset[int]().union(*map(self._used_cpus, targets)), self._clock()
        since = self._idle.observe(rules.cpus, used, now)
        parked = self.status.parked | (self._offline() & rules.cpus)
        return choose_parked(rules, used, parked, {} if lost else since, now)

    def _used_cpus(self, target: GuestTarget) -> frozenset[int]:
        """The CPUs that a guest uses, or that its definition will have it use."""
        place, guest = target.assignment, target.guest
        if place is not None:
            return place.held | place.cpus | place.emulator_cpus
        pins = guest.constraints.emulator.union(*(cpus for _, cpus in guest.constraints.pins))
        rules = self._configured.parking
        if rules is None or not guest.pid:
            return pins
        try:
            seen = self._driver.observed_cpus(guest)
        except (DriverError, OSError):  # it ended, or it is asked again next time
            return pins
        # A guest that may run anywhere goes on on the CPUs that are left.
        return pins if rules.cpus - self._offline() <= seen else pins | seen

    def _offline(self) -> frozenset[int]:
        """The CPUs of the sets that are offline."""
        rules = self._configured.parking
        if rules is None or rules.mode is not ParkMode.OFFLINE:
            return frozenset()
        text = self._files.read(_ONLINE)
        return (rules.cpus | rules.unknown) - cpuset.parse(text) if text else frozenset()

    def _former_values(self) -> FormerValues:
        """What is kept, of this boot: a reboot gave back everything.

        CPUs that are offline belong to whoever parks CPUs, also if what was kept is lost.
        """
        boot = self._files.read(_BOOT_ID) or ""
        former = self._store.former_values
        former = former if former.boot == boot else FormerValues(boot)
        adopted = {path: ON for path in map(online_file, self._offline()) if path not in former.values}
        return replace(former, values={**adopted, **former.values}) if adopted else former

    def _power_layout(self) -> CpuPower:
        """Domains and idle states, read again when CPUs or drivers have changed."""
        seen = tuple(map(self._files.read, (_ONLINE, _DRIVER)))
        if seen != self._seen:
            self._seen, self._power = seen, read_cpu_power(self._files.root)
        return self._power

    def _write_folder(self, texts: Mapping[str, str], has: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
        """Write what differs of one folder. What still does, why, and whether the kernel refused it."""
        now: dict[str, str | None] = {path: has[path] for path in texts}
        errors: dict[str, str] = {}
        for _ in range(_ROUNDS):
            differing = [path for path, text in texts.items() if now[path] != text]
            if not differing:
                break
            errors = {}
            for path in sorted(differing, key=_write_rank):
                try:
                    self._files.write(path, texts[path])
                except OSError as error:
                    errors[path] = f"the kernel does not take it: {os.strerror(error.errno or 0)}"
            now = {path: self._files.read(path) for path in texts}
        return {
            path: (errors.get(path) or f"the kernel has {now[path] or 'nothing'} instead", path in errors)
            for path, text in texts.items()
            if now[path] != text
        }

    def _tell_drift(self, wanted: Mapping[str, FileSetting], has: Mapping[str, str]) -> None:
        for path, text in self._in_force.items():
            if path in has and path in wanted and wanted[path].text == text != has[path]:
                LOG.warning("%s was %s in place of %s: repaired", path, has[path], text)
                self._count_drift()

    def _show_status(
        self, plan: CpuClassPlan, failures: Iterable[tuple[str, str]], targets: Sequence[GuestTarget]
    ) -> None:
        """Tell who has which class, and what cannot be had: guests of theirs, the operator of all."""
        by_class: dict[str, list[str]] = {name: list(reasons) for name, reasons in plan.missing.items()}
        for name, sentence in failures:
            by_class.setdefault(name, []).append(sentence)
        refusals = tuple(sorted({each for reasons in by_class.values() for each in reasons}))
        for sentence in refusals:
            if sentence not in self.status.refusals:
                LOG.warning("CPU classes: %s", sentence)
        if plan.classes != self.status.classes:
            LOG.info("Classes of CPUs: %s", in_words(plan.classes) or "none")
        if plan.parked != self.status.parked:
            LOG.info("Parked CPUs: %s", cpuset.format(plan.parked) or "none")
        self.status = CpuClassStatus(plan.classes, refusals, plan.parked)
        bindings, refused = self._configured.bindings, {}
        for target in targets:
            bound = bind_guest(target.guest.settings, bindings, self._configured.classes, NO_BINDING)
            has_own = target.assignment is not None and bool(target.assignment.held)
            if has_own and bound.cpu_class and (reasons := by_class.get(bound.cpu_class.name)):
                refused[target.guest.uuid] = reasons
        self.refused = refused


class ObservedGuests(RunningGuests, CpuTuning, Protocol):
    """Guests, and the CPUs that they may use."""


class ControllersInForce(Protocol):
    """Who knows the controllers that the worker has now: a reload replaces them."""

    @property
    def controllers(self) -> tuple[KernelController, ...]:
        """The controllers in force."""
        ...


def cpu_class_status(controllers: Iterable[KernelController]) -> CpuClassStatus:
    """Which CPUs work by which class, as the controller among these has it."""
    found = (one.status for one in controllers if isinstance(one, CpuClassController))
    return next(found, CpuClassStatus({}))


def count_refusals(registry: CollectorRegistry, controllers: ControllersInForce) -> None:
    """Register the gauges of CPUs that are parked, and of settings that are not in force."""
    Gauge(
        "compute_agent_cpu_class_refusals",
        "Settings of classes of CPUs that are not in force; `compute-agent status` says why.",
        registry=registry,
    ).set_function(lambda: len(cpu_class_status(controllers.controllers).refusals))
    Gauge(
        "compute_agent_parked_cpus",
        "Dedicated CPUs that are parked because no guest holds them.",
        registry=registry,
    ).set_function(lambda: len(cpu_class_status(controllers.controllers).parked))


def _refusal_sentences(
    wanted: Mapping[str, FileSetting], failures: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """What is not in force, by class, a sentence for all CPUs of which it is the same."""
    together: dict[tuple[str, str], set[int]] = defaultdict(set)
    for path, reason in failures.items():
        setting = wanted[path]
        where = path if not setting.cpus else _file_name(path)
        together[setting.cpu_class, f"{where} = {setting.text}: {reason}"] |= setting.cpus
    for (name, sentence), cpus in together.items():
        yield name, f"{named(frozenset(cpus))}: {sentence}" if cpus else sentence


def _file_name(path: str) -> str:
    """The name of a file, with that of its idle state."""
    name = path.rpartition("/")[2]
    return f"{path.split('/')[-2]}/{name}" if name == cpu_power.DISABLE else name


def _by_folder(paths: Iterable[str]) -> Iterator[list[str]]:
    folders: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folders[path.rpartition("/")[0]].append(path)
    yield from folders.values()


def _write_rank(path: str) -> int:
    name = path.rpartition("/")[2]
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)
