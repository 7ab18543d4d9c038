"""How often cache and memory bandwidth are measured, and how long that is kept."""

from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf.duration import DurationType

GROUP = "monitoring"

OPTS: Final = [
    cfg.Opt(
        "interval",
        type=DurationType(),
        default="1",
        help="Time between two readings of the counters for cache occupancy and memory bandwidth, in seconds"
        " or as 5s, 1m, as long as somebody asks for them: watermarks, interference, a scrape of the metrics."
        " Else they are read for the samples that are kept. 0: they are not read, and watermarks for"
        " llc_occupancy and memory_bandwidth wait.",
    ),
    cfg.Opt(
        "store_interval",
        type=DurationType(),
        default="10",
        help="Time between two samples that are kept for `compute-agent metrics show`, in samples.db in"
        " [DEFAULT] state_path. 0: none are kept.",
    ),
    cfg.Opt(
        "retention",
        type=DurationType(),
        default="7d",
        help="How long samples are kept: seconds, or a number with m, h, d or w.",
    ),
    cfg.IntOpt(
        "store_max_mb",
        default=512,
        min=1,
        help="Size in MB that samples may take; the oldest go when there are more.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [monitoring] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
