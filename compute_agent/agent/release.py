"""Releases a host: undoes settings that the agent has made, and reports the settings that remain.

A release searches the host and Placement for settings to undo, because no file lists all settings. It also
reads the state folder, which has the notes of claims, the names that the agent owns in Placement, and
original values. So after an interruption, a second release finds the remaining settings and undoes them.
Before the first change, the release writes a mark into the state folder. No agent starts on a folder with the
mark, so no agent makes the settings again. No agent may run on the state folder during a release.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.agent.configured_controllers import ControllerSettings, make_controllers, open_stores
from compute_agent.agent.configured_host import policy_of
from compute_agent.agent.host_access import (
    GUESTS_FOLDER,
    STATE_FILE,
    make_state_folder,
    open_host_driver,
    open_resctrl,
)
from compute_agent.conf.policy import FOLLOW
from compute_agent.controllers.base import FAILED, PINS, KernelController, ReleaseItem, failed_item
from compute_agent.controllers.realtime import RealtimeController
from compute_agent.drivers.base import GuestDriver, RunningGuests
from compute_agent.files import LockedError, remove_durably, write_durably
from compute_agent.host.kernel_files import read_host_id
from compute_agent.host.reader import read_topology
from compute_agent.inventory import host_identity
from compute_agent.inventory.host_identity import check_owner, read_identity
from compute_agent.loops.allocations import allocations_by_consumer
from compute_agent.loops.note_files import ClaimStore
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError, full_name
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import StateFile, lock_state_folder
from compute_agent.report.answers import NotFoundError, PlacementError
from compute_agent.report.capacity import total_amounts
from compute_agent.report.client import PlacementClient
from compute_agent.report.guest_claims import ClaimNote, is_own_claim
from compute_agent.report.plan import Ownership, ReportedProvider
from compute_agent.report.reporter import HostReporter
from compute_agent.report.root_provider import (
    MARKS,
    RELEASE_REASON,
    DisableCause,
    HostMaintenance,
    in_words,
    owner_of,
)
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.throttling.state_file import ThrottlingFile, forget_interference
from compute_agent.throttling.watermarks.state import WatermarkState

LOG = logging.getLogger(__name__)

MARK_FILE: Final = "released"
"""The file in the state folder that marks the host as released; no agent starts while it exists."""

DONE, WOULD, STAYS = "given back", "would be given back", "stays"

CLAIM: Final = "claim"
"""The value of :attr:`ReleaseRow.kind` for an allocation that the agent has claimed for a guest."""

SCHEDULING: Final = "scheduling"
"""The value of :attr:`ReleaseRow.kind` for the traits that keep new guests away."""

BY_RELEASE: Final = "new guests kept away by this release until it ends"
"""The detail of a :data:`SCHEDULING` row that is not shown: only a release keeps new guests away."""

KEPT_AWAY: Final = f"{STAYS}: new guests are kept away until all else is given back"
"""The outcome of the :data:`SCHEDULING` row after an incomplete release: new guests stay away, because no
agent could serve them.
"""

WOULD_CLOSE: Final = "would be kept away until all else is given back"
"""The predicted outcome of the :data:`SCHEDULING` row, if new guests can come now but another setting cannot
be undone.
"""

MAY_COME: Final = "new guests may come"
"""The detail of the :data:`SCHEDULING` row if the release could not change Placement."""

HOW_TO_OPEN: Final = (
    "New guests are kept away from this host, as the release is not complete. To let them in again: remove"
    " what failed, and run compute-agent release again; or run compute-agent release --undo, start the agent,"
    " and run compute-agent host enable."
)
MAY_BE_OPEN: Final = (
    "New guests may still come to this host, which has no agent: Placement could not be changed. Run"
    " compute-agent release again when Placement answers."
)


class ReleasedError(Exception):
    """The host was released: no agent may start on it until ``compute-agent release --undo``."""


def mark_released(folder: Path) -> None:
    """Write the mark that keeps agents from starting on this state folder, and sync it to the disk.

    :raises OSError: the mark cannot be written.
    """
    since = datetime.now(UTC).isoformat("T", "seconds")
    write_durably(folder / MARK_FILE, f"{json.dumps({'since': since})}\n".encode())


def remove_mark(folder: Path, lock_timeout: float) -> None:
    """Remove the mark, so that an agent can start on this state folder again.

    Limits for interference are also removed from the state folder, because the release has undone them. If
    the release itself kept new guests away, the next run of the agent lets them in again.

    :param lock_timeout: the seconds to wait for the end of an agent or a release on the folder.
    :raises LockedError: an agent or a release still runs.
    :raises OSError: the state folder cannot be written.
    """
    if not os.path.lexists(folder / MARK_FILE):
        return
    lock = _wait_for_lock(folder, lock_timeout)
    try:
        forget_interference(folder)
        state = StateFile(folder / STATE_FILE)
        said = state.state.maintenance
        if said is not None and said.is_of_release:
            state.keep_maintenance(HostMaintenance(False))
        # The mark is removed last: after an interruption, the next call repeats all steps.
        remove_durably(folder / MARK_FILE)
    finally:
        os.close(lock)


def refuse_if_released(folder: Path) -> None:
    """Check that the state folder has no mark of a release.

    :raises ReleasedError: the host is released, or a release is unfinished.
    """
    if os.path.lexists(folder / MARK_FILE):
        raise ReleasedError(
            f"this host is released, or a release is unfinished ({folder / MARK_FILE}): compute-agent"
            " release finishes it,"
            " compute-agent release --undo lets an agent work here again"
        )


@dataclass(frozen=True, slots=True)
class ReleaseOptions:
    """The settings that a release undoes only on request; it always undoes all other settings of the agent.

    :ivar pins: whether CPU pins, memory binding, memory limits and weights of guests are undone.
    :ivar provider: whether the providers of this host are deleted from Placement.
    :ivar claims: whether the allocations that the agent has claimed for guests are given back.
    """

    pins: bool = False
    provider: bool = False
    claims: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """One setting that the agent has made, and the outcome of its release.

    :ivar kind: the kind of the setting, such as :data:`SCHEDULING`.
    :ivar name: the guest, the provider, the CPUs or the files that have the setting.
    :ivar detail: the present value in words.
    :ivar outcome: a text that says whether the setting was undone, stays, or could not be undone, and why.
    """

    kind: str
    name: str
    detail: str
    outcome: str


class HostRelease:
    """The release of one host. No agent and no other release may change the host meanwhile."""

    def __init__(
        self,
        driver: RunningGuests,
        controllers: Sequence[KernelController],
        client: PlacementClient,
        state: StateFile,
        throttling: ThrottlingFile,
        root_uuid: str,
        online: frozenset[int],
        options: ReleaseOptions,
        beside: bool = False,
        claims: ClaimStore | None = None,
    ) -> None:
        """Prepare the release; nothing is read or changed yet.

        :param controllers: the controllers that find and undo their settings; see releasing_controllers().
        :param root_uuid: the uuid of the root provider.
        :param online: the CPUs on which a guest without pins can run.
        :param beside: whether nova-compute owns the root provider. If so, only the agent's own providers
            below the root are released.
        :param claims: the notes of the allocations that the agent has claimed; None if the host has no such
            notes.
        """
        self._driver = driver
        self._controllers = controllers
        self._client = client
        self._state = state
        self._throttling = throttling
        self._root_uuid = root_uuid
        self._online = online
        self._options = options
        self._beside = beside
        self._claims = claims

    def list_rows(self) -> list[ReleaseRow]:
        """List all settings that the agent has made, each with the effect that a release would have on it."""
        items = list(self._release_items())
        open_again = not any(item.cannot_be_released for item in items)
        rows = [_release_row(item, _reason_to_stay(item, open_again) or WOULD) for item in items]
        if not self._beside and not open_again and all(item.kind != SCHEDULING for item in items):
            rows.append(
                ReleaseRow(SCHEDULING, self._root_uuid, f"new guests {in_words(frozenset())}", WOULD_CLOSE)
            )
        return rows

    def carry_out(self) -> list[ReleaseRow]:
        """Undo all requested settings, and list them with their outcomes. A failed step ends no other step.

        Before the first change, new guests are kept away. After the last change, new guests are let in again
        if nothing has failed.
        """
        rows = self._keep_guests_away()
        open_again = not rows
        for item in self._release_items():
            open_again = open_again and not item.cannot_be_released
            if item.give_back is None or _reason_to_stay(item, open_again):
                continue
            try:
                item.give_back()
            except GuestGoneError:
                # The settings of a guest end with the guest, so there is nothing to undo.
                continue
            except (DriverError, PlacementError, BadSchemataError, OSError) as error:
                LOG.error("The release cannot undo a setting: %s of %s: %s", item.kind, item.name, error)
                rows.append(_release_row(item, f"{FAILED}: {error}"))
                open_again = False
            else:
                LOG.info("The release has undone a setting: %s of %s: %s", item.kind, item.name, item.detail)
                if item.detail != BY_RELEASE:
                    rows.append(_release_row(item, DONE))
        failed = {(row.kind, row.name) for row in rows if row.outcome != DONE}
        # A second search verifies the release: an item that is still found was not undone, or another program
        # has set it again.
        for item in self._release_items():
            if (item.kind, item.name) not in failed:
                rows.append(
                    _release_row(item, _reason_to_stay(item, open_again) or f"{FAILED}: it is there again")
                )
        return rows

    def _keep_guests_away(self) -> list[ReleaseRow]:
        """Keep new guests away if there is any other setting to undo.

        :returns: one row if Placement or the state file could not be changed; otherwise no row.
        """
        changes = any(
            item.cannot_be_released or (item.give_back is not None and item.kind != SCHEDULING)
            for item in self._release_items()
        )
        if self._beside or not changes:  # nova-compute disables its own service
            return []
        said = self._state.state.maintenance
        reporter = HostReporter(self._client, {}, lambda owned: None)
        try:
            if self._root_uuid not in reporter.read_reported(self._root_uuid):
                return []  # no guest is placed on a provider that does not exist
            # The cause is stored before Placement is changed, so that the next release knows the cause after
            # an interruption.
            if said is None or not said.off:
                self._state.keep_maintenance(HostMaintenance(True, RELEASE_REASON, time.time()))
            reporter.switch_scheduling(self._root_uuid, {DisableCause.MAINTENANCE: True})
        # The release continues after a failure: a host must be releasable when its Placement is gone for
        # good.
        except (PlacementError, OSError) as error:
            LOG.error("The provider %s cannot be changed to keep new guests away: %s", self._root_uuid, error)
            return [ReleaseRow(SCHEDULING, self._root_uuid, MAY_COME, f"{FAILED}: {error}")]
        return []

    # The settings to undo, in the order in which they are undone

    def _release_items(self) -> Iterator[ReleaseItem]:
        guests: Sequence[Guest] = ()
        # Both values are read before the guests are listed, because a driver can begin to answer in between.
        reasons, awaited = self._driver.outage_reasons(), self._driver.awaited_drivers
        try:
            guests = self._driver.listed_guests()
            for name in sorted(awaited):
                yield failed_item("guests", name, DriverError(reasons.get(name, "it is about to answer")))
        except DriverError as error:
            yield failed_item("guests", self._driver.name, error)
        # The items of all controllers are collected first, because the items of one guest are merged below.
        found = [item for one in self._controllers for item in one.release(guests, self._online)]
        # Realtime priorities are undone before pins: a busy realtime guest without pins would keep the host's
        # own threads off all CPUs.
        found.sort(key=lambda item: item.kind != RealtimeController.name)
        for item in combine_items(found):
            if item.kind == PINS and not self._options.pins and not item.cannot_be_released:
                yield replace(item, give_back=None, reason=f"{STAYS}: --pins gives it back")
            else:
                yield item
        try:
            yield from self._of_placement()
        except PlacementError as error:
            yield failed_item("placement", self._root_uuid, error)

    def _of_placement(self) -> Iterator[ReleaseItem]:
        reporter = HostReporter(self._client, {}, lambda owned: None)
        reported = reporter.read_reported(self._root_uuid)
        # A provider with allocations cannot be deleted.
        if self._claims is not None:
            for note in list(self._claims.notes.values()):
                yield from self._of_claim(self._claims, note, reported)
        yield from self._of_providers(reported)
        root = reported.get(self._root_uuid)
        said, state = self._state.state.maintenance, self._throttling.state.watermarks
        marks = frozenset[str]() if root is None else root.traits & MARKS
        # If the state contains more than the scheduling switch, it contains limits or evictions.
        only_switch = state == WatermarkState(scheduling_off=state.scheduling_off)
        if (marks and not self._beside) or not only_switch or (said is not None and said.off):
            if root is None:
                name, detail = self._root_uuid, "limits and switch in the state file"
            else:
                name, detail = full_name(root.name, root.uuid), f"new guests {in_words(root.traits)}"
            # If only a release has switched scheduling off, this switch does not count as a setting of the
            # host.
            by_release = said is not None and said.is_of_release
            if by_release and only_switch and marks == {DisableCause.MAINTENANCE.value}:
                detail = BY_RELEASE
            yield ReleaseItem(SCHEDULING, name, detail, partial(self._let_in, reporter))

    def _let_in(self, reporter: HostReporter) -> None:
        """Let new guests in: forget limits, evictions and the operator's order, then remove the traits."""
        # The state files are changed before the traits: otherwise an agent that starts after a crash at this
        # point would set the traits again.
        self._throttling.keep_watermarks(WatermarkState(scheduling_off=False))
        self._state.keep_maintenance(HostMaintenance(False))
        if not self._beside:
            with contextlib.suppress(NotFoundError):  # the provider was deleted together with its traits
                reporter.switch_scheduling(self._root_uuid, dict.fromkeys(DisableCause, False))

    def _of_providers(self, reported: dict[str, ReportedProvider]) -> Iterator[ReleaseItem]:
        if self._beside:
            owned = self._state.state.owned
            reported = {uuid: provider for uuid, provider in reported.items() if uuid in owned}
        held = allocations_by_consumer(self._client, reported)
        reasons = blocked_providers(reported, self._state.state.owned, self._root_uuid)
        for uuid in children_first(reported):
            provider = reported[uuid]
            name, detail = full_name(provider.name, uuid), ", ".join(sorted(provider.inventories))
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
                yield ReleaseItem("provider", name, detail, partial(self._delete_provider, uuid))

    def _of_claim(
        self, store: ClaimStore, note: ClaimNote, reported: Mapping[str, ReportedProvider]
    ) -> Iterator[ReleaseItem]:
        record = self._client.get_allocations(note.guest_uuid)
        if not record.resources:
            return
        amounts = total_amounts(record.resources).items()
        detail = ", ".join(f"{amount} {name}" for name, amount in sorted(amounts))
        own_part = {uuid: held for uuid, held in record.resources.items() if uuid in reported}

        def give_back() -> None:
            self._client.set_allocations(replace(record, resources={}))
            store.keep_notes({key: one for key, one in store.notes.items() if key != note.guest_uuid})

        if not is_own_claim(note, record, own_part):
            yield ReleaseItem(CLAIM, str(note), detail, None, f"{STAYS}: another program has changed it")
        elif not self._options.claims:
            yield ReleaseItem(CLAIM, str(note), detail, None, f"{STAYS}: --claims gives it back")
        else:
            yield ReleaseItem(CLAIM, str(note), detail, give_back)

    def _delete_provider(self, uuid: str) -> None:
        with contextlib.suppress(NotFoundError):  # another client has already deleted the provider
            self._client.delete_provider(uuid)
        owned = self._state.state.owned
        self._state.keep_owned({key: one for key, one in owned.items() if key != uuid})


