"""Section ``[metrics]``: the number of guests that have metrics of their own."""

from typing import Final

from oslo_config import cfg

from compute_agent.conf.option_types import GuestCountType

OPTS: Final = [
    cfg.Opt(
        "guests",
        type=GuestCountType(),
        default="100",
        help="Maximum number of guests with metrics of their own (compute_agent_guest_...), or all. Each of"
        " these guests has about 15 time series. If the host has more guests, only the guests that used the"
        " most CPU time in the last minute have series. With 0, no guest has series, and the agent reads no"
        " files for these metrics.",
    ),
]

SECTIONS: Final = {"metrics": OPTS}
