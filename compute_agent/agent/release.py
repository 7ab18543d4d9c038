"""Releasing a host: gives back everything that the agent has set, and reports the remainder.

What there is to give back is found each time, never remembered. An interrupted release is finished by
another one: what is done is not found again. A mark in the state folder, written before the first change,
keeps agents from setting everything again. A release without the agent requires that the agent has ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.agent.configured_host import policy_of
from compute_agent.agent.host_access import (
    GUESTS_FOLDER,
    STATE_FILE,
    make_state_folder,
    open_host_driver,
    open_resctrl,
)
from compute_agent.conf.guests import FOLLOW
from compute_agent.controllers.cpu_class import KernelFiles, give_back
from compute_agent.drivers.base import CpuLimits, CpuSettings, GuestDriver
from compute_agent.files import remove_durably, write_durably
from compute_agent.host.reader import read_topology
from compute_agent.inventory import provider_tree
from compute_agent.locks import LockedError
from compute_agent.loops.allocations import allocations_by_consumer
from compute_agent.model import cpuset
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError, called
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile, lock_state_folder
from compute_agent.report.answers import NotFoundError, PlacementError
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import Ownership, ReportedProvider
from compute_agent.report.reporter import HostReporter
from compute_agent.report.root_provider import MARKS, DisableCause, HostMaintenance, in_words, owner_of
from compute_agent.resctrl import apply, groups
from compute_agent.resctrl.groups import DEFAULT_GROUP, read_groups
from compute_agent.resctrl.monitoring import monitoring_group
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.resctrl.plan import PlanStep, make_plan
from compute_agent.resctrl.resolution import resolve_groups
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.throttling.state_file import ThrottlingFile, forget_interference
from compute_agent.throttling.watermarks.state import WatermarkState

LOG = logging.getLogger(__name__)

MARK_FILE: Final = "released"

_DEFAULT_WEIGHT: Final = 100

DONE, WOULD, STAYS, FAILED = "given back", "would be given back", "stays", "failed"

SCHEDULING: Final = "scheduling"

KEPT_AWAY: Final = f"{STAYS}: new guests are kept away until all else is given back"
"""A host that was released in part has no agent any more, which would serve a claim."""


class ReleasedError(Exception):
    """The host was released: no agent works here until somebody says otherwise."""


def mark(folder: Path) -> None:
    """Keep agents from working on this state folder from now on; durable.

    :raises OSError:
    """
    since = datetime.now(UTC).isoformat("T", "seconds")
    write_durably(folder / MARK_FILE, f"{json.dumps({'since': since})}\n".encode())


def unmark(folder: Path) -> None:
    """Let agents work here again. Who was limited for another guest has had all back, and shall keep it.

    :raises OSError:
    """
    forget_interference(folder)
    remove_durably(folder / MARK_FILE)


def refuse_if_released(folder: Path) -> None:
    """See that the host was not released.

    :raises ReleasedError: the host was released.
    """
    if os.path.lexists(folder / MARK_FILE):
        raise ReleasedError(
            f"this host was released, or is being ({folder / MARK_FILE}): compute-agent release finishes it,"
            " compute-agent release --undo lets an agent work here again"
        )


@dataclass(frozen=True, slots=True)
class ReleaseOptions:
    """What to give back beside limits, ways and the scheduling switch.

    ``pins`` come with memory binding and weights; those that are ``given`` by somebody else stay.
    ``provider`` is the tree in Placement.
    """

    pins: bool = False
    provider: bool = False
    given: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """One thing that the agent has set: its kind, whose it is, how it is, and what came of it."""

    kind: str
    name: str
    detail: str
    outcome: str


@dataclass(frozen=True, slots=True)
class ReleaseItem:
    """One thing that there is now; ``give_back`` None: it stays, for a ``reason``."""

    kind: str
    name: str
    detail: str
    give_back: Callable[[], object] | None = None
    reason: str = STAYS

    @property
    def fails(self) -> bool:
        """Whether it is ordered to be given back, and cannot be."""
        return self.give_back is None and self.reason.startswith(FAILED)

    def row(self, outcome: str) -> ReleaseRow:
        """The item with what came of it."""
        return ReleaseRow(self.kind, self.name, self.detail, outcome)


class HostRelease:
    """What one host has, and how it is given back. Nothing else may act on the host meanwhile."""

    def __init__(
        self,
        driver: GuestDriver,
        control: ResctrlHandle | None,
        client: PlacementClient,
        state: StateFile,
        throttling: ThrottlingFile,
        root_uuid: str,
        online: frozenset[int],
        options: ReleaseOptions,
        beside: bool = False,
        files: KernelFiles | None = None,
    ) -> None:
        """``control`` None: there is no resctrl that the agent could have changed.

        ``beside``: the root is nova-compute's, and what is below it of others is no business of ours.
        ``online`` are the CPUs that a guest without pins may use, ``files`` those of the kernel.
        """
        self._driver = driver
        self._control = control
        self._client = client
        self._state = state
        self._throttling = throttling
        self._root_uuid = root_uuid
        self._online = online
        self._options = options
        self._beside = beside
        self._files = files or KernelFiles(Path("/"))

    def survey(self) -> list[ReleaseRow]:
        """What there is, and what would become of it."""
        items = list(self._items())
        open_again = not any(item.fails for item in items)
        return [item.row(_survives(item, open_again) or WOULD) for item in items]

    def carry_out(self) -> list[ReleaseRow]:
        """Give back what is ordered, each thing for itself, and look what is left at the end."""
        rows, open_again = [], True
        for item in self._items():
            open_again = open_again and not item.fails
            if item.give_back is None or _survives(item, open_again):
                continue
            try:
                item.give_back()
            except GuestGoneError:
                continue
            except (DriverError, PlacementError, BadSchemataError, OSError) as error:
                LOG.error("%s of %s cannot be given back: %s", item.kind, item.name, error)
                rows.append(item.row(f"{FAILED}: {error}"))
                open_again = False
            else:
                LOG.info("%s of %s given back: %s", item.kind, item.name, item.detail)
                rows.append(item.row(DONE))
        failed = {(row.kind, row.name) for row in rows if row.outcome != DONE}
        for item in self._items():
            if (item.kind, item.name) not in failed:
                rows.append(item.row(_survives(item, open_again) or f"{FAILED}: it is there again"))
        return rows

    # What there is, in the order in which it is given back

    def _items(self) -> Iterator[ReleaseItem]:
        guests: Sequence[Guest] = ()
        try:
            guests = self._driver.guests()
        except DriverError as error:
            yield ReleaseItem("guests", self._driver.name, "", None, f"failed: {error}")
        for guest in guests:
            yield from self._of_guest(guest)
        if values := self._state.former_values.values:
            detail = f"{len(values)} files of frequencies and idle states"
            yield ReleaseItem(
                "CPU classes", "host", detail, _bound(give_back, self._driver, self._state, self._files)
            )
        if self._control is not None:
            try:
                yield from self._of_resctrl(self._control)
            except (BadSchemataError, OSError) as error:
                yield ReleaseItem("cache and bandwidth", "resctrl", "", None, f"failed: {error}")
        try:
            yield from self._of_placement()
        except PlacementError as error:
            yield ReleaseItem("placement", self._root_uuid, "", None, f"failed: {error}")

    def _of_guest(self, guest: Guest) -> Iterator[ReleaseItem]:
        driver, unlimited = self._driver, CpuLimits()
        try:
            has = driver.cpu_limits(guest, unlimited)
            if has is not None and has.quota is not None:
                give_back = _bound(driver.apply_cpu_limits, guest, unlimited)
                yield ReleaseItem("quota", str(guest), f"{has.quota:g} cores", give_back)
            if detail := self._pins(guest):
                if self._options.pins:
                    yield ReleaseItem("pins", str(guest), detail, _bound(self._unpin, guest))
                else:
                    yield ReleaseItem("pins", str(guest), detail, None, f"{STAYS}: --pins gives it back")
        except GuestGoneError:
            return
        except DriverError as error:
            yield ReleaseItem("quota", str(guest), "", None, f"failed: {error}")

    def _pins(self, guest: Guest) -> str:
        """What binds a guest, in words; empty if nothing does."""
        parts = []
        if self._options.given:
            return self._weight(guest)
        if self._driver.misplaced_threads(guest, self._anywhere(guest)):
            parts.append(f"CPUs {cpuset.format(self._driver.observed_cpus(guest))}")
        if (nodes := self._driver.memory_nodes(guest, frozenset())) is not None:
            parts.append(f"memory of NUMA nodes {cpuset.format(nodes)}")
        return ", ".join(filter(None, [*parts, self._weight(guest)]))

    def _weight(self, guest: Guest) -> str:
        has = self._driver.cpu_limits(guest, CpuLimits(_DEFAULT_WEIGHT))
        return "" if has is None or has.weight in (None, _DEFAULT_WEIGHT) else f"weight {has.weight}"

    def _unpin(self, guest: Guest) -> None:
        if not self._options.given:
            self._driver.apply_cpu_settings(guest, self._anywhere(guest))
            self._driver.bind_memory(guest, frozenset())
        self._driver.apply_cpu_limits(guest, CpuLimits(_DEFAULT_WEIGHT))

    def _anywhere(self, guest: Guest) -> CpuSettings:
        demanded = dict(guest.constraints.pins)
        vcpus = (demanded.get(number, self._online) for number in range(guest.settings.vcpus))
        return CpuSettings(tuple(vcpus), guest.constraints.emulator or self._online)

    def _of_resctrl(self, control: ResctrlHandle) -> Iterator[ReleaseItem]:
        present = read_groups(control.files)
        for name in present.default_group.monitoring_groups:
            if control.is_ours(name):
                path = monitoring_group(DEFAULT_GROUP, name)
                yield ReleaseItem("monitoring", name, "", _bound(groups.remove_group, control.files, path))
        host = control.build_layout(present)
        # As for a host that has neither guests nor classes: the default group gets all that is not others'.
        steps = make_plan(host, present, resolve_groups(host, {}, (), present)).steps
        if steps:
            ours = sorted(name for name in present.groups if control.is_ours(name))
            yield ReleaseItem(
                "cache and bandwidth",
                ", ".join(ours) or "default group",
                f"{len(steps)} changes of resctrl groups",
                _bound(_give_back_groups, control, steps),
            )

    def _of_placement(self) -> Iterator[ReleaseItem]:
        reporter = HostReporter(self._client, {}, lambda owned: None)
        reported = reporter.reported(self._root_uuid)
        yield from self._of_providers(reported)
        root = reported.get(self._root_uuid)
        said, state = self._state.state.maintenance, self._throttling.state.watermarks
        marked = root is not None and bool(root.traits & MARKS) and not self._beside
        if (
            marked
            or state != WatermarkState(scheduling_off=state.scheduling_off)
            or (said is not None and said.off)
        ):
            name = self._root_uuid if root is None else called(root.name, root.uuid)
            detail = (
                "limits and switch in the state file"
                if root is None
                else f"new guests {in_words(root.traits)}"
            )
            yield ReleaseItem(SCHEDULING, name, detail, _bound(self._let_in, reporter))

    def _let_in(self, reporter: HostReporter) -> None:
        """The state first: an agent that worked here again would go by it."""
        self._throttling.keep_watermarks(WatermarkState(scheduling_off=False))
        self._state.keep_maintenance(HostMaintenance(False))
        if not self._beside:
            with contextlib.suppress(NotFoundError):  # the provider is gone, and its traits with it
                reporter.switch_scheduling(self._root_uuid, dict.fromkeys(DisableCause, False))

    def _of_providers(self, reported: dict[str, ReportedProvider]) -> Iterator[ReleaseItem]:
        if self._beside:
            owned = self._state.state.owned
            reported = {uuid: provider for uuid, provider in reported.items() if uuid in owned}
        held = allocations_by_consumer(self._client, reported)
        reasons = blocked(reported, self._state.state.owned, self._root_uuid)
        for uuid in children_first(reported):
            provider = reported[uuid]
            name, detail = called(provider.name, uuid), ", ".join(sorted(provider.inventories))
            if not self._options.provider:
                yield ReleaseItem("provider", name, detail, None, f"{STAYS}: --provider gives it back")
            elif held:
                names = ", ".join(sorted(held)[:3]) + (", ..." if len(held) > 3 else "")
                yield ReleaseItem(
                    "provider", name, detail, None, f"failed: {len(held)} consumers hold something: {names}"
                )
            elif uuid in reasons:
                yield ReleaseItem("provider", name, detail, None, f"failed: {reasons[uuid]}")
            else:
                yield ReleaseItem("provider", name, detail, _bound(self._delete, uuid))

    def _delete(self, uuid: str) -> None:
        with contextlib.suppress(NotFoundError):  # somebody else was faster
            self._client.delete_provider(uuid)
        owned = self._state.state.owned
        self._state.keep_owned({key: one for key, one in owned.items() if key != uuid})


def _survives(item: ReleaseItem, open_again: bool) -> str:
    """Why something stays, in words; empty if it is given back. ``open_again``: all else was."""
    if item.give_back is None:
        return item.reason
    return "" if open_again or item.kind != SCHEDULING else KEPT_AWAY


def children_first(reported: dict[str, ReportedProvider]) -> list[str]:
    """Providers in an order in which they can be deleted."""

    def depth(uuid: str) -> int:
        parent = reported[uuid].parent
        return 0 if parent is None or parent not in reported else 1 + depth(parent)

    return sorted(reported, key=lambda uuid: (-depth(uuid), reported[uuid].name))


def blocked(reported: dict[str, ReportedProvider], owned: Ownership, root_uuid: str) -> dict[str, str]:
    """The providers that cannot be deleted, and why.

    These are those of others, with what is above them, and those on which others have inventories.
    """
    reasons: dict[str, str] = {}
    for uuid in children_first(reported):
        provider = reported[uuid]
        ours = owned.get(uuid)
        foreign = provider.inventories.keys() - (frozenset() if ours is None else ours.classes)
        below = [child.name for child in reported.values() if child.parent == uuid and child.uuid in reasons]
        if ours is None and uuid != root_uuid:
            reasons[uuid] = "it is not the agent's, as far as its state file knows"
        elif foreign:
            reasons[uuid] = f"it has inventories that are not the agent's: {', '.join(sorted(foreign))}"
        elif below:
            reasons[uuid] = f"{', '.join(sorted(below))} below it stays"
    return reasons


def _give_back_groups(control: ResctrlHandle, steps: Sequence[PlanStep]) -> None:
    """Carry out what gives ways and bandwidth back.

    :raises ResctrlError: that of the first group that the kernel holds up; the others are given back.
    """
    for error in apply.apply_plan(control.files, steps, control.codec).values():
        raise error


def _bound(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: function(*arguments)


def survey(
    world: HostState,
    driver: GuestDriver,
    control: ResctrlHandle | None,
    client: PlacementClient,
    state: StateFile,
    throttling: ThrottlingFile,
    options: ReleaseOptions,
    files: KernelFiles,
) -> list[ReleaseRow]:
    """What there is to give back of the host that an agent works on."""
    options = replace(options, given=world.follows)
    root, online = world.tree.root.uuid, world.topology.online
    return HostRelease(
        driver, control, client, state, throttling, root, online, options, world.tree.beside, files
    ).survey()


_POLL_SECONDS: Final = 0.1


@contextlib.contextmanager
def open_release(conf: cfg.ConfigOpts, options: ReleaseOptions, lock_timeout: float) -> Iterator[HostRelease]:
    """The release of this host, as long as no agent works on its state folder.

    One that ends is waited for, ``lock_timeout`` seconds at most.

    :raises ConfigError:
    :raises LockedError:
    :raises IdentityError:
    :raises DriverError:
    :raises PlacementError:
    :raises OSError:
    """
    folder = make_state_folder(conf)
    lock = _wait_for_lock(folder, lock_timeout)
    try:
        state = StateFile(folder / STATE_FILE)
        holder = f"compute-agent release, pid {os.getpid()}"
        opened = open_host_driver(conf, state, folder / GUESTS_FOLDER, holder, AgentMetrics())
        try:
            owner = owner_of(conf.compute.provider_tree, state.state.nova_root)
            own = provider_tree.load_or_create(folder)
            yield HostRelease(
                opened.driver,
                open_resctrl(conf).control,
                PlacementClient.from_conf(conf),
                state,
                ThrottlingFile(folder, state),
                own if owner.novas is None else owner.novas.uuid,
                read_topology(Path(conf.host.root)).online,
                replace(options, given=policy_of(conf, owner.beside) == FOLLOW),
                owner.beside,
                KernelFiles(Path(conf.host.root)),
            )
        finally:
            opened.close()
    finally:
        os.close(lock)


def _wait_for_lock(folder: Path, lock_timeout: float) -> int:
    deadline = time.monotonic() + lock_timeout
    while True:
        try:
            return lock_state_folder(folder)
        except LockedError as error:
            if time.monotonic() >= deadline:
                raise LockedError(f"{error}: end it (systemctl stop compute-agent), and try again") from error
        time.sleep(_POLL_SECONDS)