def _reason_to_stay(item: ReleaseItem, open_again: bool) -> str:
    """The reason why a release leaves a setting unchanged; empty if the release undoes the setting.

    :param open_again: whether all other settings were undone, so that new guests can come.
    """
    if item.give_back is None:
        return item.reason
    return "" if open_again or item.kind != SCHEDULING else KEPT_AWAY


def how_to_open(rows: Iterable[ReleaseRow]) -> str:
    """Instructions to let new guests in after an incomplete release; empty if no instructions are needed."""
    scheduling = [row for row in rows if row.kind == SCHEDULING and row.outcome != DONE]
    if not scheduling:
        return ""
    return MAY_BE_OPEN if any(row.detail == MAY_COME for row in scheduling) else HOW_TO_OPEN


def children_first(reported: dict[str, ReportedProvider]) -> list[str]:
    """The uuids of providers in an order in which Placement deletes them: children before their parents."""

    def depth_of(uuid: str) -> int:
        parent = reported[uuid].parent
        return 0 if parent is None or parent not in reported else 1 + depth_of(parent)

    return sorted(reported, key=lambda uuid: (-depth_of(uuid), reported[uuid].name))


def blocked_providers(
    reported: dict[str, ReportedProvider], owned: Ownership, root_uuid: str
) -> dict[str, str]:
    """The reasons why a release keeps providers, by uuid.

    A provider is kept if the agent has not made it, if it has inventories of other programs, or if a provider
    below it is kept.
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


def combine_items(items: Iterable[ReleaseItem]) -> list[ReleaseItem]:
    """Merge items with the same kind and name, because several controllers may have pinned one guest.

    If one of the items cannot be read, the merged item fails. Otherwise a setting that is only half undone
    would count as undone.
    """
    found: dict[tuple[str, str], list[ReleaseItem]] = {}
    for item in items:
        found.setdefault((item.kind, item.name), []).append(item)
    return [parts[0] if len(parts) == 1 else _joined_item(parts) for parts in found.values()]


def _joined_item(parts: Sequence[ReleaseItem]) -> ReleaseItem:
    failed = next((part for part in parts if part.give_back is None), None)
    detail = ", ".join(part.detail for part in parts if part.detail)
    if failed is not None:
        return replace(failed, detail=detail)

    def give_back() -> None:
        for part in parts:
            if part.give_back is not None:
                part.give_back()

    return replace(parts[0], detail=detail, give_back=give_back)


def _release_row(item: ReleaseItem, outcome: str) -> ReleaseRow:
    return ReleaseRow(item.kind, item.name, item.detail, outcome)


def releasing_controllers(
    driver: GuestDriver, control: ResctrlHandle | None, state: StateFile, root: Path, given: bool
) -> tuple[KernelController, ...]:
    """Make the controllers for a release. Their configuration is empty, so they undo all their settings.

    :param control: the resctrl mount, even if cache control is off now; None if the host has no usable mount.
    :param given: whether another program pins guests. If so, a release keeps the pins.
    """
    stores = open_stores(state, state.path.parent)
    return make_controllers(driver, control, ControllerSettings(pins=not given), stores, root)


def survey_host(
    host_state: HostState,
    driver: GuestDriver,
    control: ResctrlHandle | None,
    client: PlacementClient,
    state: StateFile,
    throttling: ThrottlingFile,
    options: ReleaseOptions,
    root: Path,
) -> list[ReleaseRow]:
    """List the settings that a release would undo. The agent can run on the host meanwhile.

    :param root: the folder with ``sys`` and ``proc``.
    """
    uuid, online = host_state.tree.root.uuid, host_state.topology.online
    controllers = releasing_controllers(driver, control, state, root, host_state.follows_kernel)
    made = HostRelease(
        *(driver, controllers, client, state, throttling, uuid, online, options),
        beside=host_state.tree.beside,
        claims=ClaimStore(state.path.parent, read_host_id(root)),
    )
    return made.list_rows()


_POLL_SECONDS: Final = 0.1
"""The seconds between two attempts to lock the state folder."""


@contextlib.contextmanager
def open_release(conf: cfg.ConfigOpts, options: ReleaseOptions, lock_timeout: float) -> Iterator[HostRelease]:
    """Lock the state folder, and prepare the release of this host. The lock lasts until the context ends.

    :param lock_timeout: the seconds to wait for the end of an agent or another release on the folder.
    :raises ConfigError: an option is wrong.
    :raises LockedError: an agent or another release still works on the folder.
    :raises IdentityError: the state folder belongs to another host, or the uuid of the root provider cannot
        be determined.
    :raises DriverError: the driver of guests cannot be used.
    :raises PlacementError: the options of ``[placement]`` are wrong.
    :raises OSError: the host or the state folder cannot be read.
    """
    folder = make_state_folder(conf)
    # With the lock, no agent can start and write its state or settings while they are undone.
    lock = _wait_for_lock(folder, lock_timeout)
    try:
        # With the uuid of a copied folder, the release would delete the providers of another host.
        check_owner(folder, read_identity(Path(conf.host.root)))
        state = StateFile(folder / STATE_FILE)
        holder = f"compute-agent release, pid {os.getpid()}"
        opened = open_host_driver(conf, state, folder / GUESTS_FOLDER, holder, AgentMetrics())
        try:
            owner = owner_of(conf.compute.provider_tree, state.state.nova_root)
            own = host_identity.load_or_create(folder)
            root = Path(conf.host.root)
            given = policy_of(conf, owner.beside) == FOLLOW
            control = open_resctrl(conf).control
            yield HostRelease(
                opened.driver,
                releasing_controllers(opened.driver, control, state, root, given),
                PlacementClient.from_conf(conf),
                state,
                ThrottlingFile(folder, state),
                own if owner.novas is None else owner.novas.uuid,
                read_topology(root).online,
                options,
                owner.beside,
                ClaimStore(folder, read_host_id(root)),
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
