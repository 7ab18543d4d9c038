"""Metrics of the read model: its updates, and the inventories of its providers.

Imported only if metrics are enabled: prometheus_client reads the environment when it is imported.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from placement.read_model.feed import ReadModel

_PER_INVENTORY: Final = 4
"""Series of each inventory: total, reserved, allocation ratio and usage."""


class ModelMetrics:
    """Counters of this worker in a registry, and gauges that each scrape computes.

    :param max_provider_series: the largest number of series about providers that a scrape may get.
    """

    def __init__(self, model: ReadModel, registry: CollectorRegistry, max_provider_series: int) -> None:
        self._model = model
        self._max_provider_series = max_provider_series
        self._refreshed = Counter(
            "placement_model_refreshes",
            "How often workers brought their read models up to date.",
            registry=registry,
        )
        self._reread = Counter(
            "placement_model_rereads",
            "How often workers read everything anew, as after a restore.",
            registry=registry,
        )
        self._seen = (0, 0)

    def count_updates(self) -> None:
        """Count the updates of the model since the last call."""
        seen, self._seen = self._seen, (self._model.refreshed, self._model.reread)
        self._refreshed.inc(max(0, self._seen[0] - seen[0]))
        self._reread.inc(max(0, self._seen[1] - seen[1]))

    def make_gauges(self) -> Iterator[GaugeMetricFamily]:
        """Yield gauges of the current model; series of providers have the names of openstack-exporter.

        :raises Unavailable: the database does not answer.
        """
        with self._model.fresh_view() as view:
            providers = list(view.snapshot)  # which are never changed, only replaced
        series = _PER_INVENTORY * sum(len(each.inventories) for each in providers)
        count = GaugeMetricFamily("placement_resource_providers", "How many resource providers there are.")
        count.add_metric([], len(providers))
        yield count
        file = self._model.file
        if file is not None:
            written = GaugeMetricFamily(
                "placement_model_file_timestamp_seconds",
                "When the model file was written last, in seconds since 1970; 0 if it never was.",
            )
            written.add_metric([], max(0.0, file.written_at()))
            yield written
        left_out = GaugeMetricFamily(
            "placement_provider_series_left_out",
            "Series of resource providers that are not shown, as [metrics] max_provider_series are fewer.",
        )
        too_many = series > self._max_provider_series
        left_out.add_metric([], series if too_many else 0)
        yield left_out
        if too_many:
            return
        labels = ["hostname", "resourcetype"]
        total = GaugeMetricFamily(
            "openstack_placement_resource_total",
            "How much of a class a provider has.",
            labels=labels,
        )
        reserved = GaugeMetricFamily(
            "openstack_placement_resource_reserved", "How much of that nobody may take.", labels=labels
        )
        ratio = GaugeMetricFamily(
            "openstack_placement_resource_allocation_ratio",
            "How many times the rest may be taken.",
            labels=labels,
        )
        usage = GaugeMetricFamily(
            "openstack_placement_resource_usage", "How much of it is taken.", labels=labels
        )
        for provider in providers:
            for name, inventory in provider.inventories.items():
                values = [provider.name, name]
                total.add_metric(values, inventory.total)
                reserved.add_metric(values, inventory.reserved)
                ratio.add_metric(values, inventory.allocation_ratio)
                usage.add_metric(values, provider.used.get(name, 0))
        yield from (total, reserved, ratio, usage)
