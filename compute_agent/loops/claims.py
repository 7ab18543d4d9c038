"""Sees to claims of guests that run and would be gone by themselves: they are confirmed, or told of.

A claim with ``expires_in`` is for the time until its guest runs. Whoever started the guest has to confirm
it; else the guest goes to the shared CPUs one day, and its own are another's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.model.guest import Allocation
from compute_agent.pipeline.view import GuestView
from compute_agent.report.answers import ConflictError, NotFoundError, PlacementError, UnavailableError
from compute_agent.report.client import ExpiringClaim, PlacementClient

LOG = logging.getLogger(__name__)


class ClaimWatch:
    """The claims that expire. Looked at by the report thread, asked by any."""

    def __init__(self, confirms: Callable[[], bool], recorder: EventRecorder | None = None) -> None:
        """``confirms`` says whether claims are to be confirmed, by the configuration in force."""
        self._confirms = confirms
        self._recorder = recorder or EventRecorder()
        self._asked: dict[str, Allocation] = {}
        self._expiring: Mapping[str, float] = {}

    def expires(self, uuid: str) -> float | None:
        """When the claim of a guest is gone, in seconds since the epoch.

        None if it stays, as far as is known.
        """
        return self._expiring.get(uuid)

    def look(self, client: PlacementClient, views: Iterable[GuestView]) -> None:
        """Ask for claims of guests that are new or hold something else, and for those that expire.

        :raises UnavailableError:
        """
        expiring: dict[str, float] = {}
        asked: dict[str, Allocation] = {}
        for view in views:
            uuid, held = view.guest.uuid, view.allocation
            if not held or view.migration is not None:
                continue
            asked[uuid] = held
            if self._asked.get(uuid) == held and uuid not in self._expiring:
                continue
            try:
                claim = client.expiring_claim(uuid)
                if claim is not None and not (self._confirms() and self._confirm(client, view, claim)):
                    expiring[uuid] = time.time() + claim.seconds
                    if uuid not in self._expiring:
                        self._warn(view, claim)
            except UnavailableError:
                raise
            except PlacementError as error:
                LOG.warning("Whether the claim of guest %s expires is not known: %s", view.guest, error)
        self._asked, self._expiring = asked, expiring

    def _confirm(self, client: PlacementClient, view: GuestView, claim: ExpiringClaim) -> bool:
        """Whether the claim stays; one that somebody else changes at the same time is looked at again."""
        try:
            client.confirm_claim(view.guest.uuid, claim.generation)
        except NotFoundError:
            return True  # confirmed by somebody else, or gone: allocations tell
        except ConflictError:
            return False
        message = "The claim of guest %s would have expired in %.0f s, and was confirmed"
        self._recorder.tell(LOG.info, EventKind.CLAIM, view.guest, message, claim.seconds)
        return True

    def _warn(self, view: GuestView, claim: ExpiringClaim) -> None:
        self._recorder.tell(
            LOG.warning,
            EventKind.CLAIM,
            view.guest,
            "Guest %s loses what it holds in %.0f s, as its claim expires: confirm it (PUT /ext/v1/claims),"
            " or have the agent do so by [guests] confirm_claims",
            claim.seconds,
        )
