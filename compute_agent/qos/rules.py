"""What decisions go by, and what they expect of an action."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from compute_agent.qos.levers import Steps, left_by, taken_by
from compute_agent.qos.metrics import Registry
from compute_agent.qos.snapshot import Entitlement, GuestUsage, Knob, Series, Snapshot
from compute_agent.qos.state import QosState
from compute_agent.qos.waterlines import Action, Waterline


@dataclass(frozen=True, slots=True)
class Rules:
    """The configuration as decisions need it; ``margin`` is a share of the gap (0.1: a tenth more)."""

    registry: Registry
    lines: tuple[Waterline, ...]
    steps: Steps = field(default_factory=Steps)
    margin: float = 0.1

    def only(self, *, preview: bool) -> Rules:
        """The rules with the lines of one mode."""
        return replace(self, lines=tuple(line for line in self.lines if line.preview is preview))

    def of_metric(self, metric: str, action: Action) -> list[Waterline]:
        """The lines of a metric that ask for an action."""
        return [line for line in self.lines if line.metric == metric and line.level(action) is not None]

    def expected(self, state: QosState) -> list[Series]:
        """The series that throttles in force are about."""
        return [
            Series(metric.name, one.knob.domain)
            for one in state.throttles
            for metric in self.registry.moved_by(one.knob.lever)
        ]

    # What is expected of an action

    def evicted(self, snapshot: Snapshot, guest: str) -> Snapshot:
        """The snapshot without a guest. What cannot be computed stays as it is."""
        if guest not in snapshot.guests:
            return snapshot
        return snapshot.without(guest, {name for name, one in self.registry.items() if one.evict_quantified})

    def throttled(
        self, snapshot: Snapshot, guest: str, knob: Knob, before: float | None, after: float
    ) -> Snapshot:
        """The snapshot if a guest's limit went down from ``before`` (None: no limit) to ``after``."""
        found = self._consumption(snapshot, guest, knob)
        if found is None:
            return snapshot
        one, use, entitlement = found
        return self._scaled(snapshot, one, knob, use, left_by(use, before, after, entitlement))

    def restored(
        self, snapshot: Snapshot, guest: str, knob: Knob, before: float, after: float | None
    ) -> Snapshot:
        """The snapshot if a guest's limit went up from ``before`` to ``after`` (None: away), at the worst."""
        found = self._consumption(snapshot, guest, knob)
        if found is None:
            return snapshot
        one, use, entitlement = found
        return self._scaled(snapshot, one, knob, use, taken_by(use, before, after, entitlement))

    def _consumption(
        self, snapshot: Snapshot, guest: str, knob: Knob
    ) -> tuple[GuestUsage, float, Entitlement] | None:
        one = snapshot.guests[guest]
        lever, entitlement = self.registry.levers.get(knob.lever), one.entitlements.get(knob)
        use = lever.consumption(one, knob.domain) if lever else None
        return None if use is None or entitlement is None or use <= 0 else (one, use, entitlement)

    def _scaled(self, snapshot: Snapshot, guest: GuestUsage, knob: Knob, use: float, then: float) -> Snapshot:
        """All that the lever moves changes as what it limits does."""
        usage = {}
        for metric in self.registry.moved_by(knob.lever):
            series = Series(metric.name, knob.domain)
            if metric.throttle_quantified and series in guest.usage:
                usage[series] = guest.usage[series] * (then / use)
        return snapshot.changed(guest.uuid, usage)
