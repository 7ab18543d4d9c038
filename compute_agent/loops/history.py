"""Sees that guests keep what they hold while Placement has an older copy of its database.

It ends when no guest would lose anything any more, or when an operator accepts what Placement says. See
:mod:`compute_agent.report.history`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.report.history import (
    AllocationLoss,
    ConsumerOwner,
    Generations,
    OlderCopy,
    PlacementHistory,
    why_older,
)

LOG = logging.getLogger(__name__)


class HistoryWatch:
    """Whether losses are believed. Judged by the report thread, asked by any."""

    def __init__(
        self,
        metrics: AgentMetrics,
        saved: PlacementHistory | None = None,
        keep: Callable[[PlacementHistory], None] = lambda history: None,
        recorder: EventRecorder | None = None,
    ) -> None:
        """``saved`` is what ``keep`` was last called with, which has to keep it durably.

        It may raise OSError.
        """
        self._history = saved or PlacementHistory()
        self._keep = keep
        self._recorder = recorder or EventRecorder()
        self._metrics = metrics
        self._evidence = ""
        self._losses: tuple[AllocationLoss, ...] = ()
        self._lock = threading.Lock()
        metrics.placement_older.set(self.older is not None)

    @property
    def older(self) -> OlderCopy | None:
        """Since when Placement has an older copy, and why; None if it goes on."""
        return self._history.older

    @property
    def generations(self) -> Generations:
        """The generations of providers as they were last seen."""
        return self._history.generations

    @property
    def holders(self) -> Mapping[str, ConsumerOwner]:
        """Whose the guests are that hold something, by uuid."""
        return self._history.holders

    @property
    def losses(self) -> tuple[AllocationLoss, ...]:
        """The losses that were not believed at the last look."""
        return self._losses

    def note(self, evidence: str) -> None:
        """Count this, if it says anything, at the next judgement."""
        self._evidence = evidence or self._evidence

    def withholds(self, losses: Sequence[AllocationLoss], holding: int) -> bool:
        """Whether these losses, all there are at one look, are not believed.

        ``holding`` guests held anything before.

        :raises OSError: it cannot be kept that there is an older copy.
        """
        with self._lock:
            if self.older is None:
                if reason := why_older(self._evidence, losses, holding):
                    self._begin(OlderCopy(reason, time.time()), losses)
            elif not losses:
                self._end("all guests hold what they did again")
            self._losses = tuple(losses) if self.older is not None else ()
            return self.older is not None

    def settle(self, generations: Generations, holders: Mapping[str, ConsumerOwner]) -> None:
        """A look is over: these are the generations to go on from, and whose the guests are.

        :raises OSError: they cannot be kept.
        """
        with self._lock:
            self._evidence = ""
            self._change(replace(self._history, generations=dict(generations), holders=dict(holders)))

    def accept(self) -> None:
        """Believe what Placement says from now on.

        :raises OSError: that cannot be kept.
        """
        with self._lock:
            self._evidence = ""
            if self.older is not None:
                self._end("an operator accepted what it says")
            self._losses = ()

    def document(self) -> dict[str, Any]:
        """What ``status`` shows of it."""
        older = self.older
        return {
            "placement_history": "goes on" if older is None else "older",
            "placement_history_reason": "" if older is None else older.reason,
            "guests_kept": [loss.uuid for loss in self._losses],
        }

    def _begin(self, older: OlderCopy, losses: Sequence[AllocationLoss]) -> None:
        self._change(replace(self._history, older=older))
        self._metrics.placement_older.set(1)
        self._recorder.record(
            LOG.error,
            EventKind.HISTORY,
            None,
            "Placement has an older copy of its database: %s; %d guests keep what they hold."
            " compute-agent audit --heal brings their allocations back,"
            " compute-agent allocations accept takes from them what Placement does not have",
            older.reason,
            len(losses),
        )

    def _end(self, why: str) -> None:
        self._change(replace(self._history, older=None))
        self._metrics.placement_older.set(0)
        self._recorder.record(
            LOG.info, EventKind.HISTORY, None, "What Placement says of guests is believed again: %s", why
        )

    def _change(self, history: PlacementHistory) -> None:
        if history != self._history:
            self._keep(history)
            self._history = history
