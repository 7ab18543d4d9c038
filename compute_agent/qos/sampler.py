"""From files to snapshots, once a round."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from compute_agent.qos.metrics import WatermarkMetric
from compute_agent.qos.rounds import CacheReader, MeasuredGuest, MeasuringRound
from compute_agent.qos.rules import QosRules
from compute_agent.qos.snapshot import MetricSeries, UsageSnapshot
from compute_agent.qos.sources.base import MetricUsage

LOG = logging.getLogger(__name__)


class MetricSampler:
    """Measures the metrics that there are watermarks for, and no others."""

    def __init__(self, root: str = "/", cache: CacheReader | None = None) -> None:
        """``root`` is the folder that /proc is below; the folders of cgroups are taken as they are."""
        self._root = root
        self._cache = cache
        self._before: MeasuringRound | None = None
        self._missing: frozenset[str] = frozenset()

    def sample(self, rules: QosRules, subjects: Sequence[MeasuredGuest], time: float) -> UsageSnapshot:
        """The host and its guests at ``time`` (monotonic seconds).

        What cannot be read is left out, after a log line when that begins. Rates are since the sample before,
        and so missing from the first one.
        """
        now = MeasuringRound(time, self._root, subjects, self._cache)
        host: dict[MetricSeries, float] = {}
        capacity: dict[MetricSeries, float] = {}
        usage: dict[str, dict[MetricSeries, float]] = {subject.facts.uuid: {} for subject in subjects}
        for metric in needed(rules):
            measured = _measured(metric, now, self._before)
            host |= {MetricSeries(metric.name, domain): used for domain, used in measured.host.items()}
            capacity |= {
                MetricSeries(metric.name, domain): amount for domain, amount in measured.capacity.items()
            }
            for guest, by_domain in measured.guests.items():
                if guest in usage:
                    usage[guest] |= {
                        MetricSeries(metric.name, domain): used for domain, used in by_domain.items()
                    }
        if self._before is not None:
            self._log_missing({one.metric for one in rules.watermarks} - {one.metric for one in host})
        now.close()
        self._before = now
        guests = {
            subject.facts.uuid: replace(subject.facts, usage=usage[subject.facts.uuid])
            for subject in subjects
        }
        return UsageSnapshot(time, host, guests, capacity)

    def _log_missing(self, missing: Collection[str]) -> None:
        for metric in sorted(set(missing) - self._missing):
            LOG.warning("The host does not tell %s: its watermarks wait until it does", metric)
        for metric in sorted(self._missing - set(missing)):
            LOG.info("The host tells %s again", metric)
        self._missing = frozenset(missing)


def needed(rules: QosRules) -> list[WatermarkMetric]:
    """The metrics that watermarks name, and those that their levers limit."""
    names: dict[str, None] = {}
    for watermark in rules.watermarks:
        lever = rules.registry[watermark.metric].lever
        names |= {watermark.metric: None} | ({lever.metric: None} if lever else {})
    return [rules.registry[name] for name in names if name in rules.registry]


def _measured(metric: WatermarkMetric, now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    try:
        return metric.measure(now, before)
    except Exception:  # code of others; one metric must not cost the rest
        LOG.exception("%s cannot be measured", metric.name)
        return MetricUsage()
