"""The section ``[api]``: authentication of requests, and their maximum cost."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup("api", title="API", help="The REST API.")

OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[
            ("keystone", "Tokens are validated by the Identity service; see [keystone_authtoken]."),
            ("noauth2", "Tokens are not checked. For development and tests only."),
        ],
        deprecated_group="DEFAULT",
        help="""
How requests are authenticated. With noauth2 nothing is checked. The token
'admin' is an administrator; any other token is read as 'user:project' or as
'user'. Headers of the request may name its roles and its project.
""",
    ),
    cfg.FloatOpt(
        "candidates_deadline",
        default=5.0,
        min=0.01,
        help="""
Maximum CPU time, in seconds, of a search for allocation candidates. A search
that takes longer is answered with the candidates found so far. The header
Placement-Ext-Incomplete: deadline then says that there may be more. If it has
found none, the answer is 400 with the code placement.ext.search_too_long. It
names the group of the request that found no place.

At most half of a worker's threads (placement-api --threads) may run searches
longer than some hundredths of a second at the same time. Under another web
server at most two may. One more such search is answered 503, and the client
tries again, so that the other threads stay free for short requests. A worker with one thread has none
to spare. There this option is the longest time that one client may keep all
others waiting.
""",
    ),
    cfg.FloatOpt(
        "explanations_deadline",
        default=1.0,
        min=0.01,
        help="""
Maximum CPU time, in seconds, of an explanation (POST /ext/v1/explanations). An explanation that takes longer
has the results so far, and its field incomplete names the missing parts. The conditions on single providers
come first, then reasons, then changes that would help. If not even the first are known in time, the answer is
400 with the code placement.ext.search_too_long.

An explanation occupies one of a worker's places for long searches; their
number is in [api] candidates_deadline.
""",
    ),
    cfg.BoolOpt(
        "explain_empty",
        default=True,
        help="""
Whether the log explains each empty answer to GET /allocation_candidates. One
line at INFO has the ids of the request, the number of hosts that fail each
condition first, and the change that would help. The worker computes explanations after the answers, one after
the other, and uses at most a twentieth of a processor for them. The same question is explained again only
after something has changed. Empty answers in between are counted in the next line.
""",
    ),
    cfg.IntOpt(
        "waiting_requests",
        min=0,
        help="""
Number of requests for changes (GET /ext/v1/changes) that may wait at the same
time in a worker until something changes. Each of them keeps a thread, for at
most a minute; one more is answered at once, with Retry-After. The default is a
quarter of the threads of a worker (placement-api --threads), rounded down. It
is 0 under another web server, as its number of threads is unknown here.
""",
    ),
    cfg.IntOpt(
        "candidates_size",
        default=128,
        min=1,
        help="""
Approximate maximum size, in MiB, of a list of allocation candidates. A longer
list ends there, and has the header Placement-Ext-Incomplete: size. A worker
needs up to six times as much memory while it makes the list, for each such
request at the same time (see candidates_deadline). Requests with a limit, as
Nova sends them, are far below.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of ``[api]``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options by group."""
    return [(GROUP, OPTIONS)]
