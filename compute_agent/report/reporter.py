"""The reporter: makes Placement's providers equal to the host's tree.

The reporter reads the providers, plans, sends the difference, and saves which names are the agent's own. The
reporter reads a provider again only if another program may have changed the provider. A method that sends
requests raises :class:`~compute_agent.report.answers.PlacementError` if one of them fails.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeVar

from compute_agent.inventory.provider_tree import ProviderTree, with_stock_names
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.messages import full_name
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
    from_api,
    is_novas_device,
    ownership_after,
    ownership_before,
    plan_actions,
    plan_deletions,
    plan_device_attributes,
    provider_from_tree,
    unknown_traits,
)
from compute_agent.report.reshape import InfeasibleReshape, ReshapePlan, plan_reshape, to_body
from compute_agent.report.root_provider import DISABLED, MARKS, Causes, in_words, switched_traits

LOG = logging.getLogger(__name__)

T = TypeVar("T")

# Four attempts, because other programs rarely change a host's providers, and a fourth conflict in a row is no
# accident.
MAX_ATTEMPTS: Final = 4
"""Maximum number of attempts to read or write providers that other programs change meanwhile."""


@dataclass(frozen=True, slots=True)
class HoldingsListing:
    """The allocations by provider, consumer and resource class, as read at one time.

    :ivar as_of: the monotonic time in seconds before the first request; the allocations are not older.
    """

    as_of: float
    held: Mapping[str, Mapping[str, Mapping[str, int]]]


class ProviderReader:
    """Reads the providers of one host, and remembers them. Only one thread at a time may use the object.

    :ivar reported: the providers by uuid, as last read. Code that changes a provider in Placement also
        updates this mapping.
    :ivar generations: the generations of the providers at the last reading.
    :ivar evidence: a text about generations that decreased since the previous reading; empty if no generation
        decreased.
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

    def use_client(self, client: PlacementClient) -> None:
        """Use another client, and forget everything that was read."""
        self._client = client
        self.forget_providers()

    def forget_providers(self) -> None:
        """Forget all providers, names and the version of the extensions, so that they are read again."""
        # The names of classes and traits rarely change, so one reading serves all reports until this is
        # called.
        self._known = None
        self._seen = self.last_seen
        self.reported = {}
        self._trees.clear()
        self._listing = None
        # The version is read again, because another server perhaps answers at the same address by now.
        self._client.forget_extensions()

    def forget_names(self) -> None:
        """Forget the names of classes and traits, so that they are read again."""
        self._known = None

    def mark_stale(self, uuids: Set[str]) -> None:
        """Read these providers again next time: a wrong remembered value may have caused a refusal."""
        self._trees.clear()
        self._stale = uuids

    @property
    def last_seen(self) -> Mapping[str, ReportedProvider]:
        """The providers as they were last read, perhaps long ago."""
        return self.reported or self._seen

    def known_names(self) -> KnownNames:
        """The names of classes and traits that the server knows. They are read only once."""
        if self._known is None:
            self._known = KnownNames(
                self._client.resource_classes(),
                self._client.known_traits(),
                self._client.keeps_attributes(),
            )
        return self._known

    def read(self, root_uuid: str, owned: Set[str]) -> dict[str, ReportedProvider]:
        """The providers of the host in Placement, by uuid, including ``owned`` providers in other trees.

        Providers with an unchanged generation are not read again.
        """
        read = self._read_whole if self._client.has_trees() else self._read_each
        self._listing = None
        before = _provider_generations(self.reported) or self.generations
        fresh = read(root_uuid)
        for stray in sorted(owned - fresh.keys()):
            # One read returns a whole tree, which can include other missing providers.
            if stray not in fresh:
                fresh |= read(stray)
        # If a provider is missing, Placement perhaps has another database now, with other names of classes
        # and traits.
        if self.reported.keys() - fresh.keys():
            self._known = None
        # The set of stale providers is cleared only after everything was read. After a failure, the providers
        # stay stale.
        self._stale = frozenset()
        self.reported, self.generations = fresh, _provider_generations(fresh)
        # The evidence is kept until take_evidence(), so that the next reading does not hide it.
        self.evidence = self.evidence or went_back(before, self.generations)
        return dict(fresh)

    def take_listing(self) -> HoldingsListing | None:
        """The allocations that were read together with the providers. A second call returns None."""
        listing, self._listing = self._listing, None
        return listing

    def read_holdings(self, uuid: str) -> Mapping[str, Mapping[str, int]]:
        """The allocations of a provider, by consumer and resource class.

        :raises PlacementError: the request failed.
        """
        if self._listing is not None and uuid in self._listing.held:
            return self._listing.held[uuid]
        try:
            return self._client.provider_allocations(uuid)
        except NotFoundError:
            # The provider was removed after it was read; the next request with its generation fails.
            return {}

    def _read_each(self, uuid: str) -> dict[str, ReportedProvider]:
        """The providers of a tree. Each new or changed provider is read with several requests."""
        fresh: dict[str, ReportedProvider] = {}
        for record in self._client.providers_in_tree(uuid):
            old = self.reported.get(record.uuid)
            if old is not None and old.generation == record.generation and record.uuid not in self._stale:
                # The listing itself contains name and parent, so no request is needed for them.
                fresh[record.uuid] = replace(old, name=record.name, parent=record.parent_uuid)
            else:
                fresh[record.uuid] = self._read(record.uuid, record.name, record.parent_uuid)
        return fresh

    def _read_whole(self, uuid: str) -> dict[str, ReportedProvider]:
        """The providers of a tree, read in one request; the remembered ones if nothing has changed."""
        # The time is taken before the request, because the answer can show the state of any later moment.
        as_of, known = time.monotonic(), self._trees.get(uuid)
        try:
            tree = self._client.get_tree(uuid, "" if known is None else known.tag) or known
        except (NotFoundError, CredentialsError):
            # The provider does not exist, another server answers now, or a proxy refuses the request.
            self._trees.pop(uuid, None)
            return self._read_each(uuid)
        if tree is None:
            raise PlacementError(
                "GET", f"/ext/v1/trees/{uuid}", "the answer does not match the request", status=304
            )
        self._trees[uuid] = tree
        # The answer contains the allocations, so they are all of one moment and cost no request for each
        # provider.
        held = {} if self._listing is None else dict(self._listing.held)
        for record in tree.providers:
            held[record["uuid"]] = {
                consumer: each["resources"] for consumer, each in record["allocations"].items()
            }
        # The answers for two trees become one listing, which counts as old as the older answer.
        self._listing = HoldingsListing(as_of if self._listing is None else self._listing.as_of, held)
        return {record["uuid"]: provider_from_tree(record) for record in tree.providers}

    def _read(self, uuid: str, name: str, parent: str | None) -> ReportedProvider:
        # The provider is read in three requests; equal generations in all answers show that they belong
        # together.
        for _ in range(MAX_ATTEMPTS):
            inventories, before = self._client.get_inventories(uuid)
            traits, after = self._client.get_traits(uuid)
            attributes: Mapping[str, str | float] = {}
            if before == after and self.known_names().attributes:
                attributes, after = self._client.get_attributes(uuid)
            if before == after:
                parsed = {rc: from_api(record) for rc, record in inventories.items()}
                return ReportedProvider(uuid, name, parent, after, parsed, traits, attributes)
        path = f"/resource_providers/{uuid}/traits"
        raise ConcurrentUpdateError("GET", path, "the provider changed while it was read", status=200)


