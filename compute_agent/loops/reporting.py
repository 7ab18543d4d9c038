"""The reporting loop: reports the host to Placement, reads allocations, and retries with back-off.

Before each report it finds the root provider of the host, which may belong to nova-compute and may move.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from oslo_config import cfg
from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.inventory.derive import BESIDE
from compute_agent.inventory.options import hypervisor_name
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.loops.allocations import ClaimWatch, HistoryWatch, allocations_read, hand_over
from compute_agent.loops.base import ReloadedConfiguration, TreeAddition, pause
from compute_agent.model.messages import ConfigError, DriverError, full_name
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import PlacementError, UnavailableError
from compute_agent.report.bounded_http import round_deadline
from compute_agent.report.capacity import CpuLocation
from compute_agent.report.client import PlacementClient
from compute_agent.report.execution import ReportOutcome, ReportRefusal
from compute_agent.report.held_amounts import WithheldOffers
from compute_agent.report.history import AllocationLoss, ConsumerOwner, holder_of
from compute_agent.report.reporter import HostReporter
from compute_agent.report.reshape import InfeasibleReshape, ReshapePlan
from compute_agent.report.root_provider import (
    Causes,
    DisableCause,
    FormerRootError,
    NovaRoot,
    RootMissingError,
    RootOwner,
    RootSearch,
    find_root,
    is_novas,
    owner_of,
)
from compute_agent.threads import PeriodicTask, ThreadSpec, WakeSignal, log_failures

LOG = logging.getLogger(__name__)


class NovaRootStore(Protocol):
    """Keeps which root provider of nova-compute the agent works below."""

    def keep_nova_root(self, root: NovaRoot | None) -> None:
        """Keep it durably.

        :raises OSError:
        """
        ...


class RootUser(Protocol):
    """Has the whole agent work with another root provider."""

    def use_root(self, owner: RootOwner) -> None:
        """Work with it from now on; the worker has its host by it when this returns.

        :raises ConfigError: the configuration does not fit that root.
        :raises TimeoutError: the worker has no time.
        """
        ...


class LocationReader(Protocol):
    """Tells where guests really are."""

    def __call__(self) -> Mapping[str, CpuLocation]:
        """Their locations by consumer.

        :raises DriverError: as long as that cannot be learnt.
        """
        ...


HypervisorName = Callable[[], str]
"""Returns the name of this host by its hypervisor; empty until the hypervisor has answered."""


class RootWatch:
    """For the thread of reports; ``owner`` for others as well."""

    def __init__(
        self,
        options: cfg.ConfigOpts,
        own: str,
        last: NovaRoot | None,
        decided: bool,
        store: NovaRootStore,
    ) -> None:
        """``own`` is the uuid of the agent's own root, ``last`` what ``store`` kept last.

        ``decided``: the agent has reported a root of its own before.
        """
        self._options = options
        self._own = own
        self._last = last
        self._decided = decided
        self._store = store
        self._contested = False
        self._hypervisor: HypervisorName | None = None

    @property
    def owner(self) -> RootOwner:
        """Whose the root is, as far as it is known."""
        return owner_of(self._options.compute.provider_tree, self._last, self._decided)

    def reload(self, options: cfg.ConfigOpts) -> None:
        """Go by another configuration from now on."""
        self._options = options

    def use_hypervisor(self, name: HypervisorName) -> None:
        """Find the root by this name of the host, where the configuration has none."""
        self._hypervisor = name

    def follow(self, client: PlacementClient, reporter: HostReporter, world: HostState) -> RootOwner | None:
        """Find the root. Its owner, if the agent has to work with another root than ``world`` has.

        :raises RootMissingError: nova-compute has to make it first.
        :raises PlacementError:
        :raises OSError: it cannot be remembered.
        """
        shape = self._options.compute.provider_tree
        if shape not in (None, BESIDE):
            self._warn_if_contested(shape, reporter)
            self._remember_root(None)
        elif shape == BESIDE or self._last or not self._decided or self._is_taken(reporter):
            self._remember_root(self._find_root(client, reporter, shape))
        self._decided = True
        owner = self.owner
        if not _differs_from(world, owner):
            return None
        if owner.novas is not None:
            root = full_name(owner.novas.name, owner.novas.uuid)
            LOG.info("The root provider is nova-compute's, %s: the agent's providers are below it", root)
        return owner

    def _is_taken(self, reporter: HostReporter) -> bool:
        """Whether the agent's own root is one that nova-compute writes, too."""
        return is_novas(reporter.root_traits(self._own) or frozenset())

    def _warn_if_contested(self, shape: str, reporter: HostReporter) -> None:
        contested = self._is_taken(reporter)
        if contested and not self._contested:
            LOG.warning(
                "nova-compute writes the root provider of this host, too: set [compute] provider_tree = %s"
                " instead of %s, or both undo what the other writes",
                BESIDE,
                shape,
            )
        self._contested = contested

    def _find_root(
        self, client: PlacementClient, reporter: HostReporter, shape: str | None
    ) -> NovaRoot | None:
        name = self._root_name()
        last = NovaRoot(self._own, name) if self._last is None and self._is_taken(reporter) else self._last
        search = RootSearch(name, self._own, True if shape == BESIDE else None, last)
        try:
            found = find_root(client, search)
        except FormerRootError as error:
            stays = "; ".join(f"{each}: {each.reason}" for each in reporter.remove_own(self._own).refusals)
            if stays:
                raise RootMissingError(f"{error}, and which cannot be removed: {stays}") from error
            raise
        except RootMissingError:
            reporter.forget_providers()
            raise
        if found is not None and last is not None and found.name != last.name and found.uuid == last.uuid:
            LOG.warning("The provider %s of nova-compute now has the name %s", last.name, found.name)
        return found

    def _root_name(self) -> str:
        """The name of nova-compute's root, if there is one.

        :raises RootMissingError: the hypervisor has to tell it first.
        """
        if self._options.compute.resource_provider_name or self._hypervisor is None:
            return hypervisor_name(self._options)
        if name := self._hypervisor():
            return name
        # A wrong name would have the agent make a root of its own beside nova-compute's, for good.
        if self._last is None:
            raise RootMissingError(
                "waiting for libvirtd, which tells the name of this host in Nova: start libvirtd, or set"
                " [compute] resource_provider_name"
            )
        return self._last.name

    def _remember_root(self, root: NovaRoot | None) -> None:
        if root != self._last:
            self._store.keep_nova_root(root)
            self._last = root


