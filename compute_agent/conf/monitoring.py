"""Section ``[monitoring]``: measurements of caches and memory bandwidth, and the retention of samples."""

from typing import Final

from oslo_config import cfg

from compute_agent.conf.option_types import DurationType

OPTS: Final = [
    cfg.Opt(
        "interval",
        type=DurationType(),
        default="1",
        help="Time between two readings of the counters of cache occupancy and memory bandwidth: a number of"
        " seconds, or a number with a unit, such as 5s or 1m. The agent reads the counters at this interval"
        " only while watermarks, interference or scrapes of the metrics need them. Otherwise the agent reads"
        " the counters only at store_interval. With 0 the agent never reads the counters, and watermarks of"
        " llc_occupancy and memory_bandwidth have no effect.",
    ),
    cfg.Opt(
        "store_interval",
        type=DurationType(),
        default="10",
        help="Time between two samples that the agent stores for `compute-agent metrics show`. Samples are"
        " in samples.db in [DEFAULT] state_path. With 0 the agent stores no samples.",
    ),
    cfg.Opt(
        "retention",
        type=DurationType(),
        default="7d",
        help="Age at which the agent removes samples: seconds, or a number with m, h, d or w.",
    ),
    cfg.IntOpt(
        "store_max_mb",
        default=512,
        min=1,
        help="Maximum size of all stored samples, in MB. Above this size the agent removes the oldest"
        " samples.",
    ),
]

SECTIONS: Final = {"monitoring": OPTS}
