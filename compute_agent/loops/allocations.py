"""Reads the allocations of this host's consumers, and protects them from a restored database and from expiry.

If an operator restores Placement's database from a backup, the older copy can lack allocations of running
guests. The guests then keep their last known allocations until all of these are in Placement again, or until
an operator accepts the older copy (see :mod:`compute_agent.report.history`).

A claim with ``expires_in`` has to be confirmed after its guest has started. Without confirmation the claim
expires while the guest runs, and the guest loses its CPUs. The agent confirms such claims, or warns of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any, Final, Protocol

from prometheus_client import Gauge

from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.model.guest import Allocation, ConsumerAllocations, GuestHolding
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import AllocationsRead
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.host_state import HostState, request_for
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.policy.base import refit_assignment
from compute_agent.report.answers import ConflictError, NotFoundError, PlacementError, UnavailableError
from compute_agent.report.audit import MigrationClaim, MovedGuest, Owner, resolve_holdings
from compute_agent.report.client import ExpiringClaim, PlacementClient
from compute_agent.report.history import (
    AllocationLoss,
    ConsumerOwner,
    Generations,
    OlderCopy,
    PlacementHistory,
    holder_of,
    why_older,
)
from compute_agent.report.reporter import HoldingsListing

LOG = logging.getLogger(__name__)


class KeepHistory(Protocol):
    """Stores the generations and owners that reveal an older copy of Placement's database."""

    def __call__(self, history: PlacementHistory, /) -> None:
        """Store the history. The data is on disk when this function returns.

        :raises OSError: the history cannot be written.
        """
        ...


class HistoryWatch:
    """Decides whether missing allocations are lost, or only missing in an older copy of the database.

    Any thread may read the properties.
    """

    def __init__(
        self,
        metrics: AgentMetrics,
        saved: PlacementHistory | None = None,
        keep_history: KeepHistory = lambda history: None,
        recorder: EventRecorder | None = None,
    ) -> None:
        """Begin with the history that the previous run of the agent has stored."""
        self._history = saved or PlacementHistory()
        self._keep_history = keep_history
        self._recorder = recorder or EventRecorder()
        Gauge(
            "compute_agent_placement_older",
            "1 if Placement has an older copy of its database, so that guests keep their CPUs, cache and"
            " bandwidth, otherwise 0.",
            registry=metrics.registry,
        ).set_function(lambda: self.older_copy is not None)
        self._evidence = ""
        self._withheld_losses: tuple[AllocationLoss, ...] = ()
        self._lock = threading.Lock()

    @property
    def older_copy(self) -> OlderCopy | None:
        """When and why Placement was found to use an older copy of its database; None if it uses none."""
        return self._history.older

    @property
    def known_owners(self) -> Mapping[str, ConsumerOwner]:
        """The owner of each consumer that has an allocation on this host, by the consumer's uuid."""
        return self._history.holders

    @property
    def withheld_losses(self) -> tuple[AllocationLoss, ...]:
        """The lost allocations that were ignored at the last read, because Placement has an older copy."""
        return self._withheld_losses

    def note_evidence(self, evidence: str) -> None:
        """Remember evidence of an older database for the next decision; an empty text changes nothing."""
        # The evidence stays until a read of allocations has used it, because a report can fail before the
        # read.
        self._evidence = evidence or self._evidence

    def withholds_losses(self, losses: Sequence[AllocationLoss], holding: int) -> bool:
        """Decide whether to ignore lost allocations, because Placement has an older copy of its database.

        :param losses: all guests that lost an allocation between the last read and this one.
        :param holding: the number of guests that had an allocation at the previous read.
        :raises OSError: the decision cannot be saved.
        """
        with self._lock:
            if self.older_copy is None:
                if reason := why_older(self._evidence, losses, holding):
                    self._begin_older(OlderCopy(reason, time.time()), losses)
            # If a complete read finds no loss, Placement no longer has the older copy, or the allocations
            # were written again.
            elif not losses:
                self._end_older("all guests hold what they did again")
            self._withheld_losses = tuple(losses) if self.older_copy is not None else ()
            return self.older_copy is not None

    def end_read(self, generations: Generations, holders: Mapping[str, ConsumerOwner]) -> None:
        """End a read of allocations: remember the generations of providers, and the owners of consumers.

        :raises OSError: the generations and owners cannot be saved.
        """
        with self._lock:
            self._evidence = ""
            self._change_history(replace(self._history, generations=dict(generations), holders=dict(holders)))

    def accept_copy(self) -> None:
        """Accept the older copy: the allocations in Placement apply to guests from now on.

        :raises OSError: the decision cannot be saved.
        """
        with self._lock:
            self._evidence = ""
            if self.older_copy is not None:
                self._end_older("an operator accepted the loss")
            self._withheld_losses = ()

    def status_fields(self) -> dict[str, Any]:
        """The fields of the output of ``status`` about the history of Placement's database."""
        older = self.older_copy
        return {
            "placement_history": "goes on" if older is None else "older",
            "placement_history_reason": "" if older is None else older.reason,
            "guests_kept": [loss.uuid for loss in self._withheld_losses],
        }

    def _begin_older(self, older: OlderCopy, losses: Sequence[AllocationLoss]) -> None:
        # The decision is saved before it takes effect, so that a restart does not forget it.
        self._change_history(replace(self._history, older=older))
        self._recorder.record_event(
            LOG.error,
            EventKind.HISTORY,
            None,
            "Placement has an older copy of its database: %s; %d guests keep their CPUs, cache and bandwidth."
            " compute-agent audit --heal restores their allocations;"
            " compute-agent allocations accept makes the loss final",
            older.reason,
            len(losses),
        )

    def _end_older(self, why: str) -> None:
        self._change_history(replace(self._history, older=None))
        self._recorder.record_event(
            LOG.info, EventKind.HISTORY, None, "The agent follows Placement's allocations again: %s", why
        )

    def _change_history(self, history: PlacementHistory) -> None:
        if history != self._history:
            self._keep_history(history)
            self._history = history