def _differs_from(world: HostState, owner: RootOwner) -> bool:
    root = world.tree.root
    present = (world.root_known, world.tree.beside)
    return present != (owner.known, owner.beside) or (
        owner.novas is not None and (root.uuid, root.name) != (owner.novas.uuid, owner.novas.name)
    )


DISABLE_SERVICE: Final = (
    "the root provider is nova-compute's, which takes foreign COMPUTE_STATUS_DISABLED away; openstack compute"
    " service set --disable HOST nova-compute keeps them away"
)


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """How reporting goes. Times are seconds since the epoch; ``up`` is None before the first attempt.

    ``waiting``: for what Placement has to have before anything can be reported. ``not_offered``: what
    is not offered so far, and why. ``away``: the last error is that nobody answers.
    """

    up: bool | None = None
    last_success: float | None = None
    last_error: str = ""
    refusals: tuple[ReportRefusal, ...] = ()
    sent: int = 0
    adjustments: tuple[str, ...] = ()
    waiting: str = ""
    not_offered: WithheldOffers = field(default_factory=WithheldOffers)
    away: bool = False


_AFTER_CLAIM: Final = 0.5
"""Seconds from the end of a claim to the report that looks what is held now: clocks differ a little."""

REPORT_THREAD: Final = ThreadSpec(
    "report",
    "``[compute] update_resources_interval``, sooner after a failure; at once when something changed",
    "reports the host to Placement, and reads allocations",
    "one for a report, which reshapes by command and accepted allocations take, too",
    "Placement; the worker; with another root provider the controllers and all loops",
)


