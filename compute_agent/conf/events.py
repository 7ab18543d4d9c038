"""How much is kept of what the agent decided."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "events"

OPTS: Final = [
    cfg.IntOpt(
        "max_events",
        default=20000,
        min=2,
        max=200000,
        help="Events that are kept for `compute-agent event list`, in events.jsonl in [DEFAULT] state_path;"
        " where there are more the older half goes.",
    ),
    cfg.IntOpt(
        "max_mb",
        default=16,
        min=1,
        max=32,
        help="Size in MB that they may take; likewise.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [events] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS)]
