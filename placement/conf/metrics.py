"""The options in ``[metrics]``, about the metrics that ``/metrics`` shows to Prometheus."""

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
their counters, so that each worker can answer with the metrics of all
workers. The folder has to be empty when the service starts, and no other
service is allowed to use it. placement-api creates such a folder itself. So
set this option only under another web server with several processes.

""",
    ),
    cfg.IntOpt(
        "max_provider_series",
        # a series takes about 7 microseconds, so a scrape takes at most about 0.15 s
        default=20_000,
        min=0,
        help="""
Maximum number of series about resource providers. Each inventory has four
such series: openstack_placement_resource_total, _reserved, _allocation_ratio
and _usage. If there are more series, /metrics shows none of them, and the
metric placement_provider_series_left_out has the number of missing series. At
each scrape a worker needs about 7 microseconds for each series, and serves no
other request during this time.

""",
    ),
]