class ReportMetrics:
    """Counts what comes of reports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reports = Counter(
            "compute_agent_reports",
            "Comparisons of the host with what Placement knows, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.refused_changes = Gauge(
            "compute_agent_refused_changes",
            "Changes of inventory that Placement refused in the last report.",
            registry=registry,
        )
        self.last_report = Gauge(
            "compute_agent_last_report_timestamp_seconds",
            "When the last report to Placement was complete; before the first, when the agent started.",
            registry=registry,
        )
        self.last_report.set_to_current_time()
        self.placement_up = Gauge(
            "compute_agent_placement_up",
            "Whether Placement answered the last report (1) or not (0).",
            registry=registry,
        )


class ReportLoop:
    """Reports at once when woken, else every ``interval`` seconds, and sooner after a failure."""

    def __init__(
        self,
        reporter: HostReporter,
        client: PlacementClient,
        pipeline: GuestPipeline,
        metrics: AgentMetrics,
        interval: float,
        max_pause: float,
        locate: LocationReader = dict,
        causes: Causes | None = None,
        root: RootWatch | None = None,
        root_user: RootUser | None = None,
        additions: Sequence[TreeAddition] = (),
        history: HistoryWatch | None = None,
        claims: ClaimWatch | None = None,
        signal: WakeSignal | None = None,
    ) -> None:
        """Prepare reports with ``reporter``, at most ``max_pause`` seconds apart after failures.

        :param locate: tells where the guests really are.
        :param causes: for which new guests are kept away, until switch_scheduling() says something else.
        :param root: tells whose the root provider is; without it, it is the agent's own.
        :param root_user: works with the root that ``root`` finds.
        :param additions: add to the tree, in this order.
        :param history: says whether losses of guests are believed.
        :param claims: sees to claims that expire.
        :param signal: wakes the thread; parts that were made before have it.
        """
        self.history = history or HistoryWatch(metrics)
        self.claims = claims or ClaimWatch()
        self._root = root
        self._root_user = root_user
        self._reporter = reporter
        self._client = client
        self._pipeline = pipeline
        self._metrics = ReportMetrics(metrics.registry)
        self._interval = interval
        self._max_pause = max_pause
        self.status = ReportStatus()
        self._next_client: PlacementClient | None = None
        self._failures = 0
        """Reports in a row that failed."""
        self._locate = locate
        self._additions = tuple(additions)
        self._causes = dict(causes or {})
        self._granted: Causes = {}
        """The causes that Placement was told of last."""
        self._switch = threading.Condition()
        self._turn = threading.Lock()
        self._has_tried = threading.Event()
        self._tree_at_start = pipeline.host_state.tree
        self._derived: ProviderTree | None = None
        self._thread = PeriodicTask(
            REPORT_THREAD,
            self._report_round,
            self._report_pause,
            log_failures(LOG, "The report failed"),
            signal=signal,
        )

    def start(self) -> None:
        """Begin, with a report at once."""
        self._thread.start()

    def wake(self) -> None:
        """Report now: something changed."""
        self._thread.wake()

    def switch_scheduling(self, cause: DisableCause, off: bool) -> None:
        """Have Placement keep new guests away from this host for a cause, or not any more.

        It is done at once, or when Placement answers again. For any thread.
        """
        with self._switch:
            self._causes = {**self._causes, cause: off}
        self.wake()

    def wait_for_switch(self, timeout: float) -> bool:
        """Wait until Placement has been told of all causes, so many seconds at most; whether it has."""
        with self._switch:
            return self._switch.wait_for(lambda: self._granted == self._causes, timeout)

    def wait_for_first(self, timeout: float) -> bool:
        """Wait until a report has been tried, so many seconds at most; whether one has."""
        return self._has_tried.wait(timeout)

    @property
    def is_beside(self) -> bool:
        """Whether the root provider is nova-compute's."""
        return self._pipeline.host_state.tree.beside

    @property
    def offered_tree(self) -> ProviderTree:
        """The tree that is reported: that of the world, with what changes from report to report."""
        return self._with_additions(self._pipeline.host_state.tree)

    def _with_additions(self, tree: ProviderTree) -> ProviderTree:
        for addition in self._additions:
            tree = addition.offering(tree)
        return tree

    @property
    def root_traits(self) -> frozenset[str] | None:
        """The traits of the root provider as they were last seen; None as long as it has not been."""
        return self._reporter.root_traits(self._pipeline.host_state.tree.root.uuid)

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Report now, and as often as another configuration says, through its client; for any thread."""
        self._interval = conf.options.compute.update_resources_interval
        self._max_pause = conf.options.placement.report_retry_maximum
        self._next_client = conf.client
        if self._root is not None:
            self._root.reload(conf.options)
        self.wake()

    def stop(self, timeout: float = 2.0) -> None:
        """End the loop; a request that hangs is not waited for longer than ``timeout`` seconds."""
        self._thread.stop(timeout)

    def _report_round(self) -> None:
        self._failures += 1  # until it succeeds, also where it raises what nothing expects
        if self.once():
            self._failures = 0

    def _report_pause(self, took: float) -> float:
        seconds = pause(self._failures, self._interval, self._max_pause, random.random)
        if not self._failures and (end := self.claims.first_end) is not None:
            # What a guest held by a claim that is over belongs to the next one, which would be refused.
            seconds = min(seconds, max(end - time.time(), 0.0) + _AFTER_CLAIM)
        LOG.debug("The next report is due in %g s", seconds)
        return seconds

    def reshape(self, dry_run: bool) -> ReshapePlan | InfeasibleReshape:
        """Move what guests hold to where the tree has it now, then report; with ``dry_run`` just the plan.

        :raises PlacementError:
        :raises DriverError:
        """
        with self._turn:
            self._take_client()
            planned = self._plan_reshape(
                self._reporter.plan_reshape if dry_run else self._reporter.reshape_tree
            )
        if not dry_run and isinstance(planned, ReshapePlan):
            self.once()
        return planned

    def _plan_reshape(
        self, how: Callable[..., ReshapePlan | InfeasibleReshape]
    ) -> ReshapePlan | InfeasibleReshape:
        world = self._pipeline.host_state
        return how(world.tree, self._locate(), world.zone_cpus)

    def _report_host(self) -> ReportOutcome:
        """Report the host.

        What would have to move under guests waits for a reshape: that is made at the start of the agent or by
        command, and until then everything stays as it is.
        """
        tree = self._pipeline.host_state.tree
        if tree != self._derived:
            at_start = self._derived is None and tree == self._tree_at_start
            try:
                planned = self._plan_reshape(
                    self._reporter.reshape_tree if at_start else self._reporter.plan_reshape
                )
            except UnavailableError:
                raise
            except (PlacementError, DriverError) as error:
                planned = InfeasibleReshape(
                    str(error)
                )  # reading goes on, even where reshaping is not allowed
            if isinstance(planned, InfeasibleReshape):
                return ReportOutcome(refusals=(ReportRefusal(ReshapePlan(), planned.reason),))
            if planned.moves and not at_start:
                reason = (
                    f"guests that hold what moves: {len(planned.allocations)}; see compute-agent reshape"
                    " --dry-run, then compute-agent reshape, or restart the agent"
                )
                return ReportOutcome(refusals=(ReportRefusal(planned, reason),))
        report = self._reporter.report_tree(self._with_additions(tree))
        if not report.refusals:
            self._derived = tree
        return report

    def once(self) -> bool:
        """One report and one look at allocations. False if anything failed or was refused."""
        with self._turn:
            try:
                return self._report_once()
            finally:
                self._has_tried.set()

    def _take_client(self) -> None:
        if (client := self._next_client) is not None:
            self._next_client = None
            self._client = client
            self._reporter.use_client(client)

    def _report_once(self) -> bool:
        self._take_client()
        report, reason, away = ReportOutcome(), "", False
        try:
            with round_deadline(), self._client.spans.trace_work("report"):
                self._follow_root()
                try:
                    report = self._report_host()
                finally:  # a host that cannot be reported as it is may be overloaded nevertheless
                    self._grant_switches()
                self._read_allocations()
        except RootMissingError as error:
            self._await_root(str(error))
            return False
        except PlacementError as error:
            reason, away = str(error), isinstance(error, UnavailableError)
        except ConfigError as error:
            reason = str(error)  # of a root that another name makes a provider of a file
        except OSError as error:
            reason = f"what is to be reported cannot be remembered: {error}"
        except Exception as error:
            reason = f"internal error: {type(error).__name__}: {error}"
            # With the traceback once, not each round.
            if reason == self.status.last_error:
                LOG.debug("The report failed again", exc_info=True)
            else:
                LOG.exception("The report failed")
            # Whatever was read so far may be the cause: the next round starts without it.
            self._reporter.forget_providers()
        if reason:
            self._note_failure(reason, away)
            return False
        self._metrics.placement_up.set(1)
        self._metrics.last_report.set_to_current_time()
        self._metrics.refused_changes.set(len(report.refusals))
        self._metrics.reports.labels("refused" if report.refusals else "ok").inc()
        if report.refusals != self.status.refusals:
            for refusal in report.refusals:
                LOG.warning("Placement refused %s: %s", refusal, refusal.reason)
        if report.sent:
            LOG.info("Placement applied %d changes", report.sent)
        if not self.status.up:
            LOG.info("Placement answers")
        sent = self.status.sent + report.sent
        adjustments = self._reporter.adjustments
        if self.status.waiting:
            LOG.info("The root provider %s exists now", self._pipeline.host_state.tree.root.name)
        now, before = self._reporter.waiting, self.status.not_offered
        for sentence in now.all_sentences:
            if sentence not in before.all_sentences:
                LOG.warning("%s", sentence)
        self.status = ReportStatus(True, time.time(), "", report.refusals, sent, adjustments, not_offered=now)
        return not report.refusals

    def _follow_root(self) -> None:
        if self._root is None:
            return
        before = self._pipeline.host_state.tree
        owner = self._root.follow(self._client, self._reporter, self._pipeline.host_state)
        if owner is not None and self._root_user is not None:
            self._root_user.use_root(owner)
        if self._derived is None and before == self._tree_at_start:
            self._tree_at_start = self._pipeline.host_state.tree  # the agent starts with what it finds out

    def _await_root(self, reason: str) -> None:
        """There is no root to report below; guests stay as they are."""
        if reason != self.status.waiting:
            LOG.warning("Nothing can be reported: %s", reason)
        self._metrics.placement_up.set(1)
        self._metrics.last_report.set_to_current_time()
        self._metrics.reports.labels("waiting").inc()
        self.status = replace(self.status, up=True, last_error="", away=False, refusals=(), waiting=reason)

    def _grant_switches(self) -> None:
        """Tell Placement whether new guests are to be kept away.

        nova-compute decides that where the root is its own: it takes the trait away that it did not set.

        :raises PlacementError:
        """
        causes = self._causes
        beside = self._pipeline.host_state.tree.beside
        if beside and any(causes.values()) and causes != self._granted:
            LOG.warning("New guests cannot be kept away by the agent: %s", DISABLE_SERVICE)
        if causes and not beside:
            self._reporter.switch_scheduling(self._pipeline.host_state.tree.root.uuid, causes)
        if self.root_traits is not None:
            with self._switch:
                self._granted = causes
                self._switch.notify_all()

    def _note_failure(self, reason: str, away: bool) -> None:
        """Say it where it is new: that a peer is away once, though it refuses, resets and hangs in turns."""
        if away and self.status.away:
            if reason != self.status.last_error:
                LOG.info("Report to Placement fails for another reason: %s", reason)
        elif self.status.up is not False or reason != self.status.last_error:
            LOG.warning("Report to Placement failed, will be tried again: %s", reason)
        self._metrics.placement_up.set(0)
        self._metrics.reports.labels("failed").inc()
        self.status = replace(self.status, up=False, last_error=reason, away=away)

    def _read_allocations(self) -> None:
        """Tell the worker whose allocation is another than it thinks."""
        listing = self._reporter.take_listing()
        evidence, generations = self._reporter.take_evidence()
        self.history.note(evidence)
        event = allocations_read(
            self._client, self._pipeline, self._reporter.offering_providers, listing, self.history
        )
        if event is not None:
            self._pipeline.submit(event)
        self.history.settle(generations, self._current_holders())
        self.claims.look(self._client, self._pipeline.guest_views())

    def _current_holders(self) -> dict[str, ConsumerOwner]:
        """Whose the guests are that hold something; those that are known are not asked for again."""
        known = self.history.holders
        holding = {view.guest.uuid for view in self._pipeline.guest_views() if view.allocation}
        found = {
            uuid: known[uuid] for uuid in known.keys() & (holding | self._pipeline.unclaimed_holdings.keys())
        }
        for uuid in sorted(holding - known.keys()):
            if (holder := holder_of(self._client.get_allocations(uuid))) is not None:
                found[uuid] = holder
        return found

    def accept_allocations(self) -> tuple[AllocationLoss, ...]:
        """Have the worker believe what Placement says of guests now; what they lose by that.

        :raises PlacementError:
        :raises DriverError: the worker is busy.
        :raises OSError: it cannot be kept that an operator wants that.
        """
        with self._turn:
            if self.history.older is None:
                return ()
            self._take_client()
            self._reporter.read_reported(self._pipeline.host_state.tree.root.uuid)
            event = allocations_read(self._client, self._pipeline, self._reporter.offering_providers)
            losses = self.history.losses
            self.history.accept()
            if event is not None:
                hand_over(self._pipeline, event)
            self.history.settle(self._reporter.take_evidence()[1], self._current_holders())
            return losses


def status_document(status: ReportStatus, now: Callable[[], float] = time.time) -> Mapping[str, Any]:
    """The status as the command line shows it."""
    return {
        "placement": {None: "not asked yet", True: "up", False: "away"}[status.up],
        "last_report_seconds_ago": None
        if status.last_success is None
        else round(now() - status.last_success, 1),
        "last_error": status.last_error,
        "waiting_for": status.waiting,
        "refused": [f"{refusal}: {refusal.reason}" for refusal in status.refusals],
        "set_through_api": list(status.adjustments),
        "waiting_huge_pages": list(status.not_offered.pages),
        "waiting_pool_cpus": list(status.not_offered.cpus),
        "waiting_removed_classes": list(status.not_offered.removed),
        "not_withheld": list(status.not_offered.not_withheld),
    }