class ClaimWatch:
    """Follows claims that must be confirmed after guests start; any thread may read the expiry times."""

    def __init__(
        self, in_force: ConfigurationInForce | None = None, recorder: EventRecorder | None = None
    ) -> None:
        """``in_force`` has the option ``[guests] confirm_claims``; without ``in_force`` it is off."""
        self._in_force = in_force
        self._recorder = recorder or EventRecorder()
        self._asked: dict[str, Allocation] = {}
        self._expiring: Mapping[str, float] = {}
        # By uuid of the guest, the reason why its claim could not be read. Each reason is logged once.
        self._unknown: Mapping[str, str] = {}

    def claim_end(self, uuid: str) -> float | None:
        """The time at which a guest's claim expires, in seconds since the epoch; None means never."""
        return self._expiring.get(uuid)

    @property
    def first_end(self) -> float | None:
        """The time at which the first claim expires, in seconds since the epoch; None if no claim expires."""
        return min(self._expiring.values(), default=None)

    def read_claims(self, client: PlacementClient, views: Iterable[GuestView]) -> None:
        """Read the claims of guests with new allocations, and all claims known to expire.

        If ``[guests] confirm_claims`` is on, confirm the claims that would expire.

        :raises UnavailableError: Placement does not answer.
        """
        expiring: dict[str, float] = {}
        asked: dict[str, Allocation] = {}
        unknown: dict[str, str] = {}
        for view in views:
            uuid, held = view.guest.uuid, view.allocation
            if not held or view.migration is not None:
                continue
            asked[uuid] = held
            # The claim for this allocation was read before, and it does not expire. A confirmed claim never
            # expires.
            if self._asked.get(uuid) == held and uuid not in self._expiring:
                continue
            try:
                claim = client.expiring_claim(uuid)
                if claim is not None and not (
                    self._confirms_claims and not claim.is_final and self._confirm_claim(client, view, claim)
                ):
                    # Placement returns the remaining seconds, so the clocks of the two hosts need not agree.
                    expiring[uuid] = time.time() + claim.seconds
                    # compute_agent.loops.claim_ends announces final ends.
                    if uuid not in self._expiring and not claim.is_final:
                        self._warn_expiry(view, claim)
            except UnavailableError:
                raise
            except PlacementError as error:
                # The claim perhaps expires, so it does not count as read, and the next call reads it again.
                del asked[uuid]
                if uuid in self._expiring:
                    expiring[uuid] = self._expiring[uuid]
                unknown[uuid] = str(error)
                if self._unknown.get(uuid) != unknown[uuid]:
                    LOG.warning(
                        "The agent cannot read when the claim of guest %s expires: %s", view.guest, error
                    )
        self._asked, self._expiring, self._unknown = asked, expiring, unknown

    @property
    def _confirms_claims(self) -> bool:
        return self._in_force is not None and bool(self._in_force.current.options.guests.confirm_claims)

    def _confirm_claim(self, client: PlacementClient, view: GuestView, claim: ExpiringClaim) -> bool:
        """Confirm a claim; False if another client changed it, so that the next read examines it again."""
        try:
            client.confirm_claim(view.guest.uuid, claim.generation)
        except NotFoundError:
            # Another client has confirmed the claim, or the claim has expired. The next read of allocations
            # shows which of the two happened.
            return True
        except ConflictError:
            return False
        message = "The claim of guest %s would have expired in %.0f s, and was confirmed"
        self._recorder.record_done(LOG.info, EventKind.CLAIM, view.guest, message, claim.seconds)
        return True

    def _warn_expiry(self, view: GuestView, claim: ExpiringClaim) -> None:
        self._recorder.record_done(
            LOG.warning,
            EventKind.CLAIM,
            view.guest,
            "Guest %s loses its allocation in %.0f s, because its claim expires: confirm the claim (PUT"
            " /ext/v1/claims), or have the agent confirm claims by [guests] confirm_claims",
            claim.seconds,
        )


