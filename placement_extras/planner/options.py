"""Options of the planner, in the group of the API; apart, as programs without a planner register them."""

from oslo_config import cfg

from placement.conf.api import GROUP

OPTIONS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "capacity_deadline",
        default=2.0,
        min=0.01,
        help="""
How long, in seconds of work, it may take to count how many guests of some
flavors fit (POST /ext/v1/capacity). If that is not enough, the answer is 400
with the code placement.ext.search_too_long, and names the flavor that it came
to. For a flavor with a topology the answer is a range, and a warning names the
number of hosts that were counted.

It waits for other requests, and is limited, as [api] candidates_deadline says
of searches for allocation candidates.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
