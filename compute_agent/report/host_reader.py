"""What Placement has of a host: read as rarely as can be, and anew where somebody may have changed it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.report.client import PlacementClient, TreeRecord
from compute_agent.report.errors import (
    ConcurrentUpdateError,
    CredentialsError,
    NotFoundError,
    PlacementError,
)
from compute_agent.report.history import Generations, went_back
from compute_agent.report.plan import KnownNames, ReportedProvider, described, from_api

_MAX_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class HoldingsListing:
    """What was held of providers, by provider, consumer and class, at a time (monotonic) or later."""

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
        self._listing: HoldingsListing | None = None
        self.generations: Generations = {}
        self.evidence = ""

    def use(self, client: PlacementClient) -> None:
        """Read by another client from now on, and all anew."""
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
        """Have the names of classes and traits read anew."""
        self._known = None

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
            if old is not None and old.generation == record.generation:
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
