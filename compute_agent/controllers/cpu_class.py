"""Controller ``cpu_class``: how fast CPUs work, and how deep they sleep, by the guests that hold them.

A class is a section ``[cpu_class:NAME]``. A class of guests names one for the dedicated CPUs of its guests;
``idle`` is that of dedicated CPUs that nobody holds, ``shared`` that of shared CPUs. What files held before
is kept durably before they are written to, and written back when no class says anything about them any more.

:mod:`compute_agent.controllers.cpu_class_plan` decides what files are to hold. CPUs that were parked offline
are brought online before anything else is written.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Gauge

from compute_agent.controllers.base import GuestTarget, KernelController, PlannedChange, ReleaseItem
from compute_agent.controllers.cpu_class_plan import (
    NO_BINDING,
    ON,
    ONLINE_FILE,
    ClassBinding,
    CpuClassPlan,
    FileSetting,
    bind_guest,
    decide,
    in_words,
    make_claims,
    online_file,
    parked_offline,
)
from compute_agent.controllers.parking import IdleTimes, ParkingRules, choose_parked
from compute_agent.drivers.base import CpuTuning, RunningGuests
from compute_agent.host import cpu_power, kernel_files
from compute_agent.host.cpu_power import CpuPower, read_cpu_power
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model import cpuset
from compute_agent.model.cpuset import (
    CpuClass,
    CpuSets,
    FormerValues,
    ParkMode,
    named_cpus,
)
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError

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
            text != wanted[path].text and ONLINE_FILE.fullmatch(path) for path, text in has.items()
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
                detail += f", {named_cpus(parked)} offline"
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
            yield PlannedChange(self.name, named_cpus(frozenset(cpus)) if cpus else "host", change)

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
            return place.held_cpus | place.cpus | place.emulator_cpus
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
            has_own = target.assignment is not None and bool(target.assignment.held_cpus)
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
        yield name, f"{named_cpus(frozenset(cpus))}: {sentence}" if cpus else sentence


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