_ANSWER_SECONDS: Final = 50.0
"""Seconds to wait for the worker, which is perhaps applying a configuration to many guests."""

Held = Mapping[str, Allocation]
"""Allocations on this host's providers, by uuid of the consumer."""


def allocations_read(
    client: PlacementClient,
    pipeline: GuestPipeline,
    offering: frozenset[str],
    listing: HoldingsListing | None = None,
    watch: HistoryWatch | None = None,
) -> AllocationsRead | None:
    """Read the allocations on this host's providers; return the changes, or None if nothing changed.

    :param offering: the uuids of this host's providers with inventories.
    :param listing: the allocations that a report has just read; None means that this function reads them.
    :param watch: decides whether a missing allocation is lost, or only missing in an older copy of the
        database. Without it, each missing allocation counts as lost.
    :raises PlacementError: Placement does not answer, or refuses a request.
    :raises OSError: the decision about losses cannot be saved.
    """
    host_state = pipeline.host_state
    providers = sorted(offering & {zone.uuid for zone in host_state.all_zones})
    # A listing that lacks one of the zones is incomplete: all zones are read instead.
    if listing is not None and not listing.held.keys() >= set(providers):
        listing = None
    as_of = time.monotonic() if listing is None else listing.as_of
    # The holdings are read before the guests. In the other order, an allocation that the worker notes in
    # between would count as an allocation without a guest, which an audit can delete.
    known: dict[str, Allocation] = {uuid: one.allocation for uuid, one in pipeline.unclaimed_holdings.items()}
    views = pipeline.guest_views()
    held: Held = (
        allocations_by_consumer(client, providers)
        if listing is None
        else _by_consumer({uuid: listing.held[uuid] for uuid in providers})
    )
    # The listing is one request for each provider. An allocation that moves from one provider to another
    # between two requests can be missing in both answers. The record of the consumer is a single answer, and
    # so consistent.
    records = {
        view.guest.uuid: client.get_allocations(view.guest.uuid)
        for view in views
        if not _holds_the_same(view, held)
    }
    if any(view.allocation != {} for view in views if view.guest.uuid in records):
        # These records are read again, because Nova may have moved allocations of the guests to migrations
        # during the listing.
        held = allocations_by_consumer(client, providers)
    found = _find_holdings(client, host_state, views, records, held, known)
    changed = {
        view.guest.uuid: holding
        for view in views
        if (holding := found.get(view.guest.uuid)) is not None
        and (view.allocation is None or holding != GuestHolding(view.allocation, view.migration))
    }
    losses = _find_losses(views, changed)
    if watch is not None and watch.withholds_losses(losses, sum(bool(view.allocation) for view in views)):
        changed = {uuid: changed[uuid] for uuid in changed.keys() - {loss.uuid for loss in losses}}
        # An older copy can also lack allocations of consumers without a guest, so the known allocations stay.
        held = {**known, **held}
    guests = {view.guest.uuid for view in views}
    unclaimed = {consumer: held[consumer] for consumer in held.keys() - guests}
    if not changed and unclaimed == known:
        return None
    return AllocationsRead(
        {uuid: holding.allocation for uuid, holding in changed.items()},
        as_of,
        held,
        {uuid: holding.migration for uuid, holding in changed.items() if holding.migration is not None},
        {uuid: owner for uuid, record in records.items() if (owner := holder_of(record)) is not None},
    )


def hand_over(pipeline: GuestPipeline, event: AllocationsRead) -> None:
    """Pass the read allocations to the worker, and wait until the worker has handled them.

    :raises DriverError: the worker does not answer in time.
    """
    try:
        pipeline.submit(event).result(_ANSWER_SECONDS)
    except FutureTimeoutError as error:
        raise DriverError(f"the agent is busy: no answer within {_ANSWER_SECONDS:g} s") from error


