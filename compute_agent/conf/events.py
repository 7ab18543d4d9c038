"""Section ``[events]``: the maximum number and size of stored events."""

from typing import Final

from oslo_config import cfg

OPTS: Final = [
    cfg.IntOpt(
        "max_events",
        default=20000,
        min=2,
        max=200000,
        help="Maximum number of events that the agent stores for `compute-agent event list`. The events are"
        " in events.jsonl in [DEFAULT] state_path. Above this number the agent removes the older half of the"
        " events.",
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

SECTIONS: Final = {"events": OPTS}
