"""Controller ``cpu_class``: sets frequencies and idle states of CPUs by the class of the guests on them.

A CPU class is a section ``[cpu_class:NAME]``. A guest's settings or its QoS class can name a CPU class for
its dedicated CPUs. CPU class ``idle`` applies to dedicated CPUs that no guest holds, and CPU class ``shared``
to shared CPUs. The content of a kernel file is saved to disk before the first write. The agent writes this
content back when no CPU class sets the file any more.

:mod:`compute_agent.controllers.cpu_class_plan` decides the content of files. The controller brings the CPUs
that it needs online before it writes any other file.
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

from compute_agent.controllers.base import (
    FOREIGN_ROUNDS,
    ControllersInForce,
    GuestTarget,
    HostController,
    KernelController,
    PlannedChange,
    ReleaseItem,
    find_controller,
)
from compute_agent.controllers.cpu_class_plan import (
    NO_CPU_CLASSES,
    ON,
    ONLINE_FILE,
    CpuClasses,
    CpuClassPlan,
    FileSetting,
    choose_parked,
    decide_files,
    idle_since,
    in_words,
    make_claims,
    online_file,
    parked_offline,
)
from compute_agent.drivers.base import GuestDriver
from compute_agent.host import cpu_power, kernel_files
from compute_agent.host.cpu_power import CpuPower, read_cpu_power
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model import cpuset
from compute_agent.model.cpuset import (
    FormerValues,
    ParkMode,
    named_cpus,
)
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError

LOG = logging.getLogger(__name__)

# The order of writes to the files of a CPU. Governors come first, because the governor ``performance`` also
# changes the energy preference.
_ORDER: Final = (
    cpu_power.GOVERNOR,
    cpu_power.MAX_FREQUENCY,
    cpu_power.MIN_FREQUENCY,
    cpu_power.MAX_UNCORE,
    cpu_power.MIN_UNCORE,
)

# The number of times that the files of a folder are written. The kernel refuses a minimum frequency above the
# maximum. So some changes need the minimum first and others the maximum, and the second pass writes values
# that the first pass could not write.
_ROUNDS: Final = 2

_ONLINE: Final = "sys/devices/system/cpu/online"
_DRIVER: Final = "sys/devices/system/cpu/cpufreq/policy0/scaling_driver"


class FormerStore(Protocol):
    """Stores the former content of kernel files on disk. The agent's state file implements this protocol."""

    @property
    def former_values(self) -> FormerValues:
        """The saved content by file."""
        ...

    def keep_former_values(self, former: FormerValues) -> None:
        """Replace all saved content. The content is on disk when this method returns.

        :raises OSError: the content cannot be saved.
        """
        ...


@dataclass(frozen=True, slots=True)
class CpuClassStatus:
    """The state of CPU classes after the last sync().

    :ivar classes: the CPUs of each CPU class.
    :ivar refusals: messages about settings that are not in effect.
    :ivar parked: the parked CPUs.
    """

    classes: Mapping[str, frozenset[int]]
    refusals: tuple[str, ...] = ()
    parked: frozenset[int] = frozenset()