def _find_losses(views: Iterable[GuestView], changed: Mapping[str, GuestHolding]) -> list[AllocationLoss]:
    """Find the guests that lost an allocation: the guest or its migration held larger amounts before."""
    return [
        AllocationLoss(view.guest.uuid, view.guest.name, view.allocation, now)
        for view in views
        if view.allocation and view.guest.uuid in changed
        for now in [changed[view.guest.uuid].allocation]
        if now != view.allocation
    ]


def _holds_the_same(view: GuestView, held: Held) -> bool:
    """Whether a guest, or its migration, has the same allocation in ``held`` as before."""
    own = held.get(view.guest.uuid, {})
    if view.migration is None:
        return own == view.allocation
    return own != view.allocation == held.get(view.migration.consumer, {})


def _find_holdings(
    client: PlacementClient,
    host_state: HostState,
    views: Iterable[GuestView],
    records: Mapping[str, ConsumerAllocations],
    held: Held,
    known: Held,
) -> dict[str, GuestHolding]:
    """Find the allocation of each guest in ``records``; a migration can hold the allocation for its guest.

    :param records: the records of guests' own consumers, by uuid.
    :param held: all allocations on this host's providers, by consumer.
    :param known: the allocations of consumers without a guest at the last read, by consumer.
    """
    views = list(views)
    waiting = [view for view in views if view.guest.uuid in records]
    spoken_for = {view.guest.uuid for view in views}
    spoken_for |= {it.migration.consumer for it in views if it.migration and it.guest.uuid not in records}
    free = {consumer: allocation for consumer, allocation in held.items() if consumer not in spoken_for}
    suitable = {
        view.guest.uuid: _suitable_claims(host_state, view, free)
        for view in waiting
        if view.allocation is None
    }
    wanted = [view.allocation for view in waiting if view.allocation]
    current = {view.migration.consumer for view in waiting if view.migration}
    claims = []
    for consumer, allocation in free.items():
        if allocation in wanted or consumer in current or any(consumer in each for each in suitable.values()):
            record = client.get_allocations(consumer)
            if part := host_state.own_part(record.resources):
                new = known.get(consumer) != part
                claims.append(
                    MigrationClaim(consumer, part, _record_owner(record), record.consumer_type, new)
                )
    moved = []
    for view in waiting:
        uuid = view.guest.uuid
        own, migration = host_state.own_part(records[uuid].resources), view.migration
        consumer = "" if migration is None else migration.consumer
        owner = _record_owner(records[uuid])
        moved.append(MovedGuest(uuid, view.allocation, own, consumer, owner, suitable.get(uuid, frozenset())))
    return resolve_holdings(moved, claims)


def _record_owner(record: ConsumerAllocations) -> Owner | None:
    if record.project_id is None or record.user_id is None:
        return None
    return record.project_id, record.user_id


def _suitable_claims(host_state: HostState, view: GuestView, claims: Held) -> frozenset[str]:
    """Find the consumers in ``claims`` with an allocation that matches a guest and its present CPUs."""
    return frozenset(
        consumer for consumer, allocation in claims.items() if _suits_guest(host_state, view, allocation)
    )


def _suits_guest(host_state: HostState, view: GuestView, allocation: Allocation) -> bool:
    request = request_for(host_state, view.guest, allocation)
    # A guest on shared CPUs fits on any of them, so only the amounts are compared.
    if view.assignment is None or not view.assignment.held_cpus:
        return request.pcpu == 0 and sum(demand.vcpu for demand in request.demands) == request.vcpus
    return refit_assignment(host_state.cpu_supply({}), request, view.assignment) is not None


def allocations_by_consumer(
    client: PlacementClient, providers: Iterable[str]
) -> dict[str, dict[str, dict[str, int]]]:
    """Read the allocations on providers: amounts by consumer, provider and resource class.

    :raises PlacementError: Placement does not answer, or refuses a request.
    """
    found = {}
    for uuid in providers:
        try:
            found[uuid] = client.provider_allocations(uuid)
        except NotFoundError:
            continue  # a provider that does not exist yet has no allocations
    return _by_consumer(found)


def _by_consumer(
    found: Mapping[str, Mapping[str, Mapping[str, int]]],
) -> dict[str, dict[str, dict[str, int]]]:
    held: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for uuid, consumers in found.items():
        for consumer, resources in consumers.items():
            held[consumer][uuid] = dict(resources)
    return dict(held)