def _provider_generations(providers: Mapping[str, ReportedProvider]) -> Generations:
    return {uuid: provider.generation for uuid, provider in providers.items()}


class HostReporter:
    """Reports the trees of one host to one Placement. Only one thread at a time may use the object."""

    def __init__(
        self,
        client: PlacementClient,
        owned: Ownership,
        remember: Callable[[Ownership], None],
        generations: Generations = MappingProxyType({}),
    ) -> None:
        """Report with a client.

        :param owned: the agent's own names and values, as last passed to ``remember``.
        :param remember: saves these names and values durably.
        :param generations: the generations of the providers at the last reading.
        """
        self._client = client
        self._owned = owned
        self._remember = remember
        self.reader = ProviderReader(client)
        # These generations are from the previous run of the agent. If a database was restored while no agent
        # ran, its generations are lower.
        self.reader.generations = generations
        self._dropped: frozenset[str] = frozenset()
        self.adjustments: tuple[str, ...] = ()
        """A message about each value of another program that Placement has after the last report."""
        self.waiting = WithheldOffers()
        """Amounts that are not offered yet, because guests still hold the memory, CPUs or devices behind
        these amounts.
        """

    def report_tree(self, tree: ProviderTree) -> ReportOutcome:
        """Send the differences between ``tree`` and Placement.

        A change that Placement refuses (400, or 409 for a conflict) is in the outcome. All changes that do
        not depend on the refused change are made. If another program changes a provider meanwhile, everything
        is read again, in at most four attempts.

        :raises PlacementError: Placement does not answer, or other programs keep changing the providers.
        """
        return self._repeat_step(lambda: self._report_once(tree))

    def _repeat_step(self, step: Callable[[], T]) -> T:
        """Return the result of ``step``; repeat it, at most four times, after changes by other programs."""
        try:
            for _ in range(MAX_ATTEMPTS - 1):
                try:
                    return step()
                except ConcurrentUpdateError as error:
                    self.reader.reported.clear()
                    LOG.info(
                        "Another program changed a provider during the report; the agent reads all providers"
                        " again: %s",
                        error,
                    )
            return step()
        except Exception:
            # The remembered providers are perhaps wrong, as after an older database was restored.
            self.forget_providers()
            raise

    def plan_reshape(
        self, tree: ProviderTree, locations: Mapping[str, CpuLocation], zones: Mapping[str, CpuSet]
    ) -> ReshapePlan | InfeasibleReshape:
        """Plan the moves of a reshape to ``tree``, without sending anything.

        See :func:`~compute_agent.report.reshape.plan_reshape`.
        """
        self.reader.reported.clear()
        reported = self.read_reported(tree.root.uuid)
        wanted = self.server_tree(tree)
        owned = assume_ownership(wanted, reported, self._owned)
        held: dict[str, dict[str, Mapping[str, int]]] = defaultdict(dict)
        for uuid, provider in reported.items():
            if provider.inventories:
                for consumer, amounts in self.reader.read_holdings(uuid).items():
                    held[consumer][uuid] = amounts
        return plan_reshape(wanted, reported, owned, held, locations, zones)

    def _held_amount(self, uuid: str, name: str) -> int:
        return sum(amounts.get(name, 0) for amounts in self.reader.read_holdings(uuid).values())

    def reshape_tree(
        self, tree: ProviderTree, locations: Mapping[str, CpuLocation], zones: Mapping[str, CpuSet]
    ) -> ReshapePlan | InfeasibleReshape:
        """Move allocations together with their inventories in one atomic request, and return the plan.

        An ordinary report later sets traits and deletes providers. New providers are created before the
        request: they are empty, and do no harm if the reshape fails. If another program changes something
        meanwhile, everything is read and planned again, in at most four attempts.

        :raises PlacementError: the reshape failed. Inventories and allocations are unchanged, unless
            Placement carried out the request and only its answer was lost.
        """
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return self._reshape_once(tree, locations, zones)
            except ConflictError as error:
                LOG.info(
                    "Another program changed providers before the reshape; the agent plans the reshape"
                    " again: %s",
                    error,
                )
        return self._reshape_once(tree, locations, zones)

    def _reshape_once(
        self, tree: ProviderTree, locations: Mapping[str, CpuLocation], zones: Mapping[str, CpuSet]
    ) -> ReshapePlan | InfeasibleReshape:
        planned = self.plan_reshape(tree, locations, zones)
        if isinstance(planned, ReshapePlan) and planned.moves:
            try:
                self._carry_out(tree, planned)
            # The providers are forgotten even after a failure, because Placement may have carried out a
            # request that it did not answer.
            finally:
                self.forget_providers()
        return planned

    def _carry_out(self, tree: ProviderTree, planned: ReshapePlan) -> None:
        wanted = self.server_tree(tree)
        owned = assume_ownership(wanted, self.reader.reported, self._owned)
        actions = plan_actions(wanted, self.reader.reported, owned, self.reader.known_names())
        self._keep_owned(ownership_before(wanted, self.reader.reported, owned))
        # A reshape can name only providers and resource classes that exist.
        ahead = tuple(
            action for action in actions if isinstance(action, CreateResourceClass | CreateProvider)
        )
        # The first refusal ends the reshape, because it needs all of these providers.
        for refusal in PlanExecution(self._client, self.reader.reported).run(ahead).refusals:
            raise ConflictError("POST", "/resource_providers", refusal.reason, status=409)
        # The allocations are read as late as possible, because the request needs the present generations of
        # the consumers.
        records = {consumer: self._client.get_allocations(consumer) for consumer in planned.allocations}
        self._client.send_reshape(to_body(planned, self.reader.reported, records))
        LOG.info(
            "Placement applied a reshape: %d allocations of %d consumers moved",
            len(planned.moves),
            len(planned.allocations),
        )

    def switch_scheduling(self, root_uuid: str, causes: Causes) -> bool:
        """Keep new guests away from the host, or let them in again; return whether a trait changed.

        Without a root provider nothing changes until the next call. Reports do not change these traits.
        """
        return self._repeat_step(lambda: self._switch_scheduling(root_uuid, causes))

    def _switch_scheduling(self, root_uuid: str, causes: Causes) -> bool:
        root = (self.reader.reported or self.read_reported(root_uuid)).get(root_uuid)
        if root is None or (wanted := switched_traits(root.traits, causes)) == root.traits:
            return False
        new = wanted - root.traits
        # Placement refuses a trait that does not exist.
        for mark in sorted(MARKS & (new - self.reader.known_names().traits)):
            self._client.create_trait(mark)
            self.reader.forget_names()
        if DISABLED in new - self.reader.known_names().traits:
            LOG.error(
                "Placement does not know the trait %s, so the agent cannot keep new guests away from this"
                " host",
                DISABLED,
            )
            wanted -= {DISABLED}
            if wanted == root.traits:
                return False
        generation = self._client.set_traits(root_uuid, wanted, root.generation)
        self.reader.reported[root_uuid] = replace(root, generation=generation, traits=wanted)
        LOG.info(
            "The agent has changed traits of the host's root provider in Placement: new guests are %s",
            in_words(wanted),
        )
        return True

    def read_reported(self, root_uuid: str) -> dict[str, ReportedProvider]:
        """The providers of the host in Placement, by uuid, including those below a former root of the host.

        Providers that nova-compute has taken over no longer count as the agent's.
        """
        reported = self.reader.read(root_uuid, self._owned.keys())
        taken = {uuid for uuid in self._owned if uuid in reported and is_novas_device(reported[uuid])}
        if taken:
            LOG.warning(
                "nova-compute has taken over providers of PCI devices, so the agent no longer manages these"
                " providers: %s",
                ", ".join(sorted(full_name(reported[uuid].name, uuid) for uuid in taken)),
            )
            self._keep_owned({uuid: own for uuid, own in self._owned.items() if uuid not in taken})
        return reported

    def take_evidence(self) -> tuple[str, Generations]:
        """A text about generations that have decreased, and the present generations.

        The text is returned only once.
        """
        evidence, self.reader.evidence = self.reader.evidence, ""
        return evidence, _provider_generations(self.reader.reported) or self.reader.generations

    def take_listing(self) -> HoldingsListing | None:
        """The allocations that were read together with the providers. A second call returns None."""
        return self.reader.take_listing()

    def root_traits(self, root_uuid: str) -> frozenset[str] | None:
        """The traits of the root provider as last read; None before the first reading."""
        root = self.reader.last_seen.get(root_uuid)
        return None if root is None else root.traits

    def use_client(self, client: PlacementClient) -> None:
        """Report through another client from now on."""
        self._client = client
        self.reader.use_client(client)

    def forget_providers(self) -> None:
        """Forget everything that was read, so that it is read again."""
        self.reader.forget_providers()

    def server_tree(self, tree: ProviderTree) -> ProviderTree:
        """``tree`` with the names of resource classes that the server knows, such as LLC or CUSTOM_LLC.

        If nova-compute owns the root, the tree has these names already.
        """
        return with_stock_names(tree, self.reader.known_names().classes)

    def remove_own(self, root_uuid: str) -> ReportOutcome:
        """Delete the agent's own providers without allocations, and its attributes of Nova's devices."""
        self.forget_providers()
        reported = self.read_reported(root_uuid)
        undone = (*plan_device_attributes(reported, {}), *plan_deletions(reported, self._owned))
        result = PlanExecution(self._client, self.reader.reported).run(undone)
        self._keep_owned({uuid: owned for uuid, owned in self._owned.items() if uuid in self.reader.reported})
        return result

    @property
    def offering_providers(self) -> frozenset[str]:
        """The uuids of the providers that had inventories at the last reading."""
        return frozenset(uuid for uuid, provider in self.reader.last_seen.items() if provider.inventories)

    def reportable_tree(self, tree: ProviderTree, reported: Mapping[str, ReportedProvider]) -> ProviderTree:
        """A copy of ``tree`` with the names of resource classes that the server knows.

        Amounts that must not be offered, because guests hold them, are added to ``reserved`` of inventories.
        """
        wanted, self.waiting = beside_held(self.server_tree(tree), reported, self._owned, self._held_amount)
        return wanted

    def plan_report(self, tree: ProviderTree) -> tuple[Action, ...]:
        """The actions that report_tree() would send."""
        reported = self.read_reported(tree.root.uuid)
        wanted = self.reportable_tree(tree, reported)
        return plan_actions(
            wanted, reported, assume_ownership(wanted, reported, self._owned), self.reader.known_names()
        )

    def _report_once(self, tree: ProviderTree) -> ReportOutcome:
        reported = self.read_reported(tree.root.uuid)
        wanted = self.reportable_tree(tree, reported)
        owned = assume_ownership(wanted, reported, self._owned)
        actions = plan_actions(wanted, reported, owned, self.reader.known_names())
        self._log_dropped(wanted)
        self._log_adjustments(wanted, reported, owned)
        # The names that can become the agent's own are saved before the first request. So the agent knows
        # them even after a crash.
        claims = ownership_before(wanted, reported, owned)
        self._keep_owned(claims)
        if not actions:
            LOG.debug("Placement is up to date: %d providers", len(wanted.nodes))
            self._keep_owned(ownership_after(wanted, claims, reported))
            return ReportOutcome()
        result = PlanExecution(self._client, self.reader.reported).run(actions)
        if result.refusals:
            self.reader.mark_stale({getattr(refusal.action, "uuid", "") for refusal in result.refusals})
        # The known names are forgotten, because they lack the names that were just created.
        if any(isinstance(action, CreateTrait | CreateResourceClass) for action in actions):
            self.reader.forget_names()
        self._keep_owned(ownership_after(wanted, claims, self.reader.reported))
        self.adjustments = tuple(adjustment_sentences(wanted, self.reader.reported, self._owned))
        return result

    def _log_dropped(self, tree: ProviderTree) -> None:
        """Log the traits that the server does not know, because it is too old. Each trait is logged once."""
        dropped = unknown_traits(tree, self.reader.known_names())
        if dropped - self._dropped:
            LOG.warning(
                "Placement does not know these traits, so the agent does not report them: %s",
                " ".join(sorted(dropped)),
            )
        self._dropped = dropped

    def _log_adjustments(
        self, tree: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership
    ) -> None:
        """Log each value of another program once."""
        found = tuple(adjustment_sentences(tree, reported, owned))
        for sentence in found:
            if sentence not in self.adjustments:
                LOG.warning("Another client has set a value in Placement: %s", sentence)
        self.adjustments = found

    def _keep_owned(self, owned: Ownership) -> None:
        if owned != self._owned:
            # The file is written first: if this fails, the memory must not have names that the file lacks.
            self._remember(owned)
            self._owned = owned
