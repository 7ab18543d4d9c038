"""Make Placement know the host as it is: read, plan, send what differs, remember what is ours."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from compute_agent.inventory.provider_tree import ProviderTree, with_stock_names
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.resource import STOCK_NAMES
from compute_agent.report.capacity import CpuLocation
from compute_agent.report.client import PlacementClient
from compute_agent.report.errors import (
    ConcurrentUpdateError,
    ConflictError,
)
from compute_agent.report.execution import PlanExecution, ReportOutcome
from compute_agent.report.held import WithheldOffers, beside_held
from compute_agent.report.history import Generations
from compute_agent.report.host_reader import HoldingsListing, ProviderReader
from compute_agent.report.plan import (
    Action,
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    Ownership,
    ReportedProvider,
    adjustment_sentences,
    assume_ownership,
    deletions,
    ownership_after,
    ownership_before,
    plan,
    unknown_traits,
)
from compute_agent.report.reshape import InfeasibleReshape, ReshapePlan, plan_reshape, to_body
from compute_agent.report.scheduling import DISABLED, MARKS, Causes, in_words, switched

LOG = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 4


class HostReporter:
    """Reports trees of one host to one Placement. Not for several threads at once."""

    def __init__(
        self,
        client: PlacementClient,
        owned: Ownership,
        remember: Callable[[Ownership], None],
        generations: Generations = MappingProxyType({}),
    ) -> None:
        """``owned`` is what ``remember`` was last called with, which has to keep it durably.

        ``generations`` are those of the providers when they were last seen.
        """
        self._client = client
        self._owned = owned
        self._remember = remember
        self._reader = ProviderReader(client)
        self._reader.generations = generations
        self._dropped: frozenset[str] = frozenset()
        self.adjustments: tuple[str, ...] = ()
        """What others set through the API and is there after the last report, a sentence each."""
        self.waiting = WithheldOffers()
        """What is not offered, as others hold what it lies in."""

    def report(self, tree: ProviderTree) -> ReportOutcome:
        """Send what differs between ``tree`` and Placement; nothing if nothing does.

        A change that is refused (409: in use, name taken) is in the answer, and the others are made
        nevertheless. When somebody else changes a provider meanwhile, everything is read again, four times at
        most.

        :raises PlacementError: Placement cannot be reached or keeps changing under us.
        """
        try:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                try:
                    return self._attempt(tree)
                except ConcurrentUpdateError as error:
                    self._reader.reported.clear()
                    if attempt == MAX_ATTEMPTS:
                        raise
                    LOG.info("Somebody else changed a provider meanwhile, reading again: %s", error)
        except Exception:
            # What we believe to be there may be wrong: the server was restored from an older state, ...
            self.forget()
            raise
        raise AssertionError("unreachable")

    def plan_reshape(
        self, tree: ProviderTree, locations: Mapping[str, CpuLocation], zones: Mapping[str, CpuSet]
    ) -> ReshapePlan | InfeasibleReshape:
        """What a reshape to ``tree`` has to move; nothing is sent.

        See :func:`~compute_agent.report.reshape.plan_reshape`.

        :raises PlacementError:
        """
        self._reader.reported.clear()
        reported = self.reported(tree.root.uuid)
        wanted = self.server_tree(tree)
        owned = assume_ownership(wanted, reported, self._owned)
        held: dict[str, dict[str, Mapping[str, int]]] = defaultdict(dict)
        for uuid, provider in reported.items():
            if provider.inventories:
                for consumer, amounts in self._reader.holdings(uuid).items():
                    held[consumer][uuid] = amounts
        return plan_reshape(wanted, reported, owned, held, locations, zones)

    def _held(self, uuid: str, name: str) -> int:
        return sum(amounts.get(name, 0) for amounts in self._reader.holdings(uuid).values())

    def reshape(
        self, tree: ProviderTree, locations: Mapping[str, CpuLocation], zones: Mapping[str, CpuSet]
    ) -> ReshapePlan | InfeasibleReshape:
        """Move what has to be moved, in one atomic request, and return it.

        Traits and providers that are left over are an ordinary report's.

        New providers are made first: empty, they harm nobody if it goes no further. When somebody claims or
        changes something meanwhile, everything is read and planned again, four times at most.

        :raises PlacementError: the old state being as it was.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                planned = self.plan_reshape(tree, locations, zones)
                if isinstance(planned, InfeasibleReshape) or not planned.moves:
                    return planned
                try:
                    self._carry_out(tree, planned)
                finally:
                    self.forget()
                return planned
            except ConflictError as error:
                if attempt == MAX_ATTEMPTS:
                    raise
                LOG.info("Somebody else changed something meanwhile, planning the reshape again: %s", error)
        raise AssertionError("unreachable")

    def _carry_out(self, tree: ProviderTree, planned: ReshapePlan) -> None:
        wanted = self.server_tree(tree)
        owned = assume_ownership(wanted, self._reader.reported, self._owned)
        actions = plan(wanted, self._reader.reported, owned, self._reader.names())
        self._keep(ownership_before(wanted, self._reader.reported, owned))
        ahead = tuple(
            action for action in actions if isinstance(action, CreateResourceClass | CreateProvider)
        )
        for refusal in PlanExecution(self._client, self._reader.reported).run(ahead).refusals:
            raise ConflictError("POST", "/resource_providers", refusal.reason, status=409)
        records = {consumer: self._client.allocations(consumer) for consumer in planned.allocations}
        self._client.reshape(to_body(planned, self._reader.reported, records))
        LOG.info(
            "Placement took a reshape: %d allocations of %d consumers moved",
            len(planned.moves),
            len(planned.allocations),
        )

    def switch_scheduling(self, root_uuid: str, causes: Causes) -> bool:
        """Keep new guests away from the host, or let them in again (see ``scheduling``).

        True if anything had to be changed; a provider that is not there yet is left to the next time.

        Reports leave these traits alone.

        :raises PlacementError:
        """
        try:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                try:
                    return self._switch_scheduling(root_uuid, causes)
                except ConcurrentUpdateError:
                    self._reader.reported.clear()
                    if attempt == MAX_ATTEMPTS:
                        raise
        except Exception:
            self.forget()
            raise
        raise AssertionError("unreachable")

    def _switch_scheduling(self, root_uuid: str, causes: Causes) -> bool:
        root = (self._reader.reported or self.reported(root_uuid)).get(root_uuid)
        if root is None or (wanted := switched(root.traits, causes)) == root.traits:
            return False
        new = wanted - root.traits
        for mark in sorted(MARKS & (new - self._reader.names().traits)):
            self._client.create_trait(mark)
            self._reader.forget_names()
        if DISABLED in new - self._reader.names().traits:
            LOG.error("Placement does not know the trait %s: new guests cannot be kept away", DISABLED)
            wanted -= {DISABLED}
            if wanted == root.traits:
                return False
        generation = self._client.set_traits(root_uuid, wanted, root.generation)
        self._reader.reported[root_uuid] = replace(root, generation=generation, traits=wanted)
        LOG.info("For Placement, new guests of this host are %s", in_words(wanted))
        return True

    def reported(self, root_uuid: str) -> dict[str, ReportedProvider]:
        """The providers of the host as Placement has them, by uuid.

        Those that the agent had elsewhere are among them, as below a root that is not the host's any more.

        :raises PlacementError:
        """
        return self._reader.read(root_uuid, self._owned.keys())

    def take_evidence(self) -> tuple[str, Generations]:
        """Why what was read does not go on from what was there (empty: it does), and the generations now."""
        evidence, self._reader.evidence = self._reader.evidence, ""
        reported = self._reader.reported
        now = {uuid: one.generation for uuid, one in reported.items()} or self._reader.generations
        return evidence, now

    def take_listing(self) -> HoldingsListing | None:
        """What was held when the providers were read last, where that was read with them; given once."""
        return self._reader.take_listing()

    def root_traits(self, root_uuid: str) -> frozenset[str] | None:
        """The traits of the root provider as they were last seen; None as long as it has not been."""
        root = self._reader.last_seen.get(root_uuid)
        return None if root is None else root.traits

    def use(self, client: PlacementClient) -> None:
        """Report by another client from now on."""
        self._client = client
        self._reader.use(client)

    def forget(self) -> None:
        """Have everything read anew: what was there may have been made again meanwhile."""
        self._reader.forget()

    def server_tree(self, tree: ProviderTree) -> ProviderTree:
        """``tree`` with the class names that the server knows (LLC or CUSTOM_LLC).

        Beside nova-compute it has those of a stock server already.
        """
        return tree if STOCK_NAMES.keys() <= self._reader.names().classes else with_stock_names(tree)

    def remove_own(self, root_uuid: str) -> ReportOutcome:
        """Remove the tree that the agent made itself, as far as nobody holds anything of it.

        :raises PlacementError:
        """
        self.forget()
        reported = self.reported(root_uuid)
        result = PlanExecution(self._client, self._reader.reported).run(
            tuple(deletions(reported, self._owned))
        )
        self._keep({uuid: owned for uuid, owned in self._owned.items() if uuid in self._reader.reported})
        return result

    @property
    def offering(self) -> frozenset[str]:
        """The providers with inventories, as far as they were last seen."""
        seen = self._reader.last_seen
        return frozenset(uuid for uuid, provider in seen.items() if provider.inventories)

    def reportable(self, tree: ProviderTree, reported: Mapping[str, ReportedProvider]) -> ProviderTree:
        """The tree with names that the server knows, and beside what is held; may raise PlacementError."""
        wanted, self.waiting = beside_held(self.server_tree(tree), reported, self._owned, self._held)
        return wanted

    def plan_report(self, tree: ProviderTree) -> tuple[Action, ...]:
        """What report() would send.

        :raises PlacementError:
        """
        reported = self.reported(tree.root.uuid)
        wanted = self.reportable(tree, reported)
        return plan(wanted, reported, assume_ownership(wanted, reported, self._owned), self._reader.names())

    def _attempt(self, tree: ProviderTree) -> ReportOutcome:
        reported = self.reported(tree.root.uuid)
        wanted = self.reportable(tree, reported)
        owned = assume_ownership(wanted, reported, self._owned)
        actions = plan(wanted, reported, owned, self._reader.names())
        self._log_dropped(wanted)
        self._log_adjustments(wanted, reported, owned)
        claims = ownership_before(wanted, reported, owned)
        self._keep(claims)
        if not actions:
            LOG.debug("Placement has all as it should be: %d providers", len(wanted.nodes))
            self._keep(ownership_after(wanted, claims, reported))
            return ReportOutcome()
        result = PlanExecution(self._client, self._reader.reported).run(actions)
        if any(isinstance(action, CreateTrait | CreateResourceClass) for action in actions):
            self._reader.forget_names()
        self._keep(ownership_after(wanted, claims, self._reader.reported))
        self.adjustments = tuple(adjustment_sentences(wanted, self._reader.reported, self._owned))
        return result

    def _log_dropped(self, tree: ProviderTree) -> None:
        """Log the traits that an older server does not know, once."""
        dropped = unknown_traits(tree, self._reader.names())
        if dropped - self._dropped:
            LOG.warning(
                "Placement does not know these traits, they are left out: %s", " ".join(sorted(dropped))
            )
        self._dropped = dropped

    def _log_adjustments(
        self, tree: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership
    ) -> None:
        """Log what somebody else set, once."""
        found = tuple(adjustment_sentences(tree, reported, owned))
        for sentence in found:
            if sentence not in self.adjustments:
                LOG.warning("%s", sentence)
        self.adjustments = found

    def _keep(self, owned: Ownership) -> None:
        if owned != self._owned:
            self._remember(owned)
            self._owned = owned
