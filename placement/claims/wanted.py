"""What a client wants to be found and claimed."""

from dataclasses import dataclass

from placement.candidates.request import CandidatesRequest
from placement.claims.topology import TopologyPolicy
from placement.microversion import Microversion
from placement.store.consumers import ConsumerOwnership
from placement.store.groups import ConsumerGroup

Order = tuple[tuple[str, float], ...]
"""Criteria (see :mod:`placement.claims.scoring`) and their weights; none of them twice."""


@dataclass(frozen=True, slots=True)
class WantedClaim:
    """A request for candidates, and the consumer that shall hold one instead of all that it holds.

    ``version`` is the one in whose grammar the request was written. ``fallback`` is what will do
    as well, where nothing does that the request asks for; ``warnings`` say what of a flavor is not in either.
    ``generation`` is the consumer's as the client knows it, None for a new one. ``only`` and ``avoid`` are
    uuids of root providers: the hosts that may be chosen, None for all, and those of which nothing may be
    taken. By ``order`` the best choice is made; without it, any. It joins the ``group``, or leaves that in
    which it was. By ``topology`` dedicated CPUs and memory are split over zones; without it, they come as the
    request says. ``expires_in`` so many seconds it is gone again, unless somebody confirms it.
    """

    consumer: str
    generation: int | None
    owner: ConsumerOwnership
    request: CandidatesRequest
    version: Microversion
    fallback: CandidatesRequest | None = None
    warnings: tuple[str, ...] = ()
    only: frozenset[str] | None = None
    avoid: frozenset[str] = frozenset()
    alternates: int = 0
    order: Order = ()
    group: ConsumerGroup | None = None
    topology: TopologyPolicy | None = None
    expires_in: float | None = None

    @property
    def names_hosts(self) -> bool:
        """Whether hosts that are alike are not the same to it."""
        return bool(self.only or self.avoid) or any(group.in_tree for group in self.request.groups)
