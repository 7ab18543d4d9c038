"""``[metrics]``: what ``/metrics`` tells Prometheus."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup("metrics", title="Metrics", help="What /metrics tells Prometheus.")

OPTIONS: list[cfg.Opt] = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="""
Whether GET /metrics is answered, in the format of Prometheus. No token is asked
for, as Prometheus has none: have a proxy in front keep the path from others.
""",
    ),
    cfg.StrOpt(
        "directory",
        help="""
Folder in which the worker processes of this service on this machine put their
numbers together, so that whichever is asked tells of all. It has to be empty
when the service starts, and of this service alone. placement-api makes one by
itself; under another web server with several processes it has to be given.
""",
    ),
    cfg.IntOpt(
        "max_provider_series",
        default=20_000,
        min=0,
        help="""
How many series there may be of resource providers, four for each inventory
(openstack_placement_resource_total, _reserved, _allocation_ratio and _usage).
If it would be more, none of them is shown, and
placement_provider_series_left_out says how many that are. A worker needs some
ten microseconds for each, at each scrape, in which it does nothing else.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[metrics]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
