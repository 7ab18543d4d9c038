"""Section ``[monitoring]``: intervals of measurements of caches and memory bandwidth, and their retention."""

from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf.duration import DurationType

GROUP = "monitoring"

OPTS: Final = [
    cfg.Opt(
        "interval",
        type=DurationType(),
        default="1",
        help="Time between two readings of the counters of cache occupancy and memory bandwidth, in"
        " seconds or"
        " as 5s, 1m. It applies while watermarks, interference or a scrape of the metrics need them;"
        " otherwise"
        " store_interval does. 0 reads none, and watermarks of llc_occupancy and memory_bandwidth wait.",
    ),
    cfg.Opt(
        "store_interval",
        type=DurationType(),
        default="10",
        help="Time between two samples kept for `compute-agent metrics show`, in samples.db in [DEFAULT]"
        " state_path. 0 keeps none.",
    ),
    cfg.Opt(
        "retention",
        type=DurationType(),
        default="7d",
        help="Age at which samples are removed: seconds, or a number with m, h, d or w.",
    ),
    cfg.IntOpt(
        "store_max_mb",
        default=512,
        min=1,
        help="Maximum size of samples in MB. Above it the oldest are removed.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [monitoring] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
