"""Prometheus metrics of the read model: its updates, and the inventories of its providers.

This module is imported only if metrics are enabled, because prometheus_client reads the environment at
import.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from placement.read_model.feed import ReadModel

_PER_INVENTORY: Final = 4
"""Number of metric series for each inventory: total, reserved, allocation ratio and usage."""


class ModelMetrics:
    """Counters of this worker, and gauges that are computed at each scrape of Prometheus.

    :param max_provider_series: the maximum number of series about providers in one scrape.
    """

    def __init__(self, model: ReadModel, registry: CollectorRegistry, max_provider_series: int) -> None:
        self._model = model
        self._max_provider_series = max_provider_series
        self._refreshed = Counter(
            "placement_model_refreshes",
            "Updates of the read models of workers from the database.",
            registry=registry,
        )
        self._reread = Counter(
            "placement_model_rereads",
            "Repeated complete reads of the database by workers, as after a restore.",
            registry=registry,
        )
        # the numbers of the model at the last scrape; the model itself counts even if metrics are disabled
        self._seen = (0, 0)

    def count_updates(self) -> None:
        """Count the updates of the model since the last call."""
        seen, self._seen = self._seen, (self._model.refreshed, self._model.reread)
        # the difference is at least 0, because one of two simultaneous scrapes may have read older numbers
        self._refreshed.inc(max(0, self._seen[0] - seen[0]))
        self._reread.inc(max(0, self._seen[1] - seen[1]))

    def make_gauges(self) -> Iterator[GaugeMetricFamily]:
        """Yield gauges of the current model; series about providers have the names of openstack-exporter."""
        with self._model.fresh_view() as view:
            # the turn covers only the copy of this list, because otherwise requests would wait while the
            # series are made
            providers = list(view.snapshot)  # provider objects never change
        series = _PER_INVENTORY * sum(len(each.inventories) for each in providers)
        # gauges are made for each scrape, because permanent gauges would keep series of deleted providers
        count = GaugeMetricFamily("placement_resource_providers", "Number of resource providers.")
        count.add_metric([], len(providers))
        yield count
        file = self._model.file
        if file is not None:
            written = GaugeMetricFamily(
                "placement_model_file_timestamp_seconds",
                "Time of the last write of the model file, in seconds since 1970; 0 if there is no write.",
            )
            # minus infinity means that the file was never written
            written.add_metric([], max(0.0, file.written_at()))
            yield written
        # this gauge is always present, so that an alert can detect that series are left out
        left_out = GaugeMetricFamily(
            "placement_provider_series_left_out",
            "Series of resource providers that are left out because they exceed [metrics]"
            " max_provider_series.",
        )
        too_many = series > self._max_provider_series
        left_out.add_metric([], series if too_many else 0)
        yield left_out
        # either all series are shown or no series, because sums over some of the providers would be wrong,
        # and nothing would show this
        if too_many:
            return
        # labels and metric names are those of openstack-exporter, so that existing dashboards work
        labels = ["hostname", "resourcetype"]
        total = GaugeMetricFamily(
            "openstack_placement_resource_total",
            "Total amount of a resource class at a provider.",
            labels=labels,
        )
        reserved = GaugeMetricFamily(
            "openstack_placement_resource_reserved",
            "Reserved amount, which cannot be allocated.",
            labels=labels,
        )
        ratio = GaugeMetricFamily(
            "openstack_placement_resource_allocation_ratio",
            "Factor by which the unreserved amount is multiplied to get the capacity.",
            labels=labels,
        )
        usage = GaugeMetricFamily(
            "openstack_placement_resource_usage",
            "Allocated amount of a resource class at a provider.",
            labels=labels,
        )
        for provider in providers:
            for name, inventory in provider.inventories.items():
                values = [provider.name, name]
                total.add_metric(values, inventory.total)
                reserved.add_metric(values, inventory.reserved)
                ratio.add_metric(values, inventory.allocation_ratio)
                usage.add_metric(values, provider.used.get(name, 0))
        yield from (total, reserved, ratio, usage)
