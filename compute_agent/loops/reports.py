"""Reports the host to Placement, and reads allocations.

After a failure, the loop tries again at growing intervals.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.loops.allocations import ClaimWatch, HistoryWatch, allocations_read, hand_over
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration, TreeAddition, pause
from compute_agent.loops.claim_ends import ClaimEnds
from compute_agent.loops.guest_claims import GuestClaims
from compute_agent.loops.root_watch import RootWatch, UseRoot
from compute_agent.model.messages import ConfigError, DriverError
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.report.answers import PlacementError, UnavailableError
from compute_agent.report.bounded_session import round_deadline
from compute_agent.report.capacity import CpuLocation
from compute_agent.report.client import PlacementClient
from compute_agent.report.execution import ReportOutcome, ReportRefusal
from compute_agent.report.held_amounts import WithheldOffers
from compute_agent.report.history import AllocationLoss, ConsumerOwner, holder_of
from compute_agent.report.reporter import HostReporter
from compute_agent.report.reshape import InfeasibleReshape, ReshapePlan
from compute_agent.report.root_provider import Causes, DisableCause, RootMissingError
from compute_agent.threads import PeriodicTask, ThreadSpec, WakeSignal, log_failures

LOG = logging.getLogger(__name__)


LocationReader = Callable[[], Mapping[str, CpuLocation]]
"""Reads the CPUs on which guests can run according to the kernel, by uuid of the consumer; raises DriverError
if the driver does not answer.
"""

DISABLE_SERVICE: Final = (
    "nova-compute owns the root provider, and removes COMPUTE_STATUS_DISABLED that another program sets;"
    " run openstack compute service set --disable HOST nova-compute instead"
)


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """The outcome of the last report to Placement.

    :ivar up: whether Placement answered the last report; None before the first report.
    :ivar last_success: the time of the last complete report, in seconds since the epoch.
    :ivar refusals: the changes that Placement refused in the last report.
    :ivar sent: the number of changes that Placement has applied since the start of the agent.
    :ivar adjustments: sentences about fields of inventories that other clients have set through the API.
    :ivar waiting: the reason why nothing can be reported yet, such as a missing root provider.
    :ivar not_offered: amounts that are not offered yet, with reasons.
    :ivar away: whether the last report failed because Placement did not answer.
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
"""Seconds from the expiry of a claim to the report that reads allocations again, because clocks can
differ."""

_ENDS_SECONDS: Final = 20.0
"""Maximum seconds for all requests that read the claims with an end time."""

REPORT_THREAD: Final = ThreadSpec(
    "report",
    "``[compute] update_resources_interval``, sooner after a failure; at once when something changed",
    "reports the host to Placement, and reads allocations",
    "one for a report, which reshapes by command and accepted allocations take, too",
    "Placement; the worker; with another root provider the controllers and all loops",
)


