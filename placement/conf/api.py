"""``[api]``: how requests are authenticated, and what one of them may cost."""

from typing import Final

from oslo_config import cfg

GROUP: Final = cfg.OptGroup("api", title="API", help="How the REST API is offered.")

OPTIONS: list[cfg.Opt] = [
    cfg.StrOpt(
        "auth_strategy",
        default="keystone",
        choices=[
            ("keystone", "Tokens are validated by the Identity service; see [keystone_authtoken]."),
            ("noauth2", "Tokens are believed. For development and tests only."),
        ],
        deprecated_group="DEFAULT",
        help="""
How requests are authenticated. With noauth2 nothing is checked: the token
'admin' is an administrator, any other token is read as 'user:project' or as
'user', and the request may name its roles and its project in headers.
""",
    ),
    cfg.FloatOpt(
        "candidates_deadline",
        default=5.0,
        min=0.01,
        help="""
How long, in seconds of work, a search for allocation candidates may take; what
it waits for other requests is not counted. A search that takes longer is
answered with the candidates it has found, and the header
Placement-Ext-Incomplete: deadline says that there may be more. If it has found
none, the answer is 400 with the code placement.ext.search_too_long, and names
the group of the request that found no place.

Half of the threads of a worker (placement-api --threads; two under another web
server) may have a search in hand that takes longer than some hundredths of a
second. One more is answered 503, to be tried again, so that the other threads
are there for short requests. A worker with one thread has none to spare: all
others wait until such a search ends, so that with --threads 1 this option says
how long one client may keep them waiting.
""",
    ),
    cfg.FloatOpt(
        "explanations_deadline",
        default=1.0,
        min=0.01,
        help="""
How long, in seconds of work, an explanation of why allocation candidates are
few or none may take (POST /ext/v1/explanations). One that takes longer has
what was found so far, and says in its field incomplete what it lacks; what it
finds first are the conditions on single providers, then reasons, then changes
that would help. If not even the first is found out in time, the answer is 400
with the code placement.ext.search_too_long.

It waits for other requests, and is limited, as [api] candidates_deadline says
of searches for allocation candidates.
""",
    ),
    cfg.BoolOpt(
        "explain_empty",
        default=True,
        help="""
Whether the log says why, whenever GET /allocation_candidates is answered with
an empty list: one line at INFO, with the ids of the request, says how many
hosts fail which condition first, and what would help. It is found out after
the answer, one at a time, from the memory of the worker, and takes no more
than a twentieth of a processor; the same question is not looked at again
before something changed. Empty answers in between are counted in the next
line.
""",
    ),
    cfg.IntOpt(
        "waiting_requests",
        min=0,
        help="""
How many requests for changes (GET /ext/v1/changes) may wait at the same time in
a worker until something changes. Each of them has a thread, for a minute at
most; one more is answered at once, with Retry-After. Without this option it is
a quarter of the threads of a worker (placement-api --threads), rounded down;
none under another web server, whose threads nobody knows here.
""",
    ),
    cfg.IntOpt(
        "candidates_size",
        default=128,
        min=1,
        help="""
How large, in MiB, a list of allocation candidates may become, roughly. A
longer one ends there, and has the header Placement-Ext-Incomplete: size. The
worker needs up to six times as much memory while it makes it, for each such
request that it has in hand (see candidates_deadline). Requests with a limit, as
Nova sends them, are far below.
""",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options of ``[api]`` known to ``conf``."""
    conf.register_opts(OPTIONS, group=GROUP.name)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """The options by group."""
    return [(GROUP, OPTIONS)]
