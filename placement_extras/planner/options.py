"""The options of the planner, in the configuration section of the extended API.

This module is separate from the handler, because programs without a planner also register these options.
"""

from typing import Final

from oslo_config import cfg

from placement.conf import api

GROUP: Final = api.GROUP

OPTIONS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "capacity_deadline",
        default=2.0,
        min=0.01,
        help="""
Maximum CPU time, in seconds, of a request that computes how many guests
of each flavor still fit (POST /ext/v1/capacity). If the request takes longer,
the status is 400 with the code placement.ext.search_too_long. The text of the
error has the flavor, or the step, at which the limit was reached. If the
flavor has a topology, the request succeeds in spite of the limit. The answer
then has a lower and an upper bound, and a warning with the number of hosts on
which guests were placed.

Each request for a capacity counts as a long search. The option [api]
candidates_deadline describes how many long searches a worker runs at the same
time.

""",
    ),
]