class KernelFiles:
    """Reads and writes kernel files; paths are relative to ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, path: str) -> str | None:
        """The content of a file without surrounding white space; None if the file does not exist."""
        text = kernel_files.read_optional(f"{self.root}/{path}")
        return None if text is None else text.strip()

    def write(self, path: str, text: str) -> None:
        """Write a text in one system call, because the kernel parses each write as a separate value.

        :raises OSError: the kernel refuses the value.
        """
        kernel_files.write_text(f"{self.root}/{path}", text)


class CpuClassController(HostController):
    """Sets governors, frequencies, energy preferences and idle states, and parks idle CPUs."""

    name = "cpu_class"
    awaits = True

    def __init__(
        self,
        driver: GuestDriver,
        configured: CpuClasses,
        store: FormerStore,
        files: KernelFiles,
        count_drift: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the configured CPU classes.

        :param configured: the configured CPU classes.
        :param store: saves the former content of files.
        :param count_drift: called for each file that another program has changed.
        :param clock: returns monotonic seconds, for the idle times of CPUs.
        """
        # With parking, each round compares the files, because no event reports that a core has become idle.
        self.compare_rounds = 1 if configured.parking else FOREIGN_ROUNDS
        self._clock = clock
        self._idle_since: Mapping[int, float] = {}
        self._driver = driver
        self._configured = configured
        self._store = store
        self._files = files
        self._count_drift = count_drift
        self._seen: tuple[str | None, ...] | None = None
        self._power = CpuPower()
        self._in_force: Mapping[str, str] = {}
        self.status = CpuClassStatus({})

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Write each file that does not have its wanted content.

        A failure in one folder does not stop the writes in other folders.

        :raises OSError: the former content cannot be saved, so nothing is written.
        """
        # The kernel has the files of frequencies and idle states for online CPUs only. So the files of CPUs
        # that come online in the first pass are written in the second.
        for _ in range(_ROUNDS):
            if not self._align_files(targets):
                break

    def _align_files(self, targets: Sequence[GuestTarget]) -> bool:
        """Do one pass of sync(); return whether a CPU was taken offline or brought online."""
        plan, wanted = self._decide_files(targets)
        former = self._former_values()
        if not wanted:
            self._show_status(plan, (), targets)
            return False
        has = {path: text for path in wanted if (text := self._files.read(path)) is not None}
        fresh = {path: has[path] for path in plan.settings if path in has and path not in former.values}
        # Offline CPUs without a saved value are brought online by the agent, too (see _former_values).
        fresh |= dict.fromkeys(former.values.keys() - self._store.former_values.values.keys(), ON)
        switches = any(
            text != wanted[path].text and ONLINE_FILE.fullmatch(path) for path, text in has.items()
        )
        # The former content is saved before any write. If the agent crashes in between, the next agent still
        # knows it.
        if fresh or any(text != wanted[path].text for path, text in has.items()):
            former = replace(former, values={**former.values, **fresh})
            self._store.keep_former_values(former)
        # Drift is reported before the writes, because these overwrite the changes of other programs.
        self._tell_drift(wanted, has)
        failures: dict[str, str] = {}
        back: set[str] = set()
        # The kernel sometimes changes one file of a folder when another file is written, but no file of
        # another folder.
        for names in _by_folder(path for path in wanted if path in has):
            failed = self._write_folder({path: wanted[path].text for path in names}, has)
            errors = {path for path, (_, is_error) in failed.items() if is_error}
            # If former content is written and then reads back differently, this is not reported, because no
            # class asks for it.
            failures |= {
                path: reason
                for path, (reason, _) in failed.items()
                if path in plan.settings or path in errors
            }
            back |= {path for path in names if path not in plan.settings and path not in errors}
        # A saved value is dropped only after it was written back. If the write has failed, the next sync()
        # tries again.
        if back:
            left = {path: text for path, text in former.values.items() if path not in back}
            self._store.keep_former_values(replace(former, values=left))
        failures |= {path: "it is not there" for path in plan.settings if path not in has}
        self._in_force = {
            path: setting.text for path, setting in plan.settings.items() if path not in failures
        }
        self._show_status(plan, _refusal_sentences(wanted, failures), targets)
        return switches

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """One item for all files that the agent wrote, because their former values are restored together."""
        if values := self._store.former_values.values:
            detail = f"{len(values)} files of frequencies and idle states"
            if parked := parked_offline(self._store.former_values):
                detail += f", {named_cpus(parked)} offline"
            yield ReleaseItem("CPU classes", "host", detail, self._give_back)

    def _give_back(self) -> None:
        """Write the former content of all files again."""
        # A controller without CPU classes wants no file, so its sync() writes back all saved content.
        unconfigured = CpuClassController(self._driver, NO_CPU_CLASSES, self._store, self._files)
        unconfigured.sync((), ())
        if unconfigured.status.refusals:
            raise DriverError("; ".join(unconfigured.status.refusals))

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The changes that sync() would make. Equal changes of several CPUs are one item."""
        _, wanted = self._decide_files(targets)
        # On most hosts many CPUs have the same change, which is shown as one row.
        found: dict[str, set[int]] = defaultdict(set)
        for path, setting in wanted.items():
            has = self._files.read(path)
            if has is not None and has != setting.text:
                found[f"{_file_name(path)} {has} -> {setting.text}"] |= setting.cpus
        for change, cpus in sorted(found.items()):
            yield PlannedChange(self.name, named_cpus(frozenset(cpus)) if cpus else "host", change)

    def _decide_files(self, targets: Sequence[GuestTarget]) -> tuple[CpuClassPlan, dict[str, FileSetting]]:
        """Return the plan, and the wanted content of all files, including those to restore."""
        former = self._former_values()
        configured = self._configured
        if not configured.classes and not former.values:
            return CpuClassPlan(), {}
        # The CPUs of a lost guest are unknown. So while a guest is lost, CPUs that seem free must not change.
        lost = bool(self._driver.lost_guests() or self._driver.awaited_drivers)
        claims = make_claims(configured, targets, lost, self._choose_parked(targets, lost))
        plan = decide_files(self._power_layout(), claims)
        back = {
            path: FileSetting(text, frozenset())
            for path, text in former.values.items()
            if path not in plan.settings and path.rpartition("/")[0] not in plan.frozen
        }
        return plan, {**back, **plan.settings}

    def _choose_parked(self, targets: Sequence[GuestTarget], lost: bool) -> frozenset[int]:
        """The CPUs to park. While the driver cannot manage some guest (lost), no further CPUs are parked."""
        rules = self._configured.parking
        if rules is None:
            return frozenset()
        used, now = frozenset[int]().union(*map(self._used_cpus, targets)), self._clock()
        self._idle_since = idle_since(self._idle_since, rules.cpus, used, now)
        # After a start of the agent the status is empty. Offline CPUs then show which CPUs the former agent
        # parked.
        parked = self.status.parked | (self._offline_cpus() & rules.cpus)
        return choose_parked(rules, used, parked, {} if lost else self._idle_since, now)

    def _used_cpus(self, target: GuestTarget) -> frozenset[int]:
        """The CPUs that a guest holds, may run on, or is pinned to by its definition."""
        place, guest = target.assignment, target.guest
        if place is not None:
            return place.held_cpus | place.cpus | place.emulator_cpus
        pins = guest.constraints.emulator.union(*(cpus for _, cpus in guest.constraints.pins))
        rules = self._configured.parking
        if rules is None or not guest.pid:
            return pins
        try:
            seen = self._driver.observed_cpus(guest)
        except (DriverError, OSError):
            return pins  # If the guest has not ended, the next sync() reads its pins again.
        # A guest that may run on all CPUs needs no particular CPU, so it does not prevent parking.
        return pins if rules.cpus - self._offline_cpus() <= seen else pins | seen

    def _offline_cpus(self) -> frozenset[int]:
        """The offline CPUs that may be parked. The result is empty if parking does not take CPUs offline."""
        rules = self._configured.parking
        if rules is None or rules.mode is not ParkMode.OFFLINE:
            return frozenset()
        text = self._files.read(_ONLINE)
        return (rules.cpus | rules.unknown) - cpuset.parse(text) if text else frozenset()

    def _former_values(self) -> FormerValues:
        """The content of the kernel's files before the agent changed them.

        Content from before the last boot is left out, because a reboot resets all these files.

        An offline CPU that may be parked counts as a CPU that the agent has parked. So parked CPUs come
        online again even if the state file was lost.
        """
        boot = kernel_files.read_boot_id(self._files.root)
        former = self._store.former_values
        former = former if former.boot == boot else FormerValues(boot)
        adopted = {path: ON for path in map(online_file, self._offline_cpus()) if path not in former.values}
        return replace(former, values={**adopted, **former.values}) if adopted else former

    def _power_layout(self) -> CpuPower:
        """The frequency domains and idle states of the host, read again when CPUs or drivers changed."""
        # Two small files show whether CPUs or drivers have changed. So the some thousand files of a large
        # host are rarely read.
        seen = tuple(map(self._files.read, (_ONLINE, _DRIVER)))
        if seen != self._seen:
            self._seen, self._power = seen, read_cpu_power(self._files.root)
        return self._power

    def _write_folder(self, texts: Mapping[str, str], has: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
        """Write the files of one folder that do not have their wanted content.

        :param texts: the wanted content by path.
        :param has: the present content by path.
        :return: for each file that still differs, the reason, and whether the kernel refused the write.
        """
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
                    errors[path] = f"the kernel does not accept it: {os.strerror(error.errno or 0)}"
            # All files are read back, because a write of one file can change another file (governor and
            # energy preference).
            now = {path: self._files.read(path) for path in texts}
        return {
            path: (errors.get(path) or f"the kernel has {now[path] or 'nothing'} instead", path in errors)
            for path, text in texts.items()
            if now[path] != text
        }

    def _tell_drift(self, wanted: Mapping[str, FileSetting], has: Mapping[str, str]) -> None:
        # A file has drifted if it had the wanted content, and the same content is still wanted. All other
        # differences come from the plan.
        for path, text in self._in_force.items():
            if path in has and path in wanted and wanted[path].text == text != has[path]:
                LOG.warning(
                    "Another program changed a setting of CPUs, and the agent repairs it: %s was %s instead"
                    " of %s",
                    path,
                    has[path],
                    text,
                )
                self._count_drift()

    def _show_status(
        self, plan: CpuClassPlan, failures: Iterable[tuple[str, str]], targets: Sequence[GuestTarget]
    ) -> None:
        """Set the status, log new refusals of the kernel, and note the refusals that concern each guest."""
        by_class: dict[str, list[str]] = {name: list(reasons) for name, reasons in plan.missing.items()}
        for name, sentence in failures:
            by_class.setdefault(name, []).append(sentence)
        refusals = tuple(sorted({each for reasons in by_class.values() for each in reasons}))
        for sentence in refusals:
            # A refusal is logged once, when it begins; the status shows it as long as it lasts.
            if sentence not in self.status.refusals:
                LOG.warning("A setting of a CPU class is not in effect: %s", sentence)
        if plan.classes != self.status.classes:
            LOG.info("The CPUs of each CPU class are now: %s", in_words(plan.classes) or "none")
        if plan.parked != self.status.parked:
            LOG.info("The parked idle CPUs are now: %s", cpuset.format(plan.parked) or "none")
        self.status = CpuClassStatus(plan.classes, refusals, plan.parked)
        refused = {}
        for target in targets:
            bound = self._configured.binding_of(target.guest.settings)
            has_own = target.assignment is not None and bool(target.assignment.held_cpus)
            # A guest without dedicated CPUs gets no message, because it did not ask for the class of shared
            # CPUs.
            if has_own and bound.cpu_class and (reasons := by_class.get(bound.cpu_class.name)):
                refused[target.guest.uuid] = reasons
        self.refused = refused


def cpu_class_status(controllers: Iterable[KernelController]) -> CpuClassStatus:
    """The status of the controller ``cpu_class``; an empty status without this controller."""
    found = find_controller(controllers, CpuClassController)
    return CpuClassStatus({}) if found is None else found.status


def count_refusals(registry: CollectorRegistry, controllers: ControllersInForce) -> None:
    """Register the gauges of parked CPUs, and of settings that are not in effect."""
    Gauge(
        "compute_agent_cpu_class_refusals",
        "Settings of CPU classes that are not in force; `compute-agent status` says why.",
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
    """Yield pairs of a class and a message about a setting that is not in effect.

    CPUs with the same failure share a message.
    """
    together: dict[tuple[str, str], set[int]] = defaultdict(set)
    for path, reason in failures.items():
        setting = wanted[path]
        where = path if not setting.cpus else _file_name(path)
        together[setting.cpu_class, f"{where} = {setting.text}: {reason}"] |= setting.cpus
    for (name, sentence), cpus in together.items():
        yield name, f"{named_cpus(frozenset(cpus))}: {sentence}" if cpus else sentence


def _file_name(path: str) -> str:
    """The name of a file. For a file of an idle state, the name of the idle state comes first."""
    name = path.rpartition("/")[2]
    return f"{path.split('/')[-2]}/{name}" if name == cpu_power.DISABLE else name


def _by_folder(paths: Iterable[str]) -> Iterator[list[str]]:
    folders: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folders[path.rpartition("/")[0]].append(path)
    yield from folders.values()


def _write_rank(path: str) -> int:
    name = path.rpartition("/")[2]
    # All other files come last: a governor would change an energy preference that was written before it.
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)
