"""Dry runs: list the changes that the agent would make at its next start, without writing anything.

A worker makes the same decisions as the worker of a running agent, from the present state of the driver, the
kernel and Placement. Each controller is replaced by a recorder, which remembers the target values. The driver
and Placement are only read. ``try_configuration`` checks whether an agent would accept a configuration on
this host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, cast

from oslo_config import cfg

from compute_agent.agent.configured_controllers import ControllerFactory, open_stores
from compute_agent.agent.configured_host import NO_UUID, build_host_state, configured_host
from compute_agent.agent.host_access import GUESTS_FOLDER, STATE_FILE, open_resctrl
from compute_agent.agent.parameters import SetSchema, load
from compute_agent.agent.protocol import RequestError
from compute_agent.classification.resolution import parse_known_classes
from compute_agent.classification.rules import KnownClasses
from compute_agent.conf import written
from compute_agent.controllers.base import GuestTarget, KernelController, PlannedChange, ReleaseItem
from compute_agent.drivers.base import GuestDriver, Listener, split_names
from compute_agent.drivers.factory import choose_driver, count_guests, libvirtd_is_usable, open_drivers
from compute_agent.fleet.guests import parse
from compute_agent.fleet.revision import FleetError
from compute_agent.inventory import host_identity
from compute_agent.inventory.derive import BESIDE
from compute_agent.inventory.host_identity import IdentityError, check_owner, read_identity
from compute_agent.inventory.options import hypervisor_name
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode
from compute_agent.loops.allocations import allocations_read
from compute_agent.loops.audit import locate_consumers
from compute_agent.loops.reclaimed import first_tree
from compute_agent.model.cpuset import FormerValues
from compute_agent.model.guest import Guest
from compute_agent.model.messages import ConfigError, DriverError, full_name
from compute_agent.pipeline import state
from compute_agent.pipeline.guest_settings import FILE_NAME as MANUAL_FILE
from compute_agent.pipeline.guest_settings import ManualSettings
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.state import AgentState
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import (
    Action,
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    DeleteProvider,
    ReportedProvider,
    SetInventories,
    SetTraits,
    UpdateProvider,
    to_api,
)
from compute_agent.report.reporter import HostReporter
from compute_agent.report.reshape import AllocationMove, InfeasibleReshape
from compute_agent.report.root_provider import (
    RootMissingError,
    RootOwner,
    RootSearch,
    find_root,
    owner_of,
    root_keeper,
)
from compute_agent.throttling.settings import read_settings
from compute_agent.throttling.state_file import look_up_state
from compute_agent.throttling.watermarks.metrics import load_registry

PLACEMENT: Final = "placement"
"""The value of :attr:`PlannedChange.where` for changes in Placement."""

_TRAITS_IN_A_ROW: Final = 4
"""Maximum number of traits in one row of changes."""


def of_move(move: AllocationMove, names: Mapping[str, str]) -> PlannedChange:
    """The planned change for a moved amount; ``names`` has the names of providers by uuid."""
    source = f"{move.source_class} {move.source_amount} of {names.get(move.source, move.source)}"
    target = f"{move.target_class} {move.target_amount} of {names.get(move.target, move.target)}"
    return PlannedChange(PLACEMENT, move.consumer, f"allocation {source} -> {target}")


def of_action(
    action: Action, reported: Mapping[str, ReportedProvider], names: Mapping[str, str]
) -> Iterator[PlannedChange]:
    """The planned changes of one request to Placement.

    :param reported: the providers in Placement, by uuid.
    :param names: the names of providers, by uuid.
    """
    match action:
        case CreateResourceClass(name):
            yield PlannedChange(PLACEMENT, name, "resource class, new")
        case CreateTrait(name):
            yield PlannedChange(PLACEMENT, name, "trait, new")
        case CreateProvider(_, name, parent):
            below = f" below {names.get(parent, parent)}" if parent else ""
            yield PlannedChange(PLACEMENT, name, f"provider, new{below}")
        case UpdateProvider(uuid, name, parent):
            below = f" below {names.get(parent, parent)}" if parent else ", a root"
            yield PlannedChange(PLACEMENT, reported[uuid].name, f"provider -> {name}{below}")
        case DeleteProvider(uuid):
            yield PlannedChange(PLACEMENT, names.get(uuid, uuid), "provider, deleted")
        case SetInventories(uuid, inventories):
            before = reported[uuid].inventories if uuid in reported else {}
            for name in sorted({*before, *inventories}):
                if before.get(name) != inventories.get(name):
                    old, new = _inventory_text(before.get(name)), _inventory_text(inventories.get(name))
                    change = f"{name} {old} -> {new}"
                    yield PlannedChange(PLACEMENT, names.get(uuid, uuid), change)
        case SetTraits(uuid, traits):
            had = reported[uuid].traits if uuid in reported else frozenset[str]()
            signs = [*(f"+{name}" for name in sorted(traits - had)), *(f"-{n}" for n in sorted(had - traits))]
            # The list contains one iterator several times, so that zip() puts the next few traits into each
            # row.
            for few in zip_longest(*[iter(signs)] * _TRAITS_IN_A_ROW, fillvalue=""):
                yield PlannedChange(PLACEMENT, names.get(uuid, uuid), f"traits {' '.join(few).strip()}")


def _inventory_text(inventory: ProviderInventory | None) -> str:
    """An inventory as text: its total, with the reserve and the ratio if they are not the defaults."""
    if inventory is None:
        return "none"
    amounts = to_api(inventory)
    reserved = f", reserved {amounts['reserved']}" if amounts["reserved"] else ""
    ratio = f", times {amounts['allocation_ratio']:g}" if amounts["allocation_ratio"] != 1 else ""
    return f"{amounts['total']}{reserved}{ratio}"


def look_up_owner(
    conf: cfg.ConfigOpts, client: PlacementClient, state: AgentState, own: str
) -> tuple[RootOwner, str, str]:
    """Find the owner of the root provider, without changing anything.

    :param own: the uuid of the agent's own root.
    :returns: the owner, a text that describes the owner, and the reason why Placement did not answer (empty
        if it answered).
    """
    shape = conf.compute.provider_tree
    name = hypervisor_name(conf)
    explicit_own = shape not in (None, BESIDE)
    # An explicit option takes precedence over the result of an earlier search.
    last = None if explicit_own else state.nova_root
    presumed = owner_of(shape, last, bool(state.owned))
    try:
        # The search also runs if the option names the agent as owner, because nova-compute perhaps writes
        # the root, too. So ``beside`` is True or None, and never False.
        found = find_root(client, RootSearch(name, own, True if shape == BESIDE else None, last))
    except RootMissingError as error:
        return presumed, str(error), ""
    except PlacementError as error:
        unasked = f"Placement cannot be asked: {error}"
        return presumed, f"{root_keeper(presumed.beside)}, as far as is known: {unasked}", unasked
    if found is None:
        return RootOwner(), root_keeper(False), ""
    root = f"{root_keeper(True)}, {full_name(found.name, found.uuid)}"
    if explicit_own:
        remedy = "or the agent and nova-compute undo each other's changes"
        return RootOwner(), f"{root}: set [compute] provider_tree = {BESIDE}, {remedy}", ""
    return RootOwner(True, found), root, ""


def try_configuration(
    options: cfg.ConfigOpts, owner: RootOwner | None = None, factory: ControllerFactory | None = None
) -> None:
    """Check a configuration on this host: build all objects that depend on it, and change nothing.

    :param owner: the owner of the root provider; None means the owner that the configuration names.
    :param factory: builds the controllers with the driver of a running agent. None means that no controller
        is built, so the settings of controllers are not checked.
    :raises ConfigError: an agent would refuse the configuration.
    :raises OSError: the host cannot be read.
    """
    try:
        # The result is not used. The call only serves to raise errors.
        PlacementClient.from_conf(options)
        host = configured_host(options, load_registry(), root=owner, root_uuid=NO_UUID)
        _check_guests(options, parse_known_classes(options))
        if factory is not None:
            factory.build_controllers(options, host.resctrl, host.host_state)
    except (PlacementError, IdentityError, FleetError, RequestError, cfg.Error) as error:
        raise ConfigError(str(error)) from error


def _check_guests(options: cfg.ConfigOpts, known: KnownClasses) -> None:
    """Check the fleet's settings of single guests, including guests that are not on this host.

    :raises FleetError: a setting names a class that does not exist.
    :raises RequestError: a value is wrong.
    """
    for guest, values in parse(written.read(written.files_of(options))).items():
        load(SetSchema(), {"guest": guest, **values})
        for name, value in values.items():
            if missing := known.missing_class(name, value):
                raise FleetError(f"[guest:{guest}] {name}: {missing}")


_READS: Final = frozenset(
    {
        *("name", "outage_reason", "awaited_drivers", "starting_driver", "thread_ids"),
        *("guests", "listed_guests", "lost_guests", "excluded_guests"),
        *("misplaced_threads", "observed_cpus"),
        *("vcpu_affinity", "emulator_affinity", "helper_affinity", "emulator_threads", "stuck_helpers"),
        *("cpu_limits", "memory_nodes"),
    }
)
"""The attributes of a driver that a dry run can use, because they change nothing."""

_SECONDS: Final = 60.0
"""Seconds to wait for an answer of the worker. The worker itself waits for nothing slower than libvirtd."""


def dry_run(conf: cfg.ConfigOpts) -> list[PlannedChange]:
    """List all changes that a start with this configuration would make.

    The list has the changes in Placement and, for each guest, the changes in the kernel and in libvirt. The
    function raises the error with which an agent would refuse to start: ConfigError, IdentityError,
    DriverError, PlacementError (unusable options) or OSError.
    """
    folder = Path(conf.state_path)
    check_owner(folder, read_identity(Path(conf.host.root)))
    resctrl = open_resctrl(conf)
    uuid = host_identity.look_up(folder)
    settings = read_settings(conf, load_registry())
    saved = state.look_up(folder / STATE_FILE)
    limits = look_up_state(folder, saved.former_watermarks).guest_limits(settings.foreign_levers)
    client = _ReadOnlyClient.from_conf(conf)
    owner, whose, _ = look_up_owner(conf, client, saved, uuid or NO_UUID)
    host_state = build_host_state(conf, root_uuid=uuid or NO_UUID, control=resctrl.control, root=owner)
    usable = libvirtd_is_usable(conf.libvirt.uri)
    counted = count_guests(guest.driver for guest in saved.guests.values())
    choice = choose_driver(conf.guests.drivers, usable, saved.driver, counted)
    # No lock is needed, because the drivers are only read.
    locks = dict.fromkeys(split_names(choice.name))
    driver = open_drivers(conf, folder / GUESTS_FOLDER, locks, host_state.tree.root.name)
    try:
        if driver.outage_reason:
            raise DriverError(driver.outage_reason)
        stores = open_stores(_KeptValues(saved), folder)
        factory = ControllerFactory(driver, stores, AgentMetrics())
        controllers = factory.build_controllers(conf, resctrl, host_state)
        recorders = [RecordingController(each) for each in controllers]
        pipeline = GuestPipeline(
            host_state,
            # The class forwards attributes by __getattr__, which the type checker does not see, so cast() is
            # needed.
            cast(GuestDriver, _ReadOnlyDriver(driver)),
            recorders,
            lambda *saved: None,
            AgentMetrics(),
            manual=ManualSettings.look_up(folder / MANUAL_FILE),
        )
        pipeline.start(saved, limits=limits)
        try:
            reporter = HostReporter(client, saved.owned, lambda owned: None)
            if owner.beside and owner.novas is None:
                found = [PlannedChange(PLACEMENT, host_state.tree.root.name, whose)]
            else:
                nameless = folder if uuid is None and not owner.beside else None
                # _in_placement() comes before planned_changes(), because _in_placement() submits the
                # allocations of guests to the worker.
                found = list(_in_placement(conf, client, reporter, driver, pipeline, nameless))
            return [*found, *(each for recorder in recorders for each in recorder.planned_changes())]
        finally:
            pipeline.stop()
    finally:
        driver.close()


def _in_placement(
    conf: cfg.ConfigOpts,
    client: _ReadOnlyClient,
    reporter: HostReporter,
    driver: GuestDriver,
    pipeline: GuestPipeline,
    nameless: Path | None,
) -> Iterator[PlannedChange]:
    """List the changes in Placement, and submit the allocations of guests to the worker.

    :param nameless: the state folder, if it does not yet contain a uuid of the root provider; otherwise None.
    """
    host_state = pipeline.host_state
    first = first_tree(host_state.tree, conf)
    try:
        if nameless is not None and (taken := client.provider_named(host_state.tree.root.name)) is not None:
            reason = (
                f"refused: it exists with the uuid {taken}. If it is this host's, write that into"
                f" {nameless / host_identity.UUID_FILE} first"
            )
            yield PlannedChange(PLACEMENT, host_state.tree.root.name, reason)
        planned = reporter.plan_reshape(
            host_state.tree,
            locate_consumers(driver, pipeline),
            host_state.zone_cpus,
        )
        names = {zone.uuid: zone.name for zone in host_state.all_zones}
        reported = reporter.read_reported(host_state.tree.root.uuid)
        names |= {each.uuid: each.name for each in reported.values()}
        if isinstance(planned, InfeasibleReshape):
            yield PlannedChange(PLACEMENT, host_state.tree.root.name, f"refused: {planned.reason}")
        else:
            yield from (of_move(move, names) for move in planned.moves)
        for action in reporter.plan_report(first):
            yield from of_action(action, reported, names)
        event = allocations_read(client, pipeline, reporter.offering_providers)
        if event is not None:
            pipeline.submit(event).result(_SECONDS)
    except PlacementError as error:
        reason = f"cannot be asked, so it is not known what guests hold: {error}"
        yield PlannedChange(PLACEMENT, host_state.tree.root.name, reason)


class RecordingController(KernelController):
    """Stands in for a controller in a dry run, and remembers the target values that the worker passes."""

    def __init__(self, controller: KernelController) -> None:
        self.name, self.acts_early = controller.name, controller.acts_early
        self.awaits = controller.awaits
        self.refused = {}
        self._controller = controller
        self._together: tuple[Sequence[GuestTarget], Sequence[ProviderNode]] = ((), ())

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Remember the targets and the zones. Each call replaces those of the previous call."""
        self._together = targets, zones

    def describe_drift(self, target: GuestTarget) -> str | None:
        """Return None always: in a dry run, only plan_changes() compares the kernel with the targets."""
        return None

    def apply(self, target: GuestTarget) -> bool:
        """Return False always: sync() has remembered the target of the guest."""
        return False

    def planned_changes(self) -> Iterator[PlannedChange]:
        """The changes that the real controller would make, because the kernel differs from the targets."""
        return self._controller.plan_changes(*self._together)

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The changes that the real controller would make for ``targets``."""
        return self._controller.plan_changes(targets, zones)

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """Return no items, because a dry run has changed nothing."""
        return iter(())


class _KeptValues:
    """Provides the former values of kernel files that an agent has saved, and never saves values itself."""

    def __init__(self, saved: state.AgentState) -> None:
        self.former_values = saved.former_values

    def keep_former_values(self, former: FormerValues) -> None:
        """Do nothing, because a dry run changes nothing."""


class _ReadOnlyDriver:
    """Forwards only those attributes of a driver that change nothing.

    No listener is registered, because a driver that reports the end of a guest deletes the guest's record.
    """

    def __init__(self, driver: GuestDriver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            raise AttributeError(name)
        return getattr(self._driver, name)

    def watch_guests(self, listener: Listener) -> None:
        """Do nothing: no changes of guests are reported."""


class _ReadOnlyClient(PlacementClient):
    """A client of Placement that sends only GET requests."""

    def _send(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        headers: dict[str, str],
        shape: Any,
    ) -> Any:
        if method != "GET":
            raise AssertionError(f"{method} {url}: a dry run only reads")
        return super()._send(method, url, body, headers, shape)
