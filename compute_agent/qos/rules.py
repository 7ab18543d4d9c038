"""What decisions go by, and what they expect of an action."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from compute_agent.model.resource import ThrottleControl
from compute_agent.qos.levers import ThrottleSteps, left_by, taken_by
from compute_agent.qos.metrics import MetricRegistry
from compute_agent.qos.snapshot import GuestUsage, MetricSeries, UsageSnapshot
from compute_agent.qos.state import QosState
from compute_agent.qos.watermarks import WatermarkAction, WatermarkSection


@dataclass(frozen=True, slots=True)
class QosRules:
    """The configuration as decisions need it; ``margin`` is a share of the gap (0.1: a tenth more)."""

    registry: MetricRegistry
    watermarks: tuple[WatermarkSection, ...]
    steps: ThrottleSteps = field(default_factory=ThrottleSteps)
    margin: float = 0.1

    def only(self, *, preview: bool) -> QosRules:
        """The rules with the watermarks of one mode."""
        return replace(self, watermarks=tuple(one for one in self.watermarks if one.preview is preview))

    def of_metric(self, metric: str, action: WatermarkAction) -> list[WatermarkSection]:
        """The watermarks of a metric that ask for an action."""
        return [one for one in self.watermarks if one.metric == metric and one.threshold(action) is not None]

    def expected(self, state: QosState) -> list[MetricSeries]:
        """The series that throttles in force are about."""
        return [
            MetricSeries(metric.name, one.knob.domain)
            for one in state.throttles
            for metric in self.registry.moved_by(one.knob.lever)
        ]

    # What is expected of an action

    def evicted(self, snapshot: UsageSnapshot, guest: str) -> UsageSnapshot:
        """The snapshot without a guest. What cannot be computed stays as it is."""
        if guest not in snapshot.guests:
            return snapshot
        return snapshot.without(guest, {name for name, one in self.registry.items() if one.evict_quantified})

    def share_left(
        self, guest: GuestUsage, knob: ThrottleControl, before: float | None, after: float
    ) -> float:
        """The part of its use that a guest keeps when its limit goes down from ``before`` to ``after``.

        ``before`` None: no limit. 1 where nothing is known.
        """
        use = self._consumption(guest, knob)
        return 1.0 if not use else left_by(use, before, after, guest.entitlements[knob]) / use

    def throttled(
        self, snapshot: UsageSnapshot, guest: str, knob: ThrottleControl, before: float | None, after: float
    ) -> UsageSnapshot:
        """The snapshot once a guest's limit has gone down."""
        one = snapshot.guests[guest]
        return self._scaled(snapshot, one, knob, self.share_left(one, knob, before, after))

    def restored(
        self, snapshot: UsageSnapshot, guest: str, knob: ThrottleControl, before: float, after: float | None
    ) -> UsageSnapshot:
        """The snapshot, at worst, once a guest's limit has gone up to ``after`` (None: there is none)."""
        one = snapshot.guests[guest]
        use = self._consumption(one, knob)
        if not use:
            return snapshot
        share = taken_by(use, before, after, one.entitlements[knob]) / use
        return self._scaled(snapshot, one, knob, share)

    def _consumption(self, guest: GuestUsage, knob: ThrottleControl) -> float | None:
        lever = self.registry.levers.get(knob.lever)
        if lever is None or knob not in guest.entitlements:
            return None
        return lever.consumption(guest, knob.domain)

    def _scaled(
        self, snapshot: UsageSnapshot, guest: GuestUsage, knob: ThrottleControl, share: float
    ) -> UsageSnapshot:
        """All that the lever moves changes as what it limits does."""
        if share == 1.0:
            return snapshot
        usage = {}
        for metric in self.registry.moved_by(knob.lever):
            series = MetricSeries(metric.name, knob.domain)
            if series in guest.usage:
                usage[series] = guest.usage[series] * share
        return snapshot.changed(guest.uuid, usage)