class ReportMetrics:
    """The metrics of reports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reports = Counter(
            "compute_agent_reports",
            "Comparisons of the host with Placement, by outcome.",
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
            "Time of the last complete report to Placement; before the first report, the start of the agent.",
            registry=registry,
        )
        # The first value is the time of the agent's start. A value of 0 would raise the alert about old
        # reports at each start.
        self.last_report.set_to_current_time()
        self.placement_up = Gauge(
            "compute_agent_placement_up",
            "1 if Placement answered the last report, otherwise 0.",
            registry=registry,
        )


class ReportLoop(AgentLoop):
    """Reports the host in each interval, at once when it is woken, and sooner after a failure."""

    def __init__(
        self,
        conf: ReloadedConfiguration,
        reporter: HostReporter,
        pipeline: GuestPipeline,
        metrics: AgentMetrics,
        locate: LocationReader = dict,
        causes: Causes | None = None,
        root: RootWatch | None = None,
        use_root: UseRoot = lambda owner: None,
        additions: Sequence[TreeAddition] = (),
        history: HistoryWatch | None = None,
        claims: ClaimWatch | None = None,
        guest_claims: GuestClaims | None = None,
        claim_ends: ClaimEnds | None = None,
        signal: WakeSignal | None = None,
    ) -> None:
        """Prepare the loop.

        :param locate: reads the CPUs on which guests can run, for reshapes.
        :param causes: the causes that can keep new guests away, each with whether it is active at the start.
        :param root: finds the root provider; None means that the root belongs to the agent.
        :param use_root: puts the agent's providers below the root provider that ``root`` finds. The worker
            has the new tree when the function returns.
        :param additions: functions that add something, such as offers, to the provider tree of each report,
            in this order.
        :param history: decides whether guests have lost allocations, or Placement has an older copy of its
            database.
        :param claims: confirms claims that expire, or warns of them.
        :param guest_claims: claims for guests without an allocation; None means that the agent claims
            nothing.
        :param claim_ends: acts at the end times of claims; None means that the agent ignores end times.
        :param signal: wakes the thread. Other objects use the same signal.
        """
        self.history = history or HistoryWatch(metrics)
        self.claims = claims or ClaimWatch()
        self._guest_claims = guest_claims
        self._claim_ends = claim_ends
        self._root = root
        self._use_root = use_root
        self._reporter = reporter
        self._conf = self._in_use = conf
        self._pipeline = pipeline
        self._metrics = ReportMetrics(metrics.registry)
        self.status = ReportStatus()
        self._failures = 0
        """The number of failed reports since the last successful report."""
        self._locate = locate
        self._additions = tuple(additions)
        self._causes = dict(causes or {})
        self._granted: Causes = {}
        """The causes that kept new guests away when the trait in Placement was last set or removed."""
        self._switch = threading.Condition()
        # Only one report runs at a time. Commands report and reshape in threads of their own. Two concurrent
        # writers of one tree would conflict, because each write needs the latest generation of the provider.
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

    def wake(self) -> None:
        """Request a report now. Any thread may call this method."""
        self._thread.wake()

    def switch_scheduling(self, cause: DisableCause, off: bool) -> None:
        """Keep new guests away from this host for a cause, or withdraw this cause.

        Any thread may call this method.

        The thread of reports changes the trait in Placement at once, or when Placement answers again.
        """
        with self._switch:
            self._causes = {**self._causes, cause: off}
        self.wake()

    def wait_for_switch(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds until the trait in Placement agrees with switch_scheduling().

        Return whether the trait agrees.
        """
        with self._switch:
            return self._switch.wait_for(lambda: self._granted == self._causes, timeout)

    def wait_for_first(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for the first report to end; return whether it has ended."""
        return self._has_tried.wait(timeout)

    @property
    def is_beside(self) -> bool:
        """Whether the root provider belongs to nova-compute."""
        return self._pipeline.host_state.tree.beside

    @property
    def offered_tree(self) -> ProviderTree:
        """The provider tree to report: the host's tree, with additions that can change between reports."""
        return self._with_additions(self._pipeline.host_state.tree)

    def _with_additions(self, tree: ProviderTree) -> ProviderTree:
        for addition in self._additions:
            tree = addition(tree)
        return tree

    @property
    def root_traits(self) -> frozenset[str] | None:
        """The traits of the root provider when it was last read; None before the first read."""
        return self._reporter.root_traits(self._pipeline.host_state.tree.root.uuid)

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration's intervals and client, and report now; any thread may call it."""
        super().reload(conf)
        self.wake()

    def _report_round(self) -> None:
        # The failure is counted before the report, so that an unexpected error also counts as a failure.
        self._failures += 1
        if self.report_now():
            self._failures = 0

    def _report_pause(self, took: float) -> float:
        options = self._conf.options
        interval, longest = options.compute.update_resources_interval, options.placement.report_retry_maximum
        seconds = pause(self._failures, interval, longest, random.random)
        if not self._failures and (end := self.claims.first_end) is not None:
            # When a claim expires, Placement can give its amounts to another guest. The agent refuses that
            # guest until a report has read the new allocations.
            seconds = min(seconds, max(end - time.time(), 0.0) + _AFTER_CLAIM)
        settling = None if self._guest_claims is None else self._guest_claims.settling_seconds
        if not self._failures and settling is not None:
            seconds = min(seconds, settling)
        LOG.debug("The next report is due in %g s", seconds)
        return seconds

    def reshape(self, dry_run: bool) -> ReshapePlan | InfeasibleReshape:
        """Move allocations to the providers of the present tree, and report; ``dry_run`` only plans.

        :raises PlacementError: Placement does not answer, or refuses a request.
        :raises DriverError: the driver does not answer, so that the CPUs of guests are not known.
        """
        with self._turn:
            self._take_client()
            planned = self._plan_reshape(
                self._reporter.plan_reshape if dry_run else self._reporter.reshape_tree
            )
        if not dry_run and isinstance(planned, ReshapePlan):
            self.report_now()
        return planned

    def _plan_reshape(
        self, how: Callable[..., ReshapePlan | InfeasibleReshape]
    ) -> ReshapePlan | InfeasibleReshape:
        host_state = self._pipeline.host_state
        return how(host_state.tree, self._locate(), host_state.zone_cpus)

    def _report_host(self) -> ReportOutcome:
        """Report the tree, unless it needs a reshape that only a command can start."""
        tree = self._pipeline.host_state.tree
        if tree != self._derived:
            # A tree in which inventories with allocations move needs a reshape. The agent reshapes at its
            # start or by command. Until then, the tree of the last report stays in Placement.
            at_start = self._derived is None and tree == self._tree_at_start
            try:
                planned = self._plan_reshape(
                    self._reporter.reshape_tree if at_start else self._reporter.plan_reshape
                )
            # If Placement does not answer, the whole report has failed.
            except UnavailableError:
                raise
            except (PlacementError, DriverError) as error:
                # The error is not raised, so that allocations are still read. For example, Placement perhaps
                # forbids reshapes.
                planned = InfeasibleReshape(str(error))
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
            # After a refusal, the next report plans the reshape again.
            self._derived = tree
        return report

    def report_now(self) -> bool:
        """Report the host and read allocations once; return False if something failed or was refused."""
        with self._turn:
            try:
                is_done = self._report_once()
                # The ends of claims are read even if the report had errors.
                return self._read_ends() and is_done
            finally:
                # The event is set after a failure, too, so that nothing waits for Placement for ever.
                self._has_tried.set()

    @property
    def _client(self) -> PlacementClient:
        return self._in_use.client

    def _take_client(self) -> None:
        # This method is called only between two reports, so that each report uses a single client.
        if self._conf is not self._in_use:
            self._in_use = self._conf
            self._reporter.use_client(self._client)

    def _report_once(self) -> bool:
        self._take_client()
        report, reason, away = ReportOutcome(), "", False
        try:
            # All requests together have one deadline, so that a server that answers each request slowly does
            # not delay later reports.
            with round_deadline(), self._client.spans.trace_work("report"):
                self._follow_root()
                try:
                    report = self._report_host()
                finally:
                    # The trait is set or removed after a failed report, too, because an overloaded host has
                    # to keep new guests away.
                    self._grant_switches()
                self._read_allocations()
        except RootMissingError as error:
            self._await_root(str(error))
            return False
        except PlacementError as error:
            reason, away = str(error), isinstance(error, UnavailableError)
        except ConfigError as error:
            reason = str(error)  # the new root can have the name of a provider in provider.yaml
        except OSError as error:
            reason = f"the record of reported providers cannot be written: {error}"
        except Exception as error:
            reason = f"internal error: {type(error).__name__}: {error}"
            # The traceback is logged once, not in each round.
            if reason == self.status.last_error:
                LOG.debug("The report failed again", exc_info=True)
            else:
                LOG.exception("The report failed")
            # Cached providers are perhaps the cause, so the next round reads all of them again.
            self._reporter.forget_providers()
        if reason:
            self._note_failure(reason, away)
            return False
        self._metrics.placement_up.set(1)
        self._metrics.last_report.set_to_current_time()
        self._metrics.refused_changes.set(len(report.refusals))
        self._metrics.reports.labels("refused" if report.refusals else "ok").inc()
        # Refusals are logged when they change, not with each report.
        if report.refusals != self.status.refusals:
            for refusal in report.refusals:
                LOG.warning("Placement refused %s: %s", refusal, refusal.reason)
        if report.sent:
            LOG.info("Placement applied %d changes", report.sent)
        if not self.status.up:
            LOG.info("Placement answers the agent")
        sent = self.status.sent + report.sent
        adjustments = self._reporter.adjustments
        if self.status.waiting:
            LOG.info(
                "The root provider %s exists now, so the agent reports the host",
                self._pipeline.host_state.tree.root.name,
            )
        now, before = self._reporter.waiting, self.status.not_offered
        self._pipeline.foreign_devices = now.foreign_devices
        for sentence in now.all_sentences:
            if sentence not in before.all_sentences:
                LOG.warning("Some amounts are not offered in Placement yet: %s", sentence)
        self.status = ReportStatus(True, time.time(), "", report.refusals, sent, adjustments, not_offered=now)
        return not report.refusals

    def _follow_root(self) -> None:
        if self._root is None:
            return
        before = self._pipeline.host_state.tree
        owner = self._root.follow_root(self._client, self._reporter, self._pipeline.host_state)
        if owner is not None:
            self._use_root(owner)
        if self._derived is None and before == self._tree_at_start:
            # A root that is found before the first report belongs to the start, at which the agent can
            # reshape.
            self._tree_at_start = self._pipeline.host_state.tree

    def _await_root(self, reason: str) -> None:
        """Record that reports wait because the root provider is missing. Guests keep their settings."""
        if reason != self.status.waiting:
            LOG.warning("Nothing can be reported to Placement yet: %s", reason)
        # Placement counts as available, because it has answered: only the root is missing.
        self._metrics.placement_up.set(1)
        self._metrics.last_report.set_to_current_time()
        self._metrics.reports.labels("waiting").inc()
        self.status = replace(self.status, up=True, last_error="", away=False, refusals=(), waiting=reason)

    def _grant_switches(self) -> None:
        """Set or remove the trait in Placement that keeps new guests away.

        :raises PlacementError: Placement does not answer, or refuses the change.
        """
        # The mapping is read once, because switch_scheduling() can replace it while the trait is written.
        causes = self._causes
        beside = self._pipeline.host_state.tree.beside
        if beside and any(causes.values()) and causes != self._granted:
            LOG.warning("The agent cannot keep new guests away from this host: %s", DISABLE_SERVICE)
        # If nova-compute owned the root, it would remove the trait that the agent has set.
        if causes and not beside:
            self._reporter.switch_scheduling(self._pipeline.host_state.tree.root.uuid, causes)
        if self.root_traits is not None:
            with self._switch:
                self._granted = causes
                self._switch.notify_all()

    def _note_failure(self, reason: str, away: bool) -> None:
        """Log a new failure.

        While Placement stays unavailable, another message does not count as a new failure.
        """
        if away and self.status.away:
            if reason != self.status.last_error:
                LOG.info("Reports to Placement still fail, now for another reason: %s", reason)
        elif self.status.up is not False or reason != self.status.last_error:
            LOG.warning("Report to Placement failed, the agent tries again: %s", reason)
        self._metrics.placement_up.set(0)
        self._metrics.reports.labels("failed").inc()
        self.status = replace(self.status, up=False, last_error=reason, away=away)

    def _read_allocations(self) -> None:
        """Read allocations, pass changed allocations to the worker, and then read claims."""
        listing = self._reporter.take_listing()
        evidence, generations = self._reporter.take_evidence()
        self.history.note_evidence(evidence)
        event = allocations_read(
            self._client, self._pipeline, self._reporter.offering_providers, listing, self.history
        )
        makes_claims = self._guest_claims is not None and self._guest_claims.is_needed
        if event is not None:
            if makes_claims:
                # The agent makes a claim for each guest that holds nothing according to the worker. So the
                # worker must have handled the read allocations first.
                hand_over(self._pipeline, event)
            else:
                self._pipeline.submit(event)
        self.history.end_read(generations, self._current_holders())
        if makes_claims and self._guest_claims is not None:
            self._guest_claims.settle_claims(self._client)
        # Claims are read last, so that a failure with claims does not affect the allocations that were read.
        self.claims.read_claims(self._client, self._pipeline.guest_views())

    def _read_ends(self) -> bool:
        """Read the claims with an end time; return False if the claims cannot be read."""
        if self._claim_ends is None:
            return True
        try:
            with round_deadline(_ENDS_SECONDS):
                return self._claim_ends.read_ends(self._client)
        except Exception:
            LOG.exception("Unexpected error while the claims that have an end time were read")
            return False

    def _current_holders(self) -> dict[str, ConsumerOwner]:
        """The owners of all consumers with an allocation on this host. Only unknown owners are read."""
        known = self.history.known_owners
        holding = {view.guest.uuid for view in self._pipeline.guest_views() if view.allocation}
        found = {
            uuid: known[uuid] for uuid in known.keys() & (holding | self._pipeline.unclaimed_holdings.keys())
        }
        for uuid in sorted(holding - known.keys()):
            if (holder := holder_of(self._client.get_allocations(uuid))) is not None:
                found[uuid] = holder
        return found

    def accept_allocations(self) -> tuple[AllocationLoss, ...]:
        """Accept the allocations of an older copy of Placement's database; return the lost allocations.

        :raises PlacementError: Placement does not answer, or refuses a request.
        :raises DriverError: the worker does not answer in time.
        :raises OSError: the decision cannot be saved.
        """
        with self._turn:
            if self.history.older_copy is None:
                return ()
            self._take_client()
            self._reporter.read_reported(self._pipeline.host_state.tree.root.uuid)
            event = allocations_read(self._client, self._pipeline, self._reporter.offering_providers)
            # The losses are read before accept_copy(), which clears them.
            losses = self.history.withheld_losses
            self.history.accept_copy()
            if event is not None:
                hand_over(self._pipeline, event)
            self.history.end_read(self._reporter.take_evidence()[1], self._current_holders())
            return losses


def status_document(status: ReportStatus, now: Callable[[], float] = time.time) -> Mapping[str, Any]:
    """The status of reports as the command ``status`` shows it."""
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
        "waiting_devices": list(status.not_offered.devices),
        "not_withheld": list(status.not_offered.not_withheld),
    }
