"""The context of searches for claims: the objects that all searches of a call use, and the check of names."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from placement.db.database import ServiceDatabase
from placement.exceptions import InvalidRequest
from placement.read_model.feed import ModelView, ReadModel
from placement.search.budget import SearchBudget
from placement.search.claims.availability import members_of
from placement.search.claims.claim import WantedClaim, known_ids
from placement.search.claims.host_rooms import TimedSearch
from placement.search.claims.scores import ATTRIBUTE
from placement.search.claims.timetable import TimedView, WindowTimetable
from placement.search.request import check_names, named_roots

# an outdated snapshot costs only time: the database refuses its choice, and the service chooses again
RECENT: Final = 0.1
"""Maximum age, in seconds, of a snapshot from which choices are taken; the database checks these choices
again.
"""


@dataclass(frozen=True, slots=True)
class ClaimContext:
    """The objects of the service that the searches of one call use, and the limits of the call.

    ``search_seconds`` is the limit of CPU time for all searches, and ``reason_seconds`` the limit for the
    reasons of a refusal. ``retries`` is the maximum number of further attempts after lost races. The function
    ``check_awaited`` is called regularly during long searches; its exception ends the call.
    """

    model: ReadModel
    database: ServiceDatabase
    timetable: WindowTimetable
    search_seconds: float
    reason_seconds: float
    retries: int
    check_awaited: Callable[[], None]
    # each call has its own seed, because workers with equal random numbers would compete for the same hosts
    rng: random.Random = field(default_factory=random.Random)

    def make_budget(self, view: ModelView, seconds: float) -> SearchBudget:
        """Return a budget of CPU time for a search in a view; the search's pauses let other requests run."""
        return SearchBudget(seconds, yield_lock=view.yield_after(self.check_awaited))

    def search_in(self, timed: TimedView, seconds: float) -> TimedSearch:
        """Return a search in a view with timed amounts, with a budget of CPU time."""
        budget = self.make_budget(timed.view, seconds)
        return TimedSearch(timed.view.snapshot, timed.skylines, budget, self.rng)


def check_claim_names(view: ModelView, wanted: Sequence[WantedClaim]) -> None:
    """Raise InvalidRequest for a class, trait, root or attribute that does not exist."""
    snapshot = view.snapshot
    for each in wanted:
        check_names(each.request, view.names.classes, view.names.traits)
        # the names are checked here, because an unknown name is an error of the client and no reason for
        # "no candidate"
        named_roots(snapshot, each.only or (), "allowed_hosts names")
        named_roots(snapshot, each.avoid, "excluded_hosts names")
        for name, _ in each.order:
            attribute = name.removeprefix(ATTRIBUTE)
            if attribute != name and snapshot.attribute_range(attribute) is None:
                raise InvalidRequest(
                    f"The order names the attribute {attribute}, but no provider has a number for it."
                )


def possible_providers(model: ReadModel, wanted: Sequence[WantedClaim]) -> set[str] | None:
    """Return the uuids of the providers that the claims may use; None if the claims restrict no hosts."""
    if any(each.only is None for each in wanted):
        return None
    named = {uuid for each in wanted for uuid in each.only or ()}
    # a recent view suffices: a provider that it lacks is searched without its timed amounts, and then only
    # seems to have less room
    with model.recent_view(RECENT) as view:
        snapshot = view.snapshot
        roots = known_ids(snapshot, named).intersection(snapshot.trees)
        return {each.uuid for each in members_of(snapshot, roots)}
