"""The options in ``[metrics]``: the series that ``/metrics`` shows to Prometheus."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup("metrics", title="Metrics", help="The metrics for Prometheus.")

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="""
Whether the service answers GET /metrics in the format of Prometheus. The
path needs no token, because Prometheus sends none. Configure the proxy in
front of the service so that only Prometheus can request this path.

""",
    ),
    cfg.StrOpt(
        "directory",
        help="""
Folder in which the worker processes of this service on this machine share
their numbers, so that each worker can answer with the metrics of all
workers. The folder has to be empty when the service starts. No other service
may use the folder. placement-api creates such a folder itself, so only other
web servers with several processes need this option.

""",
    ),
    cfg.IntOpt(
        "max_provider_series",
        # a series takes about 7 microseconds, so a scrape takes at most about 0.15 s
        default=20_000,
        min=0,
        help="""
Maximum number of series of resource providers, four for each inventory
(openstack_placement_resource_total, _reserved, _allocation_ratio and
_usage). If the service has more of these series, /metrics shows none of
them. The metric placement_provider_series_left_out then has the number of
missing series. At each scrape a worker needs about 7 microseconds for each
series, and serves no other request during this time.

""",
    ),
]
