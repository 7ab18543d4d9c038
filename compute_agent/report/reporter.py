"""The reporter: makes Placement equal to the host.

It reads, plans, sends the difference, and remembers what is the agent's own. What Placement has is read
rarely: again only where somebody may have changed it.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from compute_agent.inventory.provider_tree import ProviderTree, with_stock_names
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.resource import STOCK_NAMES
from compute_agent.report.answers import (
    ConcurrentUpdateError,
    ConflictError,
    CredentialsError,
    NotFoundError,
    PlacementError,
)
from compute_agent.report.capacity import CpuLocation
from compute_agent.report.client import PlacementClient, TreeRecord
from compute_agent.report.execution import PlanExecution, ReportOutcome
from compute_agent.report.held_amounts import WithheldOffers, beside_held
from compute_agent.report.history import Generations, went_back
from compute_agent.report.plan import (
    Action,
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    KnownNames,
    Ownership,
    ReportedProvider,
    adjustment_sentences,
    assume_ownership,
    deletions,
    described,
    from_api,
    ownership_after,
    ownership_before,
    plan,
    unknown_traits,
)
from compute_agent.report.reshape import InfeasibleReshape, ReshapePlan, plan_reshape, to_body
from compute_agent.report.root_provider import DISABLED, MARKS, Causes, in_words, switched

_MAX_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class HoldingsListing:
    """Allocations by provider, consumer and class, read at a time (monotonic) or later."""

    as_of: float
    held: Mapping[str, Mapping[str, Mapping[str, int]]]


class ProviderReader:
    """Reads the providers of one host, and remembers them. Not for several threads at once.

    ``reported`` are the providers by uuid, as they are believed to be: whoever changes one in Placement says
    so there. ``generations`` are theirs when they were last read, and ``evidence`` says why what was read did
    not go on from what was there before (empty: it did).
    """

    def __init__(self, client: PlacementClient) -> None:
        self._client = client
        self.reported: dict[str, ReportedProvider] = {}
        self._known: KnownNames | None = None
        self._seen: Mapping[str, ReportedProvider] = {}
        self._trees: dict[str, TreeRecord] = {}
        self._stale: Set[str] = frozenset()
        self._listing: HoldingsListing | None = None
        self.generations: Generations = {}
        self.evidence = ""

    def use(self, client: PlacementClient) -> None:
        """Use another client, and read everything again."""
        self._client = client
        self.forget()

    def forget(self) -> None:
        """Have everything read anew: what was there may have been made again meanwhile."""
        self._known = None
        self._seen = self.last_seen
        self.reported = {}
        self._trees.clear()
        self._listing = None
        self._client.forget_extensions()

    def forget_names(self) -> None:
        """Forget the names of classes and traits, so that they are read again."""
        self._known = None

    def mark_stale(self, uuids: Set[str]) -> None:
        """Read these providers again the next time, though their generations may be the same.

        A change that was refused may rest on one answer that was wrong. As long as nothing changes on the
        server, its tags and generations would keep that answer in use.
        """
        self._trees.clear()
        self._stale = uuids

    @property
    def last_seen(self) -> Mapping[str, ReportedProvider]:
        """The providers as they were last seen, which may have been long ago."""
        return self.reported or self._seen

    def names(self) -> KnownNames:
        """The names that the server knows.

        :raises PlacementError:
        """
        if self._known is None:
            self._known = KnownNames(
                self._client.resource_classes(),
                self._client.known_traits(),
                self._client.keeps_attributes(),
            )
        return self._known

    def read(self, root_uuid: str, owned: Set[str]) -> dict[str, ReportedProvider]:
        """The providers of the host as Placement has them, by uuid.

        Reads only what changed since the last time. What is ``owned`` elsewhere is among them.

        :raises PlacementError:
        """
        read = self._read_whole if self._client.has_trees() else self._read_each
        self._listing = None
        before = _generations(self.reported) or self.generations
        fresh = read(root_uuid)
        for stray in sorted(owned - fresh.keys()):
            if stray not in fresh:
                fresh |= read(stray)
        if self.reported.keys() - fresh.keys():
            self._known = None
        self._stale = frozenset()
        self.reported, self.generations = fresh, _generations(fresh)
        self.evidence = self.evidence or went_back(before, self.generations)
        return dict(fresh)

    def take_listing(self) -> HoldingsListing | None:
        """What was held when the providers were read last, where that was read with them; given once."""
        listing, self._listing = self._listing, None
        return listing

    def holdings(self, uuid: str) -> Mapping[str, Mapping[str, int]]:
        """What is held of a provider, by consumer and class.

        :raises PlacementError:
        """
        if self._listing is not None and uuid in self._listing.held:
            return self._listing.held[uuid]
        try:
            return self._client.provider_allocations(uuid)
        except NotFoundError:
            return {}  # removed since; the generations will tell

    def _read_each(self, uuid: str) -> dict[str, ReportedProvider]:
        """The providers of a tree, by a request for each that is new or changed."""
        fresh: dict[str, ReportedProvider] = {}
        for record in self._client.providers_in_tree(uuid):
            old = self.reported.get(record.uuid)
            if old is not None and old.generation == record.generation and record.uuid not in self._stale:
                fresh[record.uuid] = replace(old, name=record.name, parent=record.parent_uuid)
            else:
                fresh[record.uuid] = self._read(record.uuid, record.name, record.parent_uuid)
        return fresh

    def _read_whole(self, uuid: str) -> dict[str, ReportedProvider]:
        """The providers of a tree, all at once, and what is held of them; next to nothing if none changed."""
        as_of, known = time.monotonic(), self._trees.get(uuid)
        try:
            tree = self._client.tree(uuid, "" if known is None else known.tag) or known
        except (NotFoundError, CredentialsError):
            # There is no such provider; or the server is another one by now, or lets nobody ask for trees.
            self._trees.pop(uuid, None)
            return self._read_each(uuid)
        if tree is None:
            raise PlacementError(
                "GET", f"/ext/v1/trees/{uuid}", "an answer to a question not asked", status=304
            )
        self._trees[uuid] = tree
        held = {} if self._listing is None else dict(self._listing.held)
        for record in tree.providers:
            held[record["uuid"]] = {
                consumer: each["resources"] for consumer, each in record["allocations"].items()
            }
        self._listing = HoldingsListing(as_of if self._listing is None else self._listing.as_of, held)
        return {record["uuid"]: described(record) for record in tree.providers}

    def _read(self, uuid: str, name: str, parent: str | None) -> ReportedProvider:
        for _ in range(_MAX_ATTEMPTS):
            inventories, before = self._client.inventories(uuid)
            traits, after = self._client.traits(uuid)
            attributes: Mapping[str, str | float] = {}
            if before == after and self.names().attributes:
                attributes, after = self._client.attributes(uuid)
            if before == after:
                parsed = {rc: from_api(record) for rc, record in inventories.items()}
                return ReportedProvider(uuid, name, parent, after, parsed, traits, attributes)
        path = f"/resource_providers/{uuid}/traits"
        raise ConcurrentUpdateError("GET", path, "the provider changed while it was read", status=200)


def _generations(providers: Mapping[str, ReportedProvider]) -> Generations:
    return {uuid: provider.generation for uuid, provider in providers.items()}


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
        self.reader = ProviderReader(client)
        self.reader.generations = generations
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
                    self.reader.reported.clear()
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
        """Plan the moves of a reshape to ``tree``, without sending anything.

        See :func:`~compute_agent.report.reshape.plan_reshape`.

        :raises PlacementError:
        """
        self.reader.reported.clear()
        reported = self.reported(tree.root.uuid)
        wanted = self.server_tree(tree)
        owned = assume_ownership(wanted, reported, self._owned)
        held: dict[str, dict[str, Mapping[str, int]]] = defaultdict(dict)
        for uuid, provider in reported.items():
            if provider.inventories:
                for consumer, amounts in self.reader.holdings(uuid).items():
                    held[consumer][uuid] = amounts
        return plan_reshape(wanted, reported, owned, held, locations, zones)

    def _held(self, uuid: str, name: str) -> int:
        return sum(amounts.get(name, 0) for amounts in self.reader.holdings(uuid).values())

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
        owned = assume_ownership(wanted, self.reader.reported, self._owned)
        actions = plan(wanted, self.reader.reported, owned, self.reader.names())
        self._keep(ownership_before(wanted, self.reader.reported, owned))
        ahead = tuple(
            action for action in actions if isinstance(action, CreateResourceClass | CreateProvider)
        )
        for refusal in PlanExecution(self._client, self.reader.reported).run(ahead).refusals:
            raise ConflictError("POST", "/resource_providers", refusal.reason, status=409)
        records = {consumer: self._client.allocations(consumer) for consumer in planned.allocations}
        self._client.reshape(to_body(planned, self.reader.reported, records))
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
                    self.reader.reported.clear()
                    if attempt == MAX_ATTEMPTS:
                        raise
        except Exception:
            self.forget()
            raise
        raise AssertionError("unreachable")

    def _switch_scheduling(self, root_uuid: str, causes: Causes) -> bool:
        root = (self.reader.reported or self.reported(root_uuid)).get(root_uuid)
        if root is None or (wanted := switched(root.traits, causes)) == root.traits:
            return False
        new = wanted - root.traits
        for mark in sorted(MARKS & (new - self.reader.names().traits)):
            self._client.create_trait(mark)
            self.reader.forget_names()
        if DISABLED in new - self.reader.names().traits:
            LOG.error("Placement does not know the trait %s: new guests cannot be kept away", DISABLED)
            wanted -= {DISABLED}
            if wanted == root.traits:
                return False
        generation = self._client.set_traits(root_uuid, wanted, root.generation)
        self.reader.reported[root_uuid] = replace(root, generation=generation, traits=wanted)
        LOG.info("For Placement, new guests of this host are %s", in_words(wanted))
        return True

    def reported(self, root_uuid: str) -> dict[str, ReportedProvider]:
        """The providers of the host as Placement has them, by uuid.

        Those that the agent had elsewhere are among them, as below a root that is not the host's any more.

        :raises PlacementError:
        """
        return self.reader.read(root_uuid, self._owned.keys())

    def take_evidence(self) -> tuple[str, Generations]:
        """Why what was read does not go on from what was there (empty: it does), and the generations now."""
        evidence, self.reader.evidence = self.reader.evidence, ""
        reported = self.reader.reported
        now = {uuid: one.generation for uuid, one in reported.items()} or self.reader.generations
        return evidence, now

    def take_listing(self) -> HoldingsListing | None:
        """What was held when the providers were read last, where that was read with them; given once."""
        return self.reader.take_listing()

    def root_traits(self, root_uuid: str) -> frozenset[str] | None:
        """The traits of the root provider as they were last seen; None as long as it has not been."""
        root = self.reader.last_seen.get(root_uuid)
        return None if root is None else root.traits

    def use(self, client: PlacementClient) -> None:
        """Report by another client from now on."""
        self._client = client
        self.reader.use(client)

    def forget(self) -> None:
        """Have everything read anew: what was there may have been made again meanwhile."""
        self.reader.forget()

    def server_tree(self, tree: ProviderTree) -> ProviderTree:
        """``tree`` with the class names that the server knows (LLC or CUSTOM_LLC).

        Beside nova-compute it has those of a stock server already.
        """
        return tree if STOCK_NAMES.keys() <= self.reader.names().classes else with_stock_names(tree)

    def remove_own(self, root_uuid: str) -> ReportOutcome:
        """Remove the tree that the agent made itself, as far as nobody holds anything of it.

        :raises PlacementError:
        """
        self.forget()
        reported = self.reported(root_uuid)
        result = PlanExecution(self._client, self.reader.reported).run(
            tuple(deletions(reported, self._owned))
        )
        self._keep({uuid: owned for uuid, owned in self._owned.items() if uuid in self.reader.reported})
        return result

    @property
    def offering(self) -> frozenset[str]:
        """The providers with inventories, as far as they were last seen."""
        seen = self.reader.last_seen
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
        return plan(wanted, reported, assume_ownership(wanted, reported, self._owned), self.reader.names())

    def _attempt(self, tree: ProviderTree) -> ReportOutcome:
        reported = self.reported(tree.root.uuid)
        wanted = self.reportable(tree, reported)
        owned = assume_ownership(wanted, reported, self._owned)
        actions = plan(wanted, reported, owned, self.reader.names())
        self._log_dropped(wanted)
        self._log_adjustments(wanted, reported, owned)
        claims = ownership_before(wanted, reported, owned)
        self._keep(claims)
        if not actions:
            LOG.debug("Placement has all as it should be: %d providers", len(wanted.nodes))
            self._keep(ownership_after(wanted, claims, reported))
            return ReportOutcome()
        result = PlanExecution(self._client, self.reader.reported).run(actions)
        if result.refusals:
            self.reader.mark_stale({getattr(refusal.action, "uuid", "") for refusal in result.refusals})
        if any(isinstance(action, CreateTrait | CreateResourceClass) for action in actions):
            self.reader.forget_names()
        self._keep(ownership_after(wanted, claims, self.reader.reported))
        self.adjustments = tuple(adjustment_sentences(wanted, self.reader.reported, self._owned))
        return result

    def _log_dropped(self, tree: ProviderTree) -> None:
        """Log the traits that an older server does not know, once."""
        dropped = unknown_traits(tree, self.reader.names())
        if dropped - self._dropped:
            LOG.warning(
                "Placement does not know these traits, they are left out: %s", " ".join(sorted(dropped))
            )
        self._dropped = dropped

    def _log_adjustments(
        self, tree: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership
    ) -> None:
        """Log each value that another program set, once."""
        found = tuple(adjustment_sentences(tree, reported, owned))
        for sentence in found:
            if sentence not in self.adjustments:
                LOG.warning("%s", sentence)
        self.adjustments = found

    def _keep(self, owned: Ownership) -> None:
        if owned != self._owned:
            self._remember(owned)
            self._owned = owned
