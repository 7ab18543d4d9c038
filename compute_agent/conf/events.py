"""Section ``[events]``: the maximum number and size of stored events."""

from typing import Any, Final

from oslo_config import cfg

GROUP = "events"

OPTS: Final = [
    cfg.IntOpt(
        "max_events",
        default=20000,
        min=2,
        max=200000,
        help="Maximum number of events kept for `compute-agent event list`, in events.jsonl in [DEFAULT]"
        " state_path. Above this number the agent removes the older half of the events.",
    ),
    cfg.IntOpt(
        "max_mb",
        default=16,
        min=1,
        max=32,
        help="Maximum size of the stored events, in MB. Above this size the agent removes the older half"
        " of the events.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of section ``[events]`` with ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file and for the detection of unknown options."""
    return [(GROUP, OPTS)]
